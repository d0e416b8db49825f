"""The readers of the table, asked as Spark asks them: triggers, plans and tasks, without a JVM."""

import concurrent.futures
import pickle
import time

from pyspark.sql.types import BinaryType, StructField, StructType

from testkit.stream import Stream, read_task
from tubemq_spark.datasource import TubeMQDataSource
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
