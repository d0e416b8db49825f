"""Sends the rows of one task; those that cannot be written fail it, or go to the dead letters.

**One pass.** Each row becomes a message once, in the order of the rows, whatever becomes of those before it:
ids depend on how often a row has occurred, and numbers in errors on how many rows came before.
"""

from typing import Final

import numpy as np
import pyarrow as pa

from tubemq_spark.cluster.base import Sender
from tubemq_spark.errors import TubeMQError
from tubemq_spark.protocol.send_batch import SendBatch
from tubemq_spark.sink.columns import SinkColumns
from tubemq_spark.sink.dead_letters import DeadLetters, RefusedRow
from tubemq_spark.sink.repairs import Repairs
from tubemq_spark.sink.rows import row_name
from tubemq_spark.sink.uids import TaskUids

_OF_ROWS: Final = frozenset(
    {
        "TUBEMQ_BAD_MESSAGE",
        "TUBEMQ_MESSAGE_TOO_LONG",
        "TUBEMQ_PARTITION_UNKNOWN",
        "TUBEMQ_TOPIC_NAME",
        "TUBEMQ_TOPIC_UNKNOWN",
    }
)
"""What may be wrong with a row and not with all: the driver has seen that the option's topic exists."""
_NAMELESS: Final = frozenset({"TUBEMQ_PARTITION_UNKNOWN", "TUBEMQ_TOPIC_NAME", "TUBEMQ_TOPIC_UNKNOWN"})
"""Of these, errors that do not say which row they are about."""
_AFTER_REFUSAL: Final = 256
"""Rows that are sent together after one was refused: all that follow are encoded again."""


class RowSender:
    """Sends record batches; without dead letters it ends at the first row that cannot be written."""

    def __init__(
        self, sender: Sender, columns: SinkColumns, stamp: TaskUids | None, dead_letters: DeadLetters | None
    ) -> None:
        self._sender = sender
        self._columns = columns
        self._stamp = stamp
        self._dead_letters = dead_letters
        self._repairs = Repairs(mend=dead_letters is None)
        self._unknown: dict[str, TubeMQError] = {}
        """Topics that do not exist: the masters need not be asked for each of their rows."""
        self.count = 0
        """How many rows there were."""

    @property
    def dead_letters(self) -> int:
        """How many rows went to the dead letters."""
        return 0 if self._dead_letters is None else self._dead_letters.count

    def send(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a record batch.

        Raises:
            TubeMQError: a row could not be sent, nor its dead letter; nothing is sent after it.
        """
        first = self.count + 1
        if self._dead_letters is None:
            self._send(batch, first)
        else:
            self._send_sound_rows(batch, first, self._dead_letters)
        self.count += batch.num_rows

    def tell(self, task: str) -> None:
        """Log what was changed so that it could be written."""
        self._repairs.tell(task)

    def _send(self, batch: pa.RecordBatch, first: int) -> None:
        for some in self._columns.batches(batch, self._repairs, first, stamp=self._stamp):
            try:
                self._sender.send_batch(some)
            except TubeMQError as error:
                if error.row is not None and error.condition in _NAMELESS:
                    error.about = row_name(some.first_row + error.row, some.values.value(error.row))
                raise

    def _send_sound_rows(self, batch: pa.RecordBatch, first: int, dead_letters: DeadLetters) -> None:
        refused = self._columns.refused(batch, first)
        start = 0
        for row in [*sorted(refused), batch.num_rows]:
            sound = batch.slice(start, row - start)
            if sound.num_rows:
                for some in self._columns.batches(sound, self._repairs, first + start, stamp=self._stamp):
                    self._send_most(some, dead_letters)
            if row in refused:
                dead_letters.send(self._columns.row(batch, row, first + row), refused[row])
            start = row + 1

    def _send_most(self, batch: SendBatch, dead_letters: DeadLetters) -> None:
        """Send those messages of a batch that can be sent."""
        size = len(batch)
        while len(batch):
            refused = self._known_refusal(batch)
            stop = min(size, len(batch)) if refused is None else refused[0]
            try:
                if stop:
                    self._sender.send_batch(batch.part(0, stop))
            except TubeMQError as error:
                if error.row is None or error.condition not in _OF_ROWS:
                    raise
                refused = error.row, error
                size = _AFTER_REFUSAL
            if refused is not None:
                stop, why = refused
                message = batch.message(stop)
                if why.condition in {"TUBEMQ_TOPIC_UNKNOWN", "TUBEMQ_TOPIC_NAME"}:
                    self._unknown[message.topic] = why
                attributes = dict(message.attributes or {})
                row = RefusedRow(
                    batch.first_row + stop, message.value, message.topic, message.key, attributes
                )
                dead_letters.send(row, why)
                stop += 1
            batch = batch.part(stop, len(batch))

    def _known_refusal(self, batch: SendBatch) -> tuple[int, TubeMQError] | None:
        """Return the first message for a topic that does not exist, as far as that is known."""
        if self._unknown.keys().isdisjoint(batch.topics.values):
            return None
        codes = [code for code, topic in enumerate(batch.topics.values) if topic in self._unknown]
        rows = np.flatnonzero(np.isin(batch.topics.codes, codes))
        return (int(rows[0]), self._unknown[batch.topics.value(int(rows[0]))]) if len(rows) else None
