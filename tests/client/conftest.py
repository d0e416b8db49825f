"""What the tests of the client share."""

import pytest

from testkit.connections import opened_connections
from tubemq_spark.client.broker import cursor
from tubemq_spark.net.retry import Pace


@pytest.fixture(scope="module")
def quick_retries():
    """Make every pause between two attempts short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pace, "after_ms", lambda *_: 1)
        patch.setattr(cursor, "_LEAST_PAUSE_MS", 1)
        yield


@pytest.fixture
def connections():
    """Connections of the process's loop; an attempt to connect takes a second at most."""
    with opened_connections(1_000) as connections:
        yield connections
