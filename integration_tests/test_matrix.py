"""Every way to choose partitions, from every place to begin at: stopped, restarted and grown, each row once.

Streams live as in the suites of Spark's Kafka source: each reads what is there, stops, resumes with nothing
new, with rows that came meanwhile, and with more partitions. CI runs a few cases; the others are nightly.
"""

import dataclasses
import datetime
import itertools
import json
from collections.abc import Callable

import pytest

from integration_tests.real.fixtures import MATRIX_STORES, MATRIX_TOPICS
from integration_tests.rig.messages import assert_same_rows, client_config, cluster_of
from integration_tests.rig.queries import Collected, run
from tubemq_spark.client import TubeMQClient
from tubemq_spark.embedded.config.settings import EmbeddedSettings
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.model import INDEX_ENTRY_BYTES, TopicPartition

# The first test of a process also starts its servers and its Spark, beside those of others.
pytestmark = pytest.mark.timeout(300)

CHOICES = ("assign", "subscribe", "pattern")
BEGINNINGS = ("latest", "earliest", "specific", "group", "times", "time")
STRICT, TOLERANT = "strict", "tolerant"
CASES = tuple(itertools.product(CHOICES, BEGINNINGS, (STRICT, TOLERANT)))
SHORT = {
    ("pattern", "specific", TOLERANT),
    ("assign", "group", STRICT),
}
"""What CI runs. Other tests begin at the other places."""
SHORT_ON_JAVA = {("pattern", "specific", TOLERANT)}

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
EARLY, BETWEEN, LATE, NEVER = range(0, 40, 10)
"""Minutes: half of the rows are early and half are late."""
HALF = 2
ALL = 2 * HALF
"""So many rows each partition has before the query begins."""

