"""What one peer's trouble costs the others, on two Java brokers and their master: a part of that table."""

import pytest

from testkit.peers import AWAY, PEERS, Stage
from testkit.uses import USES, Worker

CHOSEN = (
    "One of three brokers is frozen",
    pytest.param("The masters are frozen", marks=pytest.mark.nightly),
    pytest.param("The masters swallow packets", marks=pytest.mark.nightly),
)
USES_ON_JAVA = [use for use in USES if use != "Heartbeats"]
"""Heartbeats cannot be counted at a Java server."""
ROUNDS = 2
STORES = 2


class JavaStage(Stage):
    """Two Java brokers, of which one is frozen by a signal."""

    def __init__(self, cluster, topic):
        self._cluster = cluster
        super().__init__(cluster.master, cluster.brokers, topic, len(cluster.brokers) * STORES)

    def freeze(self):
        self._cluster.freeze(AWAY)

    def thaw(self):
        self._cluster.thaw(AWAY)


@pytest.fixture
def cluster(faulty_java):
    yield faulty_java
    faulty_java.settle()


@pytest.mark.parametrize("use", USES_ON_JAVA)
@pytest.mark.parametrize("trouble", CHOSEN)
def test_others_lose_nothing(cluster, trouble, use):
    topic = cluster.fresh_topic()
    for form in USES[use]:
        with JavaStage(cluster, topic) as stage, Worker(form(stage, trouble)) as worker:
            worker.round()
            with PEERS[trouble](stage):
                for _ in range(ROUNDS):
                    worker.round()
