"""Our data source without its work: a task reads one record batch, and gives it again and again.

What remains is what Spark takes for rows with these columns from any Python source, however fast: it is the
bound of every figure of ours.
"""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.offsets.units import rows_between
from tubemq_spark.source.partition import OffsetRangePartition

FORMAT: Final = "tubemq_ready_batches"


class ReadyDataSource(TubeMQDataSource):
    """``format("tubemq_ready_batches")``, for batch reads."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader."""
        return _RepeatingReader(super().reader(schema))


class _RepeatingReader(DataSourceReader):
    def __init__(self, reader: DataSourceReader) -> None:
        self._reader = reader

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks."""
        return list(self._reader.partitions())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield as many rows as a task has, all of them from its first batch."""
        assert isinstance(partition, OffsetRangePartition)
        left = sum(rows_between(one.range.start, one.range.end) for one in partition.requests)
        batches = iter(self._reader.read(partition))
        batch = next(batches)
        batches.close()  # type: ignore[attr-defined]
        while left:
            yield batch.slice(0, min(left, len(batch)))
            left -= min(left, len(batch))


def register(spark: SparkSession) -> None:
    """Make the format known."""
    spark.dataSource.register(ReadyDataSource)
