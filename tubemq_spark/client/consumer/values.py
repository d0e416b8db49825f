"""What a consumer's partitions are doing, and what consumers hand to their users.

TubeMQ confirms batches as a whole. So a batch of which the loop ``messages`` has handed out a ``Part``, for
its limit, stays booked until the rest was handed out, too, unless the group can be moved to where that
begins.
"""

import dataclasses
import enum
import re
from collections.abc import Iterator
from typing import Final, Self

from tubemq_spark.client.names.guesses import answers_attributes
from tubemq_spark.client.reader.records import Record
from tubemq_spark.errors import OptionError, TubeMQError
from tubemq_spark.model import INDEX_ENTRY_BYTES, Endpoint, TopicPartition
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.fetch_columns import FetchedBatch
from tubemq_spark.settings.fields import bad_setting
from tubemq_spark.settings.kinds import MAX_LONG, integer

_NUMBER: Final = re.compile(r"[0-9]{1,19}")
_LIMIT: Final = integer(1, MAX_LONG)


class PartitionState(enum.Enum):
    """What a held partition is doing; ``cache`` says what the states mean together."""

    IDLE = "idle"
    FETCHING = "fetching"
    IN_USE = "in use"
    RESTING = "resting"
    PAUSED = "paused"


class ConsumeStatus(enum.IntEnum):
    """Whether a consumer can get messages now, under the numbers that TubeMQ's clients give it."""

    READY = ErrCode.SUCCESS
    """At least one partition can be fetched, or is being fetched."""
    ALL_PAUSED = ErrCode.ALL_PARTITION_FROZEN
    NOTHING_ASSIGNED = ErrCode.NO_PARTITION_ASSIGNED
    """The master has assigned no partition to this consumer."""
    ALL_RESTING = ErrCode.ALL_PARTITION_WAITING
    """No partition can be fetched, and at least one waits: at its end, or for flow control."""
    ALL_IN_USE = ErrCode.ALL_PARTITION_INUSE
    """The batches of all partitions wait to be confirmed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Booking:
    """A claim to a partition, from the fetch until its batch is confirmed or rolled back."""

    partition: TopicPartition
    number: int

    @property
    def context(self) -> str:
        """The booking as a text, ``brokerId:topic:partitionId@number``."""
        partition = self.partition
        return f"{partition.broker_id}:{partition.topic}:{partition.partition_id}@{self.number}"


def parse_context(text: object) -> Booking:
    """Read the text of a booking, which comes from users."""
    place, _, number = text.rpartition("@") if isinstance(text, str) else ("", "", "")
    parts = place.split(":")
    numbers = [parts[0], parts[-1], number]
    if len(parts) != 3 or not parts[1] or not all(map(_NUMBER.fullmatch, numbers)):
        raise OptionError("TUBEMQ_CONFIRM_CONTEXT", context=text)
    return Booking(TopicPartition(parts[1], int(parts[0]), int(parts[2])), int(number))


@dataclasses.dataclass(frozen=True, slots=True)
class ConsumedPosition:
    """Where a group stands in a partition, as far as this consumer knows; offsets in index bytes."""

    offset: int
    """The next offset to read: everything before it is confirmed."""
    latest: int | None
    """Where the store ended when that was heard last; None: the broker does not say."""
    heard_at: float
    """When the broker said this, in seconds since 1970."""


@answers_attributes
@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """Messages of one partition, at least one, to be confirmed as a whole; iterating yields its records.

    For example:

        for record in batch:
            print(batch.topic, batch.lag, record.text())
        consumer.confirm(batch)
    """

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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ColumnBatch(Batch):
    """A batch for those that pass its messages on: as columns, in place of records."""

    columns: FetchedBatch = dataclasses.field(repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.columns.columns)


@dataclasses.dataclass(frozen=True, slots=True)
class Confirmed:
    """What became of a batch that was confirmed, or rolled back.

    For example:

        confirmed = consumer.confirm(batch)
        print(confirmed.partition, confirmed.offset)
    """

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
    """What is known about one partition; offsets in index bytes.

    For example:

        print(consumer.status()[partition].trouble)
    """

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


def checked_limit(limit: int | None) -> int | None:
    """Return how many messages a loop may hand out; None: any number."""
    if limit is not None and not _LIMIT.fits(limit):
        raise bad_setting("limit", repr(limit), _LIMIT.expected)
    return limit


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """Consecutive records of a batch, which a loop hands out one by one."""

    batch: Batch
    begin: int
    """The row of the first one."""
    end: int
    """The row behind the last one."""

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """Return all of a batch."""
        return cls(batch, 0, len(batch))

    def of_at_most(self, count: int | None) -> Self:
        """Return the first records of this part; None: all."""
        end = self.end if count is None else min(self.end, self.begin + count)
        return dataclasses.replace(self, end=end)

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def records(self) -> tuple[Record, ...]:
        """The records."""
        return self.batch.records[self.begin : self.end]

    @property
    def rest(self) -> int:
        """How many records of the batch follow."""
        return len(self.batch) - self.end

    @property
    def end_offset(self) -> int | None:
        """Where the first record is that follows, in index bytes; None if that is not known."""
        return self.batch.records[self.end].offset

    def following(self) -> Self:
        """Return all records of the batch that follow."""
        return dataclasses.replace(self, begin=self.end, end=len(self.batch))
