"""Requests and answers inside a stream: round trips, and every way in which they can be broken."""

import contextlib
from unittest import mock

import pytest
from hypothesis import given, strategies as st

from testkit.wire import encode_response
from tests import strategies as own
from tubemq_spark.errors import LocalProtocolError, RemoteProtocolError
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.constants import PROTOCOL_VERSION, Status
from tubemq_spark.protocol.pb import broker_pb2, master_pb2, rpc_pb2

bodies = st.binary(max_size=200)
requests = st.builds(
    rpc.Request, own.int32s, own.int32s, own.int32s, st.integers(1, own.INT64_MAX), bodies, own.int32s
)
responses = st.builds(rpc.Response, own.int32s, own.int32s, bodies)
failures = st.builds(
    rpc.Failure, own.int32s, st.sampled_from([Status.ERROR, Status.FATAL]), st.text(), st.text()
)

REQUEST = rpc.Request(1, 3, 13, 10_000, b"body")
RESPONSE = rpc.Response(1, 13, b"body")
FAILURE = rpc.Failure(1, Status.ERROR, "java.lang.Exception", "No service 2 found on the server")


def delimited(*messages) -> bytes:
    parts = [message.SerializePartialToString() for message in messages]
    return b"".join(rpc.encode_varint(len(part)) + part for part in parts)


@given(requests)
def test_requests_round_trip(request_):
    assert rpc.decode_request(request_.serial_no, rpc.encode_request(request_)) == request_


@given(responses)
def test_responses_round_trip(response):
    assert rpc.decode_answer(response.serial_no, encode_response(response)) == response


@given(failures)
def test_failures_round_trip(failure):
    assert rpc.decode_answer(failure.serial_no, rpc.encode_failure(failure)) == failure


@given(requests, st.binary(min_size=1, max_size=9))
def test_bytes_behind_the_third_part_are_ignored(request_, padding):
    """TubeMQ's C++ client pads its requests."""
    assert rpc.decode_request(request_.serial_no, rpc.encode_request(request_) + padding) == request_


USUAL_CONNECTIONS = [b"\x02\x08\x00", b"\x02\x08\x01"]


def outcome(decode, stream):
    """What a decoder makes of a stream: a value, or the text of its error."""
    try:
        return decode(7, stream)
    except RemoteProtocolError as error:
        return str(error)


def outcomes(stream):
    return [outcome(decode, stream) for decode in (rpc.decode_request, rpc.decode_answer)]


def not_usual(stream):
    """Leave every stream to protobuf."""


def assert_read_as_protobuf_does(stream):
    fast = outcomes(stream)
    with mock.patch.multiple(rpc, usual_request=not_usual, usual_answer=not_usual):
        assert fast == outcomes(stream)


@st.composite
def envelopes(draw):
    """Streams that are usual ones or nearly so: other lengths, tags and sizes, longer varints."""
    body = draw(bodies)
    small = st.integers(0, 127).map(lambda number: bytes([number]))
    number = own.varint(draw(st.one_of(st.integers(0, 300), own.int64s)), draw(st.integers(1, 10)))
    size = own.varint(len(body) + draw(st.sampled_from([0, 0, 0, 1, -1])), draw(st.integers(1, 5)))
    fields = draw(
        st.sampled_from([b"\x08" + draw(small) + b"\x10" + number, b"\x08" + draw(small), b"\x08" + number])
    )
    inside = (
        fields
        + draw(st.sampled_from([b"\x1a", b"\x12"]))
        + size
        + body
        + draw(st.sampled_from([b"", b"\x20\x01"]))
    )
    header = draw(st.sampled_from([b"\x08\x03\x10\x03", b"\x08\x00\x18\x03", b"\x08\x01\x18\x03"]))
    least = draw(st.integers(1, 5))
    return b"".join(
        (
            draw(st.sampled_from(USUAL_CONNECTIONS)),
            own.varint(len(header)) + header,
            own.varint(len(inside) + draw(st.sampled_from([0, 0, 0, 1, -1])), least) + inside,
            draw(st.sampled_from([b"", b"padding"])),
        )
    )


