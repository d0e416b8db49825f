"""Consumers whose partitions the master assigns."""
