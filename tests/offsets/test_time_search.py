"""Where records of a time begin and end is found by a few looks, whatever order their times are in."""

import bisect
import itertools
import math

import pytest
from hypothesis import given, settings, strategies as st

from tubemq_spark.model import INDEX_ENTRY_BYTES, OffsetBounds
from tubemq_spark.offsets.time_search import Look, PartitionTimes, Timed

ROW = INDEX_ENTRY_BYTES
OTHERS = "a record of another partition"


class Search(PartitionTimes):
    """A search whose looks ask nothing, since they know the answers."""

    def first_of(self, minute):
        return self.carry_out(super().first_of(minute))

    def end_of(self, minute):
        return self.carry_out(super().end_of(minute))

    def carry_out(self, search):
        with pytest.raises(StopIteration) as end:
            next(search)
        return end.value.value


class Log:
    """A store: for each entry the time of a record, None for one without a time, or that it is of others."""

    def __init__(self, entries, per_fetch, first=0):
        self.entries, self.per_fetch, self.first = list(entries), per_fetch, first
        self.dense = OTHERS not in self.entries
        self.looks = 0

    def search(self, **bounded):
        last = self.first + len(self.entries)
        bounds = OffsetBounds(ROW * self.first, ROW * last)

        def look(*where):
            yield from ()
            return self.look(*where)

        return Search(bounds, look, **bounded)

    def look(self, begin, end, until, most_fetches):
        assert self.offset(0) <= begin < end <= self.offset(len(self.entries))
        assert begin % ROW == end % ROW == until % ROW == 0
        at, seen = begin, False
        fetches = 0
        while True:
            fetches += 1
            self.looks += 1
            start = at
            rows, at = self.fetch(at, end)
            seen |= bool(rows)
            timed = [
                Timed(self.entries[row], self.entries[row], self.offset(row) if self.dense else None)
                for row in rows
                if self.entries[row] is not None
            ]
            if timed or at >= min(end, until) or fetches >= most_fetches:
                return Look(start if timed else at, at, timed, seen, fetches)

    def fetch(self, begin, end):
        """Return the rows of the partition in a fetch, and where the next one begins."""
        row, rows = begin // ROW - self.first, []
        while row < end // ROW - self.first and len(rows) < self.per_fetch:
            rows += [row] if self.entries[row] is not OTHERS else []
            row += 1
        return rows, self.offset(row)

    def offset(self, row):
        return ROW * (self.first + row)

    def rows_before(self, offset):
        return range(len(self.entries) if offset is None else offset // ROW - self.first)

    def times(self, rows):
        return [self.entries[row] for row in rows if isinstance(self.entries[row], int)]

    def worst(self):
        """Return how far any window may be ahead of a later one, and behind an earlier one."""
        windows = [
            self.look(self.offset(row), self.offset(len(self.entries)), 0, 1)
            for row in range(len(self.entries))
        ]
        ahead = behind = 0
        for row, window in enumerate(windows):
            if window.timed and (before := self.times(range(row))):
                ahead = max(ahead, max(before) - max(one.first for one in window.timed))
            after = self.times(range(row, len(self.entries)))
            if window.timed:
                behind = max(behind, min(one.first for one in window.timed) - min(after))
        return ahead, behind


times_in_order = st.lists(st.integers(0, 20), max_size=60).map(sorted)
entries_of_several = st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=60)
any_entries = st.lists(
    st.one_of(st.integers(0, 30), st.integers(0, 30), st.sampled_from([None, OTHERS])), max_size=80
)
per_fetch = st.integers(1, 9)
spreads = st.integers(1, 12)


@given(times_in_order, st.integers(0, 21), per_fetch, st.integers(0, 5), spreads)
def test_the_first_record_of_a_time_is_found(times, wanted, per_fetch, first, spread):
    log, place = Log(times, per_fetch, first), bisect.bisect_left(times, wanted)
    search = log.search(spread=spread)
    assert search.first_of(wanted) == (ROW * (first + place) if place < len(times) else None)
    assert search.end_of(wanted) == ROW * (first + place)
    assert (search.ahead, search.behind, search.unsure) == (0, 0, False)


@given(entries_of_several, st.integers(0, 21), per_fetch, spreads)
def test_in_a_shared_store_the_partition_s_records_are_divided_by_time(entries, wanted, per_fetch, spread):
    times = sorted(time for time, _ in entries)
    mixed = [time if own else OTHERS for time, (_, own) in zip(times, entries, strict=True)]
    log = Log(mixed, per_fetch)

    first, end = log.search(spread=spread).first_of(wanted), log.search(spread=spread).end_of(wanted)

    earlier = [time for time in log.times(range(len(mixed))) if time < wanted]
    assert log.times(log.rows_before(first)) == log.times(log.rows_before(end)) == earlier
    assert (first is None) == (len(earlier) == len(log.times(range(len(mixed)))))


