"""Events of a range are those of any protobuf library, though their bodies are written and read by hand."""

import pytest
from hypothesis import given, strategies as st

from tests.protocol.gateway.gateway_values import fetched_batches
from tests.source.rows import fetched
from tubemq_spark.protocol.gateway import batches, gateway_pb2 as pb
from tubemq_spark.protocol.gateway.batches import MalformedMessageError


def with_data(batch):
    """Return an event as protobuf makes it."""
    message, data = batches.to_proto(batch)
    message.data = data
    return pb.ReadRangeResponse(batch=message)


@given(fetched_batches())
def test_protobuf_reads_what_is_written(batch):
    assert pb.ReadRangeResponse.FromString(batches.batch_to_bytes(batch)) == with_data(batch)


@given(fetched_batches())
def test_what_protobuf_writes_is_read(batch):
    event, bodies = batches.parse_event(with_data(batch).SerializeToString())

    message, data = batches.to_proto(batch)
    assert event == pb.ReadRangeResponse(batch=message)
    assert bytes(bodies) == data


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 2_097_152])
def test_bodies_of_every_size_arrive(size):
    batch = fetched([(b"x" * size, None)])

    event, bodies = batches.parse_event(batches.batch_to_bytes(batch))

    assert event.HasField("batch")
    assert bytes(bodies) == b"x" * size


@pytest.mark.parametrize(
    "event",
    [
        pb.ReadRangeResponse(),
        pb.ReadRangeResponse(batch=pb.RecordBatch()),
        pb.ReadRangeResponse(waiting=pb.Waiting()),
        pb.ReadRangeResponse(loss=pb.Loss(kind="EXPIRED", start=28, end=56, rows=1)),
    ],
    ids=lambda event: event.WhichOneof("event") or "nothing",
)
def test_other_events_are_read_too(event):
    assert batches.parse_event(event.SerializeToString()) == (event, b"")


@given(fetched_batches())
def test_fields_of_later_versions_are_passed_over(batch):
    later = b"\xfa\x7f\x03new" + b"\xf8\x7f\x01" + b"\xf9\x7f12345678" + b"\xfd\x7f1234"
    message, data = batches.to_proto(batch)
    inner = later + message.SerializeToString() + later
    event = pb.ReadRangeResponse()
    event.batch.MergeFromString(inner)
    event.batch.data = data

    found, bodies = batches.parse_event(later + event.SerializeToString())

    found.batch.DiscardUnknownFields()
    assert found.batch == message
    assert bytes(bodies) == data


@given(st.binary(max_size=60))
def test_garbage_is_refused_or_an_event(garbage):
    try:
        event, _ = batches.parse_event(garbage)
    except MalformedMessageError:
        return
    assert isinstance(event, pb.ReadRangeResponse)


@given(fetched_batches(), st.data())
def test_an_event_that_ends_early_is_refused(batch, data):
    written = batches.batch_to_bytes(batch)
    cut = data.draw(st.integers(1, len(written) - 1)) if len(written) > 1 else 1
    with pytest.raises(MalformedMessageError):
        batches.parse_event(written[:cut])
