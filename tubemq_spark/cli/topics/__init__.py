"""``tubemq-spark topics``: a module for each action."""
