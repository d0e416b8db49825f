"""One connection to a peer for one user at a time, who receives the answers himself.

A shared channel has a thread that receives, so each answer costs two switches of threads, and its bytes are
gathered from many parts. A reader that does nothing but fetch pays that for every fetch. Here the thread that
waits for an answer receives it, into memory that is used again.

A channel is *open* from ``connect`` until it is *closed*: by us, by the peer, by an error, or because an
answer did not come in time. It never opens again.

Invariants:

- One thread at a time uses a channel; nothing in it is locked, and it waits for its user alone.
- Nothing refers to the receive buffer when the next byte is received.
- A call that was forgotten may still be answered: the answer is dropped when it comes, before that of a later
  call or behind it.
"""

import contextlib
import logging
import socket
import time
from typing import Final, Self

from google.protobuf.message import Message as ProtobufMessage

from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import Endpoint
from tubemq_spark.net import stream
from tubemq_spark.net.call import SLICE_S, Call, Cause, lost
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.memory import keep_freed_memory
from tubemq_spark.net.receive_buffer import ReceiveBuffer
from tubemq_spark.net.retry import Wait
from tubemq_spark.net.stream import Stream, connect
from tubemq_spark.net.tls import TlsConfig
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.connection import Role, RpcConnection
from tubemq_spark.protocol.constants import Method, ServiceType

logger = logging.getLogger(__name__)

_WAKE_BYTES: Final = 1 << 18
"""The thread wakes up when so many bytes of a long frame have come: the peer may need room for more."""


class PrivateCall(Call):
    """A call in flight on a private channel."""

    _done = False

    def __init__(self, channel: "PrivateChannel", timeout_ms: int, wait: Wait | None = None) -> None:
        super().__init__(channel, timeout_ms, wait)
        self._receive = channel.receive

    @property
    def done(self) -> bool:
        """Whether the answer was received, or the connection was lost."""
        return self._done

    def body(self, during: str) -> bytes | memoryview:
        """Wait for the answer as ``Call.body`` does; the time-out is counted from here.

        Nothing is received before, so the answer may have been waiting for long.
        """
        self._deadline = Deadline.after_ms(self._timeout_ms)
        return super().body(during)

    def _mark_done(self) -> None:
        self._done = True

    def _wait_at_most(self, seconds: float) -> bool:
        ends_at = time.monotonic() + seconds
        while not self._done and (left_s := ends_at - time.monotonic()) > 0:
            self._receive(left_s)
        return self._done


class PrivateChannel:
    """A connection for one user at a time; ``connect`` opens one."""

    def __init__(self, endpoint: Endpoint, connected: Stream) -> None:
        """Take a connected socket; ``close`` closes it."""
        keep_freed_memory()
        self.endpoint = endpoint
        self._stream = connected
        self._socket = connected if isinstance(connected, socket.socket) else connected.raw
        self._connection = RpcConnection(Role.CLIENT)
        self._buffer = ReceiveBuffer()
        self._calls: dict[int, Call] = {}
        self._lost_because: Cause = ""
        self._wakes_at = 1

    @classmethod
    def connect(cls, endpoint: Endpoint, connect_timeout_ms: int, tls: TlsConfig | None = None) -> Self:
        """Open a connection, over TLS with ``tls``; see ``stream.connect``."""
        return cls(endpoint, connect(endpoint, connect_timeout_ms, tls))

    @property
    def closed(self) -> bool:
        """Whether the connection was lost or closed."""
        return bool(self._lost_because)

    @property
    def quiet(self) -> bool:
        """Whether the connection stands, no call is in flight, and the peer has sent nothing more."""
        if self.closed or self._calls:
            return False
        self._socket.settimeout(0)
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return not self._connection.mid_frame
        except OSError:
            return False
        return False

    def start(
        self,
        service: ServiceType,
        method: Method,
        request: ProtobufMessage,
        *,
        timeout_ms: int,
        during: str,
        wait: Wait | None = None,
    ) -> PrivateCall:
        """Send a request and return at once; see ``Channel.start``."""
        body = rpc.serialize_message(request)
        call = PrivateCall(self, timeout_ms, wait)
        if self.closed:
            raise lost(self.endpoint, during, self._lost_because)
        call.serial_no = self._connection.send_request(service, method, body, timeout_ms)
        self._calls[call.serial_no] = call
        try:
            self._socket.settimeout(stream.IO_TIMEOUT_S)
            self._stream.sendall(self._connection.data_to_send())
        except OSError as error:
            self._lose(error)
            raise lost(self.endpoint, during, error) from error
        return call

    def receive(self, seconds: float) -> None:
        """Receive what comes next and settle the calls that it answers; wait at most some seconds."""
        data: memoryview | None
        try:
            begun = self._buffer.begun
            self._socket.settimeout(min(seconds, SLICE_S) if begun else seconds)
            self._wake_at(min(self._buffer.missing, _WAKE_BYTES) if begun else 1)
            count = self._stream.recv_into(self._buffer.room)
            if not count:
                self._lose("the peer closed it")
                return
            data = self._buffer.add(count)
        except TimeoutError:
            # Perhaps the frame is whole, and only laid out in an unusual way.
            data = self._buffer.flush()
        except (OSError, TubeMQError) as error:
            self._lose(error)
            return
        if data is not None:
            self._deliver(data)

    def forget(self, call: Call) -> None:
        """Drop the answer of a call if it arrives later."""
        self._connection.forget_request(call.serial_no)
        self._calls.pop(call.serial_no, None)

    def give_up(self, call: Call) -> None:
        """Close the connection, since a call was not answered in time."""
        self._lose(f"call {call.serial_no} was not answered")

    def close(self) -> None:
        """Close the connection, and fail the calls in flight."""
        self._lose("it was closed")

    def abandon(self) -> None:
        """Drop the socket without telling the peer: in a forked child it belongs to the parent."""
        self._lost_because = self._lost_because or "it belongs to the parent process"
        self._stream.close()

    def _deliver(self, data: memoryview) -> None:
        try:
            events = self._connection.receive_data(data)
        except TubeMQError as error:
            self._lose(error)
            return
        for event in events:
            call = self._calls.pop(event.serial_no, None)
            if call is not None and not isinstance(event, rpc.Request):
                call.settle(event)
        if self._connection.mid_frame:
            self._buffer.pass_on()

    def _wake_at(self, count: int) -> None:
        """Sleep from now on until so many bytes are there, or the connection ends."""
        if count != self._wakes_at and self._stream is self._socket:
            with contextlib.suppress(OSError):  # a system without such a mark wakes it for every byte
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
            self._wakes_at = count

    def _lose(self, cause: Cause) -> None:
        if self.closed:
            return
        self._lost_because = cause
        logger.debug("private connection to %s ended: %s", self.endpoint, cause)
        calls = list(self._calls.values())
        self._calls.clear()
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self._stream.close()
        for call in calls:
            call.settle(cause)
