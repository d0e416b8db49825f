"""Where records of a time begin and end in a partition, found by looks into it: TubeMQ has no index of times.

A message may carry the minute in which its producer says it was made. Nothing obliges these times to rise:
several producers write at once, and some write what was made long ago. So a search looks at a few *windows*
of records, some of them spread over the whole partition, and measures how far times go back from one window
to a later one:

=========  ==================================================================================================
number     meaning
=========  ==================================================================================================
ahead      by how much the latest time of a window exceeds that of a later one: records that came too early
behind     by how much the earliest time of a window exceeds that of a later one: records that came too late
=========  ==================================================================================================

A range is right as long as no window that was not seen is worse than twice that:

- All records before ``first_of(minute)`` are earlier than the minute. A window whose latest time is more than
  ``2 * ahead`` before it says so, for itself and for everything before it.
- All records from ``end_of(minute)`` on are of the minute or later. A window whose earliest time is
  ``2 * behind`` after it says so, for itself and for everything behind it.

What is uncertain moves the start back and the end forward: windows without times, and what is left
between two windows when enough was looked at (``unsure`` tells). What was seen only grows, and every answer
follows from all of it, so no order of looks can make it wrong.

A search reads nothing itself: it is a generator that yields what it asks, and is sent the answers. So threads
and event loops search alike.
"""

import bisect
import dataclasses
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from tubemq_spark.model import INDEX_ENTRY_BYTES, OffsetBounds

SPREAD: Final = 12
"""How many windows are spread over a partition before anything is searched for."""
MOST_FETCHES: Final = 96
"""After so many fetches of a search it answers with what it knows; one without gaps needs about 25."""
_MOST_FETCHES_OF_LOOK: Final = 8
"""How far a look goes on behind records without times; half of that for one of those that are spread."""

Question = TypeVar("Question")
Answer = TypeVar("Answer")
Question_co = TypeVar("Question_co", covariant=True)
Answer_contra = TypeVar("Answer_contra", contravariant=True)


class Timed(NamedTuple):
    """A record with a time, in minutes: one where ``first`` and ``last`` are equal, or any in between."""

    first: int
    last: int
    offset: int | None
    """Where it is, in index bytes, if that is known."""


class Look(NamedTuple):
    """What the first records from an offset on say, behind those without a time."""

    begin: int
    """Up to here no record has a time, in index bytes."""
    end: int
    """Behind the last record that was seen, in index bytes."""
    timed: Sequence[Timed]
    """The records that carry a time, in their order."""
    seen: bool
    """Whether there was a record at all."""
    fetches: int
    """How many fetches it took."""


class Looking(Protocol[Question_co, Answer_contra]):
    """Looks into a partition."""

    def __call__(
        self, begin: int, end: int, until: int, most_fetches: int
    ) -> Generator[Question_co, Answer_contra, Look]:
        """Look for the first records with times, and return them.

        Records without times are passed over up to ``until``.
        """


@dataclasses.dataclass(frozen=True, slots=True)
class _Window:
    """What a look found, without its records."""

    begin: int
    end: int
    seen: bool
    timed: bool
    earliest: tuple[int, int] = (0, 0)
    """The earliest time: not before the first of these, and not after the second."""
    latest: tuple[int, int] = (0, 0)
    """The latest time, likewise."""

    @classmethod
    def of(cls, look: Look) -> "_Window":
        if not look.timed:
            return cls(look.begin, look.end, look.seen, timed=False)
        first, last = [one.first for one in look.timed], [one.last for one in look.timed]
        earliest, latest = (min(first), min(last)), (max(first), max(last))
        return cls(look.begin, look.end, look.seen, timed=True, earliest=earliest, latest=latest)


