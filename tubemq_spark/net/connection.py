"""A connection to a TubeMQ server, in an event loop, and its calls in flight.

Its states are those of ``net/byte_connection.py``. Invariants:

- A call leaves flight once: answered, forgotten, given up, or with the connection.
- A request without an answer is forgotten and the connection is kept: TubeMQ's servers silently drop requests
  that waited too long. When several calls in a row timed out without a byte from the peer in between, the
  peer is gone.
- Nothing refers to the receive buffer when the next byte is received: answers are cut out of it.
- A call that was forgotten may still be answered: the answer is dropped when it comes.
"""

import asyncio
import contextlib
import dataclasses
import errno
import itertools
import logging
import os
import ssl
from collections.abc import Generator
from typing import Any, Final

from google.protobuf.message import Message as ProtobufMessage

from tubemq_spark.errors import (
    RemoteProtocolError,
    RpcError,
    TubeMQConnectionError,
    TubeMQError,
    TubeMQTimeoutError,
)
from tubemq_spark.model import Endpoint
from tubemq_spark.net.byte_connection import ByteConnection, Cause, LookUp, look_up, lost, reach
from tubemq_spark.net.receive_buffer import ReceiveBuffer, keep_freed_memory
from tubemq_spark.net.tls import TlsConfig
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.connection import Role, RpcConnection
from tubemq_spark.protocol.constants import Method, ServiceType, Status
from tubemq_spark.protocol.errcodes import TEMPORARY_EXCEPTIONS


