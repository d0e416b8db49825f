"""One connection to a peer: calls from any thread, answers read by one thread of its own.

A channel is *open* from ``connect``, which returns only when the connection stands, until it is *closed*: by
us, by the peer, or by an error. It never opens again; a pool replaces it.
"""

import contextlib
import dataclasses
import itertools
import logging
import socket
import threading
import time
from typing import Final, Self

from google.protobuf.message import Message as ProtobufMessage

from tubemq_spark.errors import TubeMQConnectionError, TubeMQError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.call import AnyMessage, Call, Cause, lost
from tubemq_spark.net.memory import keep_freed_memory
from tubemq_spark.net.retry import Wait
from tubemq_spark.net.stream import Stream, connect
from tubemq_spark.net.tls import TlsConfig
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.connection import Role, RpcConnection
from tubemq_spark.protocol.constants import Method, ServiceType

logger = logging.getLogger(__name__)

_RECEIVE_BYTES: Final = 1 << 19
"""The answer to a fetch is about as long, so that all of it can be received at once."""
_SILENT_TIMEOUTS: Final = 2
"""The connection is dead after so many calls in a row timed out without a byte from the peer in between."""

_numbers: Final = itertools.count(1)


class PendingCall(Call):
    """A call in flight on a channel that threads share."""

    def __init__(self, channel: "RpcChannel", timeout_ms: int, wait: Wait | None = None) -> None:
        super().__init__(channel, timeout_ms, wait)
        # A lock that is held until then: an event is several times as much work for every call.
        self._unsettled = threading.Lock()
        self._unsettled.acquire()

    @property
    def done(self) -> bool:
        """Whether the answer has arrived, or the connection was lost."""
        return not self._unsettled.locked()

    def _wait_at_most(self, seconds: float) -> bool:
        if not self._unsettled.acquire(timeout=seconds):
            return False
        self._unsettled.release()
        return True

    def _mark_done(self) -> None:
        self._unsettled.release()


@dataclasses.dataclass(frozen=True, slots=True)
class Traffic:
    """What a connection was used for so far, for the log."""

    requests: int
    """How many were sent."""
    frames: int
    """How many whole frames the peer has sent."""
    age_s: float
    """For how long the connection has stood."""
    silent_s: float
    """How long ago the peer sent its last byte; as long as ``age_s`` if it sent none."""

    def __str__(self) -> str:
        return (
            f"{self.requests} requests and {self.frames} answers in {self.age_s:.1f} s; "
            f"the peer was last heard {self.silent_s:.1f} s ago"
        )


