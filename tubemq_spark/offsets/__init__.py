"""Arithmetic on offsets: options, checkpoints, what a trigger admits, what is lost. No I/O, no clock."""
