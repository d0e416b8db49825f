"""Questions about topics, groups and the gateway itself, and the calls of operators."""
