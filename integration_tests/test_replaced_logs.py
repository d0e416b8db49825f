"""Logs that are replaced under stopped queries are noticed before a row of them is read."""

import itertools
import shutil

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from integration_tests.real.artifacts import require_real_tubemq
from integration_tests.real.cluster import RealTubeMQ, TopicSpec
from integration_tests.rig.messages import client_config, produce_numbers
from integration_tests.rig.queries import Collected, collected, read_stream, refusal, run
from integration_tests.rig.servers import await_files
from testkit.readers import Stream, read_task
from tubemq_spark.client import TubeMQClient
from tubemq_spark.errors import DataLossError

pytestmark = pytest.mark.timeout(600)

SCHEMA = StructType([StructField("value", BinaryType())])
OLD, LATER = 60, 40
"""How many messages there are before a backup, and after it."""
COUNTS = {"fewer": -20, "as_many": 0, "more": 50}
KINDS = {"created": 0, "deleted": 0, "restored": OLD, "elsewhere": 0, "same": OLD + LATER}
"""How logs are replaced, and how many of their messages are still there."""
TOPICS = {f"{kind}_{count}": (kind, count) for kind in KINDS for count in COUNTS}
ELSEWHERE = [name for name, (kind, _) in TOPICS.items() if kind == "elsewhere"]


class Cluster:
    """A Java TubeMQ with topics of messages that all differ."""

    numbers = itertools.count()

    def __init__(self, server):
        self.server = server
        self.values = {name: [] for name in TOPICS}

    def send(self, counts):
        """Send so many messages to topics; return their values."""
        values = {name: [b"%d" % next(self.numbers) for _ in range(count)] for name, count in counts.items()}
        with TubeMQClient(client_config(self.server.master)) as client, client.producer() as producer:
            for name, of_topic in values.items():
                for value in of_topic:
                    producer.send(name, value)
        return values

    def fill(self):
        """Send messages with a backup in between."""
        old = self.send(dict.fromkeys(TOPICS, OLD))
        for name in TOPICS:
            await_files(self.server, 1, name)
        data = self.server.brokers[1].data
        self.server.stop_broker(1)
        shutil.copytree(data, data.with_name("backup"))
        self.server.start_broker(1)
        later = self.send(dict.fromkeys(TOPICS, LATER))
        self.values = {name: old[name] + later[name] for name in TOPICS}

    def replace(self):
        """Replace the logs of all topics here but those that are not to be."""
        data = self.server.brokers[1].data
        self.server.stop_broker(1)
        for name, (kind, _) in TOPICS.items():
            for store in data.glob(f"{name}-*"):
                if kind in {"deleted", "restored"}:
                    shutil.rmtree(store)
                if kind == "restored":
                    shutil.copytree(data.with_name("backup") / store.name, store)
        self.server.start_broker(1)
        created = [name for name, (kind, _) in TOPICS.items() if kind == "created"]
        for name in created:
            self.server.close_topic(name)
            self.server.remove_topic(name)
        self.server.add_topics(dict.fromkeys(created, TopicSpec()))


def new_counts(names):
    """Return how many messages come to each topic when its log is replaced."""
    return {
        name: 10 if kind == "same" else OLD + LATER - KINDS[kind] + COUNTS[count]
        for name, (kind, count) in TOPICS.items()
        if name in names
    }


def run_stream(stream):
    """Trigger until nothing is new; return the values read."""
    values, before = [], None
    while stream.checkpoint != before:
        before = stream.checkpoint
        for task in stream.plan():
            values += [value for (value,) in read_task(stream.pickled_reader, task)]
    return values


def run_available(stream):
    stream.reader.prepareForTriggerAvailableNow()
    return run_stream(stream)


HOW = {"stream": run_stream, "AvailableNow": run_available}


def query(masters, topic, checkpoint=None, **more):
    options = {"tubemq.master.servers": masters, "subscribe": topic, "startingOffsets": "earliest", **more}
    return Stream({**options, "tubemq.group": "it_group"}, SCHEMA, checkpoint)


class Queries:
    """Queries of each topic, run in each way."""

    def __init__(self, masters, values):
        self.masters = masters
        self.checkpoints = {}
        for name, how in itertools.product(TOPICS, HOW):
            stream = query(masters, name)
            assert sorted(HOW[how](stream)) == sorted(values[name]), (name, how)
            self.checkpoints[name, how] = stream.checkpoint

    def restarted(self, name, how, **more):
        return HOW[how](query(self.masters, name, self.checkpoints[name, how], **more))

    def noticed(self, name, how, new):
        """Return what a query of a topic ends with, or nothing if it reads the new messages."""
        try:
            rows = self.restarted(name, how)
        except DataLossError as error:
            return error.condition.removeprefix("TUBEMQ_DATA_LOSS.")
        assert sorted(rows) == sorted(new), (name, how)
        return None

    def assert_noticed(self, names, new):
        for name, how in itertools.product(names, HOW):
            kind, count = TOPICS[name]
            lost = None if kind == "same" else "MOVED_BACK" if count == "fewer" else "REPLACED"
            assert (name, how, self.noticed(name, how, new[name])) == (name, how, lost)


@pytest.mark.parametrize("server", ["embedded"], indirect=True)
def test_spark_is_told_of_a_topic_that_was_created_again(spark, server, tmp_path):
    topic = server.fresh_topic()
    produce_numbers(server.master, topic, range(10))
    assert collected(read_stream(spark, server, topic), tmp_path).rows == list(range(10))
    server.admin.delete_topic(topic, [1])
    server.admin.remove_topic(topic, [1])
    server.add_topic(topic, 1, 1)
    produce_numbers(server.master, topic, range(100, 115))

    condition, sentence = refusal(lambda: run(read_stream(spark, server, topic), Collected(), tmp_path))

    assert condition == "TUBEMQ_DATA_LOSS.REPLACED"
    assert f"{topic}/1 store 0 had message" in sentence
    again = collected(read_stream(spark, server, topic, failOnDataLoss="false"), tmp_path)
    produce_numbers(server.master, topic, range(115, 120))
    run(read_stream(spark, server, topic), again, tmp_path)
    assert again.rows == list(range(100, 120))


@pytest.mark.real
def test_logs_that_are_replaced_on_java_brokers():
    require_real_tubemq()
    specs = dict.fromkeys(TOPICS, TopicSpec())
    with RealTubeMQ(specs) as server, RealTubeMQ(dict.fromkeys(ELSEWHERE, TopicSpec())) as other:
        cluster = Cluster(server)
        cluster.fill()
        queries = Queries(f"{server.master},{other.master}", cluster.values)
        cluster.replace()
        here = [name for name in TOPICS if name not in ELSEWHERE]
        new = cluster.send(new_counts(here))

        queries.assert_noticed(here, new)
        again = queries.restarted("restored_more", "stream", failOnDataLoss="false")
        assert sorted(again) == sorted(cluster.values["restored_more"][:OLD] + new["restored_more"])

        new = Cluster(other).send(new_counts(ELSEWHERE))
        server.stop_broker(1)
        server.stop_master()
        queries.assert_noticed(ELSEWHERE, new)
