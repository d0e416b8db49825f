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
from collections.abc import Callable
from typing import Final, Self, TypeVar

from google.protobuf.message import Message as ProtobufMessage

from tubemq_spark.errors import (
    RemoteProtocolError,
    RpcError,
    TlsError,
    TubeMQConnectionError,
    TubeMQError,
    TubeMQTimeoutError,
)
from tubemq_spark.model import Endpoint
from tubemq_spark.net import addresses
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.memory import keep_freed_memory
from tubemq_spark.net.retry import Wait
from tubemq_spark.net.tls import TlsConfig
from tubemq_spark.net.tls_session import TlsSocket
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.connection import Role, RpcConnection
from tubemq_spark.protocol.constants import Method, ServiceType, Status
from tubemq_spark.protocol.errcodes import TEMPORARY_EXCEPTIONS

logger = logging.getLogger(__name__)

_RECEIVE_BYTES: Final = 1 << 19
"""The answer to a fetch is about as long, so that all of it can be received at once."""
_IO_TIMEOUT_S: Final = 10.0
"""A peer that accepts no byte for so long is gone. (Reading has no limit: an idle channel is fine.)"""
_SILENT_TIMEOUTS: Final = 2
"""The connection is dead after so many calls in a row timed out without a byte from the peer in between."""

_SLICE_S: Final = 0.1
"""How often a wait for an answer checks whether the answer is still wanted."""

_numbers: Final = itertools.count(1)

AnyMessage = TypeVar("AnyMessage", bound=ProtobufMessage)
Cause = str | OSError | TubeMQError
"""Why a connection was lost; an error also becomes the ``__cause__`` of the errors its calls raise."""


