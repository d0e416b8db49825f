"""What every connection of an event loop is made of: a transport, TLS, and an end.

=========  ==================================================================================================
state      meaning
=========  ==================================================================================================
*shaking*  over TLS, from the first byte until both sides agree; ``agreed`` says so, or why not
*open*     from ``reach``, which returns only when the connection stands
*closed*   by us, by the peer, or by an error; ``lost_because`` says why. It never opens again
=========  ==================================================================================================

Everything here belongs to the thread of the loop. TLS is a ``TlsSession`` between the transport and what the
bytes are for, and not asyncio's: that drops what TLS still has to say when the two sides do not agree, and
the server would not learn why.

Only ``TlsSession.encrypt`` hands out bytes to send once the handshake is over. What TLS itself wants to send
(its answer to a new key) leaves with the next bytes of the owner, as the protocol allows. So a reader never
writes, and cannot wait for a peer that waits for it.
"""

import abc
import asyncio
import contextlib
import os
import ssl
from asyncio.trsock import TransportSocket
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias, TypeVar, cast

from tubemq_spark.errors import TlsError, TubeMQConnectionError, TubeMQError
from tubemq_spark.model import Endpoint
from tubemq_spark.net import addresses
from tubemq_spark.net.addresses import Address
from tubemq_spark.net.loop import in_thread
from tubemq_spark.net.tls import TlsConfig, certificate_name
from tubemq_spark.net.tls_errors import answers_in_the_clear, handshake_broken_off, handshake_error, refusal

_RECORD_BYTES: Final = 1 << 14
"""No record is longer, and a read returns one at most."""
_ENCRYPTED_BYTES: Final = 1 << 18
"""Of TLS, so much is received at once."""

Cause = str | OSError | TubeMQError
"""Why a connection was lost; an error also becomes the ``__cause__`` of the errors its calls raise."""

LookUp: TypeAlias = Callable[[Endpoint], Awaitable[list[Address]]]
"""Returns the addresses behind a name, in the order to try them."""

AnyConnection = TypeVar("AnyConnection", bound="ByteConnection")


