"""Spark itself: its edge, its versions, its workers, the columns of its frames."""
