"""The master: it knows producers and groups, and who has which partition."""
