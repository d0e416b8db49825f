"""What becomes of the messages of one batch, by columns: where each is stored, or why it is not."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from tubemq_spark.client.producer.outgoing import OutgoingBatch
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.send_batch import Int64s
from tubemq_spark.protocol.send_connection import Details
from tubemq_spark.receipts import CHECKSUM_MODULUS, Receipt

_NOWHERE: Final = -1


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class StoredColumns:
    """Where the messages of a batch are, a row for each; what is not stored has the place -1."""

    partitions: tuple[TopicPartition, ...]
    places: Int64s
    """The place of each message's partition in ``partitions``."""
    offsets: Int64s
    message_ids: Int64s
    """As brokers made them; 0 where they did not tell, or were not asked."""
    append_times: Int64s
    """The same; milliseconds since 1970."""
    attempts: Int64s
    """How often each was sent."""
    unanswered: Int64s
    """How many of the attempts had no answer that says whether the message was stored."""


class BatchOutcome:
    """The outcome of each message of a batch, filled in by the thread of the loop; any thread may read it.

    **States of a message.** *Open* until it is stored, or has an error; then it has *ended*, and that never
    changes. Its place, or its error, is set after all else that is known of it, and before ``on_rows`` is
    called: other threads that see it ended see all of it. When none is open, ``on_end`` is called.

    **Who is told.** ``on_rows`` is called for each message that fails. For those that are stored it is called
    only if ``watched``: most are never waited for. Who wants to know sets that, in any thread, and then looks
    whether the message has ended.
    """

    __slots__ = (
        "_codes",
        "_counts",
        "_left",
        "_on_end",
        "_partitions",
        "_places",
        "errors",
        "on_rows",
        "watched",
    )

    def __init__(
        self,
        count: int,
        on_end: "Callable[[BatchOutcome], object]",
        refused: Mapping[int, TubeMQError] | None = None,
    ) -> None:
        """Begin with ``count`` open messages, but for those that were refused, by their rows."""
        self.errors: dict[int, TubeMQError] = dict(refused or {})
        """Why messages are not stored, by their rows; those with one reason share an object."""
        self.on_rows: Callable[[Sequence[int]], object] | None = None
        """Takes the rows of messages that have ended; dropped at the end."""
        self.watched = False
        """Whether ``on_rows`` is called for messages that are stored."""
        self._left = count - len(self.errors)
        self._on_end = on_end
        self._codes: dict[TopicPartition, int] = {}
        self._partitions: list[TopicPartition] = []
        # Two arrays, since most batches of single messages are small.
        self._places = np.full((2, count), _NOWHERE, np.int64)
        """The places of partitions, and the offsets."""
        self._counts = np.zeros((4, count), np.int64)
        """Ids, append times, attempts and unanswered attempts."""

    @property
    def left(self) -> int:
        """How many messages are open."""
        return self._left

    def has_ended(self, row: int) -> bool:
        """Whether a message has ended; for any thread."""
        return bool(self._places[0, row] >= 0) or row in self.errors

    def asked(self, row: int) -> bool:
        """Whether a message is open: its failure is its own then, and ends no other."""
        return not self.has_ended(row)

    def stored(
        self,
        rows: Sequence[int],
        partitions: Sequence[TopicPartition],
        offsets: Int64s,
        details: Details | None,
        attempts: int,
        unanswered: int,
    ) -> None:
        """End messages that a broker has stored; ``partitions`` is one for each, or one for all."""
        # A list, since a tuple would be one index of several dimensions.
        where = slice(rows.start, rows.stop) if isinstance(rows, range) else list(rows)
        counts = self._counts
        if details is not None:
            counts[0, where], counts[1, where] = details
        counts[2, where] = attempts
        if unanswered:
            counts[3, where] = unanswered
        self._places[1, where] = offsets
        self._places[0, where] = [self._code(partition) for partition in partitions]
        if self.watched and self.on_rows is not None:
            self.on_rows(rows)
        self._end(len(rows))

    def failed(self, row: int, error: TubeMQError) -> None:
        """End a message that will not be stored."""
        self.errors[row] = error
        if self.on_rows is not None:
            self.on_rows((row,))
        self._end(1)

    def abandon(self, error_of: Callable[[int], TubeMQError]) -> None:
        """End all messages that are open; ``error_of`` takes the row of one."""
        for row in np.flatnonzero(self._places[0] < 0).tolist():
            if row not in self.errors:
                self.failed(row, error_of(row))

    def begin(self) -> None:
        """Call ``on_end`` if no message was open from the start."""
        if not self._left:
            self._on_end(self)

    def where(self, row: int) -> tuple[TopicPartition, int, int | None, int | None, int, int]:
        """Return what a broker told of a message that is stored, as ``SendResult`` takes it."""
        place, offset = self._places[:, row].tolist()
        message_id, append_time, attempts, unanswered = self._counts[:, row].tolist()
        return self._partitions[place], offset, message_id or None, append_time or None, attempts, unanswered

    def columns(self) -> StoredColumns:
        """Return where the messages are."""
        return StoredColumns(tuple(self._partitions), *self._places, *self._counts)

    def receipts(self, batch: OutgoingBatch) -> list[Receipt]:
        """Return what each partition has acknowledged of the batch, in the partitions' order."""
        places, sizes = self._places[0], np.diff(batch.payloads.values.offsets)
        order = np.argsort(places, kind="stable")
        ends = np.searchsorted(places, np.arange(len(self._partitions) + 1), sorter=order).tolist()
        of_partition = zip(self._partitions, itertools.pairwise(ends), strict=True)
        receipts = [self._receipt(batch, sizes, one, order[slice(*rows)]) for one, rows in of_partition]
        return sorted(receipts, key=lambda receipt: receipt.partition)

    def _receipt(
        self, batch: OutgoingBatch, sizes: Int64s, partition: TopicPartition, rows: Int64s
    ) -> Receipt:
        offsets, again = self._places[1, rows], self._counts[2, rows] > 1
        checksum = batch.checksum_of(rows.tolist())
        return Receipt(
            partition,
            len(rows),
            int(offsets.min()),
            int(offsets.max()),
            int(again.sum()),
            int(self._counts[3, rows][again].sum()),
            int(sizes[rows].sum()),
            None if checksum is None else checksum % CHECKSUM_MODULUS,
        )

    def _code(self, partition: TopicPartition) -> int:
        code = self._codes.setdefault(partition, len(self._partitions))
        if code == len(self._partitions):
            self._partitions.append(partition)
        return code

    def _end(self, count: int) -> None:
        self._left -= count
        if count and not self._left:
            # It holds all futures of the batch, each of which holds this object.
            self.on_rows = None
            self._on_end(self)
