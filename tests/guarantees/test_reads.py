"""The reading half of the table in ``docs/guarantees.md``: each cell done to three brokers, below Spark.

What a test expects is what the cell says, nothing else.
"""

import contextlib
import threading

import pytest

from testkit.guarantees import GOES_ON, SKIPS, WAITS, Outcome, cells
from testkit.troubles import TROUBLES, partition_of
from tests.guarantees.readers import Query, plan_batch
from tubemq_spark.errors import RpcError, TubeMQError
from tubemq_spark.source import planner

SOON_S = 0.6
"""How long a trouble lasts that somebody waits for."""
IMPATIENT = {"fetchoffset.numretries": "3", "tubemq.fetchtimeoutms": "400"}


def outcomes_of(use):
    """Return the cells of a column as parameters: the trouble, its outcome, and failOnDataLoss."""
    return [
        pytest.param(
            TROUBLES[cell.trouble], outcome, {"failondataloss": policy}, id=f"{cell.trouble}-{policy}"
        )
        for cell in cells()
        if cell.use == use
        for outcome, policy in ((cell.first, "true"), (cell.second, "false"))
        if outcome is not None
    ]


def cell_of(use):
    return pytest.mark.parametrize(("trouble", "outcome", "options"), outcomes_of(use))


class Lasting:
    """A trouble that ends by itself after a moment, unless it is to end the query."""

    def __init__(self, scene, trouble, outcome):
        self.is_over = threading.Event()
        self._scene = scene
        self._end = None if outcome.is_error else trouble.end
        self._timer = threading.Timer(SOON_S, self._finish)

    def __enter__(self):
        self._timer.start()
        return self

    def __exit__(self, *_):
        self._timer.cancel()
        self._timer.join()

    def _finish(self):
        if self._end is not None:
            self._end(self._scene)
            self.is_over.set()


def assert_once(rows, expected):
    assert sorted(rows) == sorted(expected)


@contextlib.contextmanager
def ends_as(outcome):
    """Expect an error if the cell says so."""
    if not outcome.is_error:
        yield
        return
    with pytest.raises(TubeMQError) as caught:
        yield
    assert caught.value.condition == outcome.kind


def assert_hit(scene):
    """A fault that no request met shows nothing."""
    assert not scene.rules or any(rule.hits for rule in scene.rules)


def go_on(scene, query, trouble, outcome, losses, before):
    """Let a query read what is there and what comes, and check that the cell's words describe that."""
    meanwhile = scene.produce(trouble.spares)
    query.await_rows(before | meanwhile)
    if trouble.end is not None:
        trouble.end(scene)
    if outcome.kind == SKIPS:
        query.trigger_until(losses)
    after = scene.produce(trouble.is_writable)
    query.await_rows(after)
    return before | meanwhile | after


@cell_of("Stream")
def test_stream(scene, losses, trouble, outcome, options):
    query = Query(scene, **options)
    before = scene.produce()
    query.await_rows(before)
    unread = scene.produce() if trouble.loses else set()
    kept = {value for value in unread if trouble.spares(partition_of(value))}
    trouble.begin(scene)

    with ends_as(outcome):
        expected = go_on(scene, query, trouble, outcome, losses, before | kept)
    if outcome.kind == SKIPS:
        assert_once(query.rows, expected)
    elif not outcome.is_error:
        assert outcome.kind == GOES_ON
        assert_once(query.rows, expected)
    assert_hit(scene)


@cell_of("AvailableNow")
def test_available_now(scene, losses, trouble, outcome, options):
    """A run that begins behind a checkpoint while things go wrong, and the run after it."""
    first = Query(scene, **options)
    before = scene.produce()
    first.run_available()
    assert_once(first.rows, before)
    unread = scene.produce()
    trouble.begin(scene)

    query = Query(scene, first.checkpoint, **(IMPATIENT if outcome.is_error else {}), **options)
    with Lasting(scene, trouble, outcome) as lasting, ends_as(outcome):
        query.run_available()
        assert lasting.is_over.is_set() == (outcome.kind == WAITS)
    if not outcome.is_error:
        check(query.rows, unread, trouble, outcome, losses)
    assert_hit(scene)


@pytest.mark.parametrize("how", ["A broker is killed and restarted", "A broker is frozen for a while"])
def test_a_run_is_not_over_before_a_broker_is_back_that_went_after_it_began(scene, monkeypatch, how):
    # Brokers are asked again at once, so that the run knows.
    monkeypatch.setattr(planner, "_BOUNDS_SECONDS", 0)
    monkeypatch.setattr(planner, "_SECONDS_PER_STORE", 0)
    query, before = Query(scene), scene.produce()
    query.run_available()
    unread = scene.produce()
    query.prepare()
    TROUBLES[how].begin(scene)
    with Lasting(scene, TROUBLES[how], Outcome(WAITS)) as lasting:
        query.finish()
        assert lasting.is_over.is_set()
    assert_once(query.rows, before | unread)


def test_a_new_run_over_a_topic_that_does_not_exist_ends_at_once(scene):
    with pytest.raises(RpcError, match="431"):
        Query(scene, subscribe="steady,misspelt").run_available()


@cell_of("Batch read")
def test_batch_read(scene, losses, trouble, outcome, options):
    before = scene.produce()
    if trouble.loses:
        # From `earliest` on nothing is missing.
        options = {**options, "startingoffsets": scene.beginning()}
    trouble.begin(scene)
    if outcome.is_error:
        options = {**IMPATIENT, **options}
    with Lasting(scene, trouble, outcome) as lasting, ends_as(outcome):
        rows = plan_batch(scene, **options).start()()
        assert lasting.is_over.is_set() == (outcome.kind == WAITS)
    if not outcome.is_error:
        check(rows, before, trouble, outcome, losses)
    assert_hit(scene)


@cell_of("Planned task")
def test_planned_task(scene, losses, trouble, outcome, options):
    """What is not touched is read meanwhile."""
    before = scene.produce()
    if outcome.is_error:
        options = {**IMPATIENT, **options}
    tasks = plan_batch(scene, **options)
    trouble.begin(scene)

    spared = tasks.start(trouble.spares)()
    assert_once(spared, {value for value in before if trouble.spares(partition_of(value))})
    with Lasting(scene, trouble, outcome) as lasting, ends_as(outcome):
        rows = spared + tasks.start(trouble.touches)()
        assert lasting.is_over.is_set() == (outcome.kind == WAITS)
    if not outcome.is_error:
        check(rows, before, trouble, outcome, losses)
    assert_hit(scene)


def check(rows, expected, trouble, outcome, losses):
    """Each row is there once; where rows were lost, those that were not."""
    if trouble.loses:
        expected = {value for value in expected if trouble.spares(partition_of(value))}
    assert_once(rows, expected)
    assert bool(losses()) == (outcome.kind == SKIPS)
