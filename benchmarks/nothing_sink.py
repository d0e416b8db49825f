"""A Python data source whose writer only counts its rows: what remains is Spark's own price of a sink.

The task writes the count into a file, batch by batch, for who looks on.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

FORMAT: Final = "bench_nothing"


class NothingDataSource(DataSource):
    """``format("bench_nothing")``; option ``counter``: the file, which is there already."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002
        """Return the writer."""
        return _Writer(Path(self.options["counter"]))


class _Writer(DataSourceArrowWriter):
    def __init__(self, counter: Path) -> None:
        self._counter = counter

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        total = int(self._counter.read_text())
        for batch in iterator:
            total += batch.num_rows
            beside = self._counter.with_suffix(".new")
            beside.write_text(str(total))
            beside.replace(self._counter)
        return WriterCommitMessage()


def register(spark: SparkSession) -> None:
    """Make the format known."""
    spark.dataSource.register(NothingDataSource)
