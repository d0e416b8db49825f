"""Messages that are sent one by one, until they are enough for a batch."""

import functools
import itertools
import operator
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from tubemq_spark.client.producer.outgoing import OutgoingBatch
from tubemq_spark.client.producer.runs import Destination
from tubemq_spark.protocol.payload import empty_value, encode_prefix
from tubemq_spark.protocol.send_batch import BytesColumn, MessageHeader
from tubemq_spark.protocol.send_frames import Payloads

ENOUGH: Final = 64
"""Messages that are worth being written together: a system call costs as much as encoding several."""
ENOUGH_BYTES: Final = 1 << 17
"""What is written at once when there are fewer but long messages."""


_Message = tuple[Destination, bytes, bytes, MessageHeader, bytes | None, tuple[int, int] | None]
"""Where it goes, value, prefix, header, key and the partition that was named."""


class GatheredMessages:
    """Messages that go on together: a batch of one costs as much as one of many."""

    def __init__(self, *, checksums: bool = False) -> None:
        """Have none yet; ``checksums`` says whether those of the bodies are wanted."""
        self._checksums = checksums
        self._first_row = 1
        self._bytes = 0
        self._messages: list[_Message] = []

    def __len__(self) -> int:
        return len(self._messages)

    def add(
        self,
        number: int,
        destination: Destination,
        value: bytes,
        prefix: bytes,
        header: MessageHeader,
        key: bytes | None,
        partition: tuple[int, int] | None,
    ) -> bool:
        """Add a message, the next one of its sender; return whether they should be written now."""
        if not self._messages:
            self._first_row = number
        self._bytes += len(prefix) + len(value)
        self._messages.append((destination, value, prefix, header, key, partition))
        return len(self._messages) >= ENOUGH or self._bytes >= ENOUGH_BYTES

    def batch(self) -> tuple[OutgoingBatch, Sequence[Destination]]:
        """Return all of them, and where each goes; there is at least one."""
        destinations, values, prefixes, headers, keys, partitions = zip(*self._messages, strict=True)
        ends = itertools.accumulate(map(operator.add, map(len, prefixes), map(len, values)), initial=0)
        by_prefix = dict(zip(prefixes, headers, strict=True))
        codes = {prefix: code for code, prefix in enumerate(by_prefix)}
        batch = OutgoingBatch(
            [destination.partition.topic for destination in destinations],
            Payloads(
                BytesColumn.of(values),
                BytesColumn.of(list(codes)),
                np.array([codes[prefix] for prefix in prefixes], np.int64),
            ),
            list(by_prefix.values()),
            list(ends),
            keys,
            partitions,
            self._first_row,
            checksums=self._checksums,
        )
        return batch, destinations


_CACHED_HEADERS: Final = 4096
"""How many pairs of type and time are remembered: they repeat from message to message."""


def message_header(
    value: bytes, attributes: Mapping[str, str] | None, message_type: str | None, message_time: str | None
) -> tuple[MessageHeader, bytes]:
    """Return what a message carries beside its value, as it is and as it is written.

    Raises:
        OptionError: the value is empty, or an attribute cannot be written.
    """
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
