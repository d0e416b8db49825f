"""Strategies and small makers for tests of offsets."""

from hypothesis import strategies as st

from tubemq_spark.model import INDEX_ENTRY_BYTES, MAX_OFFSET, OffsetBounds, StoreId, TopicPartition
from tubemq_spark.offsets.marks import Mark
from tubemq_spark.offsets.offset_spec import LATEST_MS, Edge, Specific, Stored, Timestamp
from tubemq_spark.offsets.source_offset import SourceOffset

INT32_MAX = 2**31 - 1

topics = st.sampled_from(["demo", "orders", "Aa", "a_9", "x" * 64])
partitions = st.one_of(
    st.builds(
        TopicPartition,
        st.sampled_from(["demo", "orders"]),
        st.integers(1, 3),
        st.sampled_from([0, 1, 2, 10, 10_000, 10_001, 20_000]),
    ),
    st.builds(TopicPartition, topics, st.integers(0, INT32_MAX), st.integers(0, INT32_MAX)),
)
rows = st.one_of(st.integers(0, 50), st.integers(0, MAX_OFFSET // INDEX_ENTRY_BYTES))
offsets = rows.map(lambda count: count * INDEX_ENTRY_BYTES)
offset_maps = st.dictionaries(partitions, offsets, max_size=8)
edges = st.sampled_from(Edge)


def reordered(mapping):
    """Return an equal mapping whose items come in another order."""
    return dict(reversed(mapping.items()))


@st.composite
def source_offsets(draw: st.DrawFn) -> SourceOffset:
    """Make an offset some of whose partitions have just appeared, or have marks, or were replaced."""
    next_offsets = draw(offset_maps)
    some = st.sets(st.sampled_from(sorted(next_offsets))) if next_offsets else st.just(set())
    return SourceOffset(
        next_offsets,
        {partition: draw(offsets) for partition in draw(some)},
        draw(st.booleans()),
        tuple(sorted(draw(marks(st.just(partition))) for partition in draw(some))),
        {partition: draw(offsets) for partition in draw(some)},
    )


def marks(of=partitions):
    """Make a mark of one of some partitions."""
    return st.builds(
        Mark, of, offsets, st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**31)
    )


times = st.integers(0, LATEST_MS).map(Timestamp)
times_of_users = st.integers(946_684_800_000, LATEST_MS).map(Timestamp) | st.just(Timestamp(0))
"""Those that options take: none from before the year 2000, but for the beginning."""


offsets_and_edges = st.one_of(offsets, edges)


@st.composite
def specifics(draw: st.DrawFn, values: st.SearchStrategy = offsets_and_edges) -> Specific:
    """Make a position for single partitions, or for all partitions of a topic in one word."""
    wanted = draw(st.dictionaries(partitions, values, max_size=6))
    topics_of = {}
    for partition, value in wanted.items():
        topics_of.setdefault(partition.topic, {})[partition] = value
    for topic in list(topics_of):
        if draw(st.booleans()):
            topics_of[topic] = draw(edges)
    return Specific(topics_of)


positions = st.one_of(edges, specifics())
positions_and_times = st.one_of(
    positions, times, st.just(Stored.GROUP), specifics(st.one_of(offsets_and_edges, times))
)


@st.composite
def bounds(draw: st.DrawFn) -> OffsetBounds:
    """Make what a store holds, maybe nothing."""
    earliest, latest = sorted((draw(offsets), draw(offsets)))
    return OffsetBounds(earliest, latest)


@st.composite
def positions_in_logs(draw: st.DrawFn) -> tuple[dict[TopicPartition, int], dict[StoreId, OffsetBounds]]:
    """Make partitions that stand anywhere in what their stores hold."""
    known = sorted(draw(st.sets(partitions, max_size=8)))
    logs = {store: draw(bounds()) for store in sorted({partition.store_id for partition in known})}
    positions = {}
    for partition in known:
        held = logs[partition.store_id]
        positions[partition] = INDEX_ENTRY_BYTES * draw(
            st.integers(held.earliest // INDEX_ENTRY_BYTES, held.latest // INDEX_ENTRY_BYTES)
        )
    return positions, logs


def tp(text: str) -> TopicPartition:
    """Make a partition of ``demo/1:0``."""
    topic, _, local_id = text.partition("/")
    broker_id, _, partition_id = local_id.partition(":")
    return TopicPartition(topic, int(broker_id), int(partition_id))
