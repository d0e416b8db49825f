"""A consumer of partitions that its user names, for coroutines."""

import functools

from tubemq_spark.client.aio.consumer import AsyncConsumer
from tubemq_spark.client.consumer.assigned.consumer import AssignedConsumer
from tubemq_spark.client.consumer.states import ConsumedPosition
from tubemq_spark.client.consumer.values import PartitionStatus
from tubemq_spark.client.subscription import Node
from tubemq_spark.model import TopicPartition


class AsyncAssignedConsumer(AsyncConsumer[AssignedConsumer]):
    """Reads the partitions that its user connects it to; coroutines of one event loop may share it.

    It differs from ``AssignedConsumer`` only in what is awaited. As a context manager it opens and closes
    itself. ``connect`` and ``disconnect`` are carried out also when they are cancelled.
    """

    @property
    def node(self) -> Node | None:
        """Which of how many consumers of the group this one is, if that was given."""
        return self._inner.node

    @property
    def registered_at(self) -> float | None:
        """When a master last accepted this consumer, in seconds since 1970; None: not yet."""
        return self._inner.registered_at

    async def partitions(self) -> dict[TopicPartition, bool]:
        """Return all partitions of the topics, each with whether it can be read now.

        Raises:
            TubeMQError: as ``AssignedConsumer.partitions``.
        """
        self._enter()
        return await self._workers.run(self._inner.partitions)

    async def share(self) -> tuple[TopicPartition, ...]:
        """Return the partitions that belong to this consumer's node and can be read now; without a node, all.

        Raises:
            TubeMQError: as ``partitions``.
        """
        self._enter()
        return await self._workers.run(self._inner.share)

    async def connect(self, partition: TopicPartition, offset: int | None = None) -> ConsumedPosition:
        """Take a partition, at an offset or where the group stands; as ``AssignedConsumer.connect``.

        Raises:
            TubeMQError: as ``AssignedConsumer.connect``.
        """
        self._enter()
        return await self._workers.run(functools.partial(self._inner.connect, partition, offset))

    async def disconnect(self, partition: TopicPartition) -> bool:
        """Give a partition up, when its batch was confirmed or ``rebalance_wait_ms`` have passed.

        Returns:
            Whether it was connected.

        Raises:
            ConsumeError: the consumer is not open.
        """
        self._enter()
        return await self._workers.run(functools.partial(self._inner.disconnect, partition))

    def status(self) -> dict[TopicPartition, PartitionStatus]:
        """Return what is known about each partition; asks nobody."""
        return self._inner.status()
