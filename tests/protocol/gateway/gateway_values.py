"""Hypothesis strategies for what travels between a gateway and its clients."""

import itertools

import numpy as np
from hypothesis import strategies as st

from tests import strategies as own
from tubemq_spark.protocol.fetch_columns import FetchedBatch, MessageColumns
from tubemq_spark.protocol.send_batch import BytesColumn, Coded, MessageHeader, SendBatch

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
offsets = st.integers(0, 1 << 40).map(lambda number: 28 * number)


def borders(pieces):
    return np.array([0, *itertools.accumulate(map(len, pieces))], np.int64)


@st.composite
def columns(draw) -> MessageColumns:
    """Messages whose parts lie apart in one buffer, in any order, with other bytes between."""
    count = draw(st.integers(0, 6))
    buffer, starts = b"", {}
    for piece in draw(st.permutations([(kind, row) for kind in "va" for row in range(count)])):
        text = draw(st.binary(max_size=5))
        buffer += draw(st.sampled_from([b"", b"--"]))
        starts[piece] = len(buffer), len(buffer) + len(text)
        buffer += text
    has = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)), np.bool_)
    place = {
        kind: np.array([starts[kind, row] for row in range(count)], np.int64).reshape(-1, 2) for kind in "va"
    }
    # Without attributes, their text is blank.
    place["a"][~has, 1] = place["a"][~has, 0]
    ordinals = np.cumsum([0, *draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))])[:count]
    return MessageColumns(
        buffer,
        ordinals.astype(np.int64),
        np.array(draw(st.lists(own.int64s, min_size=count, max_size=count)), np.int64),
        *place["v"].T,
        *place["a"].T,
        has,
    )


@st.composite
def fetched_batches(draw) -> FetchedBatch:
    start = draw(offsets)
    return FetchedBatch(
        draw(own.partitions),
        start,
        start + draw(offsets),
        draw(columns()),
        draw(st.booleans()),
        draw(st.none() | st.integers(0, own.INT64_MAX)),
    )


headers = st.builds(
    MessageHeader,
    st.none() | st.dictionaries(texts, texts, max_size=3),
    st.none() | texts,
    st.none() | texts,
    st.booleans(),
)


@st.composite
def coded(draw, values, count):
    found = draw(st.lists(values, min_size=1, max_size=4))
    codes = draw(st.lists(st.integers(0, len(found) - 1), min_size=count, max_size=count))
    return Coded(tuple(found), np.array(codes, np.int64))


@st.composite
def bytes_columns(draw, count, *, nullable=True):
    pieces = draw(st.lists(st.binary(max_size=5), min_size=count, max_size=count))
    nulls = draw(st.none() | st.lists(st.booleans(), min_size=count, max_size=count)) if nullable else None
    before = draw(st.binary(max_size=3))
    data = before + b"".join(pieces)
    wrapped = memoryview(data) if draw(st.booleans()) else data
    return BytesColumn(
        wrapped, borders(pieces) + len(before), None if nulls is None else np.array(nulls, np.bool_)
    )


@st.composite
def send_batches(draw) -> SendBatch:
    count = draw(st.integers(0, 6))
    numbers = st.integers(-3, own.INT32_MAX)
    places = st.none() | st.tuples(numbers, numbers)
    return SendBatch(
        draw(coded(texts, count)),
        draw(bytes_columns(count, nullable=False)),
        draw(coded(headers, count)),
        draw(st.none() | bytes_columns(count)),
        draw(st.none() | coded(places, count)),
        draw(st.integers(1, 1 << 40)),
        draw(st.none() | bytes_columns(count)),
    )
