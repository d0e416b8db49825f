"""A cluster reached directly: this process talks to the masters and the brokers.

Each of Spark's Python processes begins with importing this, and most of them only read. So what producers,
consumers and the administration API need, more than all the rest, is imported where it is used.
"""

import copy
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeVar

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.metadata.positions import first_readable, group_positions, move_group, store_bounds
from tubemq_spark.client.metadata.topics import topics_layout
from tubemq_spark.client.reader.range_reader import read_range
from tubemq_spark.client.transport.base import Transport
from tubemq_spark.errors import TubeMQConnectionError, TubeMQError
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
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.loop import in_thread
from tubemq_spark.net.side_by_side import each_of
from tubemq_spark.offsets.loss import LossRecord
from tubemq_spark.protocol.fetch_columns import FetchedBatch

if TYPE_CHECKING:
    from tubemq_spark.client.consumer.assigned.core import AssignedCore
    from tubemq_spark.client.consumer.core import ConsumerSetup
    from tubemq_spark.client.consumer.group.core import GroupCore
    from tubemq_spark.client.producer.pipeline import Pipeline, RunUserCode

Result = TypeVar("Result")

_FEW_LOGS: Final = 16
"""To read the first records of so many costs a driver as much as to ask which are whole: 2 ms each, and the
import of what speaks HTTP takes 35 ms."""
_MOST_READERS: Final = 16
"""How many first records are read at the same time."""


class RunInThread(Protocol):
    """Carries out what blocks."""

    async def __call__(self, function: Callable[[], Result], /) -> Result:
        """Run a function in a thread, and return its result."""


async def _in_thread_of_its_own(function: Callable[[], Result], /) -> Result:
    """Ask the administration API, which blocks, in a thread, and return the answer."""
    try:
        return await in_thread(function, "tubemq-administration")
    except RuntimeError as error:
        raise TubeMQConnectionError("TUBEMQ_PROCESS_EXHAUSTED", cause=error) from error


