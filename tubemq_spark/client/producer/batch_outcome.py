"""What becomes of the messages of one batch, by columns: where each is stored, or why it is not."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from tubemq_spark.client.producer.outgoing import OutgoingBatch
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.send_answers import Details
from tubemq_spark.protocol.send_batch import Int64s
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
    """The outcome of each message of a batch; the thread that drives the send window fills it in.

    **States of a message.** *Open* until it is stored, or has an error; then that never changes. When none is
    open, ``on_end`` is called.
    """

    __slots__ = (
        "_attempts",
        "_codes",
        "_ids",
        "_left",
        "_offsets",
        "_on_end",
        "_places",
        "_times",
        "_unanswered",
        "batch",
        "errors",
    )

    def __init__(
        self,
        batch: OutgoingBatch,
        refused: Mapping[int, TubeMQError],
        on_end: "Callable[[BatchOutcome], object]",
    ) -> None:
        """Begin with open messages, but for those that were refused, by their rows."""
        count = len(batch)
        self.batch = batch
        self.errors: dict[int, TubeMQError] = dict(refused)
        """Why messages are not stored, by their rows; those with one reason share an object."""
        self._left = count - len(refused)
        self._on_end = on_end
        self._codes: dict[TopicPartition, int] = {}
        self._places = np.full(count, _NOWHERE, np.int64)
        self._offsets = np.full(count, _NOWHERE, np.int64)
        self._ids = np.zeros(count, np.int64)
        self._times = np.zeros(count, np.int64)
        self._attempts = np.zeros(count, np.int64)
        self._unanswered = np.zeros(count, np.int64)

    @property
    def left(self) -> int:
        """How many messages are open."""
        return self._left

    def asked(self, row: int) -> bool:
        """Whether a message is open: its failure is its own then, and ends no other."""
        return self._places[row] == _NOWHERE and row not in self.errors

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
        codes = [self._codes.setdefault(partition, len(self._codes)) for partition in partitions]
        self._places[where] = codes
        self._offsets[where] = offsets
        self._attempts[where] = attempts
        self._unanswered[where] = unanswered
        if details is not None:
            self._ids[where], self._times[where] = details
        self._end(len(rows))

    def failed(self, row: int, error: TubeMQError) -> None:
        """End a message that will not be stored."""
        self.errors[row] = error
        self._end(1)

    def abandon(self, error: TubeMQError) -> None:
        """End all messages that are open."""
        open_rows = [row for row in np.flatnonzero(self._places < 0).tolist() if row not in self.errors]
        self.errors.update(dict.fromkeys(open_rows, error))
        self._end(len(open_rows))

    def begin(self) -> None:
        """Call ``on_end`` if no message was open from the start."""
        if not self._left:
            self._on_end(self)

    def columns(self) -> StoredColumns:
        """Return where the messages are."""
        return StoredColumns(
            tuple(self._codes),
            self._places,
            self._offsets,
            self._ids,
            self._times,
            self._attempts,
            self._unanswered,
        )

    def receipts(self) -> list[Receipt]:
        """Return what each partition has acknowledged of the batch, in the partitions' order."""
        return sorted(
            (
                self._receipt(partition, np.flatnonzero(self._places == code))
                for partition, code in self._codes.items()
            ),
            key=lambda receipt: receipt.partition,
        )

    def _receipt(self, partition: TopicPartition, rows: Int64s) -> Receipt:
        offsets, again = self._offsets[rows], self._attempts[rows] > 1
        checksum = self.batch.checksum_of(rows.tolist())
        return Receipt(
            partition,
            len(rows),
            int(offsets.min()),
            int(offsets.max()),
            int(again.sum()),
            int(self._unanswered[rows][again].sum()),
            int(np.diff(self.batch.payloads.values.offsets)[rows].sum()),
            None if checksum is None else checksum % CHECKSUM_MODULUS,
        )

    def _end(self, count: int) -> None:
        self._left -= count
        if count and not self._left:
            self._on_end(self)
