"""Messages on their way to TubeMQ, as they travel to a gateway."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from google.protobuf.message import DecodeError

from tubemq_spark.errors import OptionError
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, service
from tubemq_spark.protocol.gateway.batches import (
    FLAG,
    INT32,
    INT64,
    MalformedMessageError,
    ascending,
    codes,
    pack,
    unpack,
)
from tubemq_spark.protocol.send_batch import BytesColumn, Coded, Int64s, MessageHeader, SendBatch


def to_proto(batch: SendBatch) -> pb.MessageBatch:
    """Return messages as one message."""
    try:
        proto = pb.MessageBatch(
            topics=batch.topics.values,
            topic_codes=pack(batch.topics.codes, INT32),  # int32 per message
            values=_column_to_proto(batch.values),
            headers=map(_header_to_proto, batch.headers.values),
            header_codes=pack(batch.headers.codes, INT32),
            first_row=batch.first_row,  # for errors, which number messages by sender
        )
        if batch.partitions is not None:
            _put_places(proto, batch.partitions)
    except (ValueError, TypeError) as error:  # UnicodeEncodeError among them
        raise OptionError("TUBEMQ_BAD_MESSAGE", what=f"it cannot be written: {error}") from error
    if batch.keys is not None:
        proto.keys.CopyFrom(_column_to_proto(batch.keys))
    if batch.uids is not None:
        proto.uids.CopyFrom(_column_to_proto(batch.uids))
    return proto


def from_proto(message: pb.MessageBatch) -> SendBatch:
    """Return the messages of a message."""
    count = len(message.topic_codes) // INT32.itemsize  # each message has a topic: this counts them
    topics = Coded(tuple(message.topics), _named(message.topic_codes, count, message.topics, "topic_codes"))
    headers = Coded(
        tuple(map(_header_from_proto, message.headers)),
        _named(message.header_codes, count, message.headers, "header_codes"),
    )
    return SendBatch(
        topics,
        _column_from_proto(message.values, count, "values", nulls=False),
        headers,
        _column_from_proto(message.keys, count, "keys") if message.HasField("keys") else None,
        _places(message, count),
        message.first_row,
        _column_from_proto(message.uids, count, "uids") if message.HasField("uids") else None,
    )


def parsed(data: bytes) -> pb.MessageBatch:
    """Return the batch that came in parts."""
    try:
        return pb.MessageBatch.FromString(data)
    except DecodeError as error:
        raise MalformedMessageError("the parts of a batch are not a MessageBatch") from error


def parts(batch: SendBatch, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield where parts of a batch begin and end that travel by themselves.

    A message that is longer than a request is one too; it comes in pieces.
    """
    ends = batch.values.offsets
    while start < stop:
        fitting = int(np.searchsorted(ends, ends[start] + service.PART_BYTES, side="right")) - 1
        after = min(max(fitting, start + 1), stop)
        while after > start + 1 and not _fits(batch, start, after):
            after = (start + after) // 2
        yield start, after
        start = after


def _fits(batch: SendBatch, start: int, after: int) -> bool:
    """Return whether messages of a batch name no more things than a request may."""
    headers = batch.headers.part(start, after).values
    places = () if batch.partitions is None else batch.partitions.part(start, after).values
    topics = batch.topics.part(start, after).values
    if max(len(topics), len(headers), len(places)) > service.ITEMS:
        return False
    fields = _MOST_OWN_FIELDS + len(topics) + len(places) + _FIELDS_OF_HEADER * len(headers)
    return fields + sum(len(header.attributes or ()) for header in headers) <= service.FIELDS


_MOST_OWN_FIELDS: Final = 16
_FIELDS_OF_HEADER: Final = 5
"""A header, and what it has besides attributes."""


def _column_to_proto(column: BytesColumn) -> pb.BytesColumn:
    # A part of a larger column carries the bytes of its own rows only.
    start, end = int(column.offsets[0]), int(column.offsets[-1])
    return pb.BytesColumn(
        data=bytes(column.data[start:end]),
        borders=pack(column.offsets - start, INT64),
        nulls=b"" if column.nulls is None else pack(column.nulls, FLAG),
    )


def _column_from_proto(column: pb.BytesColumn, count: int, what: str, *, nulls: bool = True) -> BytesColumn:
    borders = ascending(unpack(column.borders, INT64, count + 1, what), len(column.data), what)
    if not column.nulls:
        return BytesColumn(column.data, borders)
    if not nulls:
        raise MalformedMessageError(f"{what} has nulls")
    return BytesColumn(column.data, borders, unpack(column.nulls, FLAG, count, what).astype(np.bool_))


def _named(data: bytes, count: int, values: Sequence[object], what: str) -> Int64s:
    chosen = codes(data, count, len(values), what)
    if count and chosen.min() < 0:
        raise MalformedMessageError(f"{what} has codes below 0")
    return chosen


def _put_places(proto: pb.MessageBatch, partitions: Coded[tuple[int, int] | None]) -> None:
    """Write the named places; the value None, wherever it is among the values, has the code -1."""
    numbers = np.full(len(partitions.values), -1, np.int64)
    for code, place in enumerate(partitions.values):
        if place is not None:
            numbers[code] = len(proto.places)
            proto.places.add(broker_id=place[0], partition_id=place[1])
    proto.place_codes = pack(numbers[partitions.codes], INT32)


def _places(message: pb.MessageBatch, count: int) -> Coded[tuple[int, int] | None] | None:
    if not message.place_codes:  # no message names its partition
        return None
    chosen = codes(message.place_codes, count, len(message.places), "place_codes")
    values = [(place.broker_id, place.partition_id) for place in message.places]
    return Coded((*values, None), np.where(chosen < 0, len(values), chosen))


def _header_to_proto(header: MessageHeader) -> pb.MessageHeader:
    proto = pb.MessageHeader(has_attributes=header.attributes is not None, foreign=header.foreign)
    for name, value in (header.attributes or {}).items():
        proto.attributes.add(name=name, value=value)  # no map, so that the order stays
    if header.message_type is not None:
        proto.message_type = header.message_type
    if header.message_time is not None:
        proto.message_time = header.message_time
    return proto


def _header_from_proto(header: pb.MessageHeader) -> MessageHeader:
    return MessageHeader(
        {attribute.name: attribute.value for attribute in header.attributes}
        if header.has_attributes or header.attributes
        else None,
        header.message_type if header.HasField("message_type") else None,
        header.message_time if header.HasField("message_time") else None,
        header.foreign,
    )
