"""Servers and connections to them, closed at the end of a test."""

import contextlib

import pytest

from tests.embedded.wire import BrokerClient, MasterClient
from tubemq_spark.embedded.server import EmbeddedTubeMQ


class Clock:
    """Milliseconds, which a test lets pass."""

    now_ms = 0

    def __call__(self):
        return self.now_ms


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def closing():
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def start(closing):
    """Start a server; by default it has the topic ``demo`` with one partition."""

    def start_server(data=None, topics=None, **arguments):
        topics = {"demo": (1, 1)} if topics is None else topics
        return closing.enter_context(EmbeddedTubeMQ(data, topics, **arguments))

    return start_server


@pytest.fixture
def tubemq(start):
    return start()


@pytest.fixture
def connect(closing):
    """Connect to a server's broker."""

    def connect_to(server, **arguments):
        return closing.enter_context(BrokerClient(server.broker, **arguments))

    return connect_to


@pytest.fixture
def broker(tubemq, connect):
    return connect(tubemq)


@pytest.fixture
def master(tubemq, closing):
    return closing.enter_context(MasterClient(tubemq.master))
