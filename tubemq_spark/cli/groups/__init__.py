"""``tubemq-spark groups``: a module for each action, and what they ask of a cluster."""
