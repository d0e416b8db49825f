"""Batches of messages on their way to brokers: what a producer accepts, row by row."""

import itertools
import math
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from tubemq_spark.errors import OptionError, ProduceError, TubeMQError
from tubemq_spark.model import MESSAGE_UID_KEY
from tubemq_spark.protocol.payload import check_attribute, empty_value, encode_prefix, with_pair
from tubemq_spark.protocol.send_batch import (
    BytesColumn,
    Coded,
    Int64s,
    MessageHeader,
    SendBatch,
    running_checksums,
)
from tubemq_spark.protocol.send_frames import Payloads, SendCredentials
from tubemq_spark.receipts import describe_message

if TYPE_CHECKING:
    from tubemq_spark.client.producer.futures import BatchOutcome
    from tubemq_spark.client.producer.runs import Destination

_MAY_BE_STORED: Final = "it may be stored, so look for it in the topic before you send it again"
_PLAIN: Final = re.compile(rb"[A-Za-z0-9_.:/+-]*")
"""Texts that are attributes wherever they are cut."""


class OutgoingBatch:
    """Messages with their payloads, in the order in which a producer accepts them."""

    def __init__(
        self,
        topics: Sequence[str],
        payloads: Payloads,
        headers: Sequence[MessageHeader],
        ends: Sequence[int],
        keys: Sequence[bytes | None] | None = None,
        partitions: Sequence[tuple[int, int] | None] | None = None,
        first_row: int = 1,
        *,
        checksums: bool = False,
        source: SendBatch | None = None,
        longest: int = -1,
    ) -> None:
        """Take columns of equal length; ``headers`` belong to the prefixes of ``payloads``.

        ``topics`` may be one for all messages. With ``checksums`` those of the bodies are computed, now.
        ``source`` is the batch from which the messages come, if there is one; ``longest`` is the length of
        the longest payload, if that is known.
        """
        self.payloads = payloads
        self.ends = ends
        """The size of all payloads before each message, and of all together at the end."""
        self.first_row = first_row
        """The number of the first message among all of its sender."""
        self.accepted_at: float | None = None
        """``time.monotonic()`` when the first message began to wait for its turn."""
        self.outcomes: BatchOutcome | None = None
        """What is told the outcomes of single messages; None: no message has a callback."""
        self.destinations: Sequence[Destination | None] | None = None
        """The partition of each message that its caller or the caller's partitioner has chosen, if any."""
        self.is_placed = False
        """Whether the topics and partitions of all messages were known before: none is asked for again."""
        self.refused: Mapping[int, TubeMQError] = {}
        """Why messages must not be accepted, by their rows."""
        self.give_up_at = math.inf
        """When the messages are given up at the latest, in the window's time."""
        self.sender = ""
        """The name of the sender in errors; blank: the producer's own."""
        self._topics = topics
        self._headers = headers
        self._keys = keys
        self._partitions = partitions
        self._source = source
        self._longest = longest
        self._checksums = running_checksums(payloads.values) if checksums else None
        # Single numbers of it are read faster than those of the array, and no list of all is needed.
        self._body_ends = payloads.values.offsets.data
        self._body_sizes: list[int] = []
        self._credentials: SendCredentials | None = None
        self._backs: BytesColumn

    def __len__(self) -> int:
        return len(self.ends) - 1

    @property
    def waited_s(self) -> float:
        """How long the messages have waited before the pipeline accepts them."""
        return 0.0 if self.accepted_at is None else time.monotonic() - self.accepted_at

    def topic(self, row: int) -> str:
        """Return the topic of a message."""
        return self._topics[row if len(self._topics) > 1 else 0]

    def key(self, row: int) -> bytes | None:
        """Return the key of a message, which chooses its partition whenever the partitions change."""
        return None if self._keys is None else self._keys[row]

    def partition(self, row: int) -> tuple[int, int] | None:
        """Return broker id and partition id when the caller named them: no other will do."""
        return None if self._partitions is None else self._partitions[row]

    @property
    def is_round_robin(self) -> bool:
        """Whether all messages have one topic and none has a key or a named partition."""
        return len(self._topics) == 1 and self._keys is None and self._partitions is None

    @property
    def is_free(self) -> bool:
        """Whether no message has a key or a named partition."""
        return self._keys is None and self._partitions is None

    @property
    def longest(self) -> int:
        """The length of the longest payload."""
        if self._longest < 0:
            self._longest = int(np.diff(self.ends).max())
        return self._longest

    def size(self, row: int) -> int:
        """Return the length of a message's payload."""
        return self.ends[row + 1] - self.ends[row]

    def size_of(self, rows: Sequence[int]) -> int:
        """Return the length of some payloads together."""
        return _sum_of(self.ends, rows)

    def bytes_of(self, rows: Sequence[int]) -> int:
        """Return the length of some bodies together."""
        if isinstance(rows, range):
            return self._body_ends[rows.stop] - self._body_ends[rows.start]
        return sum(self.body_sizes(rows))

    def body_sizes(self, rows: Sequence[int]) -> Sequence[int]:
        """Return the length of each of some bodies."""
        if not self._body_sizes:
            self._body_sizes = np.diff(self.payloads.values.offsets).tolist()
        sizes = self._body_sizes
        return sizes[rows.start : rows.stop] if isinstance(rows, range) else [sizes[row] for row in rows]

    def checksum_of(self, rows: Sequence[int]) -> int | None:
        """Return the sum of the CRC-32 of some bodies; None when they were not computed."""
        return None if self._checksums is None else _sum_of(self._checksums, rows)

    def checksums(self, rows: Sequence[int]) -> Sequence[int] | None:
        """Return the CRC-32 of each of some bodies; None when they were not computed."""
        if self._checksums is None:
            return None
        sums = self._checksums
        return [sums[row + 1] - sums[row] for row in rows]

    def has_time(self, row: int) -> bool:
        """Whether a message has a message time."""
        return self._headers[self.payloads.codes[row]].message_time is not None

    def value(self, row: int) -> bytes:
        """Return the body of a message."""
        return bytes(self.payloads.values.value(row) or b"")

    def prefix(self, row: int) -> bytes:
        """Return what precedes the body of a message."""
        return bytes(self.payloads.prefixes.value(int(self.payloads.codes[row])) or b"")

    def describe(self, row: int, producer: str) -> str:
        """Return a description by which the user finds a message.

        It names the batch's sender, or else ``producer``.
        """
        return describe_message(self.first_row + row, self.sender or producer, self.value(row))

    def fail_abandoned(self, row: int, producer: str, cause: object) -> None:
        """End a message, if it is open, with the error that it may be stored: its outcome is unknown."""
        if self.outcomes is not None and not self.outcomes.has_ended(row):
            message = f"message {self.first_row + row} of {self.sender or producer}"
            error = ProduceError(
                "TUBEMQ_MESSAGE_ABANDONED", message=message, cause=cause, fate=_MAY_BE_STORED, unanswered=1
            )
            self.outcomes.failed(row, error)

    def as_batch(self, first: int, after: int) -> SendBatch:
        """Return the messages of some rows as a batch that can be sent on, such as to a gateway."""
        if self._source is not None:
            return self._source.part(first, after)
        rows = after - first
        topics = tuple(dict.fromkeys(self._topics))
        code_of = {topic: code for code, topic in enumerate(topics)}
        numbers = [code_of[topic] for topic in self._topics]
        topic_codes = (
            np.zeros(rows, np.int64) if len(topics) == 1 else np.array(numbers[first:after], np.int64)
        )
        keys = None
        if self._keys is not None and any(key is not None for key in self._keys[first:after]):
            some = self._keys[first:after]
            nulls = np.array([key is None for key in some])
            keys = BytesColumn(
                *BytesColumn.of([key or b"" for key in some])[:2], nulls if nulls.any() else None
            )
        partitions = None
        if self._partitions is not None and any(self._partitions[first:after]):
            named = self._partitions[first:after]
            places = tuple(dict.fromkeys(named))
            place_codes = {place: code for code, place in enumerate(places)}
            partitions = Coded(places, np.array([place_codes[place] for place in named], np.int64))
        return SendBatch(
            Coded(topics, topic_codes),
            self.payloads.values.part(first, after),
            Coded(tuple(self._headers), self.payloads.codes[first:after]),
            keys,
            partitions,
            self.first_row + first,
        )

    def backs(self, credentials: SendCredentials) -> BytesColumn:
        """Return what follows the payloads, for each of the prefixes."""
        if credentials is not self._credentials:
            self._backs = credentials.backs(self.payloads.prefixes, self._headers)
            self._credentials = credentials
        return self._backs


