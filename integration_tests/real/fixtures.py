"""Pytest fixtures around a real TubeMQ: load them with `-p integration_tests.real.fixtures`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .availability import require_real_tubemq
from .cluster import RealTubeMQ
from .java_client import JavaClient


@pytest.fixture(scope="session")
def real_tubemq() -> Iterator[RealTubeMQ]:
    """One master and one broker for the whole session, at first without topics.

    Each test adds its own topics, and leaves the servers running.
    """
    require_real_tubemq()
    with RealTubeMQ() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def java_client() -> Iterator[JavaClient]:
    """The Java client in its JVM."""
    require_real_tubemq()
    with JavaClient() as client:
        yield client