class Call:
    """A call in flight; ``await`` it, and then ask for its answer once, or forget it."""

    def __init__(self, owner: "Connection", timeout_ms: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._owner = owner
        self._timeout_ms = timeout_ms
        self._ends_at = self._loop.time() + timeout_ms / 1000
        self._outcome: rpc.Response | rpc.Failure | Cause | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.serial_no = 0

    @property
    def done(self) -> bool:
        """Whether the answer has arrived, or the connection was lost."""
        return self._outcome is not None

    def __await__(self) -> Generator[Any, None, None]:
        """Wait until it is done, or its time is over; forget it when the wait is cancelled."""
        if self.done:
            return
        waiter = self._waiter = self._loop.create_future()
        timer = self._loop.call_at(self._ends_at, self._wake)
        try:
            yield from waiter
        except BaseException:
            self.forget()
            raise
        finally:
            timer.cancel()
            self._waiter = None

    def body(self, during: str) -> bytes | memoryview:
        """Return the body of the answer that was awaited, the serialised response message."""
        endpoint = self._owner.endpoint
        if self._outcome is None:
            self._owner.give_up(self)
            raise TubeMQTimeoutError(
                "TUBEMQ_TIMEOUT", endpoint=endpoint, timeout_ms=self._timeout_ms, during=during
            )
        if isinstance(self._outcome, rpc.Response):
            return self._outcome.body
        if isinstance(self._outcome, rpc.Failure):
            raise _remote_exception(self._outcome, endpoint, during)
        raise lost(endpoint, during, self._outcome)

    def result(self, response_type: type[rpc.AnyMessage], during: str) -> rpc.AnyMessage:
        """Parse the answer that was awaited."""
        body = self.body(during)
        try:
            return rpc.parse_message(response_type, body)
        except RemoteProtocolError as error:
            raise self.bad_answer(during, error.parameters["what"]) from error

    def bad_answer(self, during: str, what: object) -> RemoteProtocolError:
        """Return the error for an answer that cannot be used; the connection can."""
        endpoint = self._owner.endpoint
        return RemoteProtocolError("TUBEMQ_BAD_ANSWER", endpoint=endpoint, during=during, what=what)

    def forget(self) -> None:
        """Stop waiting; if the answer arrives later, it is dropped."""
        self._owner.forget(self)

    def settle(self, outcome: rpc.Response | rpc.Failure | Cause) -> None:
        """Set the answer, or why there will be none; called once, when the call leaves flight."""
        self._outcome = outcome
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


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


logger = logging.getLogger(__name__)

_FLUSH_S: Final = 0.1
"""After so long without a byte, what has come of a frame may be whole, and laid out in an unusual way."""
_SILENT_TIMEOUTS: Final = 2

_numbers: Final = itertools.count(1)


@dataclasses.dataclass(frozen=True, slots=True)
class ConnectionTraffic:
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


class Connection(ByteConnection):
    """A connection to a peer; ``connect`` opens one.

    After ``silent_timeouts`` calls in a row that timed out the peer counts as gone.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        silent_timeouts: int = _SILENT_TIMEOUTS,
        tls: TlsConfig | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """Begin without a transport, which calls ``connection_made``."""
        keep_freed_memory()
        super().__init__(endpoint, tls, context)
        self.number = next(_numbers)
        """Tells the connections of this process apart in its log."""
        self._opened_at = self._heard_at = self._loop.time()
        self._requests = 0
        self._rpc = RpcConnection(Role.CLIENT)
        self._buffer = ReceiveBuffer()
        self._calls: dict[int, Call] = {}
        self._flush_timer: asyncio.TimerHandle | None = None
        self._most_silent_timeouts = silent_timeouts
        self._silent_timeouts = 0

    @property
    def heard(self) -> bool:
        """Whether the peer has sent a whole frame."""
        return self._rpc.frame_count > 0

    @property
    def in_use(self) -> bool:
        """Whether a call is in flight, or a frame has begun to come."""
        return bool(self._calls) or self._buffer.begun or self._rpc.mid_frame

    @property
    def silent_s(self) -> float:
        """How long ago the peer sent its last byte, or the connection was made."""
        return self._loop.time() - self._heard_at

    @property
    def traffic(self) -> ConnectionTraffic:
        """What it was used for so far."""
        now = self._loop.time()
        frames = self._rpc.frame_count
        return ConnectionTraffic(self._requests, frames, now - self._opened_at, now - self._heard_at)

    def start(
        self, service: ServiceType, method: Method, request: ProtobufMessage, *, timeout_ms: int, during: str
    ) -> Call:
        """Send a request and return at once."""
        body = rpc.serialize_message(request)
        if self.closed:
            raise lost(self.endpoint, during, self.lost_because)
        call = Call(self, timeout_ms)
        call.serial_no = self._rpc.send_request(service, method, body, timeout_ms)
        self._calls[call.serial_no] = call
        self._requests += 1
        self._write(self._rpc.data_to_send())
        return call

    def forget(self, call: Call) -> None:
        """Drop the answer of a call if it arrives later."""
        self._rpc.forget_request(call.serial_no)
        self._calls.pop(call.serial_no, None)

    def give_up(self, call: Call) -> None:
        """Forget a call that timed out; close the connection when the peer has been silent too often."""
        self.forget(call)
        self._silent_timeouts += 1
        if self._silent_timeouts >= self._most_silent_timeouts:
            count = self._silent_timeouts
            self._lose(
                "a call was not answered" if count == 1 else f"{count} calls in a row were not answered"
            )

    def close_soon(self) -> None:
        """Close the connection from any thread, as soon as its loop runs."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, and its sockets are collected
            self._loop.call_soon_threadsafe(self.close)

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes that were received."""
        self._heard_at = self._loop.time()
        self._silent_timeouts = 0
        super().buffer_updated(nbytes)

    def _room(self) -> memoryview:
        return self._buffer.room

    def _take(self, count: int) -> None:
        data = self._buffer.add(count)
        if data is not None:
            self._deliver(data)
        elif self._flush_timer is None:
            self._flush_timer = self._loop.call_later(_FLUSH_S, self._flush)

    def _flush(self) -> None:
        """Deliver what has come of a frame if nothing more comes."""
        self._flush_timer = None
        if self.closed or not self._buffer.begun:
            return
        due = self._heard_at + _FLUSH_S
        if self._loop.time() < due:
            self._flush_timer = self._loop.call_at(due, self._flush)
        elif (data := self._buffer.flush()) is not None:
            self._deliver(data)

    def _deliver(self, data: memoryview) -> None:
        try:
            events = self._rpc.receive_data(data)
        except TubeMQError as error:
            self._lose(error)
            return
        for event in events:
            call = self._calls.pop(event.serial_no, None)
            if call is not None and not isinstance(event, rpc.Request):
                call.settle(event)
        if self._rpc.mid_frame:
            self._buffer.pass_on()

    def _when_lost(self, cause: Cause) -> None:
        logger.debug("connection %d to %s ended: %s (%s)", self.number, self.endpoint, cause, self.traffic)
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        calls = list(self._calls.values())
        self._calls.clear()
        for call in calls:
            call.settle(cause)


async def connect(
    endpoint: Endpoint,
    timeout_ms: float,
    tls: TlsConfig | None = None,
    *,
    look_up: LookUp = look_up,
    silent_timeouts: int = _SILENT_TIMEOUTS,
) -> Connection:
    """Open a connection, over TLS with ``tls``; the host name is resolved each time."""
    ends_at = asyncio.get_running_loop().time() + timeout_ms / 1000
    try:
        return await reach(
            lambda context: Connection(endpoint, silent_timeouts, tls, context),
            endpoint,
            ends_at,
            tls,
            look_up,
        )
    except TubeMQError:
        raise
    except (OSError, RuntimeError) as error:
        raise TubeMQConnectionError(
            "TUBEMQ_CONNECT_FAILED", endpoint=endpoint, cause=_words_of(error)
        ) from error


def _words_of(error: Exception) -> object:
    if isinstance(error, TimeoutError):
        return "timed out"
    # asyncio's text has the address in it instead of what is wrong with it.
    number = error.errno if isinstance(error, OSError) else None
    return error if number not in errno.errorcode else f"[Errno {number}] {os.strerror(number or 0)}"
