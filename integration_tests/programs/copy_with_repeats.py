"""A streaming job that copies topics to a topic and stores rows more than once, for tests that kill it.

usage: copy_with_repeats.py FOLDER PLAN

The plan is that of ``stream_to_files.py``, and more: ``sink``, the options of the sink, and ``slow``, whether
some tasks take so long that Spark runs them twice (``spark.speculation``, which needs a cluster).

Which tasks have troubles depends on the numbers of micro-batch and task alone. The first attempts of every
other task fail, up to three of them, in turn after all of their rows are stored and after some of them are.
"""

import itertools
import json
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType
from stream_to_files import finish, session

from tubemq_spark.datasource import TubeMQDataSource

MOST_FAILURES = 3
SLOW_SECONDS = 20


class TroubledWriter(DataSourceStreamArrowWriter):
    """The streaming sink, in whose tasks something goes wrong after they have stored rows."""

    def __init__(self, writer: DataSourceStreamArrowWriter, *, slow: bool) -> None:
        self._writer = writer
        self._slow = slow

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        batch = context.getLocalProperty("streaming.sql.batchId")
        chance = zlib.crc32(f"{batch}/{context.partitionId()}".encode())
        attempt = context.attemptNumber()
        failures = chance % (2 * MOST_FAILURES)
        if attempt < failures <= MOST_FAILURES:
            self._writer.write(iterator if attempt % 2 == 0 else itertools.islice(iterator, 1))
            raise RuntimeError(f"attempt {attempt} fails on purpose")
        message = self._writer.write(iterator)
        if self._slow and failures == MOST_FAILURES + 1 and attempt == 0:
            time.sleep(SLOW_SECONDS)
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._writer.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._writer.abort(messages, batchId)


class TroubledTubeMQ(TubeMQDataSource):
    """``tubemq`` with the sink above."""

    slow = False

    @classmethod
    def name(cls) -> str:
        return "troubled_tubemq"

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        writer = super().streamWriter(schema, overwrite)
        assert isinstance(writer, DataSourceStreamArrowWriter)
        return TroubledWriter(writer, slow=self.slow)


def main(folder: Path, plan: Mapping[str, Any]) -> None:
    """Run the job."""
    spark = session(folder, plan["settings"])
    TroubledTubeMQ.slow = plan["slow"]
    spark.dataSource.register(TroubledTubeMQ)
    trigger: dict[str, Any] = {"processingTime": "0 seconds"} if plan["endless"] else {"availableNow": True}
    writer = (
        spark.readStream.format("tubemq")
        .schema("value binary")
        .options(**plan["options"])
        .load()
        .writeStream.format("troubled_tubemq")
        .options(**plan["sink"])
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(**trigger)
    )
    finish(writer.start, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
