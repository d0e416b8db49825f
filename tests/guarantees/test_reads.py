"""The reading half of docs/guarantees/guarantees.md: each cell done to three brokers, below Spark.

What a test expects is what the cell says, nothing else. By night all cells are done, by day every third.
"""

import pytest

from testkit.cells import Lasting, assert_hit, assert_once, ends_as, parametrized
from testkit.guarantees import GOES_ON, SKIPS, WAITS, Outcome
from testkit.readers import Query, plan_batch
from testkit.troubles import TROUBLES, partition_of
from tubemq_spark.errors import DataLossError, RpcError
from tubemq_spark.source import planner

IMPATIENT = {"fetchoffset.numretries": "3", "tubemq.fetchtimeoutms": "800"}
COLUMNS = {"Stream", "AvailableNow", "Batch read", "Planned task"}


def cell_of(use):
    return parametrized(use, {"failondataloss": "true"}, {"failondataloss": "false"})


def go_on(scene, query, trouble, outcome, losses, before):
    """Read with a query what is there and what comes, and check that the cell's words describe that."""
    meanwhile = scene.produce(trouble.spares)
    query.await_rows(before | meanwhile)
    if trouble.end is not None:
        trouble.end(scene)
    if outcome.word == SKIPS:
        query.trigger_until(losses)
    after = scene.produce(trouble.is_writable)
    query.await_rows(after)
    return before | meanwhile | after


@pytest.mark.sampled
@cell_of("Stream")
def test_stream(scene, losses, trouble, outcome, variant):
    query = Query(scene, **variant)
    before = scene.produce()
    query.await_rows(before)
    unread = scene.produce() if trouble.loses else set()
    kept = {value for value in unread if trouble.spares(partition_of(value))}
    trouble.begin(scene)

    with ends_as(outcome):
        expected = go_on(scene, query, trouble, outcome, losses, before | kept)
    if not outcome.is_error:
        assert outcome.word in {GOES_ON, SKIPS}
        assert_once(query.rows, expected)
        assert bool(losses()) == (outcome.word == SKIPS)
    assert_hit(scene)


@pytest.mark.sampled
@cell_of("AvailableNow")
def test_available_now(scene, losses, trouble, outcome, variant):
    """A run that begins behind a checkpoint while things go wrong, and the run after it."""
    first = Query(scene, **variant)
    before = scene.produce()
    first.run_available()
    assert_once(first.rows, before)
    unread = scene.produce()
    trouble.begin(scene)

    options = {**variant, **(IMPATIENT if outcome.is_error else {})}
    query = Query(scene, first.checkpoint, **options)
    with Lasting(scene, trouble, outcome) as lasting, ends_as(outcome):
        query.run_available()
        assert lasting.is_over == outcome.waits
    if not outcome.is_error:
        check(query.rows, unread, trouble, outcome, losses)
    assert_hit(scene)


@pytest.mark.parametrize("how", ["A broker is killed and restarted", "A broker is frozen for a while"])
def test_a_run_is_not_over_before_a_broker_is_back_that_went_after_it_began(scene, monkeypatch, how):
    # Brokers are asked again at once, so that the run knows.
    monkeypatch.setattr(planner, "_MAX_AGE_SECONDS", 0)
    monkeypatch.setattr(planner, "_MAX_AGE_SECONDS_PER_STORE", 0)
    query, before = Query(scene), scene.produce()
    query.run_available()
    unread = scene.produce()
    query.prepare()
    TROUBLES[how].begin(scene)
    with Lasting(scene, TROUBLES[how], Outcome(WAITS)) as lasting:
        query.finish()
        assert lasting.is_over
    assert_once(query.rows, before | unread)


@pytest.mark.parametrize(
    ("how", "condition"),
    [
        ("A topic is removed", "TUBEMQ_AVAILABLE_NOW.PARTITION_LOST"),
        ("A topic is removed and created again", "TUBEMQ_AVAILABLE_NOW.MOVED_BACK"),
    ],
)
def test_a_run_ends_when_what_it_was_to_read_goes_meanwhile(scene, monkeypatch, how, condition):
    """Also where losses are tolerated; the next run goes on with what there is."""
    monkeypatch.setattr(planner, "_MAX_AGE_SECONDS", 0)
    monkeypatch.setattr(planner, "_MAX_AGE_SECONDS_PER_STORE", 0)
    query = Query(scene, failondataloss="false", maxoffsetspertrigger="2")
    before = scene.produce()
    query.prepare()
    assert query.trigger()
    TROUBLES[how].begin(scene)
    with pytest.raises(DataLossError) as ended:
        query.finish()
    assert ended.value.condition == condition

    again = Query(scene, query.checkpoint, failondataloss="false")
    again.run_available()
    spared = {value for value in before if TROUBLES[how].spares(partition_of(value))}
    assert spared <= {*query.rows, *again.rows} <= before


def test_a_new_run_over_a_topic_that_does_not_exist_ends_at_once(scene):
    with pytest.raises(RpcError, match="431"):
        Query(scene, subscribe="steady,misspelt").run_available()


@pytest.mark.sampled
@cell_of("Batch read")
def test_batch_read(scene, losses, trouble, outcome, variant):
    before = scene.produce()
    options = {**variant, **(IMPATIENT if outcome.is_error else {})}
    if trouble.loses:
        # From `earliest` on nothing is missing.
        options["startingoffsets"] = scene.beginning()
    trouble.begin(scene)
    with Lasting(scene, trouble, outcome) as lasting, ends_as(outcome):
        rows = plan_batch(scene, **options).start()()
        assert lasting.is_over == outcome.waits
    if not outcome.is_error:
        check(rows, before, trouble, outcome, losses)
    assert_hit(scene)


@pytest.mark.sampled
@cell_of("Planned task")
def test_planned_task(scene, losses, trouble, outcome, variant):
    """What is not touched is read meanwhile."""
    before = scene.produce()
    options = {**variant, **(IMPATIENT if outcome.is_error else {})}
    tasks = plan_batch(scene, **options)
    trouble.begin(scene)

    spared = tasks.start(trouble.spares)()
    assert_once(spared, {value for value in before if trouble.spares(partition_of(value))})
    with Lasting(scene, trouble, outcome) as lasting, ends_as(outcome):
        rows = spared + tasks.start(trouble.touches)()
        assert lasting.is_over == outcome.waits
    if not outcome.is_error:
        check(rows, before, trouble, outcome, losses)
    assert_hit(scene)


def check(rows, expected, trouble, outcome, losses):
    """Each row is there once; where rows were lost, those that were not."""
    if trouble.loses:
        expected = {value for value in expected if trouble.spares(partition_of(value))}
    assert_once(rows, expected)
    assert bool(losses()) == (outcome.word == SKIPS)
