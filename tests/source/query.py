"""A stream as Spark drives it, without a JVM: its checkpoint, its micro-batches, and copies that read."""

import json
import pickle

from tests.memory_cluster import MemoryCluster
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.source import planner, task
from tubemq_spark.source.schema import default_schema

SCHEMA = default_schema(include_attributes=False)


def memory_cluster(monkeypatch, **topics):
    """Return a cluster in memory that every reader sees."""
    made = MemoryCluster(**topics)
    monkeypatch.setattr(planner, "open_cluster", lambda _: made)
    monkeypatch.setattr(task, "open_cluster", lambda *_, **__: made)
    return made


def read(reader, tasks):
    """Return the rows of tasks, read as executors do: with copies of the reader."""
    copy, tasks = pickle.loads(pickle.dumps((reader, tasks)))
    return [row for each in tasks for batch in copy.read(each) for row in batch.to_pylist()]


def batch_rows(**options):
    """Return the rows of a batch read."""
    source = TubeMQDataSource({"tubemq.master.servers": "master:8715", "subscribe": "demo", **options})
    reader = source.reader(SCHEMA)
    return read(reader, reader.partitions())


def numbers(rows):
    """Return the numbers that are the values of rows, in their order."""
    return sorted(int(row["value"]) for row in rows)


class Query:
    """A stream with its checkpoint; ``restarted`` is the same query in a new process."""

    def __init__(self, checkpoint=None, **options):
        usual = {"tubemq.master.servers": "master:8715", "subscribe": "demo", "startingoffsets": "earliest"}
        self.options = {name: text for name, text in (usual | options).items() if text is not None}
        self.reader = TubeMQDataSource(self.options).streamReader(SCHEMA)
        self.checkpoint = checkpoint or self.reader.initialOffset()

    def plan(self, limit=None):
        """Write the next offset down; return where the micro-batch begins."""
        start = self.checkpoint
        end = self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit())
        self.checkpoint = json.loads(json.dumps(end))
        return start

    def read(self, start):
        """Return the numbers that a micro-batch reads which begins there."""
        return numbers(read(self.reader, self.reader.partitions(start, self.checkpoint)))

    def batch(self, limit=None):
        """Run a micro-batch."""
        return self.read(self.plan(limit))

    def available_now(self, limit=None, most=None):
        """Run as the trigger does, or up to so many micro-batches; return what each of them reads."""
        self.reader.prepareForTriggerAvailableNow()
        batches = []
        while len(batches) != most:
            start = self.plan(limit)
            if self.checkpoint == start:
                break
            batches.append(self.read(start))
        return batches
