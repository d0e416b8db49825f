"""Logs that are replaced under a query: topics created again, data deleted or restored, another cluster."""

import contextlib
import itertools
import json
import pickle
import shutil

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from tubemq_spark.client import TubeMQClient
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.errors import DataLossError
from tubemq_spark.offsets.ledger import observations_of
from tubemq_spark.offsets.source_offset import SourceOffset
from tubemq_spark.source import marks
from tubemq_spark.source.schema import default_schema

SCHEMA = default_schema(include_attributes=False)
ALL = ReadAllAvailable()
OLD, LATER = 60, 40
"""How many messages there are before a backup, and after it."""


@pytest.fixture
def world(tmp_path):
    with World(tmp_path) as made:
        yield made


class World(contextlib.AbstractContextManager):
    """A server with a topic, and what can happen to it."""

    def __init__(self, folder, *, shape=(1, 1)):
        self.folder = folder
        self.shape = shape
        self.numbers = itertools.count()
        self.server = EmbeddedTubeMQ(folder / "data", {"demo": shape}, settings=EmbeddedSettings())
        self.other = None
        self.masters = self.server.master

    def __exit__(self, *_):
        self.server.close()
        if self.other is not None:
            self.other.close()

    def send(self, count, server=None):
        """Send messages; return their values."""
        values = [b"%d" % next(self.numbers) for _ in range(count)]
        with TubeMQClient.connect((server or self.server).master, group="feed") as client:
            with client.producer() as producer:
                for value in values:
                    producer.send("demo", value)
        return values

    def fill(self):
        """Send messages with a backup in between; return their values."""
        values = self.send(OLD)
        self.restart(lambda: shutil.copytree(self.server.data, self.folder / "backup"))
        return values + self.send(LATER)

    def restart(self, meanwhile=lambda: None):
        self.server.close()
        meanwhile()
        self.server = self.server.reopened()

    def created_again(self):
        self.server.close_topic("demo")
        self.server.remove_topic("demo")
        self.server.add_topic("demo", *self.shape)

    def deleted(self):
        self.restart(lambda: shutil.rmtree(self.server.data))
        self.server.add_topic("demo", *self.shape)

    def restored(self):
        def put_back():
            shutil.rmtree(self.server.data)
            shutil.copytree(self.folder / "backup", self.server.data)

        self.restart(put_back)

    def another_cluster(self):
        """The first master of the list does not answer any more, and the second one is of another cluster."""
        self.server.close()
        self.server = EmbeddedTubeMQ(None, {"demo": self.shape})

    def with_another_cluster(self):
        """Name its master too, before there is one of the first cluster that does not answer."""
        self.other = EmbeddedTubeMQ(None, {"demo": self.shape})
        self.masters = f"{self.server.master},{self.other.master}"


REPLACEMENTS = {
    "created again": (World.created_again, 0),
    "data deleted": (World.deleted, 0),
    "restored": (World.restored, OLD),
}
"""How a log is replaced, and how many of its messages are still there."""


class Query:
    """A stream as Spark drives it."""

    def __init__(self, world, checkpoint=None, **options):
        self.options = {
            "tubemq.master.servers": world.masters,
            "subscribe": "demo",
            "startingoffsets": "earliest",
            **options,
        }
        self.reader = TubeMQDataSource(self.options).streamReader(SCHEMA)
        self.checkpoint = checkpoint or self.reader.initialOffset()

    def plan(self, limit=ALL):
        start = self.checkpoint
        self.checkpoint = json.loads(json.dumps(self.reader.latestOffset(start, limit)))
        return start

    def read(self, start):
        copy, tasks = pickle.loads(
            pickle.dumps((self.reader, self.reader.partitions(start, self.checkpoint)))
        )
        return [row["value"] for task in tasks for batch in copy.read(task) for row in batch.to_pylist()]

    def batch(self, limit=ALL):
        return self.read(self.plan(limit))

    def available_now(self, limit=ALL):
        self.reader.prepareForTriggerAvailableNow()
        rows = []
        while True:
            before = self.checkpoint
            rows += self.batch(limit)
            if self.checkpoint == before:
                return rows

    @property
    def marks(self):
        return SourceOffset.from_json(self.checkpoint).marks


def run_as_stream(query):
    rows = query.batch()
    return rows + query.batch()


HOW = {"stream": run_as_stream, "AvailableNow": Query.available_now}
COUNTS = {"fewer": -20, "as many": 0, "more": 50}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("kind", REPLACEMENTS)
@pytest.mark.parametrize("count", COUNTS)
def test_a_log_that_was_replaced_under_a_stopped_query_is_noticed(world, kind, count, how):
    replace, left = REPLACEMENTS[kind]
    query = Query(world)
    before = world.fill()
    assert sorted(HOW[how](query)) == sorted(before)
    replace(world)
    new = world.send(OLD + LATER - left + COUNTS[count])

    with pytest.raises(DataLossError) as noticed:
        HOW[how](Query(world, query.checkpoint))

    lost = "MOVED_BACK" if count == "fewer" else "REPLACED"
    assert noticed.value.condition == f"TUBEMQ_DATA_LOSS.{lost}"
    again = HOW[how](Query(world, query.checkpoint, failondataloss="false"))
    if lost == "REPLACED":
        assert again == before[:left] + new
