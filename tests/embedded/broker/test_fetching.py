"""What a consumer sees by its priority, and that its answer has the bytes that protobuf would write."""

import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests import strategies as own
from tubemq_spark.embedded.broker.fetching import View, encode_found, read_bytes
from tubemq_spark.embedded.log.reading import LogBatch, Records
from tubemq_spark.embedded.log.records import LogBounds
from tubemq_spark.protocol.pb import broker_pb2 as pb

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


messages = st.lists(st.tuples(own.int64s, own.int32s, st.binary(max_size=300), own.int32s), max_size=8)


def records_of(rows):
    """Return records whose payloads are in one block, with gaps between them."""
    block = memoryview(b"".join(b"head" + payload for _, _, payload, _ in rows))
    ends = list(itertools.accumulate(4 + len(payload) for _, _, payload, _ in rows))
    payloads = [block[end - len(row[2]) : end] for end, row in zip(ends, rows, strict=True)]
    ids, checksums, flags = ([row[place] for row in rows] for place in (0, 1, 3))
    numbers = [np.array(column, np.int64) for column in (list(map(len, payloads)), ids, checksums, flags)]
    return Records(payloads, *numbers)


@given(messages, own.naturals, own.naturals, own.int32s, own.naturals, st.booleans())
def test_answers_are_those_of_protobuf(rows, start, visible_end, data_end, data_latest, slow):
    expected = pb.GetMessageResponseB2C(
        success=True,
        errCode=200,
        errMsg="OK!",
        currOffset=start,
        minLimitTime=0,
        escFlowCtrl=False,
        currDataDlt=data_latest - data_end,
        requireSlow=slow,
        maxOffset=visible_end,
    )
    for message_id, crc, payload, flag in rows:
        expected.messages.add(messageId=message_id, checkSum=crc, payLoadData=payload, flag=flag)
    batch = LogBatch(records_of(rows), start, data_end)
    bounds = LogBounds(0, visible_end, 0, 0, data_latest)
    answer = encode_found(batch, start, visible_end, bounds, slow=slow)
    assert answer == expected.SerializeToString()
