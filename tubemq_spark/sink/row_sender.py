"""Sends the rows of one task; those that cannot be written fail it, or go to the dead letters.

**One pass.** Each row becomes a message once, in the order of the rows, whatever becomes of those before it:
ids depend on how often a row has occurred, and numbers in errors on how many rows came before.

**Linear.** A sender that refuses a row has encoded those behind it in vain. So as many rows are tried at once
as were sent since the last refusal, and what is known to be refused is not tried.
"""

from typing import Final

import numpy as np
import pyarrow as pa

from tubemq_spark.cluster.base import Sender
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import MESSAGE_UID_KEY
from tubemq_spark.protocol.send_batch import Bools, Coded, SendBatch
from tubemq_spark.sink.checked_rows import CheckedRows, row_name
from tubemq_spark.sink.columns import SinkColumns
from tubemq_spark.sink.dead_letters import DeadLetters, RefusedRow
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
_OF_TOPICS: Final = frozenset({"TUBEMQ_TOPIC_NAME", "TUBEMQ_TOPIC_UNKNOWN"})
"""Of these, errors that are those of all rows for the same topic."""


class RowSender:
    """Sends record batches; without dead letters it ends at the first row that cannot be written."""

    def __init__(
        self, sender: Sender, columns: SinkColumns, stamp: TaskUids | None, dead_letters: DeadLetters | None
    ) -> None:
        self._sender = sender
        self._columns = columns
        self._stamp = stamp
        self._dead_letters = dead_letters
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
        rows = self._columns.rows(batch, self.count + 1, stamp=self._stamp)
        if self._dead_letters is None:
            self._send(rows)
        else:
            self._send_sound_rows(rows, self._dead_letters)
        self.count += batch.num_rows

    def _send(self, rows: CheckedRows) -> None:
        """Send the rows before the first one that is refused, and raise why it is."""
        stop = _first_set(rows.refused)
        messages = rows.messages.part(0, stop)
        try:
            if stop:
                self._sender.send_batch(messages)
        except TubeMQError as error:
            if error.row is not None and error.condition in _NAMELESS:
                error.about = row_name(messages.first_row + error.row, messages.values.value(error.row))
            raise
        if stop < len(rows.refused):
            raise rows.refusal(stop)

    def _send_sound_rows(self, rows: CheckedRows, dead_letters: DeadLetters) -> None:
        """Send the rows that can be sent, and the others to the dead letters."""
        messages = rows.messages
        known = rows.refused | self._for_unknown_topics(messages.topics)
        start, size = 0, len(messages)
        while start < len(messages):
            stop = start + _first_set(known[start : start + size])
            found = self._try(messages.part(start, stop)) if stop > start else None
            if found is not None:
                stop, error = start + found[0], found[1]
                size = 1
                if error.condition in _OF_TOPICS:
                    self._unknown[messages.topics.value(stop)] = error
                    known |= self._for_unknown_topics(messages.topics)
            elif stop < len(messages) and known[stop]:
                topic = messages.topics.value(stop)
                error = rows.refusal(stop) if rows.refused[stop] else self._unknown[topic]
            else:
                start, size = stop, 2 * size
                continue
            dead_letters.send(_refused_row(messages, stop), error)
            start = stop + 1

    def _try(self, messages: SendBatch) -> tuple[int, TubeMQError] | None:
        """Send messages up to the first one that cannot be sent, and return that one and why."""
        try:
            self._sender.send_batch(messages)
        except TubeMQError as error:
            if error.row is None or error.condition not in _OF_ROWS:
                raise
            return error.row, error
        return None

    def _for_unknown_topics(self, topics: Coded[str]) -> Bools:
        """Say which rows are for topics that do not exist, as far as that is known."""
        codes = [code for code, topic in enumerate(topics.values) if topic in self._unknown]
        unknown: Bools = np.isin(topics.codes, codes)
        return unknown


def _refused_row(messages: SendBatch, row: int) -> RefusedRow:
    attributes = dict(messages.headers.value(row).attributes or {})
    uid = None if messages.uids is None else messages.uids.value(row)
    if uid is not None:
        attributes[MESSAGE_UID_KEY] = uid.decode(errors="replace")
    key = None if messages.keys is None else messages.keys.value(row)
    number, value = messages.first_row + row, messages.values.value(row)
    return RefusedRow(number, value, messages.topics.value(row), key, attributes)


def _first_set(flags: Bools) -> int:
    """Return the first row with a flag; the number of rows when none has one."""
    return int(flags.argmax()) if flags.any() else len(flags)
