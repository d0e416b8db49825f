"""The cluster reached directly: this process talks to the master and the brokers."""

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.metadata.bounds import store_bounds
from tubemq_spark.client.metadata.first_readable import first_readable
from tubemq_spark.client.metadata.group_positions import group_positions, move_group
from tubemq_spark.client.metadata.layout import topics_layout
from tubemq_spark.client.reader.blocking import read_in_thread
from tubemq_spark.cluster.base import Cluster, Sender
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import (
    Endpoint,
    OffsetBounds,
    RangeRequest,
    Route,
    StoreBounds,
    StoredOffsets,
    StoreId,
    TopicPartition,
    TopicsLayout,
)
from tubemq_spark.net import loop
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.retry import SLEEP, Wait
from tubemq_spark.net.side_by_side import each_of
from tubemq_spark.offsets.loss import LossPolicy
from tubemq_spark.protocol.fetch_columns import FetchedBatch

if TYPE_CHECKING:
    from tubemq_spark.cluster.kept_producers import KeptProducers

_FEW_LOGS: Final = 16
"""To read the first records of so many costs a driver as much as to ask which are whole: 2 ms each, and the
import of what speaks HTTP takes 35 ms."""


_MOST_READERS: Final = 16
"""How many first records are read at the same time."""
_READ_AHEAD: Final = 2
"""How many batches of a task's range are fetched before Spark asks for them."""


class DirectCluster(Cluster):
    """A cluster over connections in the process's loop, which it shares with others and does not close.

    Its senders are new producers, or those that ``producers`` returns, which may have served others before.
    ``web`` returns where the masters serve their administration API. With ``suggests``, the error of a topic
    that does not exist names one that was perhaps meant. A cluster ``for_task`` reads a few batches of a
    range ahead, over connections that others do not wait behind.

    Each of Spark's Python processes begins with importing this, and most of them only read. So what producers
    and the administration API need, more than all the rest, is imported where it is used.
    """

    def __init__(
        self,
        config: ClientConfig,
        connections: Connections,
        producers: "Callable[[], KeptProducers] | None" = None,
        web: Callable[[], Sequence[Endpoint]] = tuple,
        *,
        for_task: bool = False,
        suggests: bool = True,
    ) -> None:
        self._config = config
        self._web = web
        self._connections = connections
        self._producers = producers
        self._for_task = for_task
        self._suggests = suggests

    def layout(self, topics: Iterable[str], *, missing_ok: bool = False) -> TopicsLayout:
        """Ask in a short session under the user's group."""
        web = self._web if self._suggests else None
        return loop.run(
            topics_layout(self._config, self._connections, topics, missing_ok=missing_ok, web=web)
        )

    def topics(self) -> Collection[str]:
        """Ask the masters' administration API over HTTP: the protocol of the clients lists no topics."""
        from tubemq_spark.client.metadata.topics import existing_topics

        return existing_topics(self._web(), self._config.rpc_timeout_ms / 1000)

    def bounds(
        self,
        layout: TopicsLayout,
        stores: Collection[StoreId] | None = None,
        *,
        flushed: bool = False,
        timeout_ms: int | None = None,
        wait: Wait = SLEEP,
    ) -> StoreBounds:
        """Ask the brokers of all these stores at once; what ``wait`` raises ends the question."""
        endpoints = layout.stores if stores is None else {store: layout.stores[store] for store in stores}
        token = layout.visit_token
        question = store_bounds(
            self._config, self._connections, endpoints, token, flushed=flushed, timeout_ms=timeout_ms
        )
        return loop.run(question, wait)

    def first_readable(
        self, layout: TopicsLayout, begins: Mapping[TopicPartition, OffsetBounds], wait: Wait = SLEEP
    ) -> dict[TopicPartition, int]:
        """Read the first records of several partitions at once; of many, only where data may be gone."""
        whole: Collection[TopicPartition] = ()
        if len(begins) > _FEW_LOGS:
            from tubemq_spark.client.metadata.whole_logs import whole_logs

            whole = whole_logs(self._web(), begins)

        async def ask(partition: TopicPartition) -> int:
            route = Route(layout.partitions[partition], layout.visit_token)
            return await first_readable(self._config, self._connections, partition, route, begins[partition])

        read = loop.run(each_of(ask, begins.keys() - whole, _MOST_READERS), wait)
        return {partition: read.get(partition, span.earliest) for partition, span in begins.items()}

    def group_positions(self, layout: TopicsLayout, wait: Wait = SLEEP) -> Mapping[TopicPartition, int]:
        """Register the group in each partition for a moment; what ``wait`` raises ends the question."""
        return loop.run(group_positions(self._config, self._connections, layout), wait)

    def stored_offsets(self, group: str | None = None, topics: Collection[str] = ()) -> StoredOffsets:
        """Ask the brokers' administration API over HTTP, where the masters say that it is."""
        from tubemq_spark.client.metadata.stored_offsets import stored_offsets

        return stored_offsets(self._web(), self._config.rpc_timeout_ms / 1000, group, topics)

    def move_group(
        self, layout: TopicsLayout, positions: Mapping[TopicPartition, int], wait: Wait = SLEEP
    ) -> Mapping[TopicPartition, TubeMQError]:
        """Register the group in each partition at its offset, for a moment; as ``group_positions``."""
        return loop.run(move_group(self._config, self._connections, layout, positions), wait)

    def read_range(
        self, request: RangeRequest, on_loss: LossPolicy, wait: Wait = SLEEP
    ) -> Generator[FetchedBatch, None, None]:
        """Read under a reader group's lease, straight from the partition's broker."""
        return read_in_thread(
            self._config,
            self._connections,
            request,
            on_loss,
            wait,
            ahead=_READ_AHEAD if self._for_task else 0,
            private=self._for_task,
            tells_idle=self._for_task,
        )

    def refuse_unknown_topic(self, topic: str) -> None:
        """Ask the master as a producer, and only if it lists no partition as a reader too."""
        from tubemq_spark.client.metadata.topics import refuse_unknown_topic

        loop.run(refuse_unknown_topic(self._config, self._connections, topic))

    def publishable(self, topic: str) -> tuple[TopicPartition, ...]:
        """Ask as ``refuse_unknown_topic`` does; return the partitions that can be published to now."""
        from tubemq_spark.client.metadata.topics import publishable

        return loop.run(publishable(self._config, self._connections, topic))

    def await_publishable(self, topic: str) -> None:
        """Ask the master as a producer, again and again for ``delivery_timeout_ms``."""
        from tubemq_spark.client.metadata.topics import await_publishable

        loop.run(await_publishable(self._config, self._connections, topic))

    def sender(self, name: str = "") -> AbstractContextManager[Sender]:
        """Return a producer, which no other caller uses until the end of the block."""
        if self._producers is None:
            from tubemq_spark.client.producer.batch_sender import BatchSender
            from tubemq_spark.cluster.kept_producers import broker_pipeline

            return BatchSender(broker_pipeline(self._config, self._connections, name))
        return self._producers().sender(self._config, name)
