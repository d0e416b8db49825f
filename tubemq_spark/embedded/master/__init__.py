"""The master: it knows brokers, producers and consumer groups, and assigns partitions."""
