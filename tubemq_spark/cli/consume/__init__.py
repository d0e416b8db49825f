"""``tubemq-spark consume``: which messages, what is made of their values, and how they are printed."""
