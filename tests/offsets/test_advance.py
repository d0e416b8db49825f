import itertools

import pytest
from hypothesis import given, strategies as st

from tests.offsets import strategies as own
from tests.offsets.strategies import tp
from tubemq_spark.errors import DataLossError, OptionError, TubeMQConnectionError
from tubemq_spark.model import OffsetBounds
from tubemq_spark.offsets.advance import next_offset
from tubemq_spark.offsets.loss import Loss, LossRecord, LossRecorder, fail_on_loss
from tubemq_spark.offsets.offset_spec import Edge, Specific
from tubemq_spark.offsets.source_offset import SourceOffset, StartToken

ZERO, TWIN, ONE = tp("demo/1:0"), tp("demo/1:1"), tp("demo/1:10000")
BOUNDS = {ZERO.store_id: OffsetBounds(280, 560), ONE.store_id: OffsetBounds(0, 0)}
EARLIEST, LATEST = StartToken(Edge.EARLIEST), StartToken(Edge.LATEST)


def test_the_first_trigger_resolves_the_token_and_keeps_the_begin():
    assert next_offset(EARLIEST, [ZERO, ONE], BOUNDS, on_loss=fail_on_loss) == SourceOffset(
        {ZERO: 560, ONE: 0}, {ZERO: 280, ONE: 0}
    )
    assert next_offset(EARLIEST, [ZERO, ONE], BOUNDS, on_loss=fail_on_loss, max_rows=2) == SourceOffset(
        {ZERO: 336, ONE: 0}, {ZERO: 280, ONE: 0}
    )


def test_latest_is_fixed_by_an_empty_batch():
    assert next_offset(LATEST, [ZERO, ONE], BOUNDS, on_loss=fail_on_loss) == SourceOffset(
        {ZERO: 560, ONE: 0}, {ZERO: 560, ONE: 0}
    )


def test_explicit_offsets_are_resolved_with_the_loss_policy():
    token = StartToken(Specific({"demo": {ZERO: 0, ONE: Edge.LATEST}}))
    with pytest.raises(DataLossError):
        next_offset(token, [ZERO, ONE], BOUNDS, on_loss=fail_on_loss)
    recorder = LossRecorder()
    end = next_offset(token, [ZERO, ONE], BOUNDS, on_loss=recorder)
    assert end == SourceOffset({ZERO: 560, ONE: 0}, {ZERO: 280, ONE: 0})
    assert recorder.records == [LossRecord(Loss.EXPIRED, ZERO, 0, 280)]


def test_wrong_explicit_offsets_name_the_option():
    with pytest.raises(OptionError, match="Option 'startingOffsets'"):
        next_offset(StartToken(Specific({})), [ZERO], BOUNDS, on_loss=fail_on_loss)


def test_a_token_waits_for_all_stores():
    with pytest.raises(TubeMQConnectionError):
        next_offset(LATEST, [ZERO, tp("demo/9:0")], BOUNDS, on_loss=fail_on_loss)


def test_a_partition_that_the_user_adds_begins_at_the_beginning():
    """It was there before; one that appears by itself has nothing before the others' position."""
    start, partitions = SourceOffset({ZERO: 560}), [ZERO, TWIN]
    added = next_offset(start, partitions, BOUNDS, on_loss=fail_on_loss, max_rows=1, chosen_one_by_one=True)
    assert added.first_offsets == {TWIN: 280}
    appeared = next_offset(start, partitions, BOUNDS, on_loss=fail_on_loss, max_rows=1)
    assert appeared.first_offsets == {TWIN: 560}
    assert (added.partial, appeared.partial) == (True, False)


def test_a_partition_that_an_assignment_left_out_begins_at_the_beginning():
    """Also when its broker answers some triggers later than the others."""
    away = tp("demo/2:0")
    beside = tp("demo/2:1")
    start = SourceOffset({ZERO: 560, away: 28}, partial=True)
    everything = [ZERO, TWIN, away, beside]

    first = next_offset(start, everything, BOUNDS, on_loss=fail_on_loss)
    later = next_offset(
        first, everything, {**BOUNDS, away.store_id: OffsetBounds(0, 56)}, on_loss=fail_on_loss, max_rows=1
    )

    assert (first.first_offsets, first.partial) == ({TWIN: 280}, True)
    assert (later.first_offsets, later.partial) == ({beside: 0}, False)


