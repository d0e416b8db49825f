"""Where records of a time begin is found by a few looks."""

import bisect
import math

from hypothesis import given, strategies as st

from tubemq_spark.model import INDEX_ENTRY_BYTES, OffsetBounds
from tubemq_spark.offsets.time_search import Look, first_at

ROW = INDEX_ENTRY_BYTES


class Log:
    """A store: for each entry the time of a record of the partition, or None for one of another partition."""

    def __init__(self, times, per_fetch, first=0):
        self.times, self.per_fetch, self.first = times, per_fetch, first
        self.dense = None not in times
        self.looks = 0

    @property
    def held(self):
        return OffsetBounds(ROW * self.first, ROW * (self.first + len(self.times)))

    def search(self, wanted):
        def look(offset):
            self.looks += 1
            assert self.held.earliest <= offset < self.held.latest
            assert offset % ROW == 0
            return self.look(offset // ROW - self.first, wanted)

        return first_at(self.held, look)

    def look(self, start, wanted):
        """Find the first records from an entry on, as a fetch does, and compare them."""
        begin = start
        while begin < len(self.times) and self.times[begin] is None:
            begin += 1
        end = min(begin + self.per_fetch, len(self.times))
        rows = [row for row in range(begin, end) if self.times[row] is not None]
        matching = [row for row in rows if self.times[row] >= wanted]
        earlier = bool(rows) and rows[0] not in matching
        place = self.offset(matching[0]) if matching and self.dense else None
        return Look(self.offset(end), earlier, bool(matching), place)

    def offset(self, row):
        return ROW * (self.first + row)


times_in_order = st.lists(st.integers(0, 20), max_size=60).map(sorted)
entries_of_several = st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=60)


@given(times_in_order, st.integers(0, 21), st.integers(1, 9), st.integers(0, 5))
def test_the_first_record_of_a_time_is_found(times, wanted, per_fetch, first):
    log = Log(times, per_fetch, first)
    place = bisect.bisect_left(times, wanted)
    assert log.search(wanted) == (ROW * (first + place) if place < len(times) else None)


@given(entries_of_several, st.integers(0, 21), st.integers(1, 9))
def test_in_a_shared_store_the_partition_s_records_are_divided_by_time(entries, wanted, per_fetch):
    times = sorted(time for time, _ in entries)
    mixed = [time if own else None for time, (_, own) in zip(times, entries, strict=True)]

    found = Log(mixed, per_fetch).search(wanted)

    own = [(row, time) for row, time in enumerate(mixed) if time is not None]
    matching = {row for row, time in own if time >= wanted}
    assert (found is None) == (not matching)
    assert found is None or {row for row, _ in own if ROW * row >= found} == matching


@given(st.integers(1, 100_000), st.integers(1, 500), st.data())
def test_few_looks_are_needed(rows, per_fetch, data):
    log = Log(range(rows), per_fetch)
    log.search(data.draw(st.integers(0, rows)))
    assert log.looks <= math.log2(rows / per_fetch + 1) + 3
