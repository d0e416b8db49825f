"""Arithmetic on offsets: what users ask, what a checkpoint holds, what a trigger takes. No I/O, no clock."""
