"""What one peer's trouble costs the others: each cell of that table, by counting what they get done.

All time-outs are ten minutes. So what waits for the peer in trouble does not return in a test's time.
By night all cells are done, by day every third.
"""

import pytest

from testkit.connections import opened_connections
from testkit.guarantees import table
from testkit.peers import PEERS, EmbeddedStage
from testkit.uses import USES, Worker
from tubemq_spark.source import layout_cache

HEADING = "## One peer's trouble"
NOTHING = "nothing"
ROUNDS = 2


@pytest.fixture
def stage(monkeypatch):
    monkeypatch.setattr(layout_cache, "_MAX_AGE_SECONDS", 0.2)
    with opened_connections() as connections, EmbeddedStage() as stage:
        monkeypatch.setattr("tubemq_spark.cluster.open.process_connections", lambda: connections)
        yield stage


def cases():
    """Return the trouble and the form of use of each cell, of the page's table."""
    header, _, *rows = table(HEADING)
    for trouble, *cells in rows:
        for use, cell in zip(header[1:], cells, strict=True):
            assert cell == NOTHING, f"{trouble}, {use}: no test says {cell!r}"
            for form in USES[use]:
                yield pytest.param(trouble, form, id=f"{trouble}-{use}-{form.__name__}")


def test_the_page_has_a_cell_for_every_trouble_and_use():
    header, _, *rows = table(HEADING)
    assert header[1:] == list(USES)
    assert [row[0] for row in rows] == list(PEERS)


@pytest.mark.sampled
@pytest.mark.parametrize(("trouble", "form"), list(cases()))
def test_others_lose_nothing(stage, trouble, form):
    with Worker(form(stage, trouble)) as worker:
        worker.round()
        with PEERS[trouble](stage):
            for _ in range(ROUNDS):
                worker.round()
