"""What a cluster can be asked for, and how it is read, as coroutines; ``transport`` implements it.

It stands below the consumers, which ask about the logs of their partitions with it.
"""

from collections.abc import AsyncGenerator, Collection, Iterable, Mapping
from typing import Protocol

from tubemq_spark.client.config import ClientConfig
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
from tubemq_spark.offsets.loss import LossRecord
from tubemq_spark.protocol.fetch_columns import FetchedBatch


class Questions(Protocol):
    """A TubeMQ cluster that is asked and read, by the coroutines of one event loop."""

    config: ClientConfig
    """The settings of questions and reads."""

    # Topics.

    async def layout(self, topics: Iterable[str], *, missing_ok: bool = False) -> TopicsLayout:
        """Return where the partitions of topics are; a master checks the group's rights on the way.

        With ``missing_ok`` topics that do not exist are left out, instead of an error (431).
        """

    async def topics(self) -> Collection[str]:
        """Return which topics there are, whether they can be read now or not."""

    async def publishable(self, topic: str) -> tuple[TopicPartition, ...]:
        """Return the partitions to which a topic can be published now, in order; perhaps none."""

    async def await_publishable(self, topic: str) -> None:
        """Wait until a topic can be published to, for ``delivery_timeout_ms``."""

    # Offsets.

    async def bounds(
        self,
        layout: TopicsLayout,
        stores: Collection[StoreId] | None = None,
        *,
        flushed: bool = False,
        timeout_ms: int | None = None,
    ) -> StoreBounds:
        """Return the earliest and the latest offset of stores of a layout; by default of all.

        With ``flushed`` a store ends where its data is on the broker's disk, not where producers append.
        A broker that is away is part of the answer and not an error.
        """

    async def first_readable(
        self, layout: TopicsLayout, begins: Mapping[TopicPartition, OffsetBounds]
    ) -> dict[TopicPartition, int]:
        """Return where the first record is that can still be read, in index bytes.

        ``begins`` are partitions that share their store with no other, with what its index holds.
        """

    async def group_positions(self, layout: TopicsLayout) -> Mapping[TopicPartition, int]:
        """Return where the group stands in each partition, in index bytes; at first, at the log's beginning.

        A broker refuses while a consumer of the group holds a partition (410).
        """

    async def move_group(
        self, layout: TopicsLayout, positions: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, TubeMQError]:
        """Move the group, in index bytes; return why it was not moved in some partitions."""

    async def stored_offsets(self, group: str | None = None, topics: Collection[str] = ()) -> StoredOffsets:
        """Return where consumer groups stand, by the brokers' administration API; disturbs no consumer."""

    def read_range(
        self, request: RangeRequest, *, private: bool = False
    ) -> AsyncGenerator[FetchedBatch | LossRecord, None]:
        """Yield exactly the records of a range, in offset order, and what is lost of them.

        Behind a loss, reading goes on. Closing the generator gives back what it holds at a broker.

        ``private``: over a connection of its own, which others do not wait behind.
        """
