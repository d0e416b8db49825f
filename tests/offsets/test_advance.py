import itertools

import pytest
from hypothesis import given, strategies as st

from tests.cases import in_one_test
from tests.offsets import strategies as own
from tests.offsets.strategies import tp
from tubemq_spark.errors import DataLossError
from tubemq_spark.model import INDEX_ENTRY_BYTES, MAX_OFFSET, OffsetBounds, TopicPartition, rows_between
from tubemq_spark.offsets.advance import admit, next_offset
from tubemq_spark.offsets.loss import Loss, LossRecord, LossRecorder, fail_on_loss
from tubemq_spark.offsets.offset_spec import Edge, Specific
from tubemq_spark.offsets.source_offset import SourceOffset, StartToken

ZERO, TWIN, ONE = tp("demo/1:0"), tp("demo/1:1"), tp("demo/1:10000")
BOUNDS = {ZERO.store_id: OffsetBounds(280, 560), ONE.store_id: OffsetBounds(0, 0)}
EARLIEST, LATEST = StartToken(Edge.EARLIEST), StartToken(Edge.LATEST)


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


def test_the_limit_is_not_spent_on_expired_records():
    """Otherwise a long gap would take as many empty micro-batches as it had rows."""
    recorder = LossRecorder()
    end = next_offset(SourceOffset({ZERO: 0}), [ZERO], BOUNDS, on_loss=recorder, max_rows=3)
    assert end == SourceOffset({ZERO: 280 + 84})
    assert recorder.records == [LossRecord(Loss.EXPIRED, ZERO, 0, 280)]


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


def test_an_offset_of_the_user_s_may_be_beyond_where_reading_may_stop():
    token = StartToken(Specific({"demo": {ZERO: 504, ONE: Edge.LATEST}}))
    ends = {ZERO.store_id: 336, ONE.store_id: 0}
    end = next_offset(token, [ZERO, ONE], BOUNDS, on_loss=fail_on_loss, ends=ends)
    assert end == SourceOffset({ZERO: 504, ONE: 0}, {ZERO: 504, ONE: 0})


limits = st.one_of(st.integers(1, 100), st.integers(1, 2**63 - 1))


def stores(*sizes):
    """Make one-partition stores with a backlog each, in rows."""
    positions = {TopicPartition("demo", broker_id, 0): 0 for broker_id in range(1, len(sizes) + 1)}
    latest = {partition.store_id: size * 28 for partition, size in zip(positions, sizes, strict=True)}
    return positions, latest


