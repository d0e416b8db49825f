"""The ledger has each gap once, however often and in however many pieces it was seen."""

import datetime
import itertools
import json

import pytest
from hypothesis import given, strategies as st

from tests.cases import in_one_test
from tests.offsets.strategies import partitions, tp
from tubemq_spark.errors import LedgerFormatError
from tubemq_spark.offsets.ledger import (
    Observation,
    Origin,
    batch_read,
    coalesced,
    file_of,
    gaps,
    micro_batch,
    observations_of,
    planning,
)
from tubemq_spark.offsets.loss import Loss, LossRecord

DEMO = tp("demo/1:0")
ROW = 28
NOON = datetime.datetime(2026, 3, 4, 12, tzinfo=datetime.UTC)
BATCH = micro_batch("readers", "c3b1", 7)


def lost(start, end, rows=None, loss=Loss.EXPIRED, partition=DEMO):
    """Return a loss of rows that are numbered from 0."""
    return LossRecord(loss, partition, start * ROW, end * ROW, rows)


def seen(*losses, origin=BATCH, time=NOON):
    return [Observation(loss, origin, time) for loss in losses]


def summary(observations):
    return [(one.loss.start // ROW, one.loss.end // ROW, one.loss.rows) for one in gaps(observations)]


times = st.integers(0, 10**12).map(lambda ms: NOON + datetime.timedelta(milliseconds=ms))
origins = st.one_of(
    st.builds(
        micro_batch, st.just("readers"), st.none() | st.text(max_size=5), st.none() | st.integers(0, 99)
    ),
    st.builds(batch_read, st.sampled_from(["readers", "ü"]), st.text(max_size=5)),
    st.builds(planning, st.just("readers"), st.dictionaries(st.text(max_size=3), st.integers(), max_size=3)),
)


@st.composite
def records(draw, of=partitions):
    start, length = draw(st.integers(0, 100)), draw(st.integers(0, 20))
    rows = draw(st.none() | st.integers(0, length))
    return lost(start, start + length, rows, draw(st.sampled_from(Loss)), draw(of))


def whole(observations):
    """Return observations with what equality of losses leaves out."""
    return [(one, one.loss.rows) for one in observations]


@given(st.lists(records(), min_size=1, max_size=5), origins, times)
def test_a_file_says_what_was_written(losses, origin, time):
    _, text = file_of(losses, origin, time)
    read = observations_of(text, "file")
    assert sorted(whole(read), key=repr) == sorted(whole(seen(*losses, origin=origin, time=time)), key=repr)


@given(st.lists(records(), min_size=1, max_size=5), origins, times, times, st.randoms())
def test_the_same_losses_of_the_same_origin_have_the_same_name_at_any_time(
    losses, origin, one, other, random
):
    mixed = random.sample(losses, len(losses))
    assert file_of(losses, origin, one)[0] == file_of(mixed, origin, other)[0]


@given(
    st.lists(records(), min_size=1, max_size=3), st.lists(records(), min_size=1, max_size=3), origins, origins
)
def test_other_losses_or_another_origin_have_another_name(some, others, one, other):
    def content(losses, origin):
        return sorted(repr((loss, loss.rows)) for loss in losses), origin

    same = content(some, one) == content(others, other)
    assert (file_of(some, one, NOON)[0] == file_of(others, other, NOON)[0]) == same


def test_names_are_short_and_fit_any_file_system():
    name, _ = file_of([lost(0, 1)], BATCH, NOON)
    assert len(name) == 32
    assert name.isalnum()


def test_a_line_is_json_with_the_columns_of_the_view():
    _, text = file_of([lost(2, 12, 10)], BATCH, NOON)
    assert json.loads(text) == {
        "v": 1,
        "topic": "demo",
        "brokerId": 1,
        "partition": 0,
        "startOffset": 56,
        "endOffset": 336,
        "rows": 10,
        "reason": "EXPIRED",
        "consumerGroup": "readers",
        "queryId": "c3b1",
        "batchId": 7,
        "origin": "micro-batch c3b1 7",
        "time": "2026-03-04T12:00:00.000+00:00",
    }


def test_a_planned_micro_batch_is_told_apart_by_where_it_begins():
    one, other = {"v": 1, "topics": {"demo": {"1:0": 28}}}, {"v": 1, "topics": {"demo": {"1:0": 56}}}
    assert planning("readers", one) == planning("readers", dict(reversed(one.items())))
    assert planning("readers", one) != planning("readers", other)
    assert planning("readers", one) != planning("writers", one)
    assert planning("readers", one).query_id is None
    assert planning("readers", one).batch_id is None


@in_one_test(
    ("change", "problem"),
    [
        ({"v": 2}, r"file, line 1 has format version 2, but this release only reads up to version 1"),
        ({"v": None}, None),
        ({"reason": "STOLEN"}, "'STOLEN' is not a valid Loss"),
        ({"startOffset": "x"}, "invalid literal"),
        ({"startOffset": None}, "TypeError"),
        ({"time": "noon"}, "noon"),
        ({"time": 12}, "TypeError"),
        ({"origin": ...}, "KeyError: 'origin'"),
    ],
)
def test_a_ledger_line_with_wrong_fields_is_refused(change, problem):
    _, text = file_of([lost(0, 1)], BATCH, NOON)
    data = {name: value for name, value in {**json.loads(text), **change}.items() if value is not ...}
    with pytest.raises(LedgerFormatError, match=problem or "file, line 1 is not a ledger of losses"):
        observations_of(json.dumps(data), "file")


@pytest.mark.parametrize("text", ["{", "[]", "7", "null", '"v"', "\x00", '{"v":1}\n'])
def test_a_ledger_line_that_is_no_json_object_is_refused(text):
    with pytest.raises(LedgerFormatError, match="file, line 1"):
        observations_of(text, "file")


def test_losses_of_one_observer_that_follow_each_other_are_put_together():
    corrupt = [lost(number, number + 1, 1, Loss.CORRUPT) for number in (5, 4, 3, 8)]
    found = coalesced([*corrupt, lost(0, 3, 3), lost(6, 8, None, Loss.SKIPPED)])
    assert [(one.loss, one.start // ROW, one.end // ROW, one.rows) for one in found] == [
        (Loss.CORRUPT, 3, 6, 3),
        (Loss.CORRUPT, 8, 9, 1),
        (Loss.EXPIRED, 0, 3, 3),
        (Loss.SKIPPED, 6, 8, None),
    ]


def test_a_gap_that_grew_between_two_attempts_is_one_gap():
    early = seen(lost(0, 10, 10), time=NOON)
    late = seen(lost(0, 12, 12), time=NOON + datetime.timedelta(hours=1))
    (gap,) = gaps([*late, *early])
    assert (gap.loss, gap.loss.rows, gap.time) == (lost(0, 12), 12, NOON)


def test_gaps_of_two_tasks_that_split_a_range_are_one_gap():
    assert summary(seen(lost(0, 10, 10), lost(10, 12, 2))) == [(0, 12, 12)]


def test_gaps_that_overlap_in_part_are_one_gap():
    corrupt = [lost(0, 10, 10, Loss.CORRUPT), lost(5, 12, 7, Loss.CORRUPT)]
    assert summary(seen(*corrupt)) == [(0, 12, 12)]


def test_gaps_that_do_not_touch_are_two():
    assert summary(seen(lost(0, 10, 10), lost(11, 12, 1))) == [(0, 10, 10), (11, 12, 1)]


def test_rows_that_one_observation_does_not_know_are_not_known():
    assert summary(seen(lost(0, 10, 10), lost(5, 12))) == [(0, 12, None)]


@pytest.mark.parametrize(
    "other",
    [
        seen(lost(0, 10, 10), origin=micro_batch("readers", "c3b1", 8)),
        seen(lost(0, 10, 10), origin=micro_batch("readers", "other", 7)),
        seen(lost(0, 10, 10), origin=micro_batch("others", "c3b1", 7)),
        seen(lost(0, 10, 10), origin=batch_read("readers", "c3b1")),
        seen(lost(0, 10, 10, partition=tp("demo/2:0"))),
    ],
)
def test_losses_of_another_origin_or_partition_are_another_gap(other):
    assert summary([*seen(lost(0, 10, 10)), *other]) == [(0, 10, 10), (0, 10, 10)]


def test_a_partition_that_was_removed_is_a_gap_without_length():
    removed = lost(5, 5, None, Loss.TOPIC_REMOVED)
    assert summary(seen(removed, removed)) == [(5, 5, None)]


@given(
    st.lists(
        st.builds(Observation, records(st.just(DEMO)), st.sampled_from([BATCH, Origin("a", "b")]), times)
    ),
    st.randoms(),
)
def test_neither_order_nor_repetition_change_the_gaps(observations, random):
    repeated = [*observations, *random.choices(observations, k=3)] if observations else []
    random.shuffle(repeated)
    found = gaps(observations)
    assert whole(gaps(repeated)) == whole(found)
    assert whole(gaps(found)) == whole(found)


def offsets(records, *reasons):
    return {
        number
        for record in records
        if record.loss in reasons
        for number in range(record.start, record.end, ROW)
    }


@given(st.lists(records(st.just(DEMO))))
def test_gaps_have_the_same_offsets_as_what_was_observed_each_in_one_gap(losses):
    union = [gap.loss for gap in gaps(seen(*losses))]
    unread = set(Loss) - {Loss.MOVED_BACK}
    assert offsets(union, *unread) == offsets(losses, *unread)
    assert sum(len(offsets([loss], *unread)) for loss in union) == len(offsets(losses, *unread))
    assert offsets(union, Loss.MOVED_BACK) == offsets(losses, Loss.MOVED_BACK)
    for reason in Loss:
        spans = sorted((loss.start, loss.end) for loss in union if loss.loss is reason)
        assert all(end < start for (_, end), (start, _) in itertools.pairwise(spans))


@in_one_test(
    ("losses", "union"),
    [
        ([lost(0, 10, 4, Loss.SKIPPED), lost(0, 10, 10)], [("EXPIRED", 0, 10, 10)]),
        ([lost(0, 10, 4, Loss.SKIPPED), lost(0, 6, 6)], [("EXPIRED", 0, 10, None)]),
        ([lost(6, 10, 3, Loss.SKIPPED), lost(0, 6, 6)], [("EXPIRED", 0, 6, 6), ("SKIPPED", 6, 10, 3)]),
        ([lost(0, 10, 4, Loss.SKIPPED), lost(2, 4, 1, Loss.SKIPPED)], [("SKIPPED", 0, 10, 4)]),
        ([lost(0, 6, 3, Loss.SKIPPED), lost(2, 10, 4, Loss.SKIPPED)], [("SKIPPED", 0, 10, None)]),
        ([lost(5, 10, 5, Loss.TOPIC_REMOVED), lost(8, 10, 2, Loss.TRUNCATED)], [("TRUNCATED", 5, 10, 5)]),
        ([lost(2, 6, 1, Loss.CORRUPT), lost(2, 6, 2, Loss.SKIPPED)], [("SKIPPED", 2, 6, None)]),
        (
            [lost(0, 6, None, Loss.MOVED_BACK), lost(0, 6, 6)],
            [("EXPIRED", 0, 6, 6), ("MOVED_BACK", 0, 6, None)],
        ),
    ],
)
def test_what_attempts_lose_for_different_reasons_is_counted_once_or_not_at_all(losses, union):
    lines = [
        (gap.loss.loss.value, gap.loss.start // ROW, gap.loss.end // ROW, gap.loss.rows)
        for gap in gaps(seen(*losses))
    ]
    assert sorted(lines) == union


LENGTH = 30


@st.composite
def attempts(draw):
    """Return lost rows of a range, and what attempts to read it observe; at least the last is not cut off.

    Attempts see broker's answers of any lengths, and report those in which a row is missing, with how many.
    """
    gone = draw(st.sets(st.integers(0, LENGTH - 1)))
    observed = []
    count = draw(st.integers(1, 4))
    for attempt in range(count):
        cuts = sorted({0, LENGTH, *draw(st.sets(st.integers(1, LENGTH - 1)))})
        steps = list(itertools.pairwise(cuts))
        if attempt < count - 1:
            steps = steps[: draw(st.integers(0, len(steps)))]
        answers = [(start, end, len(gone & set(range(start, end)))) for start, end in steps]
        losses = [lost(start, end, rows, Loss.SKIPPED) for start, end, rows in answers if rows]
        observed += seen(*(coalesced(losses) if draw(st.booleans()) else losses))
    return gone, observed


@st.composite
def attempts_over_retention(draw):
    """Return what attempts observe while records expire that a broker had passed over for earlier ones."""
    missing = draw(st.sets(st.integers(0, LENGTH - 1)))
    begins = sorted(draw(st.lists(st.integers(0, LENGTH), min_size=1, max_size=4)))
    observed = []
    for attempt, begin in enumerate(begins):
        cuts = sorted({begin, LENGTH, *draw(st.sets(st.integers(begin, LENGTH)))})
        steps = list(itertools.pairwise(cuts))
        if attempt < len(begins) - 1:
            steps = steps[: draw(st.integers(0, len(steps)))]
        answers = [(start, end, len(missing & set(range(start, end)))) for start, end in steps]
        losses = [lost(start, end, rows, Loss.SKIPPED) for start, end, rows in answers if rows]
        observed += seen(*losses, *([lost(0, begin, begin)] if begin else []))
    return missing | set(range(begins[-1])), observed


@given(attempts() | attempts_over_retention(), st.randoms())
def test_rows_that_attempts_lost_are_exact_or_not_known(case, random):
    """Failed, repeated, twins: whatever was seen, in whatever pieces, though reasons change."""
    gone, observed = case
    random.shuffle(observed)
    union = gaps(observed)
    assert gone <= {offset // ROW for offset in offsets([gap.loss for gap in union], *Loss)}
    for gap in union:
        inside = range(gap.loss.start // ROW, gap.loss.end // ROW)
        assert gap.loss.rows in (len(gone.intersection(inside)), None)


@given(st.lists(st.integers(0, LENGTH), min_size=1), st.integers(0, LENGTH), st.randoms())
def test_rows_that_expire_while_attempts_repeat_are_counted_once(retention, begin, random):
    """Retention moves on between attempts; the gap is what the last one found."""
    retention = sorted(max(begin, one) for one in retention)
    observed = [one for end in retention if end > begin for one in seen(lost(begin, end, end - begin))]
    random.shuffle(observed)
    expected = [(begin, retention[-1], retention[-1] - begin)] if retention[-1] > begin else []
    assert summary(observed) == expected


def test_a_gap_keeps_the_reason_and_partition_of_its_observations():
    partition = tp("orders/3:10000")
    (gap,) = gaps(seen(lost(1, 2, 1, Loss.CORRUPT, partition)))
    assert gap.loss == lost(1, 2, 1, Loss.CORRUPT, partition)
    assert gap.origin == BATCH
