"""Reading views as Spark does, from servers that run in this process."""

import contextlib

import pytest

from testkit.connections import opened_connections
from testkit.views import read_view
from tubemq_spark.embedded.config.catalog import TopicSpec
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.testing.client import TopicClient

UNFLUSHED = 1 << 30
"""No message of the tests is on a broker's disk before it stops: neither so many nor so many ms."""


@pytest.fixture(autouse=True)
def connections(monkeypatch):
    """The channels of one test, in place of those of the process."""
    with opened_connections() as connections:
        monkeypatch.setattr("tubemq_spark.cluster.open.process_connections", lambda: connections)
        yield connections


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
    """Return the rows of a view of the server's."""

    def rows(name, schema=None, **options):
        given = {
            "tubemq.master.servers": server.master,
            "tubemq.master.web": server.master_web,
            "tubemq.rpcTimeoutMs": "2000",
            "view": name,
            **{key.replace("_", "."): value for key, value in options.items()},
        }
        return read_view(given, schema)

    return rows
