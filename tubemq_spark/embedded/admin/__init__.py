"""TubeMQ's administration API by HTTP, of the master and of the broker."""