@given(envelopes())
def test_envelopes_are_read_as_protobuf_reads_them(stream):
    assert_read_as_protobuf_does(stream)


@given(st.one_of(requests.map(rpc.encode_request), responses.map(encode_response)), st.data())
def test_damaged_envelopes_are_read_as_protobuf_reads_them(stream, data):
    damaged = bytearray(stream)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    assert_read_as_protobuf_does(bytes(damaged[: data.draw(st.integers(0, len(stream)))]))
    assert_read_as_protobuf_does(bytes(damaged))


@given(responses)
def test_answers_are_written_as_protobuf_writes_them(response):
    body = rpc_pb2.RspResponseBody(method=response.method, data=response.body)
    header = rpc_pb2.ResponseHeader(status="SUCCESS", protocolVer=PROTOCOL_VERSION)
    assert encode_response(response) == delimited(rpc_pb2.RpcConnHeader(flag=1), header, body)


def test_the_usual_envelopes_take_the_short_way():
    with mock.patch.object(rpc, "_Parts", side_effect=AssertionError):
        assert rpc.decode_request(1, rpc.encode_request(REQUEST)) == REQUEST
        assert rpc.decode_answer(1, encode_response(RESPONSE)) == RESPONSE


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_a_request_without_time_out_is_never_sent(timeout_ms):
    with pytest.raises(LocalProtocolError, match=f"time-out {timeout_ms} ms"):
        rpc.encode_request(rpc.Request(1, 1, 1, timeout_ms, b""))


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("org.apache.inlong.tubemq.corerpc.exception.StandbyException", "StandbyException"),
        ("com.apache.tubemq.corerpc.exception.StandbyException", "StandbyException"),
        ("StandbyException", "StandbyException"),
        ("", ""),
    ],
)
def test_only_the_last_segment_of_a_class_name_counts(name, last):
    assert rpc.Failure(1, Status.ERROR, name, "text").exception_class == last


def test_fatal_answers_carry_no_protocol_version():
    def header_of(status):
        stream = rpc.encode_failure(rpc.Failure(1, status, "E", "t"))
        return rpc_pb2.ResponseHeader.FromString(stream[4 : 4 + stream[3]])

    assert header_of(Status.ERROR).protocolVer == PROTOCOL_VERSION
    assert not header_of(Status.FATAL).HasField("protocolVer")


@pytest.mark.parametrize(
    ("stream", "decode"),
    [
        (rpc.encode_request(REQUEST), rpc.decode_request),
        (encode_response(RESPONSE), rpc.decode_answer),
        (rpc.encode_failure(FAILURE), rpc.decode_answer),
    ],
    ids=["request", "response", "failure"],
)
def test_streams_truncated_at_every_byte_are_refused(stream, decode):
    for at in range(len(stream)):
        with pytest.raises(RemoteProtocolError, match="the stream ends"):
            decode(1, stream[:at])


CONNECTION = rpc_pb2.RpcConnHeader(flag=1)
SUCCESS = rpc_pb2.ResponseHeader(status="SUCCESS")
ERROR = rpc_pb2.ResponseHeader(status="ERROR")


@pytest.mark.parametrize(
    ("parts", "missing"),
    [
        ((rpc_pb2.RpcConnHeader(), rpc_pb2.RequestHeader(), rpc_pb2.RequestBody(method=1)), "flag"),
        ((CONNECTION, rpc_pb2.RequestHeader(), rpc_pb2.RequestBody(timeout=5)), "method"),
    ],
)
def test_requests_without_required_fields_are_refused(parts, missing):
    with pytest.raises(RemoteProtocolError, match=f"missing required fields: {missing}"):
        rpc.decode_request(1, delimited(*parts))


@pytest.mark.parametrize(
    ("parts", "missing"),
    [
        ((rpc_pb2.RpcConnHeader(), SUCCESS, rpc_pb2.RspResponseBody(method=1, data=b"")), "flag"),
        ((CONNECTION, rpc_pb2.ResponseHeader(), rpc_pb2.RspResponseBody(method=1, data=b"")), "status"),
        ((CONNECTION, SUCCESS, rpc_pb2.RspResponseBody(data=b"")), "method"),
        ((CONNECTION, SUCCESS, rpc_pb2.RspResponseBody(method=1)), "data"),
        ((CONNECTION, ERROR, rpc_pb2.RspExceptionBody(stackTrace="t")), "exceptionName"),
    ],
)
def test_answers_without_required_fields_are_refused(parts, missing):
    with pytest.raises(RemoteProtocolError, match=f"missing required fields: {missing}"):
        rpc.decode_answer(1, delimited(*parts))


