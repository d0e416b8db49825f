"""What one peer's trouble costs the others, on two Java brokers and their master: a part of that table."""

import pytest

from testkit.peers import AWAY, PEERS, Stage
from testkit.uses import USES, Heartbeats, Worker

CHOSEN = ("One of three brokers is frozen", "The masters are frozen", "The masters swallow packets")
FORMS = [form for forms in USES.values() for form in forms if form is not Heartbeats]
"""Heartbeats cannot be counted at a Java server; ``benchmarks/isolation.py`` measures them."""
ROUNDS = 2


class JavaStage(Stage):
    """Two Java brokers, of which one is frozen by a signal."""

    def __init__(self, cluster):
        self._cluster = cluster
        stores = 2
        super().__init__(
            cluster.master, cluster.brokers, cluster.fresh_topic(), len(cluster.brokers) * stores
        )

    def freeze(self):
        self._cluster.freeze(AWAY)

    def thaw(self):
        self._cluster.thaw(AWAY)


@pytest.fixture
def stage(faulty_java):
    with JavaStage(faulty_java) as stage:
        yield stage
    faulty_java.settle()


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize("trouble", CHOSEN)
def test_others_lose_nothing(stage, trouble, form):
    with Worker(form(stage, trouble)) as worker:
        worker.round()
        with PEERS[trouble](stage):
            for _ in range(ROUNDS):
                worker.round()
