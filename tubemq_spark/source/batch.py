"""The batch source: ``spark.read.format("tubemq")`` reads a range of history."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tubemq_spark.offsets.positions import Edge, resolve
from tubemq_spark.offsets.ranges import batch_ranges
from tubemq_spark.options import ReadOptions
from tubemq_spark.source.partition import work_of
from tubemq_spark.source.planner import Planner
from tubemq_spark.source.schema import check_schema
from tubemq_spark.source.task import loss_policy, read_rows


class TubeMQReader(DataSourceReader):
    """Holds values only: Spark pickles it to every task.

    A frame is a snapshot: Spark asks for its partitions once, at the first action, and ``latest`` is
    where the topics end at that moment.
    """

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        check_schema(schema)
        self._schema = schema
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Plan one task a TubeMQ partition (driver)."""
        options, on_loss = self._options, loss_policy(self._options)
        planner = Planner(options)
        snapshot = planner.look()
        known = snapshot.layout.partitions.keys()
        starts = resolve(options.starting, known, snapshot.bounds, option="startingOffsets", on_loss=on_loss)
        ends = resolve(
            options.ending or Edge.LATEST, known, snapshot.bounds, option="endingOffsets", on_loss=on_loss
        )
        return list(planner.partitions(batch_ranges(starts, ends), on_loss))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a task's range (executor)."""
        work = work_of(partition)
        return iter(()) if work is None else read_rows(work, self._options, self._schema)
