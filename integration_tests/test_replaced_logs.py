"""Logs that are replaced under stopped queries on Java servers are noticed before a row of them is read."""

import itertools
import shutil

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from integration_tests.real.availability import require_real_tubemq
from integration_tests.real.cluster import RealTubeMQ
from integration_tests.rig.produce import client_config
from integration_tests.rig.servers import await_files
from testkit.stream import Stream, read_task
from tubemq_spark.client import TubeMQClient
from tubemq_spark.errors import DataLossError

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

SCHEMA = StructType([StructField("value", BinaryType())])
OLD, LATER = 60, 40
"""How many messages there are before a backup, and after it."""
COUNTS = {"fewer": -20, "as_many": 0, "more": 50}
KINDS = {"created": 0, "deleted": 0, "restored": OLD, "elsewhere": 0, "same": OLD + LATER}
"""How logs are replaced, and how many of their messages are still there."""
TOPICS = {f"{kind}_{count}": (kind, count) for kind in KINDS for count in COUNTS}


def send(cluster, topics, count):
    """Send so many messages to each topic; return their values by topic."""
    numbers = itertools.count(len(topics) * 1_000 * (count + 1))
    values = {topic: [b"%d" % next(numbers) for _ in range(count)] for topic in topics}
    with TubeMQClient(client_config(cluster.master)) as client, client.producer() as producer:
        for topic, of_topic in values.items():
            for value in of_topic:
                producer.send(topic, value)
    return values


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


def test_logs_that_are_replaced_on_java_brokers():
    require_real_tubemq()
    with RealTubeMQ() as cluster, RealTubeMQ() as other:
        for name in TOPICS:
            cluster.add_topic(name)
        other_topics = [name for name, (kind, _) in TOPICS.items() if kind == "elsewhere"]
        for name in other_topics:
            other.add_topic(name)
        before = send(cluster, TOPICS, OLD)
        for name in TOPICS:
            await_files(cluster, 1, name)
        data = cluster.brokers[1].data
        backup = data.with_name("backup")
        cluster.stop_broker(1)
        shutil.copytree(data, backup)
        cluster.start_broker(1)
        for name, later in send(cluster, TOPICS, LATER).items():
            before[name] += later
        masters = f"{cluster.master},{other.master}"
        checkpoints = {}
        for name, (how, run) in itertools.product(TOPICS, HOW.items()):
            stream = query(masters, name)
            assert sorted(run(stream)) == sorted(before[name]), (name, how)
            checkpoints[name, how] = stream.checkpoint

        cluster.stop_broker(1)
        for name, (kind, _) in TOPICS.items():
            for store in data.glob(f"{name}-*"):
                if kind in {"deleted", "restored"}:
                    shutil.rmtree(store)
                if kind == "restored":
                    shutil.copytree(backup / store.name, store)
        cluster.start_broker(1)
        for name, (kind, _) in TOPICS.items():
            if kind == "created":
                cluster.close_topic(name)
                cluster.remove_topic(name)
                cluster.add_topic(name)
        new = {}
        for name, (kind, count) in TOPICS.items():
            missing = OLD + LATER - KINDS[kind] + COUNTS[count]
            where = other if kind == "elsewhere" else cluster
            new |= send(where, [name], 10 if kind == "same" else missing)

        def check(names):
            seen = {}
            for name, how in itertools.product(names, HOW):
                kind, count = TOPICS[name]
                try:
                    rows = HOW[how](query(masters, name, checkpoints[name, how]))
                    seen[name, how] = "nothing" if sorted(rows) == sorted(new[name]) else rows
                except DataLossError as error:
                    seen[name, how] = error.condition.removeprefix("TUBEMQ_DATA_LOSS.")
                print(name, how, seen[name, how])
            return seen

        def expected(name):
            kind, count = TOPICS[name]
            if kind == "same":
                return "nothing"
            return "MOVED_BACK" if count == "fewer" else "REPLACED"

        here = [name for name in TOPICS if name not in other_topics]
        assert check(here) == {(name, how): expected(name) for name in here for how in HOW}
        tolerant = query(
            masters, "restored_more", checkpoints["restored_more", "stream"], failOnDataLoss="false"
        )
        assert sorted(run_stream(tolerant)) == sorted(before["restored_more"][:OLD] + new["restored_more"])
        cluster.stop_broker(1)
        cluster.stop_master()
        assert check(other_topics) == {(name, how): expected(name) for name in other_topics for how in HOW}
