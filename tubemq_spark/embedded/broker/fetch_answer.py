"""The answer to a fetch that found messages (GetMessageResponseB2C), assembled from bytes.

Protobuf needs 2 us and two copies per message. Here the varints around all payloads are encoded at once, and
the payloads are copied straight from the block that they were read into. The result is what protobuf writes.
"""

import itertools
from typing import Final

import numpy as np

from tubemq_spark.embedded.log.blocks import Records
from tubemq_spark.embedded.log.bounds import LogBounds
from tubemq_spark.embedded.log.reading import Batch
from tubemq_spark.protocol import varints
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.pb import broker_pb2 as pb

_TAGS: Final = bytes((0x20, 0x22, 0x08, 0x10, 0x1A))
"""Flag of the previous message; then a message, its id, its checksum and the length of its payload."""
_FIELD_OF_ZERO: Final = 2
"""Bytes of a tag with the value 0."""

_FRONT: Final = pb.GetMessageResponseB2C(
    success=True, errCode=ErrCode.SUCCESS, errMsg="OK!"
).SerializePartialToString()


def encode_found(batch: Batch, start: int, visible_end: int, bounds: LogBounds, *, slow: bool) -> bytes:
    """Return the serialised answer.

    ``start`` is where the read began, ``visible_end`` where what the consumer may see ends; ``slow`` asks it
    to fetch less often.
    """
    back = pb.GetMessageResponseB2C(
        currOffset=start,
        minLimitTime=0,
        escFlowCtrl=False,
        currDataDlt=bounds.data_latest - batch.data_end,
        requireSlow=slow,
        maxOffset=visible_end,
    ).SerializePartialToString()
    return b"".join((_FRONT, *_messages(batch.records), back))


def _messages(records: Records) -> list[bytes | memoryview]:
    """Return the messages (TransferedMessage): the payloads, and the bytes before, between and after them."""
    inside = np.column_stack((records.message_ids, records.checksums, records.sizes, records.flags))
    lengths = varints.sizes(inside).sum(axis=1) + inside.shape[1] + records.sizes
    # A flag follows its payload, so it is in the row of the next message: then there is one piece between
    # two payloads. The first row has no message before it, and the last one none after it.
    rows = np.zeros((len(inside) + 1, len(_TAGS)), np.int64)
    rows[1:, 0] = records.flags
    rows[:-1, 1] = lengths
    rows[:-1, 2:] = inside[:, :-1]
    data, ends = varints.encode_rows(_TAGS, rows)
    cuts = [_FIELD_OF_ZERO, *ends.tolist()]
    cuts[-1] -= (len(_TAGS) - 1) * _FIELD_OF_ZERO
    pieces: list[bytes | memoryview] = [b""] * (2 * len(records) + 1)
    pieces[::2] = [data[start:end] for start, end in itertools.pairwise(cuts)]
    pieces[1::2] = records.payloads
    return pieces
