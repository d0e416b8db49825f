"""The scene of the matrix."""

import logging

import pytest

from testkit.connections import opened_connections
from testkit.troubles import Scene
from tubemq_spark.source import layout_cache, planner


@pytest.fixture
def scene(monkeypatch):
    """Three brokers; what the process keeps between queries ends with the test."""
    monkeypatch.setattr(layout_cache, "_MAX_AGE_SECONDS", 0.2)
    monkeypatch.setattr(planner, "REMOVAL_SECONDS", 0.5)
    with opened_connections() as connections, Scene() as scene:
        monkeypatch.setattr("tubemq_spark.cluster.open.process_connections", lambda: connections)
        yield scene


@pytest.fixture
def losses(caplog):
    """Return the warnings of records that are gone."""
    caplog.set_level(logging.WARNING)
    return lambda: [record for record in caplog.records if "data is lost" in record.getMessage()]
