"""The option ``payload=inlong``: a builder of record batches whose rows are the messages in the bodies."""

import logging
import zoneinfo
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from tubemq_spark.errors import InLongMsgError
from tubemq_spark.options import ParseMode
from tubemq_spark.protocol.fetch_columns import FetchedBatch
from tubemq_spark.source.arrow import BatchBuilder, schema_of
from tubemq_spark.source.unpacking import TARGET_ROWS, Unpacked, unpack_bodies
from tubemq_spark.spark.columns import READ, UNPACKED

logger = logging.getLogger(__name__)

_OF_ROWS: Final = frozenset(name for name, column in UNPACKED.items() if column.unpacked)
"""The columns that differ among the rows of a body."""
_OF_NAMES: Final = ("topic", "brokerId", "partition", "messageId")
"""The columns that say where a body was."""


class InLongBuilder:
    """Turn fetched batches into record batches of the asked columns; as ``BatchBuilder``, with more rows."""

    def __init__(self, schema: pa.Schema, time_zone: zoneinfo.ZoneInfo, mode: ParseMode) -> None:
        """Begin with nothing."""
        self._schema = schema
        self._mode = mode
        names = dict.fromkeys(["value", *_OF_NAMES, *schema.names])
        bodies = schema_of(READ[name] for name in names if name in READ)
        self._bodies = BatchBuilder(bodies, time_zone)
        self._told = False

    @property
    def empty(self) -> bool:
        """Whether nothing waits to be handed over."""
        return self._bodies.empty

    def add(self, fetched: FetchedBatch, *, exact_offsets: bool) -> Iterator[pa.RecordBatch]:
        """Take a fetched batch; yield what is worth handing to Spark now."""
        return self._unpacked(self._bodies.add(fetched, exact_offsets=exact_offsets))

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield what is left."""
        return self._unpacked(self._bodies.finish())

    def _unpacked(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for bodies in batches:

            def on_malformed(number: int, error: InLongMsgError, bodies: pa.RecordBatch = bodies) -> None:
                self._met(_name(bodies, number), error)

            for rows in unpack_bodies(bodies.column("value"), self._mode, on_malformed):
                yield from self._batches(bodies, rows)

    def _batches(self, bodies: pa.RecordBatch, rows: Unpacked) -> Iterator[pa.RecordBatch]:
        body = pa.array(rows.body)
        columns = [
            rows.columns[field.name]() if field.name in _OF_ROWS else bodies.column(field.name).take(body)
            for field in self._schema
        ]
        batch = pa.RecordBatch.from_arrays(
            [column.cast(field.type) for column, field in zip(columns, self._schema, strict=True)],
            schema=self._schema,
        )
        # One body may hold millions of messages.
        for start in range(0, len(batch), 2 * TARGET_ROWS):
            yield batch.slice(start, 2 * TARGET_ROWS)

    def _met(self, name: str, error: InLongMsgError) -> None:
        """Fail with the name of a malformed body, or log it: the first of a task, since there may be many."""
        if self._mode is ParseMode.FAILFAST:
            raise InLongMsgError(error.condition, **{**error.parameters, "body": name}) from error
        if not self._told:
            self._told = True
            logger.warning(
                "%s is not a sound InLongMsg: %s. It is %s; so are others of this task, which are not logged",
                name,
                error.parameters["what"],
                "left out" if self._mode is ParseMode.DROPMALFORMED else "in the column _corrupt_record",
            )


def _name(bodies: pa.RecordBatch, number: int) -> str:
    topic, broker, partition, message = (bodies.column(name)[number].as_py() for name in _OF_NAMES)
    return f"The body of message {message} in {topic}/{broker}:{partition}"
