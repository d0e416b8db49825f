"""Dead letters: rows that cannot be written, sent to a topic of their own with the reason.

A dead letter has the row's value as its body. Its attributes are those of the row, as far as they can be
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
import dataclasses
import logging
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from tubemq_spark.cluster.base import Sender
from tubemq_spark.errors import OptionError, ProduceError, TubeMQError
from tubemq_spark.protocol.payload import RESERVED_NAMES, check_attribute
from tubemq_spark.protocol.send_batch import BytesColumn, Coded, MessageHeader, SendBatch
from tubemq_spark.sink.checked_rows import row_name, task_name
from tubemq_spark.sink.coding import is_text

logger = logging.getLogger(__name__)

NO_BODY: Final = b"\0"
_MOST_REASON_CHARACTERS: Final = 500
_MOST_KEY_BYTES: Final = 300
"""Which is 400 characters in base64."""
_READABLE: Final = str.maketrans({",": ";", "=": ":"})
"""TubeMQ's attributes have no escapes."""


@dataclasses.dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that cannot be written, as far as it is known."""

    number: int
    """Its number in its task, from 1 on."""
    value: bytes | None
    topic: str | None = None
    key: bytes | None = None
    attributes: Mapping[str, str] = dataclasses.field(default_factory=dict)


class DeadLetters:
    """The dead letters of one task, whose other rows go through the same sender: one flush is enough."""

    def __init__(self, sender: Sender, topic: str, write: str, task: int) -> None:
        self._sender = sender
        self._topic = topic
        self._write = write
        self._task = task
        self._rows: list[RefusedRow] = []
        self._headers: list[MessageHeader] = []
        self.count = 0
        """How many were sent."""

    def add(self, row: RefusedRow, error: TubeMQError) -> None:
        """Keep a row for ``send``, with what is wrong with it."""
        if not self.count and not self._rows:
            logger.warning(
                "%s: row %s goes to topic '%s', and so do others, which are not logged: %s",
                task_name(),
                row_name(row.number, row.value),
                self._topic,
                error,
            )
        self._rows.append(row)
        self._headers.append(MessageHeader(dict(self._attributes(row, error))))

    def send(self) -> None:
        """Send the rows that were added to the dead letters."""
        rows, headers = self._rows, self._headers
        if not rows:
            return
        self._rows, self._headers = [], []
        batch = SendBatch(
            Coded((self._topic,), np.zeros(len(rows), np.int64)),
            BytesColumn.of([row.value or NO_BODY for row in rows]),
            Coded(tuple(headers), np.arange(len(rows))),
        )
        try:
            self._sender.send_batch(batch)
        except (ProduceError, OptionError) as failure:
            if failure.row is None:
                raise
            row = rows[failure.row]
            raise ProduceError(
                "TUBEMQ_DEAD_LETTER", row=row_name(row.number, row.value), topic=self._topic, cause=failure
            ) from failure
        self.count += len(rows)

    def _attributes(self, row: RefusedRow, error: TubeMQError) -> Iterable[tuple[str, str]]:
        yield from _writable(row.attributes.items())
        yield "deadLetterCondition", error.condition
        yield "deadLetterReason", _readable(str(error))
        if row.topic:
            yield "deadLetterTopic", _readable(row.topic)
        yield "deadLetterWrite", _readable(self._write)
        yield "deadLetterRow", f"{self._task}:{row.number}"
        if row.key is not None:
            # All of a long key could make the dead letter too long for every topic.
            key = base64.urlsafe_b64encode(row.key[:_MOST_KEY_BYTES]).rstrip(b"=").decode()
            yield "deadLetterKey", key or "empty"
            if len(row.key) > _MOST_KEY_BYTES:
                yield "deadLetterKeyBytes", str(len(row.key))
        if not row.value:
            yield "deadLetterValue", "null" if row.value is None else "empty"


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
