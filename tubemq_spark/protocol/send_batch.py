"""Messages on their way to TubeMQ, many at a time and by columns: what a sender takes.

Receipts have checksums of bodies, sums of CRC-32, which reading and sending compute in one way.
"""

import dataclasses
import itertools
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from tubemq_spark.errors import OptionError, TubeMQError
from tubemq_spark.model import MESSAGE_UID_KEY
from tubemq_spark.protocol import speedups

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]
Value = TypeVar("Value")

TOPIC_REFUSALS: Final = frozenset({"TUBEMQ_TOPIC_NAME", "TUBEMQ_TOPIC_UNKNOWN"})
"""Conditions of errors that all messages to the same topic meet."""
MESSAGE_REFUSALS: Final = TOPIC_REFUSALS | {
    "TUBEMQ_BAD_MESSAGE",
    "TUBEMQ_MESSAGE_TOO_LONG",
    "TUBEMQ_PARTITION_UNKNOWN",
}
"""Conditions of errors that concern single messages of a batch, and not all."""
OnRefused = Callable[[int, TubeMQError], object]
"""Takes the place of a message in its batch, counted from 0, and why it cannot be sent."""


class Coded(NamedTuple, Generic[Value]):
    """A column in which values repeat: each value once, and for every row the place of its value."""

    values: tuple[Value, ...]
    codes: Int64s

    def value(self, row: int) -> Value:
        """Return the value of a row."""
        return self.values[int(self.codes[row])]

    def part(self, start: int, stop: int) -> "Coded[Value]":
        """Return some rows that follow one another; a small part has only the values that occur in it."""
        codes = self.codes[start:stop]
        if len(codes) >= len(self.values):
            return Coded(self.values, codes)
        used, codes = np.unique(codes, return_inverse=True)
        return Coded(tuple([self.values[code] for code in used.tolist()]), codes)


class BytesColumn(NamedTuple):
    """A column of byte strings, one behind the other."""

    data: bytes | memoryview
    offsets: Int64s
    """Where each row begins, and where the last one ends."""
    nulls: Bools | None = None
    """Which rows have no value; None: every row has one."""

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> Self:
        """Put byte strings one behind the other."""
        ends = itertools.accumulate(map(len, texts), initial=0)
        return cls(b"".join(texts), np.fromiter(ends, np.int64, len(texts) + 1))

    def value(self, row: int) -> bytes | None:
        """Return the bytes of a row."""
        if self.nulls is not None and self.nulls[row]:
            return None
        return bytes(self.data[self.offsets[row] : self.offsets[row + 1]])

    def part(self, start: int, stop: int) -> Self:
        """Return some rows that follow one another."""
        nulls = None if self.nulls is None else self.nulls[start:stop]
        return type(self)(self.data, self.offsets[start : stop + 1], nulls)

    def values(self, rows: Int64s) -> list[bytes | memoryview]:
        """Return the bytes of many rows, none of which is null, without copying those of a memoryview."""
        data = self.data
        starts, ends = self.offsets[rows].tolist(), self.offsets[rows + 1].tolist()
        return [data[start:end] for start, end in zip(starts, ends, strict=True)]


class MessageHeader(NamedTuple):
    """What a message carries beside its value.

    For example:

        header = MessageHeader(attributes={"source": "web"}, message_type="click")
        producer.send_batch(SendBatch.of("clicks", [b"home", b"cart"], header=header))
    """

    attributes: Mapping[str, str] | None = None  # the head of `data` (4); bit 0 of `flag` (5)
    message_type: str | None = None  # SendMessageRequestP2B.msgType (8), and $msgType$
    message_time: str | None = None  # SendMessageRequestP2B.msgTime (9), and $msgTime$
    foreign: bool = False
    """Whether another producer may have written these: see ``payload.encode_prefix``."""


