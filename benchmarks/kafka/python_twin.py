"""Our data source once more, under another name: its tasks must run the Python twin of the hot loops.

The name is needed because Spark keeps the environment of Python workers by data source: that of a registered
one is the driver's at the time. Workers with different environments are never shared.
"""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.protocol import speedups
from tubemq_spark.protocol.speedups import PURE_VARIABLE

FORMAT: Final = "tubemq_python_twin"


class PythonTwinDataSource(TubeMQDataSource):
    """``format("tubemq_python_twin")``, for batch reads."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader."""
        return _CheckedReader(super().reader(schema))


class _CheckedReader(DataSourceReader):
    def __init__(self, reader: DataSourceReader) -> None:
        self._reader = reader

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks."""
        return list(self._reader.partitions())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a task's ranges.

        Raises:
            RuntimeError: the compiled twin runs here.
        """
        if speedups.compiled is not None:
            raise RuntimeError(f"the compiled twin runs here in spite of {PURE_VARIABLE}=1")
        return self._reader.read(partition)


def register(spark: SparkSession) -> None:
    """Make the format known."""
    environment = spark.sparkContext.environment
    before = dict(environment)
    environment[PURE_VARIABLE] = "1"
    try:
        spark.dataSource.register(PythonTwinDataSource)
    finally:
        environment.clear()
        environment.update(before)
