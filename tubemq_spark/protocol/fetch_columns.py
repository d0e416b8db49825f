"""Fetched messages as columns: where each message's parts lie in one buffer.

The columns hold positions and not values, so Arrow can copy the values without one Python object per message.
"""

import dataclasses
import itertools
from collections.abc import Collection, Iterator
from typing import Final, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tubemq_spark.model import MSG_TYPE_KEY, Message, TopicPartition
from tubemq_spark.protocol.payload import parse_attributes

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]
Rows: TypeAlias = slice | Int64s
"""A range of rows, or their numbers."""


@dataclasses.dataclass(slots=True, eq=False)  # frozen, it would take four times as long to make
class MessageColumns:
    """Messages as columns: row ``i``'s parts are ``data[start[i]:end[i]]``; they do not change.

    ``data`` holds more than these parts, including bytes that belong to no message; slices share it.
    """

    data: bytes | memoryview
    ordinals: Int64s
    """The row's place in the answer; damaged rows are left out, so numbers may be missing."""
    message_ids: Int64s  # TransferedMessage.messageId (1): opaque, and in no order
    value_start: Int64s  # payLoadData (3) behind its attributes
    value_end: Int64s
    attribute_start: Int64s  # behind the four bytes of attrLen
    """Where the text of the attributes (UTF-8) starts; equal to its end if there are none."""
    attribute_end: Int64s
    has_attributes: Bools  # bit 0 of TransferedMessage.flag (4), and attrLen above 0

    def __len__(self) -> int:
        return len(self.message_ids)

    @property
    def nbytes(self) -> int:
        """Bytes of all values and attributes; ``len(data)`` is what the columns keep in memory."""
        sizes = self.value_end - self.value_start + self.attribute_end - self.attribute_start
        return int(sizes.sum())

    def slice(self, start: int, end: int) -> Self:
        """Return the rows ``start <= i < end``, without copying."""
        return self.take(slice(start, end))

    def message(self, row: int) -> Message:
        """Return one row as a value."""
        attributes = None
        if self.has_attributes[row]:
            text = bytes(self.data[self.attribute_start[row] : self.attribute_end[row]])
            attributes = parse_attributes(text.decode(errors="replace"))
        return Message(self._value(row), attributes, int(self.message_ids[row]))

    def values(self) -> list[bytes]:
        """Return all bodies, one object each."""
        data = bytes(self.data)  # a copy only of a view; each slice of that would be two objects
        bounds = zip(self.value_start.tolist(), self.value_end.tolist(), strict=True)
        return [data[start:end] for start, end in bounds]

    def attributes(self) -> Iterator[dict[str, str] | None]:
        """Return the attributes of all messages, a dictionary of its own each."""
        return self._parsed_attributes() if self.has_attributes.any() else itertools.repeat(None, len(self))

    def of_types(self, types: Collection[str]) -> Self:
        """Return the rows whose message has one of these types; ``data`` is shared."""
        # The broker compared String.hashCode only. Java drops what has no type, too; C++ and Go keep it.
        rows = [row for row, text in enumerate(self.each(MSG_TYPE_KEY)) if text is not None and text in types]
        return self.take(np.array(rows, dtype=np.int64))

    def each(self, name: str) -> Iterator[str | None]:
        """Yield each row's attribute of a name, None where it has none."""
        parsed: dict[bytes | None, str | None] = {None: None}
        for text in self._attribute_texts():
            # Few texts are distinct, so few are parsed.
            if text not in parsed:
                parsed[text] = parse_attributes((text or b"").decode(errors="replace")).get(name)
            yield parsed[text]

    def identity(self, row: int) -> tuple[int, bytes]:
        """Return what distinguishes one row from the others of its store."""
        return int(self.message_ids[row]), self._value(row)  # IdWorker's ids are unique in one run only

    def take(self, rows: Rows) -> Self:
        """Return the given rows; ``data`` is shared."""
        return type(self)(
            self.data,
            self.ordinals[rows],
            self.message_ids[rows],
            self.value_start[rows],
            self.value_end[rows],
            self.attribute_start[rows],
            self.attribute_end[rows],
            self.has_attributes[rows],
        )

    def _parsed_attributes(self) -> Iterator[dict[str, str] | None]:
        parsed: dict[bytes, dict[str, str]] = {}
        for text in self._attribute_texts():
            if text is None:
                yield None
                continue
            # Types and times repeat from message to message.
            if text not in parsed:
                parsed[text] = parse_attributes(text.decode(errors="replace"))
            yield parsed[text].copy()

    def _attribute_texts(self) -> Iterator[bytes | None]:
        """Yield the text of each row's attributes, None where there are none."""
        data = bytes(self.data)
        bounds = zip(self.attribute_start.tolist(), self.attribute_end.tolist(), strict=True)
        for (start, end), has_attributes in zip(bounds, self.has_attributes.tolist(), strict=True):
            yield data[start:end] if has_attributes else None

    def _value(self, row: int) -> bytes:
        return bytes(self.data[self.value_start[row] : self.value_end[row]])


@dataclasses.dataclass(slots=True, eq=False)
class FetchedBatch:
    """Some records of a range: those of the partition with ``start <= offset < next``, in index bytes."""

    partition: TopicPartition
    start: int  # GetMessageResponseB2C.currOffset (5): where the read started
    next: int  # no field of the answer: the next fetch or the commit tells it
    columns: MessageColumns
    dense: bool
    """Whether row ``i`` has the offset ``start + 28 * columns.ordinals[i]``; otherwise rows have none."""
    bytes_behind: int | None = None  # currDataDlt (8)
    """How much data the store's log had behind these records when they were fetched, in bytes."""

    @classmethod
    def empty(cls, partition: TopicPartition, offset: int) -> Self:
        """Return a batch of no offsets: ``next`` is ``start``."""
        return cls(partition, offset, offset, _NO_MESSAGES, dense=True)


_NO_OFFSETS: Final = np.zeros(0, np.int64)
_NO_MESSAGES: Final = MessageColumns(
    b"", _NO_OFFSETS, _NO_OFFSETS, _NO_OFFSETS, _NO_OFFSETS, _NO_OFFSETS, _NO_OFFSETS, np.zeros(0, np.bool_)
)
