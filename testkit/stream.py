"""A streaming read, driven as Spark drives it: triggers, plans and tasks, without a JVM."""

import pickle
from collections.abc import Mapping
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from tubemq_spark.datasource import TubeMQDataSource

Row = tuple[Any, ...]


def read_task(pickled_reader: bytes, task: InputPartition) -> list[Row]:
    """Return a task's rows, read by a copy of the reader as an executor does."""
    batches = pickle.loads(pickled_reader).read(task)
    return [row for batch in batches for row in zip(*(column.to_pylist() for column in batch), strict=True)]


class Stream:
    """A streaming query with its checkpoint."""

    def __init__(self, options: Mapping[str, str], schema: StructType, checkpoint: object = None) -> None:
        """Start at a checkpoint; without one, as a new query does."""
        self.reader: Any = TubeMQDataSource(dict(options)).streamReader(schema)
        # A task's copy of the reader is made before the driver has asked it anything.
        self.pickled_reader = pickle.dumps(self.reader)
        self.checkpoint = checkpoint or self.reader.initialOffset()

    def plan(self) -> list[InputPartition]:
        """Plan a micro-batch and return its tasks; none if nothing is new."""
        start = self.checkpoint
        self.checkpoint = self.reader.latestOffset(start, ReadAllAvailable())
        return [] if start == self.checkpoint else list(self.reader.partitions(start, self.checkpoint))
