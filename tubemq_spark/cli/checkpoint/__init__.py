"""``tubemq-spark checkpoint``: where a streaming query stands, and a new checkpoint that stands elsewhere."""
