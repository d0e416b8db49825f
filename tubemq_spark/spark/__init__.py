"""Spark itself: how errors reach its users, which versions work, its processes, the columns of frames."""
