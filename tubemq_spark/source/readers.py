"""What Spark asks of a source: its batch reader, its stream reader, and what it sends to their tasks.

Spark pickles a reader to every task. Driver and tasks are processes of their own, so what only one of them
needs is imported by it alone.
"""

import dataclasses
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import RangeRequest
from tubemq_spark.offsets.ledger import batch_read
from tubemq_spark.offsets.loss import LossRecord
from tubemq_spark.offsets.source_offset import StartToken
from tubemq_spark.options import ReadOptions
from tubemq_spark.source.loss_ledger import Work
from tubemq_spark.source.schema import arrow_schema, check_schema, message_columns
from tubemq_spark.spark.edge import at_sparks_edge

if TYPE_CHECKING:
    from tubemq_spark.source.stream_driver import StreamDriver


_NO_MAXIMUM: Final = 2**63 - 1
"""Spark's limits are signed 64-bit integers."""


@at_sparks_edge
class TubeMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One object answers offsets for the life of a query; copies of it read in the tasks.

    The copies hold values only. The questions of the driver go to ``StreamDriver``, which is made by the
    first of them and is not copied. Spark's checkpoint keeps the offsets.
    """

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        check_schema(schema, message_columns(options.payload))
        self._schema = schema
        self._options = options
        self._driver: StreamDriver | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what tasks need."""
        return self.__dict__ | {"_driver": None}

    def initialOffset(self) -> dict[str, Any]:
        """Return a constant: Spark asks again after a failed first batch (see ``offsets.source_offset``)."""
        return StartToken(self._options.starting).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return ``maxOffsetsPerTrigger``, or no limit.

        Spark knows no limit that is several. So ``minOffsetsPerTrigger`` or ``maxBytesPerTrigger`` alone is a
        maximum of rows that nothing reaches: what counts is that Spark gives it back, and not "all" as
        ``Trigger.Once`` does.
        """
        options = self._options
        rows = options.max_offsets_per_trigger
        if rows is None and (options.min_offsets_per_trigger or options.max_bytes_per_trigger):
            rows = _NO_MAXIMUM
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next micro-batch ends; ``start`` again when there is nothing new."""
        return self._driver_once().latest_offset(
            start, limit.max_rows if isinstance(limit, ReadMaxRows) else None
        )

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return where the topics ended when they were last looked at, for the query's progress."""
        return self._driver_once().report()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix where this run ends: at what is there now."""
        self._driver_once().fix_target()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan a micro-batch: a function of its two offsets."""
        return partitions_of(self._driver_once().partitions(start, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a task's ranges (executor)."""
        from tubemq_spark.source.loss_ledger import origin_of_task
        from tubemq_spark.source.task import run_task

        origin = origin_of_task(self._options)
        return run_task(work_of(partition), self._options, arrow_schema(self._schema), origin)

    def commit(self, end: dict[str, Any]) -> None:
        """Move the user's group, if that is wanted; the checkpoint has the offset already."""
        if self._options.commit_to_group:
            self._driver_once().move_group(end)

    def stop(self) -> None:
        """Do nothing: no session, lease or thread outlives the question it was made for."""

    def _driver_once(self) -> "StreamDriver":
        """Return the driver, which the first question creates."""
        if self._driver is None:
            from tubemq_spark.source.stream_driver import StreamDriver

            self._driver = StreamDriver(self._options, self._schema.names)
        return self._driver


@at_sparks_edge
class RefusedStreamReader(DataSourceStreamReader):
    """Stands for a reader that cannot be made, and says why at Spark's first question.

    PySpark covers an exception of ``DataSource.streamReader`` with one of its own ("cannot access local
    variable 'reader'", seen in 4.2 and 4.3), and the user would read that one.
    """

    def __init__(self, error: TubeMQError) -> None:
        self._error = error

    def initialOffset(self) -> NoReturn:
        """Raise the error: a new query asks this first."""
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> NoReturn:  # noqa: ARG002
        """Raise the error: a query with a checkpoint asks this first."""
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> NoReturn:  # noqa: ARG002
        """Raise the error: a query that repeats its last micro-batch asks this first."""
        raise self._error

    def read(self, partition: InputPartition) -> NoReturn:  # noqa: ARG002
        """Raise the error."""
        raise self._error


@at_sparks_edge
class TubeMQReader(DataSourceReader):
    """Reads a range of history; holds values only.

    A frame is a snapshot: Spark asks for its partitions once, at the first action, and ``latest`` is
    where the topics end at that moment.
    """

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        check_schema(schema, message_columns(options.payload))
        self._schema = schema
        self._options = options
        self._origin = batch_read(options.cluster.client.group, uuid.uuid4().hex)

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks (driver)."""
        from tubemq_spark.source.batch_driver import plan_batch
        from tubemq_spark.source.loss_ledger import loss_policy

        policy = loss_policy(self._options)
        return partitions_of(plan_batch(self._options, self._schema.names, self._origin, policy))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a task's ranges (executor)."""
        from tubemq_spark.source.task import run_task

        return run_task(work_of(partition), self._options, arrow_schema(self._schema), self._origin)


@dataclasses.dataclass(init=False)
class OffsetRangePartition(InputPartition):
    """The work of one task, see ``Work``."""

    requests: tuple[RangeRequest, ...]
    lost: tuple[LossRecord, ...]

    def __init__(self, requests: Sequence[RangeRequest], lost: Sequence[LossRecord] = ()) -> None:
        parts = [*(request.range for request in requests), *lost]
        more = f" and {len(parts) - 1} more" if len(parts) > 1 else ""
        super().__init__(f"{parts[0]}{more}")
        self.requests = tuple(requests)
        self.lost = tuple(lost)


def partitions_of(tasks: Iterable[Work]) -> list[InputPartition]:
    """Return the input partitions of some tasks, which Spark sends to them."""
    return [OffsetRangePartition(*task) for task in tasks]


def work_of(partition: InputPartition | None) -> Work:
    """Return the work of a task: none for the bare value that Spark sends if nothing was planned."""
    if isinstance(partition, OffsetRangePartition):
        return Work(partition.requests, partition.lost)
    return Work()
