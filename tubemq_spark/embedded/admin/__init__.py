"""TubeMQ's HTTP administration API, of the master and of brokers."""
