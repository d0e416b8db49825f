"""What the source and the sink need of TubeMQ, in the connector's words and not in RPCs.

The interface is stateless between calls, so that it can be served by a process in between as well as
by a direct connection, with the same results and the same errors.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Protocol

from tubemq_spark.client.producer import Producer
from tubemq_spark.model import OffsetBounds, RangeRequest, StoreBounds, StoreId, TopicPartition, TopicsLayout
from tubemq_spark.net.retry import Wait
from tubemq_spark.offsets.loss import LossPolicy
from tubemq_spark.protocol.columns import FetchedBatch


class Cluster(Protocol):
    """A TubeMQ cluster."""

    def layout(self, topics: Iterable[str], *, missing_ok: bool = False) -> TopicsLayout:
        """Ask the master where the topics' partitions are; it checks the group's rights on the way.

        Args:
            topics: the topics' names.
            missing_ok: answer for the topics that exist when others do not, instead of raising 431.

        Raises:
            RpcError: a topic does not exist (431), or the group may not read it (450, 455).
            TubeMQConnectionError: no master answered.
        """

    def bounds(
        self,
        layout: TopicsLayout,
        stores: Collection[StoreId] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> StoreBounds:
        """Ask the brokers for the earliest and the latest offset of stores of a layout; by default of all.

        A broker that is away is part of the answer and not an error.
        """

    def first_readable(
        self, layout: TopicsLayout, begins: Mapping[TopicPartition, OffsetBounds]
    ) -> dict[TopicPartition, int]:
        """Ask the brokers where the first record is that can still be read, in index bytes.

        Args:
            layout: where the partitions are.
            begins: partitions that share their store with no other, with what its index holds.

        Raises:
            TubeMQError: a broker does not answer, or refuses.
        """

    def read_range(
        self, work: RangeRequest, on_loss: LossPolicy, wait: Wait = time.sleep
    ) -> Iterator[FetchedBatch]:
        """Yield exactly the records of a range, in offset order; what ``wait`` raises ends the reading."""

    def refuse_unknown_topic(self, topic: str) -> None:
        """Return when a topic exists, or when nobody can tell.

        Raises:
            ProduceError: the topic does not exist.
            TubeMQConnectionError: no master answered.
        """

    def producer(self, name: str = "") -> Producer:
        """Return a new producer, which calls itself so in errors and in the log; the caller closes it."""