def test_without_new_rows_the_next_offset_is_the_start_itself():
    start = SourceOffset({ZERO: 560, ONE: 0}, {ZERO: 280, ONE: 0})
    assert next_offset(start, [ZERO, ONE], BOUNDS, on_loss=fail_on_loss) is start


def test_an_empty_topic_still_fixes_the_begin():
    first = next_offset(EARLIEST, [], {}, on_loss=fail_on_loss)
    assert first == SourceOffset({})
    assert next_offset(first, [], {}, on_loss=fail_on_loss) is first


def test_the_begin_is_carried_by_the_first_offset_only():
    start = SourceOffset({ZERO: 532, ONE: 0}, {ZERO: 280, ONE: 0})
    assert next_offset(start, [ZERO, ONE], BOUNDS, on_loss=fail_on_loss) == SourceOffset({ZERO: 560, ONE: 0})


def test_a_new_partition_is_written_down_even_if_it_is_empty():
    end = next_offset(SourceOffset({ZERO: 560}), [ZERO, ONE], BOUNDS, on_loss=fail_on_loss)
    assert end == SourceOffset({ZERO: 560, ONE: 0}, {ONE: 0})


def test_removed_partitions_are_dropped_when_that_is_tolerated():
    start = SourceOffset({ZERO: 560, ONE: 0})
    with pytest.raises(DataLossError, match="PARTITION_REMOVED"):
        next_offset(start, [ZERO], BOUNDS, on_loss=fail_on_loss)
    assert next_offset(start, [ZERO], BOUNDS, on_loss=LossRecorder()) == SourceOffset({ZERO: 560})


def test_the_limit_is_not_spent_on_expired_records():
    """Otherwise a long gap would take as many empty micro-batches as it had rows."""
    recorder = LossRecorder()
    end = next_offset(SourceOffset({ZERO: 0}), [ZERO], BOUNDS, on_loss=recorder, max_rows=3)
    assert end == SourceOffset({ZERO: 280 + 84})
    assert recorder.records == [LossRecord(Loss.EXPIRED, ZERO, 0, 280)]


def test_a_log_that_moved_back_goes_on_from_its_end():
    start = SourceOffset({ZERO: 588, ONE: 0})
    with pytest.raises(DataLossError, match="MOVED_BACK"):
        next_offset(start, [ZERO, ONE], BOUNDS, on_loss=fail_on_loss)
    assert next_offset(start, [ZERO, ONE], BOUNDS, on_loss=LossRecorder()) == SourceOffset(
        {ZERO: 560, ONE: 0}
    )


def test_a_partition_that_cannot_be_read_now_is_kept():
    away = tp("demo/9:0")
    end = next_offset(SourceOffset({ZERO: 280, away: 84}), [ZERO, away], BOUNDS, on_loss=fail_on_loss)
    assert end == SourceOffset({ZERO: 560, away: 84})


def test_available_now_stops_at_its_target():
    target = {ZERO: 336}
    start = SourceOffset({ZERO: 280, ONE: 0})
    grown = {ZERO.store_id: OffsetBounds(280, 560), ONE.store_id: OffsetBounds(0, 280)}
    end = next_offset(start, [ZERO, ONE], grown, on_loss=fail_on_loss, target=target)
    assert end == SourceOffset({ZERO: 336, ONE: 0})
    assert next_offset(end, [ZERO, ONE], grown, on_loss=fail_on_loss, target=target) is end


@pytest.mark.parametrize("max_rows", [None, 1, 2, 3, 5])
def test_partitions_of_one_store_stop_at_offsets_of_their_own(max_rows):
    target = {TWIN: 504, ZERO: 336}
    end, ends = SourceOffset({ZERO: 280, TWIN: 420}), []
    while not ends or end is not ends[-1]:
        ends.append(end)
        end = next_offset(end, [ZERO, TWIN], BOUNDS, on_loss=fail_on_loss, target=target, max_rows=max_rows)
    assert end.next_offsets == target
    moved = [
        sum(later.next_offsets[one] - sooner.next_offsets[one] for one in target)
        for sooner, later in itertools.pairwise(ends)
    ]
    assert max(moved) <= 28 * (max_rows + 1 if max_rows else 5)


