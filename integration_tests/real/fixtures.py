"""Pytest fixtures around a real TubeMQ: load them with `-p integration_tests.real.fixtures`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final, TypeAlias

import pytest

from integration_tests.real.artifacts import TUBEMQ_VERSION, client_class_path, require_real_tubemq, required
from integration_tests.real.cluster import RealTubeMQ, TopicSpec
from integration_tests.real.java_client import JavaClient
from integration_tests.real.load import PATIENT

BROKERS_TOPICS: Final = (
    *("stopped", "killed", "interrupted"),
    *("kept", "removed", "kept_too", "removed_too", "kept_now", "removed_now"),
    *("cell_stopped", "cell_killed", "cell_frozen", "closed", "grown", "joined", "remade"),
    *("receipted", "threaded", "commanded", "followed"),
)
"""What `real_brokers` has from the start, one partition on each broker: a later topic restarts the master."""
MATRIX_TOPICS: Final = tuple(f"matrix_{number:02d}" for number in range(36))
MATRIX_STORES: Final = 3
"""Further topics of `real_brokers`, with so many stores on each broker."""
FRAMES_TOPICS: Final = ("frames_100", "frames_1024")
"""Further topics of `real_brokers`, which take messages at full speed."""
CONSUMER_TOPICS: Final = (
    "assigned",
    "assigned_elsewhere",
    "assigned_in_turn",
    "awaited",
    "bound",
    "grouped",
    "grouped_over_time",
)
"""Further topics of `real_brokers`, with six partitions on each broker, of which two share a store."""

JavaClients: TypeAlias = Callable[[str], JavaClient]
"""Gives the Java client of a version."""


@pytest.fixture(scope="session")
def real_brokers() -> Iterator[RealTubeMQ]:
    """One master and two brokers, which tests stop and start, with all the topics above.

    A test may add a broker, which has none of the others' topics.

    Each test leaves all servers running.
    """
    require_real_tubemq()
    matrix = dict.fromkeys(MATRIX_TOPICS, TopicSpec(stores=MATRIX_STORES))
    frames = dict.fromkeys(FRAMES_TOPICS, TopicSpec(properties=PATIENT))
    consumers = dict.fromkeys(CONSUMER_TOPICS, TopicSpec(stores=3, partitions=2))
    usual = dict.fromkeys(BROKERS_TOPICS, TopicSpec())
    with RealTubeMQ(usual | matrix | frames | consumers, brokers=2) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def java_clients() -> Iterator[JavaClients]:
    """The Java client in any of its versions, each in one JVM for the session."""
    require_real_tubemq()
    with ExitStack() as running:
        clients: dict[str, JavaClient] = {}

        def client(version: str) -> JavaClient:
            if version not in clients:
                required(lambda: client_class_path(version))
                clients[version] = running.enter_context(JavaClient(version))
            return clients[version]

        yield client


@pytest.fixture(scope="session")
def java_client(java_clients: JavaClients) -> JavaClient:
    """The distribution's own Java client."""
    return java_clients(TUBEMQ_VERSION)
