"""Single messages: what is known of each until it stands in a batch, and the batch that they become."""

import dataclasses
import datetime
import functools
import itertools
import time
import zoneinfo
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypedDict, TypeVar

import numpy as np

from tubemq_spark.client.producer.futures import MessageFuture
from tubemq_spark.client.producer.outgoing import OutgoingBatch
from tubemq_spark.client.producer.partitioner import PublishedTopic
from tubemq_spark.client.producer.runs import Destination
from tubemq_spark.errors import OptionError
from tubemq_spark.offsets.message_time import text_of
from tubemq_spark.protocol.payload import empty_value, encode_prefix
from tubemq_spark.protocol.send_batch import BytesColumn, MessageHeader
from tubemq_spark.protocol.send_frames import Payloads

Value = TypeVar("Value")

ENOUGH: Final = 64
"""Messages that are worth being written together: a system call costs as much as encoding several."""
MOST: Final = 128
"""Messages that become one batch when they are there; the send window takes no more together."""
ENOUGH_BYTES: Final = 1 << 17
"""What is written at once when there are fewer but long messages."""


class MessageFields(TypedDict, total=False):
    """What a message may have beside its topic and its value."""

    attributes: Mapping[str, str] | None
    """The user's pairs."""
    message_type: str | None
    """Filter item by which consumers may select, without blanks around it."""
    message_time: datetime.datetime | str | None
    """The time to the minute, or TubeMQ's text for it, yyyyMMddHHmm; None for no time. If it is not given, it
    is the time of sending, unless the producer was told otherwise (``stamp_message_time``). The text names no
    time zone: a datetime is written as its own clock shows it, so use the zone that readers assume."""
    key: bytes | str | None
    """Messages of equal keys go to the same partition, as long as the topic keeps its partitions; a text is
    its UTF-8. The key itself is not stored."""
    partition: tuple[int, int] | None
    """Broker id and partition id; by default the key decides, and without a key the partitions take turns."""


class MinuteClock:
    """Tells the minute that it is in one zone; threads may share it."""

    def __init__(self, zone: str, now: Callable[[], float] = time.time) -> None:
        self._zone = zoneinfo.ZoneInfo(zone)
        self._now = now
        self._last = (0, text_of(0, self._zone))

    def text(self) -> str:
        """Return the minute as TubeMQ writes it; it is made once a minute."""
        minute = int(self._now()) // 60
        last, text = self._last
        if minute != last:
            text = text_of(minute, self._zone)
            self._last = minute, text
        return text


@dataclasses.dataclass(slots=True, eq=False)
class PendingMessage:
    """A message that can be written, from its producer's ``send`` until it stands in a batch."""

    topic: str
    value: bytes
    prefix: bytes
    header: MessageHeader
    key: bytes | None
    partition: tuple[int, int] | None
    size: int
    """The length of its payload."""
    destination: Destination | None = None
    """Where it goes if the caller, or the caller's partitioner, chose the partition."""
    published: PublishedTopic = dataclasses.field(init=False)
    future: MessageFuture = dataclasses.field(init=False)
    """Who is told of its outcome."""
    accepted_at: float = dataclasses.field(init=False)
    """``time.monotonic()``."""

    def brokers(self) -> frozenset[int]:
        """Return the ids of the brokers, one of which it goes to as far as is known now."""
        if self.destination is not None:
            return frozenset((self.destination.partition.broker_id,))
        partitioner = self.published.partitioner
        if self.key is not None:
            return frozenset((partitioner.by_key(self.key).partition.broker_id,))
        return partitioner.brokers


