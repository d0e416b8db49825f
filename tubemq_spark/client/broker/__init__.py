"""A broker as a reader sees it: leases, and a cursor that moves through a leased partition."""
