"""Watching streaming queries: how far they are behind, in the log and for Prometheus."""

from tubemq_spark.observe.lag import TopicLag
from tubemq_spark.observe.listener import LagListener
from tubemq_spark.observe.progress import with_bytes

__all__ = ["LagListener", "TopicLag", "with_bytes"]
