"""A connection to a TubeMQ server, in an event loop.

=========  ==================================================================================================
state      meaning
=========  ==================================================================================================
*shaking*  over TLS, from the first byte until both sides agree; ``agreed`` says so, or why not
*open*     from ``connect``, which returns only when the connection stands
*closed*   by us, by the peer, or by an error; ``lost_because`` says why. It never opens again
=========  ==================================================================================================

Invariants:

- Everything here belongs to the thread of the loop.
- A call leaves flight once: answered, forgotten, given up, or with the connection.
- A request without an answer is forgotten and the connection is kept: TubeMQ's servers silently drop requests
  that waited too long. When several calls in a row timed out without a byte from the peer in between, the
  peer is gone.
- Nothing refers to the receive buffer when the next byte is received: answers are cut out of it.
- A call that was forgotten may still be answered: the answer is dropped when it comes.
- TLS is a ``TlsSession`` between the transport and the buffer, and not asyncio's: that drops what TLS still
  has to say when the two sides do not agree, and the server would not learn why.
"""

import asyncio
import contextlib
import dataclasses
import errno
import itertools
import logging
import os
import ssl
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final, TypeAlias, cast

from google.protobuf.message import Message as ProtobufMessage

from tubemq_spark.errors import TlsError, TubeMQConnectionError, TubeMQError
from tubemq_spark.model import Endpoint
from tubemq_spark.net import addresses
from tubemq_spark.net.addresses import Address
from tubemq_spark.net.call import Call, Cause, lost
from tubemq_spark.net.loop import in_thread
from tubemq_spark.net.memory import keep_freed_memory
from tubemq_spark.net.receive_buffer import ReceiveBuffer
from tubemq_spark.net.retry import Wait
from tubemq_spark.net.tls import TlsConfig
from tubemq_spark.net.tls_errors import handshake_broken_off, handshake_error, refusal
from tubemq_spark.net.tls_probes import answers_in_the_clear
from tubemq_spark.net.tls_session import TlsSession
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.connection import Role, RpcConnection
from tubemq_spark.protocol.constants import Method, ServiceType

logger = logging.getLogger(__name__)

_FLUSH_S: Final = 0.1
"""After so long without a byte, what has come of a frame may be whole, and laid out in an unusual way."""
_SILENT_TIMEOUTS: Final = 2
_ENCRYPTED_BYTES: Final = 1 << 18
"""Of TLS, so much is received at once."""

_numbers: Final = itertools.count(1)

LookUp: TypeAlias = Callable[[Endpoint], Awaitable[list[Address]]]
"""Returns the addresses behind a name, in the order to try them."""


class PendingCall(Call):
    """A call in flight on a connection; ``await`` it, and then ask for its ``body``."""

    def __init__(self, connection: "Connection", timeout_ms: int) -> None:
        self._loop = asyncio.get_running_loop()
        super().__init__(connection, timeout_ms, clock=self._loop.time)
        self._settled = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def done(self) -> bool:
        """Whether the answer has arrived, or the connection was lost."""
        return self._settled

    def __await__(self) -> Generator[Any, None, None]:
        """Wait until it is done, or its time is over; forget it when the wait is cancelled."""
        if self._settled:
            return
        waiter = self._waiter = self._loop.create_future()
        timer = self._loop.call_at(self._deadline.at, self._wake)
        try:
            yield from waiter
        except BaseException:
            self.forget()
            raise
        finally:
            timer.cancel()
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _mark_done(self) -> None:
        self._settled = True
        self._wake()

    def _wait_at_most(self, seconds: float) -> bool:  # noqa: ARG002 (it was awaited before)
        return self._settled


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


