"""A consumer that reads the partitions its user names, from the offsets its user names."""

from tubemq_spark.client.consumer.assigned.core import AssignedCoreBase
from tubemq_spark.client.consumer.consumer import Consumer, ConsumerBase
from tubemq_spark.client.consumer.values import ConsumedPosition, PartitionStatus
from tubemq_spark.client.consumer_config import Node
from tubemq_spark.client.names.guesses import answers_guesses
from tubemq_spark.model import TopicPartition
from tubemq_spark.net import loop


@answers_guesses
class AssignedConsumerBase(ConsumerBase):
    """What assigned consumers of both forms show at once, from anywhere."""

    _kind = "assigned consumer"

    _core: AssignedCoreBase

    @property
    def node(self) -> Node | None:
        """Which of how many consumers of the group this one is, if that was given."""
        return self._core.node

    @property
    def registered_at(self) -> float | None:
        """When a master last accepted this consumer, in seconds since 1970; None: never."""
        return self._core.registered_at

    def status(self) -> dict[TopicPartition, PartitionStatus]:
        """Return what is known about each partition; asks no server."""
        return self._call(self._core.status)


@answers_guesses
class AssignedConsumer(AssignedConsumerBase, Consumer):
    """Reads the partitions that its user connects it to; threads may share it.

    The master gives no partition to this consumer and takes none away: it says which there are
    (``partitions``), and the user decides (``connect``, ``disconnect``), for example by number (``share``).
    Batches come from all connected partitions in turn (``fetch``), one at a time from each, and are confirmed
    (``confirm``).

    **At least once**: what was not confirmed comes again, to the consumer that connects next without an
    offset. Offsets kept elsewhere, with the results, make that exactly once: see ``Confirmed.offset``.

    **Errors** of one partition do not hold up the others. A partition whose broker is away for a moment comes
    back by itself. One that the master does not call readable any more, or that another consumer has taken,
    is given up, and ``status`` says why.

    As a context manager it opens and closes itself.

        with client.assigned_consumer("clicks", source_count=2, node_id=0) as consumer:
            print(consumer.partitions())
            for partition in consumer.share():
                consumer.connect(partition, offset=2800)
            batch = consumer.fetch(timeout_ms=1000)
            print(consumer.status()[batch.partition].trouble)
            consumer.disconnect(batch.partition)

    The other calls are as ``GroupConsumer`` shows them.
    """

    # Partitions.

    def partitions(self) -> dict[TopicPartition, bool]:
        """Return all partitions of the topics, each with whether it can be read now (``subscribable``).

        The master is asked at most every ``layout_period_ms``; in between, this is what it said last.

        Raises:
            TubeMQError: the master had to be asked, and did not answer or refused.
            ConsumeError: the consumer is not open.
        """
        self._core.check_process()
        return loop.run(self._core.partitions())

    def share(self) -> tuple[TopicPartition, ...]:
        """Return the partitions that belong to this consumer's node and can be read now; without a node, all.

        The nodes of a group split all partitions evenly, as TubeMQ's Java example does, so members of both
        kinds can share a group.

        Raises:
            TubeMQError: as ``partitions``.
        """
        self._core.check_process()
        return loop.run(self._core.share())

    def connect(self, partition: TopicPartition, offset: int | None = None) -> ConsumedPosition:
        """Take a partition; its messages come with ``fetch`` from now on.

        Args:
            partition: one of ``partitions``.
            offset: where to begin, in index bytes, and what the group's position becomes; None: where the
                group stands. Where a group begins that has no position is told by ``consume_position``.

        Returns:
            Where the partition stands now. A partition that is connected already stays as it is.

        Raises:
            ConsumeError: the partition does not exist (404), cannot be read now (422), was refused less than
                5 s ago (421), or is connected at another offset (400); or the consumer is not open (420).
            OffsetFormatError: the offset is negative or not a multiple of 28.
            DataLossError: the offset is not in the store, by ``on_loss``; the partition is not connected.
            RpcError: another consumer of the group holds it (410), or the broker refuses otherwise.
            TubeMQConnectionError: the broker cannot be reached.
        """
        self._core.check_process()
        return loop.run(self._core.connect(partition, offset))

    def disconnect(self, partition: TopicPartition) -> bool:
        """Give a partition up; return whether it was connected.

        A batch that is out is waited for, up to ``rebalance_wait_ms``; then it counts as ``rollback`` says.

        Raises:
            ConsumeError: the consumer is not open.
        """
        self._core.check_process()
        return loop.run(self._core.disconnect(partition))