class PartitionTimes(Generic[Question, Answer]):
    """What is known of the times of a partition, and the answers that follow from it."""

    def __init__(
        self,
        bounds: OffsetBounds,
        look: Looking[Question, Answer],
        *,
        spread: int = SPREAD,
        most_fetches: int = MOST_FETCHES,
    ) -> None:
        self._bounds = bounds
        self._look = look
        self._spread = spread
        self._most_fetches = most_fetches
        self._fetches_left = most_fetches
        self._windows: list[_Window] = []
        self.unsure = False
        """Whether an answer was moved because records had no times, or because there were too many looks."""
        self.fetches = 0
        """How many fetches all answers took."""

    @property
    def has_times(self) -> bool:
        """Whether a record with a time was seen."""
        return any(window.timed for window in self._windows)

    @property
    def has_records(self) -> bool:
        """Whether a record was seen."""
        return any(window.seen for window in self._windows)

    @property
    def ahead(self) -> int:
        """How many minutes a window was ahead of a later one, at most."""
        return _furthest_back(window.latest for window in self._windows if window.timed)

    @property
    def behind(self) -> int:
        """How many minutes a window was behind an earlier one, at most."""
        return _furthest_back(window.earliest for window in self._windows if window.timed)

    def first_of(self, minute: int) -> Generator[Question, Answer, int | None]:
        """Return an offset before which all records are earlier, as far as ``ahead`` tells.

        None: all records are earlier.
        """
        yield from self._begin()
        while True:
            limit = minute - 2 * self.ahead
            timed = [window for window in self._windows if window.timed]
            low = max((one.end for one in timed if one.latest[1] < limit), default=self._bounds.earliest)
            later = next((one for one in timed if one.begin >= low), None)
            high = self._bounds.latest if later is None else later.begin
            if not (yield from self._see_between(low, high, 0)):
                break
        untimed = self._first_untimed(low, high)
        if untimed is not None:
            return untimed
        if later is None:
            return None
        place = yield from self._place(later, lambda record: record.last >= limit)
        return high if place is None else place

    def end_of(self, minute: int) -> Generator[Question, Answer, int]:
        """Return an offset from which on none is earlier than the minute, as far as ``behind`` tells."""
        yield from self._begin()
        while True:
            limit = minute + 2 * self.behind
            timed = [window for window in self._windows if window.timed]
            high = min((one.begin for one in timed if one.earliest[0] >= limit), default=self._bounds.latest)
            before = [window for window in timed if window.begin < high]
            low = max((window.end for window in before), default=self._bounds.earliest)
            if not (yield from self._see_between(low, high, -1)):
                break
        if self._first_untimed(low, high) is not None or not before:
            return high
        last = max(before, key=lambda window: window.end)
        place = yield from self._place(last, lambda record: record.first >= limit, behind_all_others=True)
        return high if place is None else min(place, high)

    def _begin(self) -> Generator[Question, Answer, None]:
        """Look here and there, once."""
        self._fetches_left = self._most_fetches
        if self._windows:
            return
        earliest, latest = self._bounds
        rows = (latest - earliest) // INDEX_ENTRY_BYTES
        for number in range(self._spread):
            begin = earliest + rows * number // self._spread * INDEX_ENTRY_BYTES
            if begin < latest and not any(window.end > begin for window in self._windows):
                following = earliest + rows * (number + 1) // self._spread * INDEX_ENTRY_BYTES
                yield from self._see(
                    begin, max(following, begin + INDEX_ENTRY_BYTES), _MOST_FETCHES_OF_LOOK // 2
                )

    def _see_between(self, low: int, high: int, which: int) -> Generator[Question, Answer, bool]:
        """Look into the first (0) or last (-1) part between two offsets that was not seen."""
        parts = self._unseen(low, high)
        if not parts or self._fetches_left <= 0:
            return False
        begin, end = parts[which]
        known = sorted(window.end - window.begin for window in self._windows)
        # What one look shows of whole need not be divided.
        span = known[len(known) // 2] if known else 0
        yield from self._see(begin if end - begin <= span else _between(begin, end), end)
        return True

    def _unseen(self, low: int, high: int) -> list[tuple[int, int]]:
        """Return the parts between two offsets that are in no window that begins there."""
        parts, at = [], low
        for window in self._windows:
            if window.begin >= low:
                parts.append((at, min(window.begin, high)))
                at = max(at, window.end)
        return [(begin, end) for begin, end in [*parts, (at, high)] if begin < end]

    def _first_untimed(self, low: int, high: int) -> int | None:
        """Return where between two offsets records without times begin, or such that were not seen."""
        begins = [
            window.begin
            for window in self._windows
            if window.seen and not window.timed and low <= window.begin < high
        ]
        begins += [begin for begin, _ in self._unseen(low, high)]
        self.unsure |= bool(begins)
        return min(begins, default=None)

    def _see(
        self, begin: int, until: int, most_fetches: int = _MOST_FETCHES_OF_LOOK
    ) -> Generator[Question, Answer, None]:
        """Remember a window; records without times are passed over up to some offset."""
        look = yield from self._records(begin, self._bounds.latest, until, most_fetches)
        if look.begin > begin:
            self._remember(_Window(begin, look.begin, look.seen, timed=False))
        if look.end > look.begin:
            self._remember(_Window.of(look))

    def _remember(self, window: _Window) -> None:
        bisect.insort(self._windows, window, key=lambda one: one.begin)

    def _records(
        self, begin: int, end: int, until: int, most_fetches: int = _MOST_FETCHES_OF_LOOK
    ) -> Generator[Question, Answer, Look]:
        look = yield from self._look(begin, end, until, max(1, min(most_fetches, self._fetches_left)))
        self.fetches += look.fetches
        self._fetches_left -= look.fetches
        return look

    def _place(
        self, window: _Window, wanted: Callable[[Timed], bool], *, behind_all_others: bool = False
    ) -> Generator[Question, Answer, int | None]:
        """Return where the first wanted record of a window is, if that is known or can be found.

        With ``behind_all_others`` it must be the first behind which all are wanted.
        """
        timed = (yield from self._records(window.begin, window.end, window.end)).timed
        chosen = [wanted(record) for record in timed]
        if not any(chosen):
            return None
        first = chosen.index(True)
        divided = all(chosen[first:])
        if behind_all_others and not divided:
            first = len(chosen) - chosen[::-1].index(False)
            if first == len(chosen):
                return None
        offset = timed[first].offset
        if offset is not None or first == 0 or not divided:
            return window.begin if offset is None and first == 0 else offset
        # Its place is between two looks, of which one begins with a record before it, the other does not.
        low, high = window.begin + INDEX_ENTRY_BYTES, window.end
        while low < high:
            middle = _between(low, high)
            rest = (yield from self._records(middle, window.end, window.end)).timed
            if rest and not wanted(rest[0]):
                low = middle + INDEX_ENTRY_BYTES
            else:
                high = middle
        return high


def _furthest_back(times: Iterable[tuple[int, int]]) -> int:
    """Return by how much a time exceeds a later one, at most; each is in between two numbers."""
    furthest, highest = 0, None
    for first, last in times:
        furthest = max(furthest, 0 if highest is None else highest - last)
        highest = first if highest is None else max(highest, first)
    return furthest


def _between(low: int, high: int) -> int:
    return low + (high - low) // INDEX_ENTRY_BYTES // 2 * INDEX_ENTRY_BYTES