class RpcChannel:
    """A connection shared by any number of threads; ``connect`` opens one.

    A request without an answer is forgotten and the connection is kept: TubeMQ's servers silently drop
    requests that waited too long. A lost connection fails all calls in flight.
    """

    def __init__(self, endpoint: Endpoint, connected: Stream) -> None:
        """Read from a connected socket in a thread of its own, and close it."""
        keep_freed_memory()
        self.endpoint = endpoint
        self.number = next(_numbers)
        """Tells the connections of this process apart in its log."""
        self._opened_at = self._heard_at = time.monotonic()
        self._requests = 0
        self._socket = connected
        self._connection = RpcConnection(Role.CLIENT)
        self._pending: dict[int, PendingCall] = {}
        self._state = threading.Lock()
        # Separate from _state: while one thread waits for the socket to accept bytes, the reader must
        # continue, or a peer that waits for us to read would never accept them.
        self._sending = threading.Lock()
        self._lost_because: Cause = ""
        self._silent_timeouts = 0
        self._reader = threading.Thread(target=self._read, name=f"tubemq-reader-{endpoint}", daemon=True)
        self._reader.start()

    @classmethod
    def connect(cls, endpoint: Endpoint, connect_timeout_ms: int, tls: TlsConfig | None = None) -> Self:
        """Open a connection, over TLS with ``tls``; the host name is resolved each time.

        Raises:
            TubeMQConnectionError: the peer could not be reached in time.
            TlsError: the peer speaks no TLS, or its certificate, ours or the versions do not fit.
            OptionError: a file of ``tls`` cannot be used.
        """
        stream = connect(endpoint, connect_timeout_ms, tls)
        try:
            return cls(endpoint, stream)
        except RuntimeError as error:  # no thread is left to read
            stream.close()
            raise TubeMQConnectionError("TUBEMQ_CONNECT_FAILED", endpoint=endpoint, cause=error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether the connection was lost or closed."""
        return bool(self._lost_because)

    @property
    def heard(self) -> bool:
        """Whether the peer has sent a whole frame."""
        return self._connection.frame_count > 0

    @property
    def traffic(self) -> Traffic:
        """What it was used for so far."""
        now = time.monotonic()
        frames = self._connection.frame_count
        return Traffic(self._requests, frames, now - self._opened_at, now - self._heard_at)

    def call(
        self,
        service: ServiceType,
        method: Method,
        request: ProtobufMessage,
        response_type: type[AnyMessage],
        *,
        timeout_ms: int,
        during: str,
        wait: Wait | None = None,
    ) -> AnyMessage:
        """Send a request and wait for its answer.

        Raises:
            TubeMQError: as ``start`` and ``PendingCall.result``.
        """
        pending = self.start(service, method, request, timeout_ms=timeout_ms, during=during, wait=wait)
        return pending.result(response_type, during)

    def start(
        self,
        service: ServiceType,
        method: Method,
        request: ProtobufMessage,
        *,
        timeout_ms: int,
        during: str,
        wait: Wait | None = None,
    ) -> PendingCall:
        """Send a request and return at once; requests of one thread arrive in the order of their calls.

        See ``Channel.start``.
        """
        body = rpc.serialize_message(request)
        pending = PendingCall(self, timeout_ms, wait)
        with self._sending:
            with self._state:
                if self.closed or self._connection.closed:
                    raise lost(self.endpoint, during, self._lost_because or "the peer broke the protocol")
                pending.serial_no = self._connection.send_request(service, method, body, timeout_ms)
                self._pending[pending.serial_no] = pending
                self._requests += 1
                data = self._connection.data_to_send()
            try:
                self._socket.sendall(data)
            except OSError as error:
                self._lose(error)
                # The reader may have been first, and know more: that the peer refused us, for one.
                raise lost(self.endpoint, during, self._lost_because) from error
        return pending

    def forget(self, call: Call) -> None:
        """Drop the answer of a call if it arrives later."""
        with self._state:
            self._connection.forget_request(call.serial_no)
            self._pending.pop(call.serial_no, None)

    def give_up(self, call: Call) -> None:
        """Forget a call that timed out; close the connection when the peer has been silent too often."""
        self.forget(call)
        with self._state:
            self._silent_timeouts += 1
            dead = self._silent_timeouts >= _SILENT_TIMEOUTS
        if dead:
            self._lose(f"{_SILENT_TIMEOUTS} calls in a row were not answered")

    def close(self) -> None:
        """Close the connection, fail the calls in flight, and wait for the reader to end."""
        self._lose("it was closed")
        if self._reader is not threading.current_thread():
            self._reader.join()

    def hang_up(self) -> None:
        """Make the reader close the connection; takes no lock, so a finalizer may call it in any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def close_if_idle(self, limit_s: float) -> None:
        """Close the connection if no call waits for an answer and the peer has been silent for so long."""
        self._lose(f"it was idle for {limit_s:.0f} s", idle_s=limit_s)

    def abandon(self) -> None:
        """Drop the socket without telling the peer: in a forked child it belongs to the parent."""
        self._lost_because = self._lost_because or "it belongs to the parent process"
        self._socket.close()

    def _read(self) -> None:
        try:
            while data := self._receive_bytes():
                self._deliver_answers(data)
            self._lose("the peer closed it")
        except (OSError, TubeMQError) as error:
            self._lose(error)
        except BaseException as error:  # a fault of ours: calls that wait hear of it, and not of a time-out
            self._lose(f"what it received could not be read: {error!r}")
            raise
        finally:
            # Not while another thread sends: the number of a closed socket may belong to a new one.
            with self._sending:
                self._socket.close()

    def _receive_bytes(self) -> bytes:
        while True:
            try:
                return self._socket.recv(_RECEIVE_BYTES)
            except TimeoutError:
                continue

    def _deliver_answers(self, data: bytes) -> None:
        with self._state:
            self._silent_timeouts = 0
            self._heard_at = time.monotonic()
            events = self._connection.receive_data(data)
            answered = [(self._pending.pop(event.serial_no, None), event) for event in events]
        for pending, event in answered:
            if pending is not None and not isinstance(event, rpc.Request):
                pending.settle(event)

    def _lose(self, cause: Cause, *, idle_s: float | None = None) -> None:
        """Mark the connection as lost, wake the reader, and fail the calls in flight.

        With ``idle_s`` only if there are none, and the peer has been silent for so long.
        """
        with self._state:
            if self.closed or (idle_s is not None and not self._is_idle(idle_s)):
                return
            self._lost_because = cause
            orphans = list(self._pending.values())
            self._pending.clear()
        logger.debug("connection %d to %s ended: %s (%s)", self.number, self.endpoint, cause, self.traffic)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for pending in orphans:
            pending.settle(cause)

    def _is_idle(self, seconds: float) -> bool:
        return not self._pending and time.monotonic() - self._heard_at >= seconds
