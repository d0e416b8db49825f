"""The readers of the table, asked as Spark asks them: triggers, plans and tasks, without a JVM."""

import collections
import concurrent.futures
import pickle
import time
from collections.abc import Mapping
from typing import Any

import pytest
from google.protobuf.message import Message
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StructField, StructType

from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.net.connection import Call, Connection
from tubemq_spark.protocol.constants import Method, ServiceType
from tubemq_spark.protocol.pb import broker_pb2
from tubemq_spark.source.readers import OffsetRangePartition

SCHEMA = StructType([StructField("value", BinaryType())])
PATIENCE_S = 60


def options_of(scene, **changes):
    return {
        "tubemq.master.servers": scene.masters,
        "subscribe": "steady,changing",
        "startingoffsets": "earliest",
        "tubemq.rpctimeoutms": "1000",
        "tubemq.fetchtimeoutms": "60000",
        "fetchoffset.numretries": "600",
        "fetchoffset.retryintervalms": "100",
        **changes,
    }


def values_of(pickled, task):
    """Return the values that a task reads."""
    return [value for (value,) in read_task(pickled, task)]


class Tasks:
    """Planned tasks, read all at once."""

    def __init__(self, pickled, tasks):
        self._pickled = pickled
        self._tasks = tasks

    def start(self, where=None):
        """Read in threads; return what gives the rows, or raises, when the last task ends.

        Small ranges of a broker share a task; those of some partitions are read by tasks of their own.
        """
        tasks = self._tasks if where is None else list(self._of(where))
        executor = concurrent.futures.ThreadPoolExecutor(max(1, len(tasks)))
        reading = [executor.submit(values_of, self._pickled, task) for task in tasks]
        executor.shutdown(wait=False)

        def finish():
            concurrent.futures.wait(reading)
            return [value for rows in reading for value in rows.result()]

        return finish

    def _of(self, where):
        for task in self._tasks:
            for request in task.requests:
                if where(request.range.partition):
                    yield OffsetRangePartition([request])


def plan_batch(scene, **changes):
    """Plan a batch read; return its tasks."""
    reader = TubeMQDataSource(options_of(scene, **changes)).reader(SCHEMA)
    return Tasks(pickle.dumps(reader), reader.partitions())


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


class Query(Stream):
    """A streaming query with all values that it has read."""

    def __init__(self, scene, checkpoint=None, **changes):
        super().__init__(options_of(scene, **changes), SCHEMA, checkpoint)
        self.rows = []

    def plan(self):
        """Plan a micro-batch; return its tasks, which are none if nothing is new."""
        return Tasks(self.pickled_reader, super().plan())

    def trigger(self):
        """Run a micro-batch, if there is one; return whether there was."""
        before = self.checkpoint
        self.rows += self.plan().start()()
        return self.checkpoint != before

    def await_rows(self, wanted):
        """Run micro-batches until all of these rows were there."""
        self.trigger_until(lambda: wanted <= set(self.rows))

    def trigger_until(self, done):
        """Run micro-batches until something has happened."""
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < deadline, f"it did not happen; there are {sorted(self.rows)}"
            if not self.trigger():
                time.sleep(0.02)

    def prepare(self):
        """Fix where a run of ``Trigger.AvailableNow`` ends."""
        self.reader.prepareForTriggerAvailableNow()

    def finish(self):
        """Run micro-batches until nothing is new."""
        while self.trigger():
            pass

    def run_available(self):
        """Run as ``Trigger.AvailableNow`` does."""
        self.prepare()
        self.finish()


Row = tuple[Any, ...]


def read_task(pickled_reader: bytes, task: InputPartition) -> list[Row]:
    """Return a task's rows, read by a copy of the reader as an executor does."""
    batches = pickle.loads(pickled_reader).read(task)
    return [row for batch in batches for row in zip(*(column.to_pylist() for column in batch), strict=True)]


class Requests:
    """Counts them from now on, until the test ends."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        """Count what ``Connection`` sends."""
        self.counts: collections.Counter[Method] = collections.Counter()
        self.fetched: list[tuple[str, int]] = []
        """Topic and partition id of each fetch, in order."""
        self.bytes = 0
        """Of all answers."""
        start, body = Connection.start, Call.body

        def counted_start(
            connection: Connection,
            service: ServiceType,
            method: Method,
            request: Message,
            *,
            timeout_ms: int,
            during: str,
        ) -> Call:
            self.counts[method] += 1
            if isinstance(request, broker_pb2.GetMessageRequestC2B):
                self.fetched.append((request.topicName, request.partitionId))
            return start(connection, service, method, request, timeout_ms=timeout_ms, during=during)

        def counted_body(call: Call, during: str) -> bytes | memoryview:
            answer = body(call, during)
            self.bytes += len(answer)
            return answer

        patch.setattr(Connection, "start", counted_start)
        patch.setattr(Call, "body", counted_body)