BROKERS, STORES = 3, 2
"""Of the embedded server; together with as many partitions as the Java one has with two brokers."""
UNASSIGNED = -1
"""Which partition ``assign`` leaves out: the last one."""


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Two or three brokers, on which all topics have the same number of stores of one partition each."""

    master: str
    web: str
    brokers: tuple[int, ...]
    stores: int
    grow: Callable[[str, int], None]
    """Give a topic that many stores per broker."""

    def partitions(self, more=0):
        """Return the partitions of a topic, of so many stores more."""
        stores = range(self.stores + more)
        return [(broker, 10_000 * store) for store in stores for broker in self.brokers]


@pytest.fixture(scope="module", params=["embedded", pytest.param("real", marks=pytest.mark.real)])
def cluster(request, tmp_path_factory):
    """A TubeMQ of several brokers with a topic per case."""
    if request.param == "real":
        java = request.getfixturevalue("real_brokers")
        yield Cluster(
            java.master,
            java.master_web,
            (1, 2),
            MATRIX_STORES,
            lambda topic, stores: java.grow_topic(topic, stores=stores, partitions=1),
        )
        return
    with EmbeddedTubeMQ(
        tmp_path_factory.mktemp("matrix"),
        dict.fromkeys(MATRIX_TOPICS, (STORES, 1)),
        brokers=BROKERS,
        settings=EmbeddedSettings(balance_period_ms=200),
    ) as running:
        yield Cluster(
            running.master,
            running.master_web,
            tuple(running.brokers),
            STORES,
            lambda topic, stores: running.add_topic(topic, stores, 1),
        )


class Topic:
    """A topic whose rows tell where they are: the value is the partition and the number in it."""

    def __init__(self, cluster, name):
        self._master = cluster.master
        self.name = name
        self._counts = {}

    def produce(self, partitions, count, minute):
        """Store rows of that time in each partition; return them by partition."""
        made = {}
        time = f"{START + datetime.timedelta(minutes=minute):%Y%m%d%H%M}"
        with TubeMQClient(client_config(self._master)) as client, client.producer() as producer:
            for partition in partitions:
                first = self._counts.get(partition, 0)
                self._counts[partition] = first + count
                made[partition] = [row(partition, number) for number in range(first, first + count)]
                for value in made[partition]:
                    producer.send(self.name, b"%d" % value, partition=partition, message_time=time)
        return made

    def as_json(self, values):
        """Return values of partitions as options take them."""
        return json.dumps({self.name: {f"{broker}:{number}": value for (broker, number), value in values}})


def row(partition, number):
    """Return the value of a row: a number that no other row has."""
    broker, partition_id = partition
    return (broker * 1_000_000 + partition_id) * 1_000 + number


def ms(minute):
    return int((START + datetime.timedelta(minutes=minute)).timestamp() * 1000)


def beginning_of(kind, cluster, topic, partitions, group):
    """Return the options that say where to begin, and how many rows of each partition that passes over."""
    if kind == "earliest":
        return {"startingOffsets": "earliest"}, [0] * len(partitions)
    if kind == "latest":
        return {}, [ALL] * len(partitions)
    if kind == "time":
        return {"startingTimestamp": str(ms(BETWEEN))}, [HALF] * len(partitions)
    if kind == "times":
        pairs = [(EARLY, 0), (BETWEEN, HALF), (LATE, HALF), (NEVER, ALL), (EARLY, 0), (LATE, HALF)]
        minutes, passed = zip(*pairs[: len(partitions)], strict=True)
        times = topic.as_json(zip(partitions, map(ms, minutes), strict=True))
        strategy = {"startingOffsetsByTimestampStrategy": "latest"}
        return {"startingOffsetsByTimestamp": times, **strategy}, list(passed)
    if kind == "specific":
        pairs = [(-2, 0), (-1, ALL), (0, 0), (INDEX_ENTRY_BYTES, 1), (2 * INDEX_ENTRY_BYTES, 2), (-2, 0)]
        offsets, passed = zip(*pairs[: len(partitions)], strict=True)
        return {"startingOffsets": topic.as_json(zip(partitions, offsets, strict=True))}, list(passed)
    assert kind == "group"
    passed = [0, 1, 2, 3, ALL, 2][: len(partitions)]
    move_group(cluster, topic, group, dict(zip(partitions[1:], passed[1:], strict=True)))
    return {"startingOffsets": "group"}, passed


def move_group(cluster, topic, group, rows):
    """Move a group behind so many rows of partitions; it has no position in the others."""
    brokers = cluster_of(client_config(cluster.master, group))
    positions = {
        TopicPartition(topic.name, *partition): INDEX_ENTRY_BYTES * count for partition, count in rows.items()
    }
    assert brokers.move_group(brokers.layout([topic.name]), positions) == {}


def choice_of(kind, cluster, topic, partitions):
    """Return the options that say what is read."""
    if kind == "assign":
        keys = [f"{broker}:{number}" for broker, number in partitions]
        return {"assign": json.dumps({topic.name: keys})}
    if kind == "subscribe":
        return {"subscribe": topic.name}
    # Other cases' topics have names that begin as this one does.
    pattern = f"{topic.name[:-1]}[{topic.name[-1]}]"
    return {"subscribePattern": pattern, "tubemq.master.web": cluster.web}


def marks_of(case):
    if case not in SHORT:
        return pytest.mark.nightly
    return () if case in SHORT_ON_JAVA else pytest.mark.slow_on_java


@pytest.mark.parametrize(
    ("choice", "beginning", "strictness"),
    [pytest.param(*case, marks=marks_of(case), id="-".join(case)) for case in CASES],
)
def test_every_row_is_read_once(spark, cluster, tmp_path, choice, beginning, strictness):
    topic = Topic(cluster, MATRIX_TOPICS[CASES.index((choice, beginning, strictness))])
    group = f"{topic.name}_of_{choice}"
    present, read = cluster.partitions(), cluster.partitions()[: UNASSIGNED if choice == "assign" else None]
    before = [topic.produce(present, HALF, minute) for minute in (EARLY, LATE)]
    begin, passed = beginning_of(beginning, cluster, topic, read, group)
    sink = Collected()

    def resume(partitions):
        """Run the query to the end of what is there now; return the rows that came."""
        options = {
            "tubemq.master.servers": cluster.master,
            "tubemq.group": group,
            "failOnDataLoss": "true" if strictness == STRICT else "false",
            **choice_of(choice, cluster, topic, partitions),
            **begin,
        }
        seen = len(sink.rows)
        run(spark.readStream.format("tubemq").options(**options).load(), sink, tmp_path)
        return sink.rows[seen:]

    def of(made, partitions=read):
        return [value for partition in partitions for value in made[partition]]

    expected = [
        value
        for partition, count in zip(read, passed, strict=True)
        for value in [*before[0][partition], *before[1][partition]][count:]
    ]
    assert_same_rows(resume(read), expected)
    assert resume(read) == []
    made = topic.produce(present, HALF, NEVER)
    assert_same_rows(resume(read), of(made))

    while_stopped = topic.produce(present, 1, NEVER)
    cluster.grow(topic.name, cluster.stores + 1)
    grown = cluster.partitions(more=1)
    added = [partition for partition in grown if partition not in present]
    more = topic.produce(grown, HALF, NEVER)
    assert_same_rows(resume(read + added), [*of(while_stopped), *of(more, read + added)])
