"""Marks: which record a log had at an offset, by which a log that was replaced is told from the one before.

Offsets alone cannot tell: a topic that is removed and created again, a broker whose data was deleted or
restored from a backup, and another cluster count from the same beginning. But their records differ. A mark
says of a record what a broker returns with it and never changes: its message id, its partition, and the
checksum and the length of its content. A later look at its offset has one of three outcomes:

- the same record: all before it is as it was, since a log only grows at its end;
- another record: the log was replaced, or the broker lost records and has used their offsets again;
- no record that can be read: retention has removed it, or it is damaged. The mark says nothing then.

In a checkpoint a mark is a short text, as offsets may have two hundred of them: offset, message id, checksum
and length with dots between them, of which the second and the third are written with 36 digits. Marks are
kept for a topic on a broker and not for each store: what replaces one log there replaces all of them.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from tubemq_spark.model import TopicPartition
from tubemq_spark.offsets.notation import OffsetReader, write_offsets

MOST_MARKS: Final = 200
"""How many an offset has at most: they are written with every micro-batch."""

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


class Mark(NamedTuple):
    """A record, as it was seen at an offset of its store."""

    partition: TopicPartition
    offset: int
    """In index bytes."""
    message_id: int
    checksum: int
    """CRC-32 of its attributes and its body."""
    length: int
    """Bytes of both."""

    @property
    def place(self) -> "Place":
        """The topic and the broker that this is a mark of."""
        return place_of(self.partition)

    def __str__(self) -> str:
        return (
            f"message {self.message_id} of partition {self.partition.local_id} with {self.length} bytes and "
            f"the checksum {self.checksum:08x}"
        )


Place = tuple[str, int]
"""A topic, and the id of a broker that has logs of it."""


def place_of(partition: TopicPartition) -> Place:
    """Return the topic and the broker of a partition."""
    return partition.topic, partition.broker_id


def passed(marks: Iterable[Mark], positions: Mapping[TopicPartition, int]) -> list[Mark]:
    """Return the marks of records before these positions, which are offsets in index bytes."""
    return [mark for mark in marks if mark.offset < positions.get(mark.partition, 0)]


def newest(marks: Iterable[Mark], *, most: int = MOST_MARKS) -> tuple[Mark, ...]:
    """Return the last mark of each topic on each broker, in the order of their partitions."""
    last: dict[Place, Mark] = {}
    for mark in marks:
        last.pop(mark.place, None)
        last[mark.place] = mark
    return tuple(sorted(list(last.values())[-most:]))


def write_marks(marks: Collection[Mark]) -> dict[str, dict[str, str]]:
    """Return the one form of some marks, of which each is of another partition."""
    return write_offsets({mark.partition: _text(mark) for mark in marks})


def read_marks(data: object, reader: OffsetReader) -> tuple[Mark, ...]:
    """Read what ``write_marks`` returned."""

    def read(text: object, partition: TopicPartition) -> Mark:
        parts = text.split(".") if isinstance(text, str) else []
        try:
            offset, message_id, checksum, length = (
                int(part, base) for part, base in zip(parts, (10, 36, 36, 10), strict=True)
            )
        except ValueError:
            reader.fail(f"the mark of {partition} is {text!r}, not its offset, id, checksum and length")
        return Mark(partition, reader.offset(offset, partition), message_id, checksum, length)

    marks = reader.of_topics(data, "the marks' value", read)
    return tuple(sorted(marks.values()))


def _text(mark: Mark) -> str:
    return f"{mark.offset}.{_short(mark.message_id)}.{_short(mark.checksum)}.{mark.length}"


def _short(number: int) -> str:
    """Return a number with 36 digits, as ``int(..., 36)`` reads it."""
    text, rest = "", abs(number)
    while rest or not text:
        rest, digit = divmod(rest, len(_DIGITS))
        text = _DIGITS[digit] + text
    return f"-{text}" if number < 0 else text
