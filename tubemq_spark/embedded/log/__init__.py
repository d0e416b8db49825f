"""A store on disk: a log of messages, and its index."""
