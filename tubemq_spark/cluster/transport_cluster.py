"""The cluster that source and sink know, over a transport: calls that wait for the process's loop.

Each of Spark's Python processes begins with importing this, and most of them only read. So what producers
need, more than all the rest, is imported where it is used.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from tubemq_spark.client.reader.topic_reader import read_in_thread
from tubemq_spark.client.transport.base import Transport
from tubemq_spark.cluster.base import Cluster, Sender
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import (
    OffsetBounds,
    RangeRequest,
    StoreBounds,
    StoredOffsets,
    StoreId,
    TopicPartition,
    TopicsLayout,
)
from tubemq_spark.net import loop
from tubemq_spark.net.retry import SLEEP, Wait
from tubemq_spark.offsets.loss import LossPolicy
from tubemq_spark.protocol.fetch_columns import FetchedBatch

if TYPE_CHECKING:
    from tubemq_spark.cluster.kept_producers import KeptProducers

_READ_AHEAD: Final = 2
"""How many batches of a task's range are fetched before Spark asks for them."""


class TransportCluster(Cluster):
    """A cluster over a transport of the process's loop, which it shares with others and does not close.

    Its senders are new producers, or those that ``producers`` returns, which may have served others before.
    A cluster ``for_task`` reads a few batches of a range ahead, over connections that others do not wait
    behind.
    """

    def __init__(
        self,
        transport: Transport,
        producers: "Callable[[], KeptProducers] | None" = None,
        *,
        for_task: bool = False,
    ) -> None:
        self._transport = transport
        self._producers = producers
        self._for_task = for_task

    def layout(self, topics: Iterable[str], *, missing_ok: bool = False) -> TopicsLayout:
        """See ``Cluster``."""
        return loop.run(self._transport.layout(topics, missing_ok=missing_ok))

    def topics(self) -> Collection[str]:
        """See ``Cluster``."""
        return loop.run(self._transport.topics())

    def bounds(
        self,
        layout: TopicsLayout,
        stores: Collection[StoreId] | None = None,
        *,
        flushed: bool = False,
        timeout_ms: int | None = None,
    ) -> StoreBounds:
        """See ``Cluster``."""
        return loop.run(self._transport.bounds(layout, stores, flushed=flushed, timeout_ms=timeout_ms))

    def first_readable(
        self, layout: TopicsLayout, begins: Mapping[TopicPartition, OffsetBounds], wait: Wait = SLEEP
    ) -> dict[TopicPartition, int]:
        """See ``Cluster``."""
        return loop.run(self._transport.first_readable(layout, begins), wait)

    def group_positions(self, layout: TopicsLayout) -> Mapping[TopicPartition, int]:
        """See ``Cluster``."""
        return loop.run(self._transport.group_positions(layout))

    def stored_offsets(self, group: str | None = None, topics: Collection[str] = ()) -> StoredOffsets:
        """See ``Cluster``."""
        return loop.run(self._transport.stored_offsets(group, topics))

    def move_group(
        self, layout: TopicsLayout, positions: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, TubeMQError]:
        """See ``Cluster``."""
        return loop.run(self._transport.move_group(layout, positions))

    def read_range(
        self, request: RangeRequest, on_loss: LossPolicy, wait: Wait = SLEEP
    ) -> Generator[FetchedBatch, None, None]:
        """See ``Cluster``."""
        return read_in_thread(
            self._transport.read_range(request, private=self._for_task),
            request.range,
            on_loss,
            wait,
            ahead=_READ_AHEAD if self._for_task else 0,
            tells_idle=self._for_task,
        )

    def refuse_unknown_topic(self, topic: str) -> None:
        """See ``Cluster``."""
        loop.run(self._transport.publishable(topic))

    def await_publishable(self, topic: str) -> None:
        """See ``Cluster``."""
        loop.run(self._transport.await_publishable(topic))

    def sender(self, name: str = "") -> AbstractContextManager[Sender]:
        """Return a producer, which no other caller uses until the end of the block."""
        if self._producers is not None:
            return self._producers().sender(self._transport.config, name)
        from tubemq_spark.cluster.kept_producers import batch_sender

        return batch_sender(self._transport, name)