def checked_message(
    topic: str,
    value: bytes | str,
    *,
    attributes: Mapping[str, str] | None = None,
    message_type: str | None = None,
    message_time: datetime.datetime | str | None = None,
    key: bytes | str | None = None,
    partition: tuple[int, int] | None = None,
) -> PendingMessage:
    """Return a message if it can be sent, as far as its arguments tell; see ``MessageFields``."""
    if isinstance(message_time, datetime.datetime):
        # Not strftime("%Y"): it writes the year 800 with three digits on some systems.
        message_time = f"{message_time.year:04d}{message_time:%m%d%H%M}"
    if isinstance(key, str):
        key = _utf8("key", key)
    if isinstance(value, str):
        value = _utf8("value", value)
    arguments = topic, value, message_type, message_time, key
    if not all(map(isinstance, arguments, _TYPES)):
        raise next(
            _wrong_type(name, argument, expected)
            for argument, types, (name, expected) in zip(arguments, _TYPES, _EXPECTED, strict=True)
            if not isinstance(argument, types)
        )
    if partition is not None and not _is_pair_of_numbers(partition):
        raise _wrong_type("partition", partition, "a tuple of two int")
    if attributes is not None:
        if not isinstance(attributes, Mapping):
            raise _wrong_type("attributes", attributes, "a mapping of str to str")
        for text in itertools.chain.from_iterable(attributes.items()):
            if not isinstance(text, str):
                raise _wrong_type("attributes", text, "a mapping of str to str")
    header, prefix = _message_header(value, attributes, message_type, message_time)
    return PendingMessage(topic, value, prefix, header, key, partition, len(prefix) + len(value))


def message_batch(
    messages: Sequence[PendingMessage], first_row: int, *, checksums: bool = False
) -> OutgoingBatch:
    """Return messages as one batch, which costs as much as a batch of one; there is at least one."""
    prefixes = [message.prefix for message in messages]
    by_prefix = {messages[0].prefix: messages[0].header}
    codes = np.zeros(len(messages), np.int64)
    if prefixes.count(prefixes[0]) != len(prefixes):
        by_prefix = {message.prefix: message.header for message in messages}
        code_of = {prefix: code for code, prefix in enumerate(by_prefix)}
        codes = np.array([code_of[prefix] for prefix in prefixes], np.int64)
    topics = [message.topic for message in messages]
    batch = OutgoingBatch(
        topics[:1] if topics.count(topics[0]) == len(topics) else topics,
        Payloads(
            BytesColumn.of([message.value for message in messages]),
            BytesColumn.of(list(by_prefix)),
            codes,
        ),
        list(by_prefix.values()),
        [0, *itertools.accumulate([message.size for message in messages])],
        _unless_all_are_none([message.key for message in messages]),
        _unless_all_are_none([message.partition for message in messages]),
        first_row,
        checksums=checksums,
    )
    batch.destinations = _unless_all_are_none([message.destination for message in messages])
    batch.is_placed = True
    batch.accepted_at = messages[0].accepted_at
    return batch


def _unless_all_are_none(column: list[Value | None]) -> list[Value | None] | None:
    return None if column.count(None) == len(column) else column


def _utf8(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        what = f"its {name} {text[:_SHOWN]!r} cannot be written as UTF-8"
        raise OptionError("TUBEMQ_BAD_MESSAGE", what=what) from error


def _is_pair_of_numbers(partition: object) -> bool:
    return (
        isinstance(partition, tuple)
        and len(partition) == 2
        and all(isinstance(number, int) for number in partition)
    )


def _wrong_type(name: str, argument: object, expected: str) -> OptionError:
    what = f"its {name} is of type {type(argument).__name__}, not {expected}"
    return OptionError("TUBEMQ_BAD_MESSAGE", what=what)


_TYPES: Final[Sequence[type | tuple[type, ...]]] = (
    str,
    bytes,
    (str, type(None)),
    (str, type(None)),
    (bytes, type(None)),
)
_EXPECTED: Final = (
    ("topic", "str"),
    ("value", "bytes or str"),
    ("message_type", "str"),
    ("message_time", "datetime or str"),
    ("key", "bytes or str"),
)
"""What is said of those that have other types."""
_SHOWN: Final = 100
"""How much of a text an error shows."""
_CACHED_HEADERS: Final = 4096
"""How many pairs of type and time are remembered: they repeat from message to message."""


def _message_header(
    value: bytes, attributes: Mapping[str, str] | None, message_type: str | None, message_time: str | None
) -> tuple[MessageHeader, bytes]:
    """Return what a message carries beside its value, as it is and as it is written."""
    if not value:
        raise empty_value()
    if not attributes:
        return _usual_header(message_type, message_time)
    header = MessageHeader(attributes, message_type, message_time)
    return header, encode_prefix(*header)


@functools.lru_cache(_CACHED_HEADERS)
def _usual_header(message_type: str | None, message_time: str | None) -> tuple[MessageHeader, bytes]:
    header = MessageHeader(None, message_type, message_time)
    return header, encode_prefix(*header)
