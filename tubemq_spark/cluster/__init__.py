"""One interface to TubeMQ for everything above: what is there, read a range, produce."""
