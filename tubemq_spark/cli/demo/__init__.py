"""``tubemq-spark demo``: text through TubeMQ and Spark and back, with every line accounted for."""
