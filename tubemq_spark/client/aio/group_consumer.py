"""A member of a group, for coroutines."""

from tubemq_spark.client.aio.consumer import AsyncConsumer
from tubemq_spark.client.consumer.group.consumer import GroupConsumer


class AsyncGroupConsumer(AsyncConsumer[GroupConsumer]):
    """Reads the partitions that the master gives it; coroutines of one event loop may share it.

    It differs from ``GroupConsumer`` only in what is awaited. As a context manager it opens and closes
    itself.
    """
