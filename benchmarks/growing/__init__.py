"""Cost against work: what is measured, what its slopes say, and the picture."""
