"""One writing task: every row is sent and acknowledged before the commit message goes back.

**One pass.** Each row becomes a message once, in the order of the rows, also behind rows that are refused:
ids depend on how often a row has occurred, and numbers in errors on how many rows came before.

**Dead letters.** Rows that cannot be written fail the task, or go to a topic of their own with the reason. A
dead letter has the row's value as its body. Its attributes are those of the row, as far as they can be
written, and these:

- ``deadLetterCondition`` and ``deadLetterReason``: the error;
- ``deadLetterTopic``: where the row should have gone, if that is known;
- ``deadLetterWrite``: the micro-batch or the run of the write; ``deadLetterRow``: the number of its task, and
  its own number there;
- ``deadLetterKey``: its key, in base64 for URLs; of a long one the beginning, and ``deadLetterKeyBytes`` is
  its length then;
- ``deadLetterValue``: ``null`` or ``empty``, if that is what its value was. TubeMQ has no messages without a
  body: such a dead letter has a body of one zero byte.
"""

import base64
import logging
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from tubemq_spark.cluster.base import Sender
from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.errors import OptionError, ProduceError, TubeMQError
from tubemq_spark.model import MESSAGE_UID_KEY
from tubemq_spark.options import WriteOptions
from tubemq_spark.protocol.payload import RESERVED_NAMES, check_attribute
from tubemq_spark.protocol.send_batch import TOPIC_REFUSALS, BytesColumn, Coded, MessageHeader, SendBatch
from tubemq_spark.sink.columns import NO_BODY, SinkColumns, is_text, row_name, task_name, task_number
from tubemq_spark.sink.manifests import TubeMQCommitMessage
from tubemq_spark.sink.uids import TaskUids, write_prefix
from tubemq_spark.spark.edge import micro_batch_of_task, spare_collector

logger = logging.getLogger(__name__)


def write_rows(
    batches: Iterator[pa.RecordBatch], columns: SinkColumns, options: WriteOptions, run_id: str | None = None
) -> TubeMQCommitMessage:
    """Send every row, wait until brokers acknowledged all of them, and return the receipts.

    Delivery is at least once: a repeated task, or a send repeated after a lost answer, stores again.
    """
    spare_collector()
    task, number = task_name(), task_number()
    micro_batch = micro_batch_of_task()
    write = str(micro_batch or run_id)
    stamp = TaskUids(write, number) if options.stamp_message_uid else None
    with open_cluster(options.cluster).sender(task) as sender:
        dead_letters = None
        if options.dead_letter_topic is not None:
            dead_letters = DeadLetters(sender, options.dead_letter_topic, write, number)
        rows = RowSender(sender, columns, stamp, dead_letters)
        for batch in batches:
            rows.send(batch)
        sender.flush()
        return TubeMQCommitMessage(
            tuple(sender.receipts()),
            rows.count,
            micro_batch,
            dead_letters=rows.dead_letters,
            uid_prefix=write_prefix(write).decode() if stamp and columns.have_no_ids else None,
        )


_MOST_REASON_CHARACTERS: Final = 500
_MOST_KEY_BYTES: Final = 300
"""Which is 400 characters in base64."""
_READABLE: Final = str.maketrans({",": ";", "=": ":"})
"""TubeMQ's attributes have no escapes."""


class DeadLetters:
    """The dead letters of one task, whose other rows go through the same sender: one flush is enough."""

    def __init__(self, sender: Sender, topic: str, write: str, task: int) -> None:
        self._sender = sender
        self._topic = topic
        self._write = write
        self._task = task
        self._rows: list[tuple[int, bytes | None]] = []
        """The number of each row that is to be sent, and its value."""
        self._headers: list[MessageHeader] = []
        self.count = 0
        """How many were sent."""

    def add(self, messages: SendBatch, row: int, error: TubeMQError) -> None:
        """Keep a row for ``send``, with what is wrong with it."""
        number, value = messages.first_row + row, messages.values.value(row)
        if not self.count and not self._rows:
            logger.warning(
                "%s: row %s goes to topic '%s', and so do others, which are not logged: %s",
                task_name(),
                row_name(number, value),
                self._topic,
                error,
            )
        self._rows.append((number, value))
        self._headers.append(MessageHeader(dict(self._attributes(messages, row, error))))

    def send(self) -> None:
        """Send the rows that were added to the dead letters."""
        rows, headers = self._rows, self._headers
        if not rows:
            return
        self._rows, self._headers = [], []
        batch = SendBatch(
            Coded((self._topic,), np.zeros(len(rows), np.int64)),
            BytesColumn.of([value or NO_BODY for _, value in rows]),
            Coded(tuple(headers), np.arange(len(rows))),
        )
        try:
            self._sender.send_batch(batch)
        except (ProduceError, OptionError) as failure:
            if failure.row is None:
                raise
            row = row_name(*rows[failure.row])
            raise ProduceError("TUBEMQ_DEAD_LETTER", row=row, topic=self._topic, cause=failure) from failure
        self.count += len(rows)

    def _attributes(self, messages: SendBatch, row: int, error: TubeMQError) -> Iterable[tuple[str, str]]:
        attributes = dict(messages.headers.value(row).attributes or {})
        uid = None if messages.uids is None else messages.uids.value(row)
        if uid is not None:
            attributes[MESSAGE_UID_KEY] = uid.decode(errors="replace")
        yield from _writable(attributes.items())
        yield "deadLetterCondition", error.condition
        yield "deadLetterReason", _readable(str(error))
        if topic := messages.topics.value(row):
            yield "deadLetterTopic", _readable(topic)
        yield "deadLetterWrite", _readable(self._write)
        yield "deadLetterRow", f"{self._task}:{messages.first_row + row}"
        if messages.keys is not None and (key := messages.keys.value(row)) is not None:
            # All of a long key could make the dead letter too long for every topic.
            text = base64.urlsafe_b64encode(key[:_MOST_KEY_BYTES]).rstrip(b"=").decode()
            yield "deadLetterKey", text or "empty"
            if len(key) > _MOST_KEY_BYTES:
                yield "deadLetterKeyBytes", str(len(key))
        value = messages.values.value(row)
        if not value:
            yield "deadLetterValue", "null" if value is None else "empty"


def _writable(pairs: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    """Yield the pairs that can be attributes of a message."""
    for name, value in pairs:
        if is_text(name) and is_text(value):
            try:
                check_attribute(name, value)
            except OptionError:
                continue
            yield name, value


def _readable(text: str) -> str:
    """Return a text as an attribute can hold it."""
    readable = text[:_MOST_REASON_CHARACTERS].translate(_READABLE)
    for name in RESERVED_NAMES:
        readable = readable.replace(name, name.strip("$"))
    return readable.encode(errors="replace").decode().strip() or "blank"


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
                self._dead_letters.add(messages, stop, rows.refusal(stop))
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
                lambda place, error: dead_letters.add(messages, start + place, error),
            )
            return
        try:
            self._sender.send_batch(messages.part(start, stop))
        except TubeMQError as error:
            if error.row is not None and error.condition in _NAMELESS:
                row = start + error.row
                error.about = row_name(messages.first_row + row, messages.values.value(row))
            raise
