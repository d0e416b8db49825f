"""Fetched messages as they travel: their parts one behind the other, as Arrow wants them."""

from typing import Final

import numpy as np

from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol import speedups
from tubemq_spark.protocol.fetch_columns import FetchedBatch, Int64s, MessageColumns
from tubemq_spark.protocol.gateway import gateway_pb2 as pb
from tubemq_spark.protocol.gateway.packed import (
    FLAG,
    INT32,
    INT64,
    MalformedMessageError,
    ascending,
    pack,
    unpack,
)

_FLAGS: Final = 2
"""A flag is 0 or 1."""


def to_proto(batch: FetchedBatch) -> tuple[pb.RecordBatch, bytes]:
    """Return some records of a range as a message, and apart from it its ``data``.

    Which partition they are of is known from the call.
    """
    columns, count = batch.columns, len(batch.columns)
    proto = pb.RecordBatch(
        start=batch.start,
        next=batch.next,  # RecordBatch has all sound records with start <= offset < next
        dense=batch.dense,  # then ordinal i has the offset start + 28 * i
        count=count,
        message_ids=pack(columns.message_ids, INT64),  # little-endian, as all integers in fields of bytes
    )
    if batch.bytes_behind is not None:
        proto.bytes_behind = batch.bytes_behind
    pieces = [(columns.value_start, columns.value_end)]
    if columns.has_attributes.any():
        pieces.append((columns.attribute_start, columns.attribute_end))
        if not columns.has_attributes.all():  # left out if all or none have any
            proto.has_attributes = pack(columns.has_attributes, FLAG)
    proto.borders, data = _gather(columns.data, pieces)  # the first count + 1 fit an Arrow binary column
    if not np.array_equal(columns.ordinals, np.arange(count)):  # left out for 0, 1, 2 and so on
        proto.ordinals = pack(columns.ordinals, INT64)
    return proto, data


def from_proto(message: pb.RecordBatch, data: bytes | memoryview, partition: TopicPartition) -> FetchedBatch:
    """Return the records of a message, of which ``data`` is apart."""
    count = message.count
    if message.next < message.start:
        raise MalformedMessageError(f"a batch ends at {message.next}, before {message.start}")
    borders, with_attributes = _borders(message, len(data))
    values, texts = borders[: count + 1], borders[count:] if with_attributes else None
    marks = unpack(message.has_attributes, FLAG, count, "has_attributes") if message.has_attributes else None
    if marks is None:
        has_attributes = np.full(count, with_attributes)
    elif not with_attributes or (marks >= _FLAGS).any():
        raise MalformedMessageError(
            "has_attributes does not fit the borders, or has other bytes than 0 and 1"
        )
    else:
        has_attributes = marks.astype(np.bool_)
    columns = MessageColumns(
        data=data,
        ordinals=_ordinals(message),
        message_ids=unpack(message.message_ids, INT64, count, "message_ids"),
        value_start=values[:-1],
        value_end=values[1:],
        attribute_start=values[:-1] if texts is None else texts[:-1],
        attribute_end=values[:-1] if texts is None else texts[1:],
        has_attributes=has_attributes,
    )
    behind = message.bytes_behind if message.HasField("bytes_behind") else None
    return FetchedBatch(partition, message.start, message.next, columns, message.dense, behind)


def _borders(message: pb.RecordBatch, size: int) -> tuple[Int64s, bool]:
    """Return the borders in ``data``, and whether those of attributes are among them."""
    count = message.count
    with_attributes = count > 0 and len(message.borders) == INT32.itemsize * (2 * count + 1)
    expected = 2 * count + 1 if with_attributes else count + 1  # attribute texts begin where bodies end
    borders = unpack(message.borders, INT32, expected, "borders")
    return ascending(borders, size, "a batch's data"), with_attributes


def _ordinals(message: pb.RecordBatch) -> Int64s:
    if not message.ordinals:
        return np.arange(message.count, dtype=np.int64)
    ordinals = unpack(message.ordinals, INT64, message.count, "ordinals")
    if (ordinals < 0).any() or (np.diff(ordinals) <= 0).any():
        raise MalformedMessageError("the ordinals of a batch do not ascend")
    return ordinals


def _gather(data: bytes | memoryview, pieces: list[tuple[Int64s, Int64s]]) -> tuple[bytes, bytes]:
    """Return the borders of pieces that are put one behind the other, and the pieces."""
    starts, ends = (np.concatenate(places, dtype=np.int64) for places in zip(*pieces, strict=True))
    if speedups.compiled is not None:
        borders, joined = speedups.compiled.gather(data, starts, ends)
        return borders, joined
    sums = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(ends - starts, out=sums[1:])
    view = memoryview(data)
    texts = b"".join([view[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)])
    return pack(sums, INT32), texts
