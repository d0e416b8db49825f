"""The answer to a fetch has the bytes that protobuf would write."""

import itertools

import numpy as np
from hypothesis import given, strategies as st

from tests import strategies as own
from tubemq_spark.embedded.broker.fetching import encode_found
from tubemq_spark.embedded.log.reading import Batch, Records
from tubemq_spark.embedded.log.records import LogBounds
from tubemq_spark.protocol.pb import broker_pb2 as pb

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
    batch = Batch(records_of(rows), start, data_end)
    bounds = LogBounds(0, visible_end, 0, 0, data_latest)
    answer = encode_found(batch, start, visible_end, bounds, slow=slow)
    assert answer == expected.SerializeToString()