def test_a_status_that_does_not_exist_is_refused():
    header = own.varint_field(1, 3)
    stream = b"\x02\x08\x01" + rpc.encode_varint(len(header)) + header + b"\x00"
    with pytest.raises(RemoteProtocolError, match="status"):
        rpc.decode_answer(1, stream)


def test_optional_fields_of_a_request_may_be_absent():
    stream = delimited(rpc_pb2.RpcConnHeader(flag=0), rpc_pb2.RequestHeader(), rpc_pb2.RequestBody(method=99))
    assert rpc.decode_request(4, stream) == rpc.Request(4, 0, 99, 0, b"", 0)


@pytest.mark.parametrize("size", [b"\xff" * 5, b"\x80" * 6, b"\xff" * 64])
def test_lengths_of_more_than_five_bytes_are_refused(size):
    with pytest.raises(RemoteProtocolError, match="more than five bytes"):
        rpc.decode_answer(1, size + b"\x01")


def test_a_huge_length_is_refused_without_waiting_for_it():
    with pytest.raises(RemoteProtocolError, match="the stream ends inside RpcConnHeader"):
        rpc.decode_answer(1, b"\xff\xff\xff\xff\x0f" + bytes(20))


def test_text_that_is_not_utf8_is_refused():
    """Protobuf checks it only in proto3 and would hand out bytes where text is declared."""
    exception = b"\x0a\x02\xff\xfe"
    stream = delimited(CONNECTION, ERROR) + bytes([len(exception)]) + exception
    with pytest.raises(RemoteProtocolError, match="exceptionName of RspExceptionBody is not UTF-8"):
        rpc.decode_answer(1, stream)


@pytest.mark.parametrize(
    ("message_type", "data", "field"),
    [
        (master_pb2.CloseRequestP2M, own.bytes_field(1, b"\xff"), "clientId"),
        (master_pb2.HeartResponseM2P, own.bytes_field(5, b"ok") + own.bytes_field(5, b"\xff"), "topicInfos"),
        (
            broker_pb2.SendMessageRequestP2B,
            own.bytes_field(10, own.varint_field(1, 1) + own.bytes_field(2, b"\xc0")),
            "authAuthorizedToken",
        ),
    ],
    ids=["plain", "repeated", "nested"],
)
def test_bad_text_is_found_in_every_place(message_type, data, field):
    filled = message_type()
    for name in filled.FindInitializationErrors():
        setattr(filled, name, message_type.DESCRIPTOR.fields_by_name[name].default_value)
    with pytest.raises(RemoteProtocolError, match=f"text {field} of {message_type.DESCRIPTOR.name}"):
        rpc.parse_message(message_type, filled.SerializePartialToString() + data)


def test_a_message_that_does_not_parse_is_refused():
    with pytest.raises(RemoteProtocolError, match="SendMessageResponseB2P does not parse"):
        rpc.parse_message(broker_pb2.SendMessageResponseB2P, b"\x0a")


def test_a_message_lacking_fields_is_not_written():
    with pytest.raises(LocalProtocolError, match="success"):
        rpc.serialize_message(broker_pb2.SendMessageResponseB2P(errCode=200, errMsg="1"))


@given(st.integers(0, own.INT64_MAX))
def test_varints_are_those_of_protobuf(value):
    field = rpc_pb2.RpcConnHeader(flag=0, traceId=value).SerializeToString()[3:]
    assert rpc.encode_varint(value) == field


@given(st.binary(max_size=80))
def test_any_stream_decodes_or_gives_our_error(stream):
    for decode in (rpc.decode_request, rpc.decode_answer):
        with contextlib.suppress(RemoteProtocolError):
            decode(1, stream)
