"""The batch source: ``spark.read.format("tubemq")`` reads a range of history."""

import uuid
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tubemq_spark.offsets.ledger import batch_read
from tubemq_spark.options import ReadOptions
from tubemq_spark.source.columns import message_columns
from tubemq_spark.source.partition import partitions_of, work_of
from tubemq_spark.source.schema import arrow_schema, check_schema
from tubemq_spark.spark.edge import at_sparks_edge


@at_sparks_edge
class TubeMQReader(DataSourceReader):
    """Holds values only: Spark pickles it to every task.

    A frame is a snapshot: Spark asks for its partitions once, at the first action, and ``latest`` is
    where the topics end at that moment.

    Driver and tasks are processes of their own, so what only one of them needs is imported by it alone.
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
