"""Reading views as Spark does, from servers that run in this process."""

import contextlib
import pickle

import pytest

from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.embedded.config.catalog import TopicSpec
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.testing.client import TopicClient

UNFLUSHED = 1 << 30
"""No message of the tests is on a broker's disk before it stops: neither so many nor so many ms."""


@pytest.fixture(autouse=True)
def pool(monkeypatch):
    """The channels of one test, in place of those of the process."""
    with ChannelPool() as pool:
        monkeypatch.setattr("tubemq_spark.cluster.open.process_pool", lambda: pool)
        yield pool


@pytest.fixture
def closing():
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def server(closing):
    """Three brokers with a topic of two stores, and one of a store that two partitions share."""
    rarely = {"flush_messages": UNFLUSHED, "flush_interval_ms": UNFLUSHED}
    topics = {"plain": TopicSpec(2, 1, **rarely), "shared": TopicSpec(1, 2, **rarely)}
    return closing.enter_context(EmbeddedTubeMQ(topics=topics, brokers=3))


@pytest.fixture
def send(server, closing):
    """Send messages to a partition."""
    client = closing.enter_context(TopicClient(server.master, "sender"))

    def send(topic, broker_id, partition, *values, **fields):
        client.send(topic, *values, partition=(broker_id, partition), **fields)

    return send


@pytest.fixture
def view(server):
    """Return the rows of a view as dictionaries, from a reader that was made and copied as Spark does."""

    def rows(name, schema=None, **options):
        given = {
            "tubemq.master.servers": server.master,
            "tubemq.master.web": server.master_web,
            "tubemq.rpctimeoutms": "2000",
            "view": name,
            **{key.lower().replace("_", "."): value for key, value in options.items()},
        }
        source = TubeMQDataSource(given)
        reader = source.reader(source.schema() if schema is None else schema)
        planned = pickle.loads(pickle.dumps(reader.partitions()))
        copied = pickle.loads(pickle.dumps(reader))
        return [row for part in planned for batch in copied.read(part) for row in batch.to_pylist()]

    return rows
