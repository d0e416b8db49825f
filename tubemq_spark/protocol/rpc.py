"""Requests and answers inside a frame's stream: three delimited protobuf messages each.

``delimited(RpcConnHeader) delimited(RequestHeader | ResponseHeader) delimited(body)``; bytes after
the third are ignored, as TubeMQ's servers do (its C++ client pads its requests).

What precedes a request's or an answer's own message, its envelope, depends on little and repeats from call to
call. So a pattern recognises those that are laid out as TubeMQ writes them, and what they say is remembered;
protobuf reads all others, with the same results.
"""

import functools
import re
from typing import Final, NamedTuple, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, EncodeError, Message as ProtobufMessage

from tubemq_spark.errors import LocalProtocolError, RemoteProtocolError
from tubemq_spark.protocol.constants import PROTOCOL_VERSION, Status
from tubemq_spark.protocol.pb import rpc_pb2

# RpcConnHeader has traceId, spanId and parentId besides, which no peer sets.
_REQUEST_FLAG: Final = b"\x02\x08\x00"
_RESPONSE_FLAG: Final = b"\x02\x08\x01"

_CACHED_HEADS: Final = 4096
"""How many envelopes are remembered; one for every length of a message. About 300 bytes each."""
_ANSWER_HEADERS: Final = _RESPONSE_FLAG + bytes((4, 0x08, Status.SUCCESS, 0x18, PROTOCOL_VERSION))
"""RpcConnHeader and ResponseHeader, delimited."""

AnyMessage = TypeVar("AnyMessage", bound=ProtobufMessage)


class Request(NamedTuple):
    """A call, as both sides see it. ``service`` and ``method`` are plain numbers: a peer may send any.

    A named tuple: one is made for every message sent.
    """

    serial_no: int
    service: int
    method: int
    timeout_ms: int
    body: bytes
    protocol_version: int = PROTOCOL_VERSION


class Response(NamedTuple):
    """A successful answer; ``body`` is the serialised response message of ``method``.

    A long one is a view of what has come: a copy of every fetch would be felt.
    """

    serial_no: int
    method: int
    body: bytes | memoryview


class Failure(NamedTuple):
    """An answer that is an exception: a Java class name and one line of text."""

    serial_no: int
    status: Status
    exception_name: str
    text: str

    @property
    def exception_class(self) -> str:
        """The last segment of the class name: the prefix depends on the sender's version."""
        return self.exception_name.rpartition(".")[2]  # com.tencent., com.apache., org.apache.inlong.


def require_time(timeout_ms: int) -> None:
    """Check the time-out of a request.

    RpcProtocol.handleRequest and NettyRequestContext.write drop an answer once `timeout` has passed; without
    one, or with 0, the request is carried out and its answer always dropped.
    """
    if timeout_ms <= 0:
        raise LocalProtocolError("TUBEMQ_PROTOCOL_MISUSE", what=f"a request with time-out {timeout_ms} ms")


def encode_request(request: Request) -> bytes:
    """Return the stream of a request."""
    require_time(request.timeout_ms)
    _, service, method, timeout_ms, body, version = request
    return _request_head(service, method, timeout_ms, len(body), version) + body


def encode_failure(failure: Failure) -> bytes:
    """Return the stream of an exception answer; FATAL carries no protocol version, as in Java."""
    header = rpc_pb2.ResponseHeader(status=failure.status.name)
    # ResponseHeader.serviceType is never set by Java, protocolVer is 3 for requests of every version.
    if failure.status is not Status.FATAL:
        header.protocolVer = PROTOCOL_VERSION
    body = rpc_pb2.RspExceptionBody(exceptionName=failure.exception_name, stackTrace=failure.text)
    return b"".join((_RESPONSE_FLAG, _delimited(header), _delimited(body)))


def decode_request(serial_no: int, stream: bytes) -> Request:
    """Read a request's stream."""
    # RpcConnHeader.flag is 0 in requests and 1 in answers, but no reader checks it: the Go client's commits
    # have 10.
    usual = usual_request(stream)
    if usual is not None:
        return Request(serial_no, *usual)
    parts = _Parts(stream)
    parts.read(rpc_pb2.RpcConnHeader)
    header = parts.read(rpc_pb2.RequestHeader)
    body = parts.read(rpc_pb2.RequestBody)
    return Request(serial_no, header.serviceType, body.method, body.timeout, body.request, header.protocolVer)


def decode_answer(serial_no: int, stream: bytes) -> Response | Failure:
    """Read the stream of an answer, whichever kind its status says."""
    usual = usual_answer(stream)
    if usual is not None:
        return Response(serial_no, *usual)
    parts = _Parts(stream)
    parts.read(rpc_pb2.RpcConnHeader)
    # The status says which message comes third: SUCCESS RspResponseBody, ERROR and FATAL RspExceptionBody. An
    # error of TubeMQ's own is a SUCCESS whose message has success=false and an errCode.
    status = Status(parts.read(rpc_pb2.ResponseHeader).status)
    if status is Status.SUCCESS:
        body = parts.read(rpc_pb2.RspResponseBody)
        return Response(serial_no, body.method, body.data)
    # stackTrace is one line of text, and empty when a handler of the Java server threw.
    failure = parts.read(rpc_pb2.RspExceptionBody)
    return Failure(serial_no, status, failure.exceptionName, failure.stackTrace)