def outgoing_batch(
    batch: SendBatch, *, checksums: bool = False
) -> tuple[OutgoingBatch, dict[int, OptionError]]:
    """Return a batch with its payloads, and errors by the rows of those messages that must not be sent."""
    prefixes, errors = _prefixes(batch.headers.values)
    headers: Sequence[MessageHeader] = batch.headers.values
    codes = batch.headers.codes
    if batch.uids is not None:
        prefixes, headers, errors = _with_uids(prefixes, batch.headers, errors, batch.uids)
        codes = np.arange(len(codes))
    sizes = np.diff(batch.values.offsets)
    totals = sizes + np.diff(prefixes.offsets)[codes]
    keys, partitions = batch.keys, batch.partitions
    outgoing = OutgoingBatch(
        _topics(batch.topics),
        Payloads(batch.values, prefixes, codes),
        headers,
        [0, *totals.cumsum().tolist()],
        None if keys is None else _values(keys),
        None if partitions is None else [partitions.values[code] for code in partitions.codes.tolist()],
        batch.first_row,
        checksums=checksums,
        source=batch,
        longest=int(totals.max(initial=0)),
    )
    return outgoing, _unwritable(codes, sizes, errors)


def refused_message(error: OptionError, message: str) -> OptionError:
    """Return the error of a message that cannot be written; ``message`` describes it to the user."""
    return OptionError("TUBEMQ_BAD_MESSAGE", what=f"{error.parameters['what']} ({message})")


