"""Consumers whose user chooses the partitions."""
