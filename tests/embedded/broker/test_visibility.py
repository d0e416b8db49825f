"""What a consumer sees by its priority, and when it should fetch less often."""

import pytest

from tubemq_spark.embedded.broker.fetching import View, read_bytes
from tubemq_spark.embedded.log.records import LogBounds

BOUNDS = LogBounds(0, 560, 280, 0, 10_000)
ENTRY = 28
GIB = 1 << 30


@pytest.mark.parametrize(
    ("level", "filtered", "start", "end", "slow"),
    [
        (3, False, 0, 56, False),
        (3, True, 0, 56, True),
        (3, True, 0, 0, False),
        (3, True, 280, 336, False),
        (3, True, 252, 336, True),
        (1, True, 252, 280, True),
    ],
)
def test_who_should_ask_less_often(level, filtered, start, end, slow):
    assert View(level, filtered).slow(BOUNDS, start, end, 1) is slow


@pytest.mark.parametrize(
    ("partitions", "entries"),
    [(1, 240_000), (8, 240_000), (10, 300_000), (13, 390_000), (14, 405_000), (100, 405_000)],
)
def test_how_near_the_end_that_is(partitions, entries):
    end = ENTRY
    for left, slow in ((entries - 1, True), (entries, False)):
        flushed = end + left * ENTRY
        bounds = LogBounds(0, flushed, flushed, 0, 0)
        assert View(1, filtered=True).slow(bounds, 0, end, partitions) is slow


@pytest.mark.parametrize(("lag", "size"), [(14 * GIB - 1, 300), (14 * GIB, 200)])
def test_a_consumer_far_behind_gets_fewer_bytes_at_a_time(lag, size):
    assert read_bytes(300, 5, LogBounds(0, 0, 0, 0, 5 + lag), 400) == size


def test_less_than_half_stays():
    assert read_bytes(100, 0, LogBounds(0, 0, 0, 0, 15 * GIB), 400) == 100
