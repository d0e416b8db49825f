"""How large rows are, as the first ones of what comes next tell."""

import pytest
from hypothesis import given, strategies as st

from tests.memory_cluster import MemoryCluster
from tests.source.scripted_questions import StillAskingError
from tubemq_spark.errors import TubeMQTimeoutError
from tubemq_spark.model import OffsetBounds
from tubemq_spark.source.row_sizes import RowSizes

ROW = 28


class Watched(MemoryCluster):
    """Counts the questions, and fails to answer them when told to."""

    def __init__(self, **topics):
        super().__init__(**topics)
        self.asked = []
        self.fails = None

    def read_range(self, request, on_loss, wait=None):
        self.asked.append(str(request.range))
        if self.fails is not None:
            raise self.fails
        wait.check()
        yield from super().read_range(request, on_loss, wait)

    def append(self, partition, *sizes, attributes=None):
        self.logs[partition.store_id] += [(partition, (b"x" * size, attributes)) for size in sizes]


@pytest.fixture
def cluster():
    return Watched(demo=(1, 1))


@pytest.fixture
def partition(cluster):
    return cluster.partitions["demo"][0]


def away(cluster):
    return TubeMQTimeoutError("TUBEMQ_TIMEOUT", endpoint="broker", timeout_ms=1, during="testing")


def sizes(known, cluster, start=0, *, assume=False, stores=None):
    """Return the sizes of the rows of stores from a row on, in the stores' order."""
    layout = cluster.layout(cluster.partitions)
    unread = {
        store: OffsetBounds(ROW * start, cluster.held(store).latest) for store in stores or layout.stores
    }
    return list(known.of(layout, unread, assume=assume).values())


def test_values_and_attributes_count_and_the_mean_is_rounded_up(cluster, partition, clock):
    cluster.append(partition, 100, 101, attributes="key=value")
    assert sizes(RowSizes(cluster), cluster) == [110]
    cluster.append(partition, *[1] * 98)
    assert sizes(RowSizes(cluster), cluster, start=2) == [1]


def test_stores_are_looked_at_side_by_side(clock):
    cluster = Watched(demo=(3, 1))
    for number, partition in enumerate(cluster.partitions["demo"], 1):
        cluster.append(partition, 10 * number)
    assert sizes(RowSizes(cluster), cluster) == [10, 20, 30]


def test_messages_without_bytes_count_as_one_byte(cluster, partition, clock):
    cluster.append(partition, 0, 0)
    assert sizes(RowSizes(cluster), cluster) == [1]


def test_a_sample_holds_for_four_times_its_rows(cluster, partition, clock):
    cluster.append(partition, *[10] * 104)
    known = RowSizes(cluster)
    assert sizes(known, cluster, start=100) == [10]
    cluster.append(partition, *[30] * 200)

    assert sizes(known, cluster, start=116) == [10]
    assert len(cluster.asked) == 1
    assert sizes(known, cluster, start=117) == [30]
    assert sizes(known, cluster, start=116) == [30], "going back is a reason to look again"
    assert len(cluster.asked) == 3


def test_a_sample_that_came_late_is_there_for_the_next_question(cluster, partition, clock):
    cluster.append(partition, 10)
    known = RowSizes(cluster)
    cluster.fails = StillAskingError()
    assert sizes(known, cluster) == []
    asked = len(cluster.asked)
    assert sizes(known, cluster) == []
    assert len(cluster.asked) <= asked + 2, "no second question beside the one that is under way"
    cluster.fails = None
    assert sizes(known, cluster) == [10]


def test_a_sample_is_taken_again_when_it_is_old(cluster, partition, clock):
    cluster.append(partition, 10)
    known = RowSizes(cluster)
    sizes(known, cluster)
    clock[0] += 9.9
    sizes(known, cluster)
    assert len(cluster.asked) == 1
    clock[0] += 0.2
    sizes(known, cluster)
    assert len(cluster.asked) == 2


def test_a_broker_that_does_not_answer_leaves_the_last_size_or_none(cluster, partition, clock):
    cluster.append(partition, 10)
    known = RowSizes(cluster)
    cluster.fails = away(cluster)
    assert sizes(known, cluster) == []
    assert sizes(known, cluster, assume=True) == [1024]
    cluster.fails = None
    assert sizes(known, cluster) == [10], "a size that was assumed is not kept"
    clock[0] += 60
    cluster.fails = away(cluster)
    assert sizes(known, cluster) == [10]


def test_a_broker_that_hangs_is_not_waited_for(cluster, partition, clock, monkeypatch):
    def hang(request, on_loss, wait):
        while True:
            wait.pause(0.5)
            yield from ()

    monkeypatch.setattr(cluster, "read_range", hang)
    cluster.append(partition, 10)
    before = clock[0]
    assert sizes(RowSizes(cluster), cluster) == []
    assert clock[0] - before == 2


def test_a_shared_store_is_looked_at_by_the_partition_that_has_rows(clock):
    cluster = Watched(demo=(1, 3))
    *_, third = cluster.partitions["demo"]
    cluster.append(third, 70)
    assert sizes(RowSizes(cluster), cluster) == [70]
    assert len(cluster.asked) == 3


def test_a_store_without_rows_has_its_last_size_or_an_assumed_size(cluster, partition, clock):
    """Rows that retention removed meanwhile, or of types that are not read."""
    cluster.append(partition, *[50] * 3)
    cluster.expired[partition.store_id] = 3
    assert sizes(RowSizes(cluster), cluster) == [1024]

    cluster.expired.clear()
    known = RowSizes(cluster)
    assert sizes(known, cluster) == [50]
    cluster.expired[partition.store_id] = 3
    clock[0] += 60
    assert sizes(known, cluster) == [50]


@pytest.mark.parametrize(("per_fetch", "size", "fetches"), [(50, 1, 2), (1, 131_072, 2), (99, 1, 2)])
def test_a_sample_ends_with_a_hundred_rows_or_a_quarter_of_a_mebibyte(
    cluster, partition, clock, per_fetch, size, fetches
):
    cluster.append(partition, *[size] * 250)
    cluster.per_fetch = per_fetch
    assert sizes(RowSizes(cluster), cluster) == [size]
    assert cluster.fetches == fetches


def test_a_sample_looks_at_ten_thousand_entries_at_most(cluster, partition, clock):
    cluster.append(partition, *[1] * 10_002)
    cluster.per_fetch = 100
    sizes(RowSizes(cluster), cluster, start=1)
    assert cluster.asked == [f"{partition} [{ROW}, {ROW * 10_001})"]


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=200))
def test_the_mean_is_exact_over_what_was_looked_at(values):
    cluster = Watched(demo=(1, 1))
    partition = cluster.partitions["demo"][0]
    cluster.append(partition, *values)
    mean = -(-sum(values) // len(values))
    assert sizes(RowSizes(cluster), cluster) == [max(1, mean)]