def _sum_of(ends: Sequence[int], rows: Sequence[int]) -> int:
    """Return the sum of some rows; ``ends`` has the sum before each row, and of all rows at the end."""
    if isinstance(rows, range):
        return ends[rows.stop] - ends[rows.start]
    return sum([ends[row + 1] - ends[row] for row in rows])


def _topics(column: Coded[str]) -> Sequence[str]:
    """Return the topic of each message, or one for all."""
    if len(column.values) == 1:
        return column.values
    return [column.values[code] for code in column.codes.tolist()]


def _values(column: BytesColumn) -> Sequence[bytes | None]:
    """Return the bytes of each row, or None."""
    data, ends = column.data, column.offsets.tolist()
    texts: list[bytes | None] = [bytes(data[start:end]) for start, end in itertools.pairwise(ends)]
    if column.nulls is not None:
        for row in np.flatnonzero(column.nulls).tolist():
            texts[row] = None
    return texts


def _prefixes(headers: Sequence[MessageHeader]) -> tuple[BytesColumn, dict[int, OptionError]]:
    """Return the prefix of each header, and errors by the codes of headers that have none."""
    prefixes = []
    errors = {}
    for code, header in enumerate(headers):
        try:
            prefixes.append(encode_prefix(*header))
        except OptionError as error:
            prefixes.append(b"")
            errors[code] = error
    return BytesColumn.of(prefixes), errors


def _with_uids(
    prefixes: BytesColumn, headers: Coded[MessageHeader], errors: dict[int, OptionError], uids: BytesColumn
) -> tuple[BytesColumn, list[MessageHeader], dict[int, OptionError]]:
    """Return the prefix, the header and the error of each message; each prefix ends with the message's id."""
    stamped_prefixes: list[bytes] = [b""] * len(headers.codes)
    name = MESSAGE_UID_KEY.encode()
    for code in np.unique(headers.codes).tolist():
        prefix = bytes(prefixes.value(code) or b"")
        rows = np.flatnonzero(headers.codes == code)
        if uids.nulls is not None:
            for row in rows[uids.nulls[rows]].tolist():
                stamped_prefixes[row] = prefix
            rows = rows[~uids.nulls[rows]]
        stamped = with_pair(prefix, name, map(bytes, uids.values(rows)))
        for row, row_prefix in zip(rows.tolist(), stamped, strict=True):
            stamped_prefixes[row] = row_prefix
    row_headers = [headers.values[code] for code in headers.codes.tolist()]
    row_errors = {row: errors[code] for row, code in enumerate(headers.codes.tolist()) if code in errors}
    return BytesColumn.of(stamped_prefixes), row_headers, _unwritable_uids(uids) | row_errors


def _unwritable_uids(uids: BytesColumn) -> dict[int, OptionError]:
    """Return the errors of ids that cannot be attributes, by their rows."""
    if _PLAIN.fullmatch(uids.data) and np.diff(uids.offsets).all():
        return {}
    errors = {}
    for row in range(len(uids.offsets) - 1):
        uid = uids.value(row)
        try:
            if uid is not None:
                check_attribute(MESSAGE_UID_KEY, uid.decode())
        except UnicodeDecodeError:
            errors[row] = OptionError("TUBEMQ_BAD_MESSAGE", what=f"its {MESSAGE_UID_KEY} {uid!r} is not text")
        except OptionError as error:
            errors[row] = error
    return errors


def _unwritable(codes: Int64s, sizes: Int64s, errors: dict[int, OptionError]) -> dict[int, OptionError]:
    """Return the errors of messages that cannot be written, by their rows; ``errors`` are by header codes."""
    refused = sizes == 0
    if errors:
        refused |= np.isin(codes, list(errors))
    rows = np.flatnonzero(refused).tolist()
    return {row: errors[int(codes[row])] if sizes[row] else empty_value() for row in rows}
