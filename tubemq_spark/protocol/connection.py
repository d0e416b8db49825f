"""One side of a TubeMQ RPC connection as a state machine: bytes in, events and bytes out.

It owns no socket and no clock. Client and server are two roles of one class, so the embedded server
and the client run the same rules, and the tests play them against each other without a network.
"""

import collections
import enum

from tubemq_spark.errors import LocalProtocolError, RemoteProtocolError
from tubemq_spark.protocol import framing, rpc, speedups
from tubemq_spark.protocol.constants import Status

RpcEvent = rpc.Request | rpc.Response | rpc.Failure
"""What ``receive_data`` returns: requests to a server, answers to a client."""

_SERIAL_NUMBERS = 1 << 32


class Role(enum.Enum):
    """Which side of the connection this is."""

    CLIENT = "client"
    SERVER = "server"


class RpcConnection:
    """Serial numbers, the table of calls in flight, and the bytes waiting for the peer."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._decoder = framing.FrameDecoder()
        # NettyClient numbers from 1 on each connection; the Go client has one counter for all of its
        # connections, so a server takes any number.
        self._next_serial_no = 1
        self._in_flight: collections.Counter[int] = collections.Counter()
        self._outgoing: collections.deque[bytes] = collections.deque()
        self.closed = False
        """Whether the peer closed or broke the protocol; nothing can be sent any more."""

    @property
    def in_flight(self) -> frozenset[int]:
        """Serial numbers of requests without an answer: sent (client) or received (server)."""
        return frozenset(self._in_flight)

    @property
    def held_bytes(self) -> int:
        """How many bytes have come of a frame that is not complete."""
        return self._decoder.held_bytes

    @property
    def mid_frame(self) -> bool:
        """Whether a frame has begun to come and is not complete."""
        return self._decoder.mid_frame

    @property
    def frame_count(self) -> int:
        """How many whole frames have come."""
        return self._decoder.frame_count

    def send_request(self, service: int, method: int, body: bytes, timeout_ms: int) -> int:
        """Queue a request and return its serial number."""
        self._check_can_send(Role.CLIENT)
        serial_no = self._next_serial_no
        stream = rpc.encode_request(rpc.Request(serial_no, service, method, timeout_ms, body))
        self._outgoing.append(framing.encode_frame(serial_no, stream))
        # Only now: a request that cannot be written uses no number.
        self._next_serial_no = _after(serial_no)
        self._in_flight[serial_no] = 1
        return serial_no

    def forget_request(self, serial_no: int) -> None:
        """Stop waiting for an answer (it timed out); should it still come, it is dropped."""
        self._in_flight.pop(serial_no, None)

    def send_response(self, request: rpc.Request, body: bytes) -> None:
        """Queue the successful answer to a request."""
        self._answered(request)
        # RspResponseBody.method repeats the request's: the Java client picks the response class by it.
        head = rpc.answer_head(request.method, len(body))
        self._outgoing.append(framing.encode_frame(request.serial_no, body, head))

    def send_failure(self, request: rpc.Request, status: Status, exception_name: str, text: str) -> None:
        """Queue an exception as the answer to a request."""
        self._answered(request)
        self._queue_failure(request.serial_no, status, exception_name, text)

    def receive_data(self, data: bytes | memoryview) -> list[RpcEvent]:
        """Take bytes from the peer; an empty value means that it closed.

        Send what ``data_to_send`` returns afterwards: a server answers unreadable requests by itself.

        After a RemoteProtocolError the connection is closed, and what the same bytes held before the fault is
        lost.
        """
        # TubeMQ has no message for the end of a connection; requests in flight have no answer then.
        if not data:
            self.closed = True
            return []
        between_frames = not (self.closed or self.mid_frame)
        if self._role is Role.CLIENT and speedups.compiled is not None and between_frames:
            # Most reads of a client are the answer of success to one request, which takes one step this way.
            usual = speedups.compiled.unwrap_answer(data)
            if usual is not None:
                self._decoder.frame_count += 1
                return [rpc.Response(*usual)] if self._in_flight.pop(usual[0], None) is not None else []
        try:
            # Several frames may come in one read, and answers in any order: only the serial number pairs
            # them.
            frames = self._decoder.receive_data(data)
            read = self._read_request if self._role is Role.SERVER else self._read_answer
            return [event for frame in frames if (event := read(frame)) is not None]
        except RemoteProtocolError:
            self.closed = True
            raise

    def data_to_send(self) -> bytes:
        """Return and forget the bytes waiting for the peer."""
        data = b"".join(self._outgoing)
        self._outgoing.clear()
        return data

    def _read_request(self, frame: framing.Frame) -> rpc.Request | None:
        try:
            request = rpc.decode_request(frame.serial_no, frame.stream)
        except RemoteProtocolError as error:
            # The frame was whole, so the connection is sound: Java answers FATAL and goes on.
            self._queue_failure(
                frame.serial_no,
                Status.FATAL,
                "com.google.protobuf.InvalidProtocolBufferException",
                f"IPC server unable to read call parameters:{error}",
            )
            return None
        self._in_flight[frame.serial_no] += 1  # a peer may use a number twice: both are answered, as in Java
        return request

    def _read_answer(self, frame: framing.Frame) -> rpc.Response | rpc.Failure | None:
        # An answer no call waits for is late (its request timed out) or a second one: TubeMQ's servers
        # send both, so neither is an error.
        if self._in_flight.pop(frame.serial_no, None) is None:
            return None
        return rpc.decode_answer(frame.serial_no, frame.stream)

    def _answered(self, request: rpc.Request) -> None:
        self._check_can_send(Role.SERVER)
        unanswered = self._in_flight.pop(request.serial_no, 0)
        if not unanswered:
            raise LocalProtocolError(
                "TUBEMQ_PROTOCOL_MISUSE", what=f"request {request.serial_no} has been answered already"
            )
        if unanswered > 1:
            self._in_flight[request.serial_no] = unanswered - 1

    def _queue_failure(self, serial_no: int, status: Status, exception_name: str, text: str) -> None:
        stream = rpc.encode_failure(rpc.Failure(serial_no, status, exception_name, text))
        self._outgoing.append(framing.encode_frame(serial_no, stream))

    def _check_can_send(self, role: Role) -> None:
        if self._role is not role:
            raise LocalProtocolError("TUBEMQ_PROTOCOL_MISUSE", what=f"a {self._role.value} cannot do that")
        if self.closed:
            raise LocalProtocolError("TUBEMQ_PROTOCOL_MISUSE", what="the connection is closed")


def _after(serial_no: int) -> int:
    """Return the next serial number: Java's int wraps through the negative numbers."""
    return (serial_no + 1 + _SERIAL_NUMBERS // 2) % _SERIAL_NUMBERS - _SERIAL_NUMBERS // 2