class PendingCall:
    """A call in flight; ask for its answer once, or forget it."""

    def __init__(self, channel: "RpcChannel", timeout_ms: int, wait: Wait | None = None) -> None:
        self._channel = channel
        self._wait = wait
        self._timeout_ms = timeout_ms
        self._deadline = Deadline.after_ms(timeout_ms)
        # A lock that is held until then: an event is several times as much work for every call.
        self._unsettled = threading.Lock()
        self._unsettled.acquire()
        self._outcome: rpc.Response | rpc.Failure | Cause = ""
        # At most one; the thread that pops it calls it, so it is called once.
        self._listeners: list[Callable[[], object]] = []
        self.serial_no = 0

    @property
    def done(self) -> bool:
        """Whether the answer has arrived, or the connection was lost."""
        return not self._unsettled.locked()

    @property
    def remaining_s(self) -> float:
        """For how many seconds the answer may still come; then waiting for it raises an error at once."""
        return self._deadline.remaining()

    def when_done(self, listener: Callable[[], object]) -> None:
        """Call a function once when this is ``done``: the channel's reader does, or this call.

        For callers that must not wait. It must return at once and raise nothing. May be used once.
        """
        self._listeners.append(listener)
        if self.done:
            self._tell()

    def body(self, during: str) -> bytes | memoryview:
        """Wait for the answer and return its body, the serialised response message.

        Raises:
            TubeMQTimeoutError: no answer arrived within the call's time-out, counted from its start.
            TubeMQConnectionError: the connection was lost first.
            RpcError: the peer answered with an exception (``TUBEMQ_REMOTE_EXCEPTION``).
        """
        if not self._wait_for_answer():
            self._channel.give_up(self)
            raise TubeMQTimeoutError(
                "TUBEMQ_TIMEOUT", endpoint=self._channel.endpoint, timeout_ms=self._timeout_ms, during=during
            )
        if isinstance(self._outcome, rpc.Response):
            return self._outcome.body
        if isinstance(self._outcome, rpc.Failure):
            raise _remote_exception(self._outcome, self._channel.endpoint, during)
        raise _lost(self._channel.endpoint, during, self._outcome)

    def result(self, response_type: type[AnyMessage], during: str) -> AnyMessage:
        """Wait for the answer and parse it.

        Raises:
            RemoteProtocolError: the answer is not such a message.
            TubeMQError: as ``body``.
        """
        body = self.body(during)
        try:
            return rpc.parse_message(response_type, body)
        except RemoteProtocolError as error:
            raise self.bad_answer(during, error.parameters["what"]) from error

    def bad_answer(self, during: str, what: object) -> RemoteProtocolError:
        """Return the error for an answer that cannot be used; the connection can."""
        endpoint = self._channel.endpoint
        return RemoteProtocolError("TUBEMQ_BAD_ANSWER", endpoint=endpoint, during=during, what=what)

    def _wait_for_answer(self) -> bool:
        """Wait until the deadline or until ``wait.check`` raises; return whether the call was settled."""
        if self._wait is None:
            return self._wait_at_most(self._deadline.remaining())
        try:
            while not self._wait_at_most(min(_SLICE_S, self._deadline.remaining())):
                if self._deadline.expired:
                    return False
                self._wait.check()
        except BaseException:
            self.forget()
            raise
        return True

    def _wait_at_most(self, seconds: float) -> bool:
        if not self._unsettled.acquire(timeout=seconds):
            return False
        self._unsettled.release()
        return True

    def forget(self) -> None:
        """Stop waiting; if the answer arrives later, it is dropped."""
        self._channel.forget(self)

    def settle(self, outcome: rpc.Response | rpc.Failure | Cause) -> None:
        """Set the answer, or why there will be none; called once, when the call leaves flight."""
        self._outcome = outcome
        self._unsettled.release()
        self._tell()

    def _tell(self) -> None:
        if self._listeners:
            with contextlib.suppress(IndexError):  # the other one was first
                self._listeners.pop()()


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

    def __init__(self, endpoint: Endpoint, connected: socket.socket | TlsSocket) -> None:
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
        deadline = Deadline.after_ms(connect_timeout_ms)
        try:
            connected = addresses.connect(endpoint, connect_timeout_ms / 1000)
        except OSError as error:
            raise TubeMQConnectionError("TUBEMQ_CONNECT_FAILED", endpoint=endpoint, cause=error) from error
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = connected if tls is None else TlsSocket.connect(connected, endpoint, tls, deadline)
        connected.settimeout(_IO_TIMEOUT_S)
        return cls(endpoint, stream)

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

        Args:
            service: the peer's service.
            method: the method.
            request: the request.
            timeout_ms: how long the answer may take.
            during: what is being done, for the text of an error.
            wait: its ``check`` is called several times per second while the answer is awaited; what it raises
                ends that wait.

        Raises:
            TubeMQConnectionError: the connection is lost or closed.
            LocalProtocolError: a required field is not set, the time-out is not positive, or the
                request is longer than a frame can be.
        """
        body = rpc.serialize_message(request)
        pending = PendingCall(self, timeout_ms, wait)
        with self._sending:
            with self._state:
                if self.closed or self._connection.closed:
                    raise _lost(self.endpoint, during, self._lost_because or "the peer broke the protocol")
                pending.serial_no = self._connection.send_request(service, method, body, timeout_ms)
                self._pending[pending.serial_no] = pending
                self._requests += 1
                data = self._connection.data_to_send()
            try:
                self._socket.sendall(data)
            except OSError as error:
                self._lose(error)
                # The reader may have been first, and know more: that the peer refused us, for one.
                raise _lost(self.endpoint, during, self._lost_because) from error
        return pending

    def forget(self, pending: PendingCall) -> None:
        """Drop the answer of a call if it arrives later."""
        with self._state:
            self._connection.forget_request(pending.serial_no)
            self._pending.pop(pending.serial_no, None)

    def give_up(self, pending: PendingCall) -> None:
        """Forget a call that timed out; close the connection when the peer has been silent too often."""
        self.forget(pending)
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


def _lost(endpoint: Endpoint, during: str, cause: Cause) -> TubeMQConnectionError:
    if isinstance(cause, TlsError):
        return TlsError(cause.condition, **cause.parameters)
    text = str(cause).rstrip(".")
    error = TubeMQConnectionError("TUBEMQ_CONNECTION_LOST", endpoint=endpoint, during=during, cause=text)
    error.__cause__ = None if isinstance(cause, str) else cause
    return error


def _remote_exception(failure: rpc.Failure, endpoint: Endpoint, during: str) -> RpcError:
    error = RpcError(
        "TUBEMQ_REMOTE_EXCEPTION",
        peer=endpoint,
        during=during,
        exception=failure.exception_class,
        text=failure.text.strip() or "no text",
    )
    # FATAL means that the peer cannot understand the request: repeating it does not help.
    error.retriable = failure.status is not Status.FATAL or failure.exception_class in TEMPORARY_EXCEPTIONS
    return error
