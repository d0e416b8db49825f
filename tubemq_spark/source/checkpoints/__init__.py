"""Checkpoints of streaming queries as files: how far a query has come, and new ones that go on elsewhere."""