@settings(max_examples=500)
@given(any_entries, st.integers(0, 31), per_fetch, spreads, st.integers(1, 20))
def test_nothing_is_missed_unless_it_is_more_than_twice_as_far_out_of_order_as_what_was_seen(
    entries, wanted, per_fetch, spread, most_fetches
):
    log = Log(entries, per_fetch)
    ahead, behind = log.worst()
    search = log.search(spread=spread, most_fetches=most_fetches)

    first = search.first_of(wanted)
    assert search.ahead <= ahead
    assert 2 * search.ahead < ahead or all(time < wanted for time in log.times(log.rows_before(first)))
    end = search.end_of(wanted)
    assert search.behind <= behind
    after = range(len(log.rows_before(end)), len(entries))
    assert 2 * search.behind < behind or all(time >= wanted for time in log.times(after))


@given(st.integers(1, 100_000), st.integers(1, 500), st.data())
def test_few_looks_are_needed(rows, per_fetch, data):
    log = Log(range(rows), per_fetch)
    search, wanted = log.search(), data.draw(st.integers(0, rows))
    search.first_of(wanted)
    assert log.looks == search.fetches <= 12 + math.log2(rows / per_fetch + 1) + 4
    search.end_of(wanted)
    assert log.looks <= 12 + 2 * math.log2(rows / per_fetch + 1) + 8


@pytest.mark.parametrize(
    "entries", [[None] * 5_000, [OTHERS] * 5_000, [1, None] * 100_000, [1, *[None] * 50_000, 2]]
)
def test_the_number_of_fetches_is_bounded(entries):
    log = Log(entries, 10)
    search = log.search()
    search.first_of(2)
    search.end_of(2)
    assert log.looks <= 2 * (96 + math.log2(10) + 2)


def test_records_without_times_are_passed_over_where_others_have_some():
    """The half of a log is without times, and the place is behind them."""
    log = Log([*range(100), *[None] * 400, *range(100, 600)], 10)
    search = log.search()
    assert (search.first_of(350), search.end_of(350), search.unsure) == (ROW * 750, ROW * 750, False)


def test_where_times_are_missing_a_range_is_longer_rather_than_shorter():
    log = Log([*range(100), *[None] * 5_000, *range(200, 300)], 10)
    search = log.search(most_fetches=20)
    assert search.first_of(150) <= ROW * 100
    assert search.unsure
    search = log.search(most_fetches=20)
    assert search.end_of(150) >= ROW * 5_100
    assert search.unsure


def test_late_records_do_not_move_the_start_and_early_ones_do_not_move_the_end():
    """A few records of long ago, among those of now, say nothing of what comes first."""
    late = [time - 500 if time % 50 == 49 else time for time in range(1_000, 3_000)]
    search = Log(late, 20).search()
    assert search.first_of(2_000) == ROW * 1_000
    assert search.end_of(2_000) >= ROW * 1_500

    early = [time + 500 if time % 50 == 49 else time for time in range(1_000, 3_000)]
    search = Log(early, 20).search()
    assert search.first_of(2_000) <= ROW * 500
    assert search.end_of(2_000) == ROW * 999  # the first that is of the time is one of those


def test_an_end_that_is_asked_for_alone_is_behind_late_records_far_away():
    late = range(1_000, 1_010)
    log = Log([5 if row in late else row for row in range(1_600)], per_fetch=10)

    end = log.search(spread=16).end_of(500)

    assert end >= log.offset(late.stop)


def test_two_tasks_that_write_files_in_no_order_are_noticed():
    files = [list(range(60 * hour, 60 * hour + 60)) for hour in (3, 0, 7, 5, 1, 6, 2, 4)]
    one, other = itertools.chain(*files[:4]), itertools.chain(*files[4:])
    log = Log(itertools.chain(*zip(one, other, strict=True)), 10)
    search = log.search()
    first, end = search.first_of(120), search.end_of(180)
    assert search.ahead > 60
    rows = range(len(log.rows_before(first)), len(log.rows_before(end)))
    assert sum(120 <= time < 180 for time in log.times(rows)) == 60


@given(st.integers(0, 59), per_fetch)
def test_a_time_that_is_shown_twice_counts_as_both(wanted, per_fetch):
    """The clock is set back by an hour: 60 texts mean two times each."""
    times = [(minute, minute) for minute in range(60)]
    times += [(60 + minute % 60, 120 + minute % 60) for minute in range(120)]
    times += [(180 + minute, 180 + minute) for minute in range(60)]

    class Shown(Log):
        def look(self, *where):
            look = super().look(*where)
            return look._replace(timed=[Timed(*times[one.first], one.offset) for one in look.timed])

    for begin in (60 + wanted, 120 + wanted):
        search = Shown(range(240), per_fetch).search()
        assert search.first_of(begin) <= ROW * begin
        assert search.end_of(begin) >= ROW * begin
        assert (search.ahead, search.behind) == (0, 0)
    search = Shown(range(240), per_fetch).search()
    assert (search.first_of(wanted), search.end_of(180 + wanted)) == (ROW * wanted, ROW * (180 + wanted))
