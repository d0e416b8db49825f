"""How long something took, many times: counted in buckets, so that it costs the same however often."""

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Final

_US: Final = 1_000_000
_STEPS_BITS: Final = 2
"""Each doubling is divided into four buckets: a bucket's bounds differ by a quarter at most."""


@dataclasses.dataclass(frozen=True, slots=True)
class Latency:
    """How long something took, in seconds. All numbers are 0 when it never happened."""

    count: int = 0
    """How often it happened."""
    total_s: float = 0.0
    """How long it took altogether."""
    least_s: float = 0.0
    """The shortest time."""
    most_s: float = 0.0
    """The longest time."""
    buckets: tuple[tuple[float, int], ...] = ()
    """How often it took up to that many seconds and longer than the bucket before; ascending, none empty."""

    @property
    def mean_s(self) -> float:
        """The mean."""
        return self.total_s / self.count if self.count else 0.0

    def percentile_s(self, percent: float) -> float:
        """Return the time within which it was done in that many of a hundred cases.

        It is not below the true value, and above it by a quarter at most.
        """
        wanted = self.count * percent / 100
        counts = itertools.accumulate(count for _, count in self.buckets)
        for (bound, _), count in zip(self.buckets, counts, strict=True):
            if count >= wanted:
                return max(self.least_s, min(bound, self.most_s))
        return self.most_s


class Latencies:
    """Counts times; adding one takes as long as updating a dictionary."""

    __slots__ = ("_buckets", "_count", "_least_s", "_most_s", "_total_s")

    def __init__(self) -> None:
        self._count = 0
        self._total_s = 0.0
        self._least_s = 0.0
        self._most_s = 0.0
        self._buckets: dict[int, int] = {}

    def add(self, seconds: float, times: int) -> None:
        """Count a time, of at least 0 seconds, that was taken so often."""
        if not self._count or seconds < self._least_s:
            self._least_s = seconds
        self._most_s = max(self._most_s, seconds)
        self._count += times
        self._total_s += seconds * times
        bucket = _bucket(int(seconds * _US))
        self._buckets[bucket] = self._buckets.get(bucket, 0) + times

    def snapshot(self) -> Latency:
        """Return what was counted so far."""
        return Latency(
            self._count,
            self._total_s,
            self._least_s,
            self._most_s,
            tuple((_bound_s(bucket), count) for bucket, count in sorted(self._buckets.items())),
        )


def together(latencies: Iterable[Latency]) -> Latency:
    """Return several counts as one."""
    some = [latency for latency in latencies if latency.count]
    if not some:
        return Latency()
    buckets: dict[float, int] = {}
    for bound, count in itertools.chain.from_iterable(latency.buckets for latency in some):
        buckets[bound] = buckets.get(bound, 0) + count
    return Latency(
        sum(latency.count for latency in some),
        sum(latency.total_s for latency in some),
        min(latency.least_s for latency in some),
        max(latency.most_s for latency in some),
        tuple(sorted(buckets.items())),
    )


def _bucket(us: int) -> int:
    """Return the number of a time's bucket: its highest bits, and how many bits follow them."""
    shift = max(0, us.bit_length() - 1 - _STEPS_BITS)
    return (shift << _STEPS_BITS) + (us >> shift)


def _bound_s(bucket: int) -> float:
    """Return the end of a bucket, which the times in it are below."""
    shift = max(0, (bucket >> _STEPS_BITS) - 1)
    return ((bucket - (shift << _STEPS_BITS) + 1) << shift) / _US
