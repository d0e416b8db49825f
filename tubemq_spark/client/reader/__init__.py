"""Exactly the records between two offsets."""