def parse_message(message_type: type[AnyMessage], data: bytes | memoryview) -> AnyMessage:
    """Parse a message, and check what protobuf checks only on writing or not at all in proto2."""
    message = message_type()
    name = message_type.DESCRIPTOR.name
    try:
        # proto2: `required` is checked below, since Python's protobuf parses without it.
        message.ParseFromString(bytes(data))
    except DecodeError as error:
        raise _violation(f"{name} does not parse: {error}") from error
    _check_required(message)
    bad_text = _find_bad_text(message)
    if bad_text is not None:
        raise _violation(f"the text {bad_text} of {name} is not UTF-8")
    return message


def serialize_message(message: ProtobufMessage) -> bytes:
    """Serialise a message."""
    try:
        return message.SerializeToString()
    except EncodeError as error:
        raise LocalProtocolError("TUBEMQ_PROTOCOL_MISUSE", what=str(error)) from error


def _check_required(message: ProtobufMessage) -> None:
    if message.IsInitialized():
        return
    try:
        message.SerializeToString()
    except EncodeError as error:  # its text names the fields
        raise _violation(str(error)) from error


def _find_bad_text(message: ProtobufMessage) -> str | None:
    """Return the name of a text field that holds other bytes than UTF-8, if there is one."""
    for name, repeated, nested in _text_fields(message.DESCRIPTOR):
        value = getattr(message, name)
        for item in value if repeated else (value,):
            bad = _find_bad_text(item) if nested else name if isinstance(item, bytes) else None
            if bad is not None:
                return bad
    return None


def is_repeated(field: FieldDescriptor) -> bool:
    """Return whether a message has a list of a field, under every protobuf that is allowed.

    Up to 6.30 only ``label`` tells; later releases deprecate it, and their stubs leave it out.
    """
    repeated: bool | None = getattr(field, "is_repeated", None)
    if repeated is None:
        repeated = field.label == FieldDescriptor.LABEL_REPEATED  # type: ignore[attr-defined]
    return repeated


@functools.cache
def _text_fields(descriptor: Descriptor) -> tuple[tuple[str, bool, bool], ...]:
    """Name the fields that hold text or messages with text; whether repeated, whether messages."""
    fields = []
    for field in descriptor.fields:
        nested = field.message_type is not None and bool(_text_fields(field.message_type))
        if nested or field.type == FieldDescriptor.TYPE_STRING:
            fields.append((field.name, is_repeated(field), nested))
    return tuple(fields)


@functools.lru_cache(_CACHED_HEADS)
def _request_head(service: int, method: int, timeout_ms: int, size: int, version: int) -> bytes:
    """Return what precedes a message of so many bytes in the stream of a request."""
    header = rpc_pb2.RequestHeader(serviceType=service, protocolVer=version)
    # Fields are written by number, so `request` (3) is last and its empty length byte is replaced.
    body = rpc_pb2.RequestBody(method=method, timeout=timeout_ms, request=b"").SerializeToString()
    body = body[:-1] + encode_varint(size)
    return b"".join((_REQUEST_FLAG, _delimited(header), encode_varint(len(body) + size), body))


@functools.lru_cache(_CACHED_HEADS)
def answer_head(method: int, size: int) -> bytes:
    """Return what precedes a message of so many bytes in the stream of a successful answer."""
    # `data` (2) is required and last, as `request` above.
    body = rpc_pb2.RspResponseBody(method=method, data=b"").SerializeToString()[:-1] + encode_varint(size)
    return b"".join((_ANSWER_HEADERS, encode_varint(len(body) + size), body))


class _Parts:
    """The messages of a stream, each behind its length; they are read one after the other."""

    def __init__(self, stream: bytes) -> None:
        self._stream = stream
        self._position = 0

    def read(self, message_type: type[AnyMessage]) -> AnyMessage:
        """Return the next message; raise ``RemoteProtocolError`` if the stream ends before or inside it."""
        size = self._read_size(message_type)
        start = self._position
        self._position = start + size
        # Bytes behind the third part are never looked at: the C++ client pads its streams with 6 to 9 zeros,
        # as it counts four bytes for each length.
        if self._position > len(self._stream):
            raise _violation(f"the stream ends inside {message_type.DESCRIPTOR.name}")
        return parse_message(message_type, self._stream[start : self._position])

    def _read_size(self, message_type: type[AnyMessage]) -> int:
        size = 0
        # writeDelimitedTo writes the length as a varint of an int32: at most five bytes.
        for shift in range(0, 35, 7):
            if self._position >= len(self._stream):
                raise _violation(f"the stream ends before {message_type.DESCRIPTOR.name}")
            byte = self._stream[self._position]
            self._position += 1
            size |= (byte & 0x7F) << shift
            if byte < 0x80:
                return size
        raise _violation(f"the length of {message_type.DESCRIPTOR.name} has more than five bytes")