class OutgoingMessage(NamedTuple):
    """One message of a batch; a producer's ``send`` takes the same arguments."""

    topic: str
    value: bytes
    attributes: Mapping[str, str] | None
    message_type: str | None
    message_time: str | None
    key: bytes | None
    partition: tuple[int, int] | None  # broker id, and partitionId (3): store * 10000 + index


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class SendBatch:
    """The messages of one record batch, in order; all columns have the same number of rows.

    For example:

        batch = SendBatch.of("clicks", [b"home", b"cart"], keys=[b"anna", b"ben"])
        producer.send_batch(batch.part(0, 1))
        print(batch.message(0).value)
    """

    topics: Coded[str]  # SendMessageRequestP2B.topicName (2)
    values: BytesColumn  # the rest of `data` (4); brokers refuse empty ones with 400
    """The bodies; none is null."""
    headers: Coded[MessageHeader]
    keys: BytesColumn | None = None
    """Messages of equal keys go to the same partition; a null has no key."""
    partitions: Coded[tuple[int, int] | None] | None = None
    """Broker id and partition id of messages whose partition was named."""
    first_row: int = 1
    """The number of the first message among all of its sender, for errors."""
    uids: BytesColumn | None = None
    """What each message is recognised by when it is sent again; a null has none."""

    @classmethod
    def of(
        cls,
        topic: str,
        values: Sequence[bytes],
        *,
        header: MessageHeader | None = None,
        keys: Sequence[bytes] | None = None,
    ) -> Self:
        """Return messages of one topic that all carry the same beside their values, with a key each if given.

        Raises:
            OptionError: there are more or fewer keys than values.
        """
        if keys is not None and len(keys) != len(values):
            what = f"its batch has {len(values)} values and {len(keys)} keys"
            raise OptionError("TUBEMQ_BAD_MESSAGE", what=what)
        none = np.zeros(len(values), np.int64)
        return cls(
            Coded((topic,), none),
            BytesColumn.of(values),
            Coded((header or MessageHeader(),), none),
            None if keys is None else BytesColumn.of(keys),
        )

    def __len__(self) -> int:
        return len(self.topics.codes)

    def part(self, start: int, stop: int) -> "SendBatch":
        """Return some messages that follow one another."""
        return SendBatch(
            self.topics.part(start, stop),
            self.values.part(start, stop),
            self.headers.part(start, stop),
            None if self.keys is None else self.keys.part(start, stop),
            None if self.partitions is None else self.partitions.part(start, stop),
            self.first_row + start,
            None if self.uids is None else self.uids.part(start, stop),
        )

    def message(self, row: int) -> OutgoingMessage:
        """Return one message; an object per row is for tests and for odd rows."""
        value = self.values.value(row)
        attributes, message_type, message_time, _ = self.headers.value(row)
        uid = None if self.uids is None else self.uids.value(row)
        if uid is not None:
            attributes = {**(attributes or {}), MESSAGE_UID_KEY: uid.decode(errors="surrogateescape")}
        return OutgoingMessage(
            self.topics.value(row),
            value if value is not None else b"",
            attributes,
            message_type,
            message_time,
            key=None if self.keys is None else self.keys.value(row),
            partition=None if self.partitions is None else self.partitions.value(row),
        )


def running_checksums(values: BytesColumn) -> list[int]:
    """Return the sum of the CRC-32 of no value, of the first, of the first two, and so on.

    So the sum of values one behind the other is the difference of two numbers.
    """
    return _running(values.data, values.offsets[:-1], values.offsets[1:])


def sum_of_checksums(data: bytes | memoryview, starts: Int64s, ends: Int64s) -> int:
    """Return the sum of the CRC-32 of values that lie anywhere in a buffer."""
    return _running(data, starts, ends)[-1]


def _running(data: bytes | memoryview, starts: Int64s, ends: Int64s) -> list[int]:
    if speedups.compiled is not None:
        result = speedups.compiled.running_checksums(
            data, np.ascontiguousarray(starts), np.ascontiguousarray(ends)
        )
        if result is not None:
            sums: list[int] = np.frombuffer(result, np.int64).tolist()
            return sums
    crc32, view = zlib.crc32, memoryview(data)  # all 32 bits, of bodies: a checkSum has 31, of payloads
    bounds = zip(starts.tolist(), ends.tolist(), strict=True)
    return list(itertools.accumulate((crc32(view[start:end]) for start, end in bounds), initial=0))
