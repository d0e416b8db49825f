"""Sends the rows of one task; those that cannot be written fail it, or go to the dead letters.

**One pass.** Each row becomes a message once, in the order of the rows, also behind rows that are refused:
ids depend on how often a row has occurred, and numbers in errors on how many rows came before.
"""

from typing import Final

import numpy as np
import pyarrow as pa

from tubemq_spark.cluster.base import Sender
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import MESSAGE_UID_KEY
from tubemq_spark.protocol.send_batch import TOPIC_REFUSALS, SendBatch
from tubemq_spark.sink.checked_rows import row_name
from tubemq_spark.sink.columns import SinkColumns
from tubemq_spark.sink.dead_letters import DeadLetters, RefusedRow
from tubemq_spark.sink.uids import TaskUids

_NAMELESS: Final = TOPIC_REFUSALS | {"TUBEMQ_PARTITION_UNKNOWN"}
"""Refusals that do not say which row they are about."""


class RowSender:
    """Sends record batches; without dead letters it ends at the first row that cannot be written."""

    def __init__(
        self, sender: Sender, columns: SinkColumns, stamp: TaskUids | None, dead_letters: DeadLetters | None
    ) -> None:
        self._sender = sender
        self._columns = columns
        self._stamp = stamp
        self._dead_letters = dead_letters
        self.count = 0
        """How many rows there were."""

    @property
    def dead_letters(self) -> int:
        """How many rows went to the dead letters."""
        return 0 if self._dead_letters is None else self._dead_letters.count

    def send(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a record batch."""
        rows = self._columns.rows(batch, self.count + 1, stamp=self._stamp)
        messages, start = rows.messages, 0
        for stop in [*np.flatnonzero(rows.refused).tolist(), len(messages)]:
            if stop > start:
                self._send(messages, start, stop)
            if stop < len(messages):
                if self._dead_letters is None:
                    raise rows.refusal(stop)
                self._dead_letters.add(_refused_row(messages, stop), rows.refusal(stop))
            start = stop + 1
        if self._dead_letters is not None:
            self._dead_letters.send()
        self.count += batch.num_rows

    def _send(self, messages: SendBatch, start: int, stop: int) -> None:
        """Send some rows; without dead letters, the first that is refused ends that."""
        dead_letters = self._dead_letters
        if dead_letters is not None:
            self._sender.send_batch(
                messages.part(start, stop),
                lambda place, error: dead_letters.add(_refused_row(messages, start + place), error),
            )
            return
        try:
            self._sender.send_batch(messages.part(start, stop))
        except TubeMQError as error:
            if error.row is not None and error.condition in _NAMELESS:
                row = start + error.row
                error.about = row_name(messages.first_row + row, messages.values.value(row))
            raise


def _refused_row(messages: SendBatch, row: int) -> RefusedRow:
    attributes = dict(messages.headers.value(row).attributes or {})
    uid = None if messages.uids is None else messages.uids.value(row)
    if uid is not None:
        attributes[MESSAGE_UID_KEY] = uid.decode(errors="replace")
    key = None if messages.keys is None else messages.keys.value(row)
    number, value = messages.first_row + row, messages.values.value(row)
    return RefusedRow(number, value, messages.topics.value(row), key, attributes)
