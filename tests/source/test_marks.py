"""What marks say of a log, over histories of a store."""

import itertools

from hypothesis import given, strategies as st

from tests.memory_cluster import ROW, MemoryCluster
from tubemq_spark.model import StoreId, TopicPartition
from tubemq_spark.offsets.source_offset import SourceOffset
from tubemq_spark.source.marks import Marks
from tubemq_spark.source.visibility import Snapshot

STORE = StoreId("demo", 1, 0)
PARTITIONS = [TopicPartition("demo", 1, 0), TopicPartition("demo", 1, 1)]
STEPS = st.one_of(
    st.tuples(st.just("append"), st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=5)),
    st.tuples(st.just("expire"), st.integers(1, 4)),
    st.tuples(st.just("lose"), st.integers(1, 4)),
    st.tuples(st.just("replace"), st.lists(st.sampled_from(PARTITIONS), max_size=12)),
    st.tuples(st.just("mark"), st.none()),
)


class History:
    """A store that two partitions share, and the record that its mark is of."""

    def __init__(self):
        self.cluster = MemoryCluster(demo=(1, 2))
        self.bodies = itertools.count()
        self.mark = self.marked = None

    @property
    def log(self):
        return self.cluster.logs[STORE]

    def append(self, partitions):
        # All are of one length: only the checksum and the partition differ.
        self.log.extend((one, (b"%08d" % next(self.bodies), None)) for one in partitions)

    def expire(self, count):
        self.cluster.expired[STORE] = min(self.cluster.expired[STORE] + count, len(self.log))

    def lose(self, count):
        """Lose the last records, of which some may be marked."""
        del self.log[max(self.cluster.expired[STORE], len(self.log) - count) :]

    def replace(self, partitions):
        self.cluster.expired[STORE] = 0
        self.log.clear()
        self.append(partitions)

    def take(self):
        """Take a mark as a query does that has read all there is."""
        layout = self.cluster.layout(["demo"])
        held = self.cluster.held(STORE)
        snapshot = Snapshot(layout, {STORE: held}, {STORE: held.latest}, partial=False)
        end = SourceOffset(dict.fromkeys(PARTITIONS, held.latest))
        marks = self.marks()
        marks.take(snapshot, end, last=False)
        taken = marks.newest_for(end, (), wait=True)
        assert len(taken) == (held.earliest < held.latest)
        for self.mark in taken:
            self.marked = self.log[self.mark.offset // ROW]
            assert self.mark.offset == held.latest - ROW

    def look(self):
        """Return whether the mark says that the log was replaced."""
        looked = self.marks().look([self.mark], self.cluster.layout(["demo"]), patient=True)
        assert not looked.unknown
        return ("demo", 1) in looked.replaced

    def marks(self):
        return Marks(lambda: self.cluster, 1_000)


@given(st.lists(STEPS, max_size=12))
def test_a_mark_is_right_when_it_speaks_and_its_record_is_there_or_gone_when_it_does_not(steps):
    history = History()
    for step, argument in steps:
        if step == "mark":
            history.take()
        else:
            getattr(history, step)(argument)
        if history.mark is None:
            continue
        place = history.mark.offset // ROW
        is_gone = not history.cluster.expired[STORE] <= place < len(history.log)
        now = None if is_gone else history.log[place]
        assert history.look() == (now is not None and now != history.marked)