def test_available_now_reads_up_to_its_target_where_a_broker_is_away_since():
    """Its tasks wait for that broker. Else the run would end before its target, as if all were read."""
    away = tp("demo/9:0")
    start = SourceOffset({ZERO: 280, away: 0})
    end = next_offset(start, [ZERO, away], BOUNDS, on_loss=fail_on_loss, target={ZERO: 336, away: 28})
    assert end == SourceOffset({ZERO: 336, away: 28})


def test_available_now_never_goes_back_to_its_target():
    """A stream that resolves ``latest`` after the target was fixed stands beyond it."""
    end = next_offset(LATEST, [ZERO], BOUNDS, on_loss=fail_on_loss, target={ZERO: 336})
    assert end == SourceOffset({ZERO: 560}, {ZERO: 560})


@pytest.mark.parametrize("policy", [fail_on_loss, LossRecorder()], ids=["failing", "tolerant"])
def test_available_now_fails_when_a_log_ends_before_its_target(policy):
    """Also where losses are tolerated: the run was to read what is gone."""
    away = tp("demo/9:0")
    target = {ZERO: 588, TWIN: 588, away: 28}
    start = SourceOffset({ZERO: 280, TWIN: 308, away: 0})
    with pytest.raises(
        DataLossError, match=r"AVAILABLE_NOW\.MOVED_BACK\] demo/1:0 was to be read up to .* 588"
    ):
        next_offset(start, start.next_offsets.keys(), BOUNDS, on_loss=policy, target=target)


@pytest.mark.parametrize("start", [EARLIEST, SourceOffset({ZERO: 280, ONE: 0})], ids=["new", "resumed"])
def test_available_now_fails_when_a_partition_of_its_target_is_gone(start):
    target = {ZERO: 560, ONE: 28}
    with pytest.raises(DataLossError, match=r"AVAILABLE_NOW\.PARTITION_LOST\] demo/1:10000 was there"):
        next_offset(start, [ZERO], BOUNDS, on_loss=LossRecorder(), target=target)


def test_available_now_does_not_need_a_partition_that_was_empty():
    """Such as one whose broker had deleted it before the run began: a loss by the policy, as ever."""
    start, target = SourceOffset({ZERO: 280, ONE: 28}), {ZERO: 560, ONE: 0}
    with pytest.raises(DataLossError, match="PARTITION_REMOVED"):
        next_offset(start, [ZERO], BOUNDS, on_loss=fail_on_loss, target=target)
    recorder = LossRecorder()
    assert next_offset(start, [ZERO], BOUNDS, on_loss=recorder, target=target) == SourceOffset({ZERO: 560})
    assert recorder.records == [LossRecord(Loss.PARTITION_REMOVED, ONE, 28, 28)]


@given(own.positions_in_logs(), st.none() | st.integers(1, 50), st.data())
def test_reading_stops_at_the_ends_and_no_partition_goes_back(logs, max_rows, data):
    """Partitions may be beyond that: they stay, and nothing is lost."""
    positions, bounds = logs
    ends = {
        store: 28 * data.draw(st.integers(held.earliest // 28, held.latest // 28))
        for store, held in sorted(bounds.items())
    }
    start = SourceOffset(positions)
    end = next_offset(start, positions.keys(), bounds, on_loss=fail_on_loss, max_rows=max_rows, ends=ends)
    for partition, position in positions.items():
        stop = max(position, ends[partition.store_id])
        assert position <= end.next_offsets[partition] <= stop
        assert (end.next_offsets[partition] > position) == (stop > position)
    if max_rows is None:
        assert next_offset(end, positions.keys(), bounds, on_loss=fail_on_loss, ends=ends) is end


def test_latest_is_where_reading_may_stop():
    ends = {ZERO.store_id: 336, ONE.store_id: 0}
    end = next_offset(LATEST, [ZERO, ONE], BOUNDS, on_loss=fail_on_loss, ends=ends)
    assert end == SourceOffset({ZERO: 336, ONE: 0}, {ZERO: 336, ONE: 0})


def test_an_offset_of_the_user_s_may_be_beyond_where_reading_may_stop():
    token = StartToken(Specific({"demo": {ZERO: 504, ONE: Edge.LATEST}}))
    ends = {ZERO.store_id: 336, ONE.store_id: 0}
    end = next_offset(token, [ZERO, ONE], BOUNDS, on_loss=fail_on_loss, ends=ends)
    assert end == SourceOffset({ZERO: 504, ONE: 0}, {ZERO: 504, ONE: 0})