class TlsSession:
    """A client's side of TLS on one connection, without its socket: bytes in, bytes out.

    OpenSSL's object must not be used by two threads at once: it belongs to its owner's event loop.
    """

    def __init__(self, context: ssl.SSLContext, name: str) -> None:
        """Begin; ``name`` is what the server's certificate must have."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)
        self.established = False
        """Whether the handshake is over."""
        self.ended = False
        """Whether the peer said that nothing follows."""

    def handshake(self, received: bytes) -> bytes:
        """Take bytes of the peer and return those to send; see ``established``.

        An ``ssl.SSLError`` says why TLS cannot be agreed on; ``last_words`` has what the peer should still be
        told.
        """
        self._incoming.write(received)
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
            self.established = True
        return self._outgoing.read()

    def last_words(self) -> bytes:
        """Return what TLS has left to send: an alert after a failed handshake."""
        return self._outgoing.read()

    def encrypt(self, data: bytes) -> bytes:
        """Return what to send for these bytes."""
        self._tls.write(data)
        return self._outgoing.read()

    def decrypt(self, received: bytes) -> bytes:
        """Take bytes of the peer and return all plain bytes that are complete now; maybe none."""
        self._incoming.write(received)
        plain = []
        try:
            while data := self._tls.read(_RECORD_BYTES):
                plain.append(data)
            self.ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            if not plain:
                raise
            # What came before is handed out first; OpenSSL repeats the error the next time.
        return plain[0] if len(plain) == 1 else b"".join(plain)

    def goodbye(self) -> bytes:
        """Return the words that end the session for the peer."""
        with contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()
        return self._outgoing.read()


class ByteConnection(asyncio.BufferedProtocol, abc.ABC):
    """A connection that moves bytes to and from a peer; ``reach`` opens one."""

    def __init__(
        self, endpoint: Endpoint, tls: TlsConfig | None = None, context: ssl.SSLContext | None = None
    ) -> None:
        """Begin without a transport, which calls ``connection_made``; ``context`` is that of ``tls``."""
        self.endpoint = endpoint
        self.tls = tls
        self.lost_because: Cause = ""
        self.ended = asyncio.Event()
        """Set when the socket is closed."""
        self._loop = asyncio.get_running_loop()
        self._tls: TlsSession | None = None
        if tls is not None and context is not None:
            self._tls = TlsSession(context, certificate_name(tls, endpoint.host))
            self._encrypted = memoryview(bytearray(_ENCRYPTED_BYTES))
            self.agreed: asyncio.Future[None] = self._loop.create_future()
            """Of TLS: done when both sides agree; its error is what was in the way."""
            # Who connects may have been cancelled.
            self.agreed.add_done_callback(lambda agreed: agreed.cancelled() or agreed.exception())
        self._transport: asyncio.Transport

    @property
    def closed(self) -> bool:
        """Whether the connection was lost or closed."""
        return bool(self.lost_because)

    @property
    def socket(self) -> TransportSocket:
        """The socket, whose descriptor and options may be used."""
        return cast("TransportSocket", self._transport.get_extra_info("socket"))

    def close(self, because: str = "it was closed") -> None:
        """Close the connection; ``ended`` is set when the socket is closed."""
        self._lose(because)

    def abandon(self) -> None:
        """Drop the socket without telling the peer: in a forked child it belongs to the parent."""
        self.lost_because = self.lost_because or "it belongs to the parent process"
        with contextlib.suppress(OSError), open(os.devnull, "rb") as nothing:  # noqa: PTH123 (a descriptor)
            # The number stays taken, so that what closes it later closes nothing else.
            os.dup2(nothing.fileno(), self.socket.fileno())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Use a transport."""
        self._transport = cast("asyncio.Transport", transport)
        if self._tls is not None:
            self._transport.write(self._tls.handshake(b""))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return where the next bytes belong."""
        return self._room() if self._tls is None else self._encrypted

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes that were received."""
        if self._tls is None:
            self._take(nbytes)
        elif self._tls.established:
            self._decrypt(self._tls, bytes(self._encrypted[:nbytes]))
        else:
            self._shake_hands(self._tls, bytes(self._encrypted[:nbytes]))

    def eof_received(self) -> None:
        """Close the connection: the peer has."""
        self._lose("the peer closed it")

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the socket is closed."""
        self._lose(self._cause_of(exc))
        self.ended.set()

    @abc.abstractmethod
    def _room(self) -> memoryview:
        """Return where the next plain bytes belong."""

    @abc.abstractmethod
    def _take(self, count: int) -> None:
        """Take plain bytes that are where ``_room`` said."""

    @abc.abstractmethod
    def _when_lost(self, cause: Cause) -> None:
        """Do what is to be done once, when the connection was lost or closed."""

    def _write(self, data: bytes) -> None:
        self._transport.write(data if self._tls is None else self._tls.encrypt(data))

    def _lose(self, cause: Cause) -> None:
        if self.closed:
            return
        self.lost_because = cause
        if self._tls is not None:
            self._end_tls(self._tls, cause)
        if self._transport.get_write_buffer_size():
            self._transport.abort()  # a peer that takes nothing would keep it open
        else:
            self._transport.close()
        self._when_lost(cause)

    def _end_tls(self, tls: TlsSession, cause: Cause) -> None:
        if tls.established:
            self._transport.write(tls.goodbye())
        elif not self.agreed.done():
            closed = ConnectionResetError("the peer closed it during the TLS handshake")
            self.agreed.set_exception(cause if isinstance(cause, OSError) else closed)

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
            room = self._room()
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


def lost(endpoint: Endpoint, during: str, cause: Cause) -> TubeMQConnectionError:
    """Return the error of a call whose connection was lost."""
    if isinstance(cause, TlsError):
        return TlsError(cause.condition, **cause.parameters)
    text = str(cause).rstrip(".")
    error = TubeMQConnectionError("TUBEMQ_CONNECTION_LOST", endpoint=endpoint, during=during, cause=text)
    error.__cause__ = None if isinstance(cause, str) else cause
    return error


async def look_up(endpoint: Endpoint) -> list[Address]:
    """Return the addresses behind a name; see ``addresses_of``.

    A resolver that hangs holds up its caller alone.
    """
    if addresses.is_address(endpoint.host):
        return addresses.addresses_of(endpoint)
    return await in_thread(lambda: addresses.addresses_of(endpoint), f"tubemq-look-up-{endpoint.host}")


async def reach(
    make: Callable[[ssl.SSLContext | None], AnyConnection],
    endpoint: Endpoint,
    ends_at: float,
    tls: TlsConfig | None,
    look_up: LookUp,
) -> AnyConnection:
    """Open a connection that is made with the context of ``tls``; the host name is resolved each time.

    The name may need a thread, and none may be left: a RuntimeError.
    """
    async with asyncio.timeout_at(ends_at):
        candidates = await look_up(endpoint)
        context = None
        if tls is not None:
            # Before there is a peer whose bytes would have to wait.
            context = await in_thread(tls.context, f"tubemq-tls-{endpoint.host}")
        connection = await _first_that_answers(lambda: make(context), endpoint, candidates, ends_at)
    if tls is not None:
        await _agree(connection, tls, ends_at)
    return connection


async def _first_that_answers(
    make: Callable[[], AnyConnection], endpoint: Endpoint, candidates: list[Address], ends_at: float
) -> AnyConnection:
    """Connect to the first address that takes it; each has an equal part of the time that is left."""
    loop = asyncio.get_running_loop()
    last_error = OSError("the name has no address")
    for left, address in zip(range(len(candidates), 0, -1), candidates, strict=True):
        connection = make()  # what it raises once a socket is open would leave that open
        try:
            async with asyncio.timeout((ends_at - loop.time()) / left):
                await _connect(connection, address)
        except OSError as error:
            last_error = error
        else:
            addresses.note_reached(endpoint, connection.socket)
            return connection
    raise last_error


async def _connect(connection: ByteConnection, address: Address) -> None:
    family, _, number, (host, port, *_) = address
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: connection, host, port, family=family, proto=number)


async def _agree(connection: ByteConnection, tls: TlsConfig, ends_at: float) -> None:
    """Wait until a server that was reached agrees on TLS."""
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
