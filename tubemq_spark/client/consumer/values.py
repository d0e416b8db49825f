"""What consumers hand to their users."""

import dataclasses
from collections.abc import Iterator

from tubemq_spark.client.consumer.states import PartitionState
from tubemq_spark.client.reader.records import Record
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.offsets.units import INDEX_ENTRY_BYTES


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """Messages of one partition, at least one, to be confirmed as a whole; iterating yields its records."""

    partition: TopicPartition
    offset: int
    """Where it begins, in index bytes. Where it ends is known when it is confirmed: see ``Confirmed``."""
    latest: int | None
    """Where the store ended when it was fetched; None from brokers that do not say."""
    records: tuple[Record, ...]
    broker: Endpoint
    context: str
    """Names the batch to ``confirm``; valid once."""
    bytes_behind: int | None = None
    """How much data the store's log held behind these messages, in bytes; None if the broker did not say."""
    slow: bool = False
    """Whether the broker asks to be asked less often."""

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.partition.topic

    @property
    def lag(self) -> int | None:
        """How many messages the store held from the batch's beginning on, those of other partitions too."""
        return None if self.latest is None else max(0, self.latest - self.offset) // INDEX_ENTRY_BYTES


@dataclasses.dataclass(frozen=True, slots=True)
class Confirmed:
    """What became of a batch that was confirmed, or rolled back."""

    partition: TopicPartition
    context: str
    """That of the batch."""
    offset: int | None
    """Where reading goes on, in index bytes: the offset to keep, and to connect with another time. None when
    consumers confirm locally: the broker is told with the next fetch."""
    latest: int | None
    """Where the store ended when that was heard last."""


@dataclasses.dataclass(frozen=True, slots=True)
class PartitionStatus:
    """What is known about one partition; offsets in index bytes."""

    subscribable: bool
    """Whether the master says that it can be read now."""
    connected: bool
    """Whether this consumer holds it."""
    state: PartitionState | None = None
    """What it is doing; None when it is not connected."""
    offset: int | None = None
    """Where the next batch begins, as far as this consumer knows."""
    latest: int | None = None
    """Where the store ended when that was heard last."""
    heard_at: float | None = None
    """When the broker said this, in seconds since 1970."""
    trouble: TubeMQError | None = None
    """Why it cannot be read, or why it was given up; None since it was last read or connected."""
