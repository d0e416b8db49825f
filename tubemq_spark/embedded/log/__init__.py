"""A store on disk: one log of messages and its index."""
