"""Two brokers whose topics are changed by commands."""

import pytest

from tubemq_spark.embedded.server import EmbeddedTubeMQ

TOKEN = "abc"
"""The token of an embedded server, as TubeMQ has it in its examples."""


@pytest.fixture
def changeable(tmp_path, monkeypatch):
    monkeypatch.setenv("TUBEMQ_ADMIN_TOKEN", TOKEN)
    with EmbeddedTubeMQ(tmp_path / "tubemq", {"clicks": (2, 1)}, brokers=2) as running:
        yield running


@pytest.fixture
def run(changeable, command_on):
    return command_on(changeable, "topics")
