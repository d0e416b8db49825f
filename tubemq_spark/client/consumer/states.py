"""Values about the partitions of a group consumer; ``partition_cache`` says what they mean together."""

import dataclasses
import enum

from tubemq_spark.errors import OptionError
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.partition_strings import PartitionInfo


class PartitionState(enum.Enum):
    """What a held partition is doing; see the module."""

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


def parse_context(text: str) -> Booking:
    """Read the text of a booking.

    Raises:
        OptionError: it is not one.
    """
    place, _, number = text.rpartition("@")
    parts = place.split(":")
    numbers = [parts[0], parts[-1], number]
    if len(parts) != 3 or not parts[1] or not all(part.isascii() and part.isdigit() for part in numbers):
        raise OptionError("TUBEMQ_CONFIRM_CONTEXT", context=text)
    return Booking(TopicPartition(parts[1], int(parts[0]), int(parts[2])), int(number))


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """A partition that is fetched next."""

    booking: Booking
    info: PartitionInfo
    confirms: bool
    """Whether the fetch confirms what was fetched before it."""


@dataclasses.dataclass(frozen=True, slots=True)
class GivenUp:
    """A partition that is not held any more."""

    info: PartitionInfo
    state: PartitionState
    """What it was doing."""
    confirms: bool
    """Whether its broker has to commit what was fetched last."""


@dataclasses.dataclass(frozen=True, slots=True)
class ConsumedPosition:
    """Where a group stands in a partition, as far as this consumer knows; offsets in index bytes."""

    offset: int
    """The next offset to read: everything before it is confirmed."""
    latest: int | None
    """Where the store ended when that was heard last; None: the broker does not say."""
    heard_at: float
    """When the broker said this, in seconds since 1970."""