class Connection(asyncio.BufferedProtocol):
    """A connection to a peer; ``connect`` opens one."""

    def __init__(
        self,
        endpoint: Endpoint,
        silent_timeouts: int = _SILENT_TIMEOUTS,
        tls: TlsConfig | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """Begin without a transport, which calls ``connection_made``.

        Args:
            endpoint: the peer.
            silent_timeouts: after so many calls in a row that timed out the peer counts as gone.
            tls: how TLS is spoken; None: it is not.
            context: that of ``tls``.
        """
        keep_freed_memory()
        self.endpoint = endpoint
        self.tls = tls
        self.number = next(_numbers)
        """Tells the connections of this process apart in its log."""
        self.lost_because: Cause = ""
        self.ended = asyncio.Event()
        """Set when the socket is closed."""
        self._loop = asyncio.get_running_loop()
        self._tls: TlsSession | None = None
        if tls is not None and context is not None:
            self._tls = TlsSession(context, name=tls.name_of(endpoint.host))
            self._encrypted = memoryview(bytearray(_ENCRYPTED_BYTES))
            self.agreed: asyncio.Future[None] = self._loop.create_future()
            """Of TLS: done when both sides agree; its error is what was in the way."""
            # Who connects may have been cancelled.
            self.agreed.add_done_callback(lambda agreed: agreed.cancelled() or agreed.exception())
        self._opened_at = self._heard_at = self._loop.time()
        self._requests = 0
        self._rpc = RpcConnection(Role.CLIENT)
        self._buffer = ReceiveBuffer()
        self._calls: dict[int, Call] = {}
        self._transport: asyncio.Transport
        self._flush_timer: asyncio.TimerHandle | None = None
        self._most_silent_timeouts = silent_timeouts
        self._silent_timeouts = 0

    @property
    def closed(self) -> bool:
        """Whether the connection was lost or closed."""
        return bool(self.lost_because)

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
    def traffic(self) -> Traffic:
        """What it was used for so far."""
        now = self._loop.time()
        frames = self._rpc.frame_count
        return Traffic(self._requests, frames, now - self._opened_at, now - self._heard_at)

    def start(
        self,
        service: ServiceType,
        method: Method,
        request: ProtobufMessage,
        *,
        timeout_ms: int,
        during: str,
        wait: Wait | None = None,  # noqa: ARG002 (the task that awaits the call is cancelled instead)
    ) -> PendingCall:
        """Send a request and return at once; see ``Channel.start``."""
        call = PendingCall(self, timeout_ms)
        self.send(call, service, method, rpc.serialize_message(request), timeout_ms, during)
        return call

    def send(
        self, call: Call, service: ServiceType, method: Method, body: bytes, timeout_ms: int, during: str
    ) -> None:
        """Send the request of a call.

        Raises:
            TubeMQError: as ``Channel.start``.
        """
        if self.closed:
            raise lost(self.endpoint, during, self.lost_because)
        call.serial_no = self._rpc.send_request(service, method, body, timeout_ms)
        self._calls[call.serial_no] = call
        self._requests += 1
        data = self._rpc.data_to_send()
        self._transport.write(data if self._tls is None else self._tls.encrypt(data))

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

    def close(self, because: str = "it was closed") -> None:
        """Close the connection, and fail the calls in flight; ``ended`` is set when the socket is closed."""
        self._lose(because)

    def close_soon(self) -> None:
        """Close the connection from any thread, as soon as its loop runs."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, and its sockets are collected
            self._loop.call_soon_threadsafe(self.close)

    def abandon(self) -> None:
        """Drop the socket without telling the peer: in a forked child it belongs to the parent."""
        self.lost_because = self.lost_because or "it belongs to the parent process"
        connected = self._transport.get_extra_info("socket")
        with contextlib.suppress(OSError), open(os.devnull, "rb") as nothing:  # noqa: PTH123 (a descriptor)
            # The number stays taken, so that what closes it later closes nothing else.
            os.dup2(nothing.fileno(), connected.fileno())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Use a transport."""
        self._transport = cast("asyncio.Transport", transport)
        if self._tls is not None:
            self._transport.write(self._tls.handshake(b""))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return where the next bytes belong."""
        return self._buffer.room if self._tls is None else self._encrypted

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes that were received."""
        self._heard_at = self._loop.time()
        self._silent_timeouts = 0
        if self._tls is None:
            self._take(nbytes)
        elif self._tls.established:
            self._decrypt(self._tls, bytes(self._encrypted[:nbytes]))
        else:
            self._shake_hands(self._tls, bytes(self._encrypted[:nbytes]))

    def _take(self, count: int) -> None:
        """Take bytes that are in the buffer."""
        data = self._buffer.add(count)
        if data is not None:
            self._deliver(data)
        elif self._flush_timer is None:
            self._flush_timer = self._loop.call_later(_FLUSH_S, self._flush)

    def eof_received(self) -> None:
        """Close the connection: the peer has."""
        self._lose("the peer closed it")

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the socket is closed."""
        self._lose(self._cause_of(exc))
        self.ended.set()

    def _shake_hands(self, tls: TlsSession, received: bytes) -> None:
        try:
            self._transport.write(tls.handshake(received))
        except ssl.SSLError as error:
            self._transport.write(tls.last_words())
            self._lose(error)
            return
        if tls.established and not self.agreed.done():
            self.agreed.set_result(None)
            # The peer's first bytes may have come with the last ones of its handshake.
            self._decrypt(tls, b"")

    def _decrypt(self, tls: TlsSession, received: bytes) -> None:
        try:
            plain = memoryview(tls.decrypt(received))
        except ssl.SSLError as error:
            self._lose(self._cause_of(error))
            return
        while plain and not self.closed:
            room = self._buffer.room
            part = plain[: len(room)]
            room[: len(part)] = part
            self._take(len(part))
            plain = plain[len(part) :]
        if tls.ended:
            self._lose("the peer closed it")

    def _cause_of(self, error: Exception | None) -> Cause:
        if isinstance(error, ssl.SSLError) and self.tls is not None:
            return refusal(error, self.endpoint, self.tls) or error
        if isinstance(error, OSError | TubeMQError):
            return error
        return "the peer closed it" if error is None else f"what it received could not be read: {error!r}"

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

    def _lose(self, cause: Cause) -> None:
        if self.closed:
            return
        self.lost_because = cause
        logger.debug("connection %d to %s ended: %s (%s)", self.number, self.endpoint, cause, self.traffic)
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        if self._tls is not None:
            self._end_tls(self._tls, cause)
        if self._transport.get_write_buffer_size():
            self._transport.abort()  # a peer that takes nothing would keep it open
        else:
            self._transport.close()
        calls = list(self._calls.values())
        self._calls.clear()
        for call in calls:
            call.settle(cause)

    def _end_tls(self, tls: TlsSession, cause: Cause) -> None:
        if tls.established:
            self._transport.write(tls.goodbye())
        elif not self.agreed.done():
            closed = ConnectionResetError("the peer closed it during the TLS handshake")
            self.agreed.set_exception(cause if isinstance(cause, OSError) else closed)


async def look_up(endpoint: Endpoint) -> list[Address]:
    """Return the addresses behind a name; see ``addresses_of``.

    A resolver that hangs holds up its caller alone.
    """
    if addresses.is_address(endpoint.host):
        return addresses.addresses_of(endpoint)
    return await in_thread(lambda: addresses.addresses_of(endpoint), f"tubemq-look-up-{endpoint.host}")


async def connect(
    endpoint: Endpoint,
    timeout_ms: float,
    tls: TlsConfig | None = None,
    *,
    look_up: LookUp = look_up,
    silent_timeouts: int = _SILENT_TIMEOUTS,
) -> Connection:
    """Open a connection, over TLS with ``tls``; the host name is resolved each time.

    Raises:
        TubeMQConnectionError: the peer could not be reached in time.
        TlsError: the peer speaks no TLS, or its certificate, ours or the versions do not fit.
        OptionError: a file of ``tls`` cannot be used.
    """
    ends_at = asyncio.get_running_loop().time() + timeout_ms / 1000
    try:
        async with asyncio.timeout_at(ends_at):
            candidates = await look_up(endpoint)
            context = None
            if tls is not None:
                # Before there is a peer whose bytes would have to wait.
                context = await in_thread(tls.context, f"tubemq-tls-{endpoint.host}")
            connection = await _first_that_answers(
                lambda: Connection(endpoint, silent_timeouts, tls, context), endpoint, candidates, ends_at
            )
    except (OSError, RuntimeError) as error:  # RuntimeError: no thread is left to resolve the name
        raise TubeMQConnectionError(
            "TUBEMQ_CONNECT_FAILED", endpoint=endpoint, cause=_words_of(error)
        ) from error
    if tls is not None:
        await _agree(connection, tls, ends_at)
    return connection


def _words_of(error: Exception) -> object:
    if isinstance(error, TimeoutError):
        return "timed out"
    # asyncio's text has the address in it instead of what is wrong with it.
    number = error.errno if isinstance(error, OSError) else None
    return error if number not in errno.errorcode else f"[Errno {number}] {os.strerror(number or 0)}"


async def _first_that_answers(
    protocol: Callable[[], Connection], endpoint: Endpoint, candidates: list[Address], ends_at: float
) -> Connection:
    """Connect to the first address that takes it; each has an equal part of the time that is left."""
    loop = asyncio.get_running_loop()
    last_error: OSError = OSError("the name has no address")
    for left, (family, _, number, address) in zip(range(len(candidates), 0, -1), candidates, strict=True):
        host, port, *_ = address
        try:
            async with asyncio.timeout((ends_at - loop.time()) / left):
                transport, connection = await loop.create_connection(
                    protocol, host, port, family=family, proto=number
                )
        except OSError as error:
            last_error = error
        else:
            addresses.note_reached(endpoint, transport.get_extra_info("socket"))
            return connection
    raise last_error


async def _agree(connection: Connection, tls: TlsConfig, ends_at: float) -> None:
    """Wait until a server that was reached agrees on TLS.

    Raises:
        TlsError: the peer speaks no TLS, or its certificate, ours or the versions do not fit.
        TubeMQConnectionError: there was no answer in time, or the connection ended.
    """
    try:
        async with asyncio.timeout_at(ends_at):
            await connection.agreed
    except OSError as error:
        connection.close()
        raise await _why(error, connection.endpoint, tls) from error
    except BaseException:
        connection.close()
        raise


async def _why(error: OSError, endpoint: Endpoint, tls: TlsConfig) -> TubeMQConnectionError:
    if isinstance(error, ssl.SSLError):
        return handshake_error(error, endpoint, tls)
    with contextlib.suppress(RuntimeError):  # no thread is left
        if await in_thread(lambda: answers_in_the_clear(endpoint), f"tubemq-tls-{endpoint.host}"):
            return TlsError("TUBEMQ_TLS_NOT_SPOKEN", endpoint=endpoint, cause="it answers without it")
    what = "no answer in time" if isinstance(error, TimeoutError) else str(error)
    return handshake_broken_off(what, endpoint)
