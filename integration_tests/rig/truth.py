"""Comparing what was sent with what was read, so that a difference is small enough to read."""

from collections import Counter
from collections.abc import Hashable, Iterable


def assert_same_rows(actual: Iterable[Hashable], expected: Iterable[Hashable]) -> None:
    """Fail with the first few rows that are lost, repeated or strange."""
    actual_counts, expected_counts = Counter(actual), Counter(expected)
    lost = expected_counts - actual_counts
    surplus = actual_counts - expected_counts
    assert not lost, f"{lost.total()} rows lost, such as {_few(lost)}; {surplus.total()} too many"
    assert not surplus, f"{surplus.total()} rows too many, such as {_few(surplus)}"


def _few(rows: Counter[Hashable]) -> str:
    return "; ".join(repr(row)[:200] for row in list(rows)[:3])
