"""A TubeMQ of its own: master and broker in one process, on disk, speaking TubeMQ's wire protocol."""