def taken(positions, latest, max_rows):
    """Return the rows that each partition of a one-partition store gets."""
    return [end // 28 for end in admit(positions, latest, max_rows).values()]


@in_one_test(
    ("sizes", "limit", "shares"),
    [
        ((101, 11, 1), 10, [8, 1, 1]),  # the numbers of Spark's Kafka suite
        ((93, 10, 0), 10, [9, 1, 0]),
        ((100,), 40, [40]),
        ((20,), 40, [20]),
        ((40, 60), 100, [40, 60]),
        ((40, 61), 100, [39, 60]),
        ((1, 1, 1), 1, [1, 1, 1]),
        ((0, 0), 5, [0, 0]),
        ((), 5, []),
        ((MAX_OFFSET // 28, MAX_OFFSET // 28), 2**63 - 1, [MAX_OFFSET // 28] * 2),
        ((MAX_OFFSET // 28, MAX_OFFSET // 28), 4, [2, 2]),
        ((5, 7), None, [5, 7]),
    ],
)
def test_shares(sizes, limit, shares):
    assert taken(*stores(*sizes), limit) == shares


@pytest.mark.parametrize(("sizes", "taken_rows"), [((3, 6), [0, 0]), ((3, 7), [3, 7]), ((30, 70), [3, 7])])
def test_no_rows_are_taken_below_the_minimum(sizes, taken_rows):
    positions, latest = stores(*sizes)
    assert [end // 28 for end in admit(positions, latest, 10, 10).values()] == taken_rows


SIZES = st.integers(1, 10) | st.integers(1, 2**31)


def bytes_taken(positions, latest, ends, sizes):
    """Return the bytes of each share, and how many shares have one row."""
    shares = {(p.store_id, start): rows_between(start, ends[p]) for p, start in positions.items()}
    return [rows * sizes[store] for (store, _), rows in shares.items()], list(shares.values())


@in_one_test(
    ("sizes", "row_bytes", "max_rows", "max_bytes", "shares"),
    [
        ((100, 100), (1, 9), None, 500, [50, 50]),  # every store the same part
        ((100, 100), (1, 9), 60, 500, [30, 30]),
        ((100, 100), (1, 9), 150, 500, [50, 50]),
        ((101, 11, 1), (7, 7, 7), None, 70, [8, 1, 1]),  # rows of one size: as for rows
        ((100, 3), (1, 1000), None, 3100, [100, 3]),
        ((100, 3), (1, 1000), None, 3099, [99, 2]),
        ((5,), (1_000_000,), None, 1, [1]),
        ((0, 4), (5, 5), None, 10, [0, 2]),
        ((MAX_OFFSET // 28,), (2**31,), 2**63 - 1, 2**63 - 1, [2**32 - 1]),
    ],
)
def test_shares_by_bytes(sizes, row_bytes, max_rows, max_bytes, shares):
    positions, latest = stores(*sizes)
    known = dict(zip(latest, row_bytes, strict=True))
    ends = admit(positions, latest, max_rows, max_bytes=max_bytes, row_bytes=lambda _: known)
    assert [end // 28 for end in ends.values()] == shares


def test_sizes_are_asked_for_once_and_only_where_rows_wait():
    positions = {tp("demo/1:0"): 56, tp("demo/1:1"): 28, tp("demo/2:0"): 84}
    latest = {tp("demo/1:0").store_id: 280, tp("demo/2:0").store_id: 84}
    asked = []

    def row_bytes(unread):
        asked.append(unread)
        return dict.fromkeys(unread, 1)

    admit(positions, latest, max_bytes=10, row_bytes=row_bytes)
    assert asked == [{tp("demo/1:0").store_id: OffsetBounds(28, 280)}]
    admit(positions, latest, max_bytes=10, min_rows=100, row_bytes=row_bytes)
    admit({tp("demo/2:0"): 84}, latest, max_bytes=10, row_bytes=row_bytes)
    admit(positions, latest, row_bytes=row_bytes)
    assert len(asked) == 1


def test_a_limit_of_bytes_needs_the_sizes_of_rows():
    with pytest.raises(TypeError, match="row_bytes"):
        admit({}, {}, max_bytes=10)


def test_a_store_without_row_sizes_stays_and_does_not_hold_up_others():
    positions, latest = stores(100, 100)
    _, second = latest
    ends = admit(positions, latest, max_bytes=50, row_bytes=lambda _: {second: 1})
    assert [end // 28 for end in ends.values()] == [0, 50]


@st.composite
def backlogs(draw):
    """Partitions anywhere in their stores' logs, some in stores without a known end."""
    positions = draw(own.offset_maps)
    latest = {}
    for store in sorted({partition.store_id for partition in positions}):
        if draw(st.integers(0, 9)):
            latest[store] = draw(own.offsets)
    return positions, latest


@given(backlogs(), st.none() | limits)
def test_ends_stay_inside_the_log_and_at_messages(backlog, limit):
    positions, latest = backlog
    ends = admit(positions, latest, limit)
    assert list(ends) == list(positions)
    for partition, end in ends.items():
        start, stop = positions[partition], latest.get(partition.store_id, 0)
        assert start <= end <= max(start, stop)
        assert (end - start) % INDEX_ENTRY_BYTES == 0


@given(backlogs(), limits)
def test_every_backlog_makes_progress(backlog, limit):
    positions, latest = backlog
    ends = admit(positions, latest, limit)
    for partition, start in positions.items():
        if start < latest.get(partition.store_id, 0):
            assert ends[partition] > start


@given(backlogs(), limits)
def test_the_limit_is_passed_only_by_shares_rounded_up(backlog, limit):
    positions, latest = backlog
    ends = admit(positions, latest, limit)
    # Partitions of a store at one offset share one share; its rows count once.
    shares = {(p.store_id, start): rows_between(start, ends[p]) for p, start in positions.items()}
    rounded_up = sum(1 for rows in shares.values() if rows == 1)
    assert sum(shares.values()) <= limit + rounded_up


@given(backlogs(), st.none() | limits, limits, st.data())
def test_bytes_pass_their_limit_only_by_shares_rounded_up(backlog, max_rows, max_bytes, data):
    positions, latest = backlog
    sizes = {store: data.draw(SIZES) for store in sorted({one.store_id for one in positions})}
    ends = admit(positions, latest, max_rows, max_bytes=max_bytes, row_bytes=lambda _: sizes)

    taken_bytes, rows = bytes_taken(positions, latest, ends, sizes)
    rounded_up = sum(taken for taken, count in zip(taken_bytes, rows, strict=True) if count == 1)
    assert sum(taken_bytes) <= max_bytes + rounded_up
    if max_rows is not None:
        assert sum(rows) <= max_rows + rows.count(1)
    by_rows = admit(positions, latest, max_rows)
    for partition, start in positions.items():
        assert start <= ends[partition] <= by_rows[partition], "bytes only lower what rows allow"
        if start < latest.get(partition.store_id, 0):
            assert ends[partition] > start, "no store waits for ever"
    stands = {
        (p.store_id, start): rows_between(start, latest.get(p.store_id, 0)) for p, start in positions.items()
    }
    enough = max(1, sum(count * sizes[store] for (store, _), count in stands.items()))
    assert admit(positions, latest, max_rows, max_bytes=enough, row_bytes=lambda _: sizes) == by_rows


@given(backlogs(), limits)
def test_partitions_that_stand_together_move_together(backlog, limit):
    positions, latest = backlog
    ends = admit(positions, latest, limit)
    together = {}
    for partition, start in positions.items():
        assert together.setdefault((partition.store_id, start), ends[partition]) == ends[partition]


@given(backlogs())
def test_without_a_limit_or_below_it_all_is_taken(backlog):
    positions, latest = backlog
    everything = {p: max(start, latest.get(p.store_id, 0)) for p, start in positions.items()}
    assert admit(positions, latest) == everything
    stands = {(p.store_id, start): rows_between(start, everything[p]) for p, start in positions.items()}
    assert admit(positions, latest, max(1, sum(stands.values()))) == everything


def test_partitions_of_one_store_count_its_rows_once():
    positions = {tp("demo/1:0"): 0, tp("demo/1:1"): 0, tp("demo/2:0"): 0}
    latest = {tp("demo/1:0").store_id: 2800, tp("demo/2:0").store_id: 2800}
    assert admit(positions, latest, 100) == {tp("demo/1:0"): 1400, tp("demo/1:1"): 1400, tp("demo/2:0"): 1400}


def test_a_partition_that_lags_does_not_hold_up_its_store():
    """A partition added to a store begins at the earliest offset, far behind the others."""
    lagging, ahead = tp("demo/1:1"), tp("demo/1:0")
    ends = admit({lagging: 0, ahead: 27_972_000}, {ahead.store_id: 28_000_000}, 100)
    assert ends == {lagging: 28 * 99, ahead: 27_972_000 + 28}
    for _ in range(1000):
        ends = admit(ends, {ahead.store_id: 28_000_000}, 10_000)
    assert ends == {lagging: 28_000_000, ahead: 28_000_000}