class DirectTransport(Transport):
    """A cluster over connections of the loop, which it shares with others and does not close.

    ``web`` returns where the masters serve their administration API. With ``suggests``, the error of a topic
    that does not exist names one that was perhaps meant. What asks over HTTP blocks, and ``run_in_thread``
    carries it out.
    """

    def __init__(
        self,
        config: ClientConfig,
        connections: Connections,
        web: Callable[[], Sequence[Endpoint]] = tuple,
        *,
        suggests: bool = True,
        run_in_thread: RunInThread = _in_thread_of_its_own,
    ) -> None:
        self.config = config
        self._connections = connections
        self._web = web
        self._suggests = suggests
        self._run_in_thread = run_in_thread

    def with_config(self, config: ClientConfig, web: Sequence[Endpoint] = ()) -> Self:
        """See ``Transport``."""
        changed = copy.copy(self)
        changed.config = config
        if web:
            changed._web = lambda: web  # noqa: SLF001 (its own class)
        return changed

    def with_connections(self, connections: Connections) -> Self:
        """See ``Transport``."""
        changed = copy.copy(self)
        changed._connections = connections  # noqa: SLF001 (its own class)
        return changed

    def with_threads(self, run_in_thread: RunInThread) -> Self:
        """Return this transport for a caller with threads of its own for what blocks."""
        changed = copy.copy(self)
        changed._run_in_thread = run_in_thread  # noqa: SLF001 (its own class)
        return changed

    def close(self) -> None:
        """Do nothing: the connections belong to others."""

    async def layout(self, topics: Iterable[str], *, missing_ok: bool = False) -> TopicsLayout:
        """Ask in a short session under the group."""
        web = self._web if self._suggests else None
        return await topics_layout(self.config, self._connections, topics, missing_ok=missing_ok, web=web)

    async def topics(self) -> Collection[str]:
        """Ask the masters' administration API over HTTP: the protocol of the clients lists no topics."""
        from tubemq_spark.client.metadata.topics import existing_topics

        timeout_s = self.config.rpc_timeout_ms / 1000
        return await self._run_in_thread(lambda: existing_topics(self._web(), timeout_s))

    async def publishable(self, topic: str) -> tuple[TopicPartition, ...]:
        """Ask the master as a producer, and only if it lists no partition as a reader too."""
        from tubemq_spark.client.metadata.topics import publishable

        return await publishable(self.config, self._connections, topic)

    async def await_publishable(self, topic: str) -> None:
        """Ask as ``publishable`` does, again and again for ``delivery_timeout_ms``."""
        from tubemq_spark.client.metadata.topics import await_publishable

        await await_publishable(self.config, self._connections, topic)

    async def bounds(
        self,
        layout: TopicsLayout,
        stores: Collection[StoreId] | None = None,
        *,
        flushed: bool = False,
        timeout_ms: int | None = None,
    ) -> StoreBounds:
        """Ask the brokers of all these stores at once."""
        endpoints = layout.stores if stores is None else {store: layout.stores[store] for store in stores}
        token = layout.visit_token
        return await store_bounds(
            self.config, self._connections, endpoints, token, flushed=flushed, timeout_ms=timeout_ms
        )

    async def first_readable(
        self, layout: TopicsLayout, begins: Mapping[TopicPartition, OffsetBounds]
    ) -> dict[TopicPartition, int]:
        """Read the first records of several partitions at once; of many, only where data may be gone."""
        whole: Collection[TopicPartition] = ()
        if len(begins) > _FEW_LOGS:
            from tubemq_spark.client.metadata.admin_questions import whole_logs

            whole = await self._run_in_thread(lambda: whole_logs(self._web(), begins))

        async def ask(partition: TopicPartition) -> int:
            route = Route(layout.partitions[partition], layout.visit_token)
            return await first_readable(self.config, self._connections, partition, route, begins[partition])

        read = await each_of(ask, begins.keys() - whole, _MOST_READERS)
        return {partition: read.get(partition, span.earliest) for partition, span in begins.items()}

    async def group_positions(self, layout: TopicsLayout) -> Mapping[TopicPartition, int]:
        """Register the group in each partition for a moment."""
        return await group_positions(self.config, self._connections, layout)

    async def move_group(
        self, layout: TopicsLayout, positions: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, TubeMQError]:
        """Register the group in each partition at its offset, for a moment."""
        return await move_group(self.config, self._connections, layout, positions)

    async def stored_offsets(self, group: str | None = None, topics: Collection[str] = ()) -> StoredOffsets:
        """Ask the brokers' administration API over HTTP, where the masters say that it is."""
        from tubemq_spark.client.metadata.admin_questions import stored_offsets

        timeout_s = self.config.rpc_timeout_ms / 1000
        return await self._run_in_thread(lambda: stored_offsets(self._web(), timeout_s, group, topics))

    def read_range(
        self, request: RangeRequest, *, private: bool = False
    ) -> AsyncGenerator[FetchedBatch | LossRecord, None]:
        """Read under a reader group's lease, straight from the partition's broker."""
        return read_range(self.config, self._connections, request, private=private)

    def pipeline(
        self, config: ClientConfig, name: str = "", *, per_message: bool, run_user_code: "RunUserCode"
    ) -> "Pipeline":
        """See ``Transport``; the pipeline sends to brokers."""
        from tubemq_spark.client.producer.broker_pipeline import BrokerPipeline

        return BrokerPipeline(
            config, self._connections, name, detailed=per_message, run_user_code=run_user_code
        )

    def group_consumer(self, setup: "ConsumerSetup") -> "GroupCore":
        """See ``Transport``."""
        from tubemq_spark.client.consumer.group.core import GroupCore

        return GroupCore(setup, self._connections, self.with_config(setup.config))

    def assigned_consumer(self, setup: "ConsumerSetup") -> "AssignedCore":
        """See ``Transport``."""
        from tubemq_spark.client.consumer.assigned.core import AssignedCore

        return AssignedCore(setup, self._connections, self.with_config(setup.config))