def _delimited(message: ProtobufMessage) -> bytes:
    data = serialize_message(message)
    return encode_varint(len(data)) + data


def encode_varint(value: int) -> bytes:
    """Return a non-negative number as a protobuf varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _violation(what: str) -> RemoteProtocolError:
    return RemoteProtocolError("TUBEMQ_PROTOCOL_VIOLATION", what=what)


_USUAL_REQUEST: Final = re.compile(
    rb"""
    \x02\x08\x00                         # RpcConnHeader{flag=0}, delimited
    \x04\x08[\x00-\x7f]\x10[\x00-\x7f]    # RequestHeader{serviceType, protocolVer}, delimited
    [\x80-\xff]{0,4}[\x00-\x7f]          # the length of RequestBody
    \x08[\x00-\x7f]                      # its method
    \x10[\x80-\xff]{0,8}[\x00-\x7f]      # its timeout
    \x1a[\x80-\xff]{0,3}[\x00-\x7f]      # the length of its request
    """,
    re.VERBOSE | re.DOTALL,
)
_USUAL_ANSWER: Final = re.compile(
    rb"""
    \x02\x08\x01                         # RpcConnHeader{flag=1}, delimited
    \x04\x08\x00\x18[\x00-\x7f]          # ResponseHeader{status=SUCCESS, protocolVer}, delimited
    [\x80-\xff]{0,4}[\x00-\x7f]          # the length of RspResponseBody
    \x08[\x00-\x7f]                      # its method
    \x12[\x80-\xff]{0,3}[\x00-\x7f]      # the length of its data
    """,
    re.VERBOSE | re.DOTALL,
)
# Positions of one-byte fields behind RpcConnHeader (3 bytes) and the header's length and tags.
_SERVICE_AT: Final = 5  # RequestHeader.serviceType
_VERSION_AT: Final = 7  # RequestHeader.protocolVer
_BODY_SIZE_AT: Final = 8  # behind both headers: 3 bytes and 5
_VIEWED_BYTES: Final = 1 << 14
"""Messages of this length and more are not copied."""


def usual_request(stream: bytes) -> tuple[int, int, int, bytes, int] | None:
    """Return service, method, time-out in ms, the request's own bytes and the protocol version.

    None: a stream that is laid out in another way, or damaged.
    """
    usual = _USUAL_REQUEST.match(stream)
    if usual is None:
        return None
    at = usual.end()
    service, method, timeout_ms, size, version = _read_request_head(stream[:at])
    if not 0 <= size <= len(stream) - at:
        return None
    return service, method, timeout_ms, stream[at : at + size], version


def usual_answer(stream: bytes) -> tuple[int, bytes | memoryview] | None:
    """Return the method and the message's own bytes of a successful answer, long ones as a view.

    None: any other answer, or one that is laid out in another way or damaged.
    """
    usual = _USUAL_ANSWER.match(stream)
    if usual is None:
        return None
    at = usual.end()
    method, size = _read_answer_head(stream[:at])
    if not 0 <= size <= len(stream) - at:
        return None
    source = stream if size < _VIEWED_BYTES else memoryview(stream)
    return method, source[at : at + size]


@functools.lru_cache(_CACHED_HEADS)
def _read_request_head(head: bytes) -> tuple[int, int, int, int, int]:
    """Return service, method, time-out, length of the request and version of a usual request.

    The length is -1 when the body does not end with the request.
    """
    body_size, body_at = _read_varint(head, _BODY_SIZE_AT)
    # Behind the tag and the value of `method`, and the tag of `timeout`.
    timeout_ms, timeout_end = _read_varint(head, body_at + 3)
    size, _ = _read_varint(head, timeout_end + 1)
    # Fields that another version adds behind `request` are left to protobuf, which knows how to skip them.
    ends_with_request = body_at + body_size == len(head) + size
    method = head[body_at + 1]
    return head[_SERVICE_AT], method, timeout_ms, size if ends_with_request else -1, head[_VERSION_AT]


@functools.lru_cache(_CACHED_HEADS)
def _read_answer_head(head: bytes) -> tuple[int, int]:
    """Return the method of a usual answer, and the length of its message.

    The length is -1 when the body does not end with the message.
    """
    body_size, body_at = _read_varint(head, _BODY_SIZE_AT)
    # Behind the tag and the value of `method`, and the tag of `data`.
    size, _ = _read_varint(head, body_at + 3)
    return head[body_at + 1], size if body_at + body_size == len(head) + size else -1


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at a position, and where it ends; the data must hold it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
