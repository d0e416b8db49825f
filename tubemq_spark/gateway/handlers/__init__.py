"""One module for each kind of call."""
