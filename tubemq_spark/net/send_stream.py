"""The connections of a sender in an event loop.

``Connection`` serves calls that wait for their answer; a ``SendStream`` serves a sender that keeps hundreds
of requests in flight. It moves bytes only: what they mean, and what to do when a connection is lost, is the
owner's business.

============  ===============================================================================================
state         meaning
============  ===============================================================================================
*connecting*  from ``connect``: the name is looked up, its addresses are tried in turn, TLS is agreed on
*open*        until it ends; ``writable`` whenever the socket has taken everything that was written
*closed*      by its owner, which is told of nothing more; or it was lost, which its owner is told once
============  ===============================================================================================

Invariants:

- Everything here belongs to the thread of the loop, and the owner is called by the loop alone: never inside
  ``connect``, ``write``, ``close`` or ``fail``.
- What the peer sent before the connection broke is handed over before the loss is: it may hold answers.
- ``untouched`` is true only when it is certain.
"""

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from typing import Final, Protocol

from tubemq_spark.errors import OptionError, TubeMQConnectionError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.byte_connection import ByteConnection, Cause, LookUp, look_up, lost, reach
from tubemq_spark.net.tls import TlsConfig

_RECEIVE_BYTES: Final = 1 << 16
"""So much is received at once, without TLS."""
_UNSENT_IN_KERNEL_BYTES: Final = 1 << 17
"""The kernel takes no more than about this much ahead of the network. Otherwise it takes megabytes, and on a
slow connection it would not be known when a request left."""
_CLOSE_S: Final = 2.0
"""How long the ends of connections are waited for."""
_DURING: Final = "sending messages"


class StreamOwner(Protocol):
    """What is told of a stream, by the loop."""

    def stream_received(self, stream: "SendStream", data: bytes) -> object:
        """Take what the peer sent."""

    def stream_lost(self, stream: "SendStream", error: TubeMQConnectionError | OptionError) -> object:
        """Note, once, that the connection was lost or not made.

        The error is a TlsError or an OptionError when another attempt would fail as well: the peer and this
        client do not agree on TLS, or a file of its settings cannot be used.
        """

    def stream_writable(self, stream: "SendStream") -> object:
        """Note that it is open now, or that the socket took later what it did not take at once."""


class SendStream:
    """One connection of a sender; ``SendStreams.connect`` makes it."""

    def __init__(self, endpoint: Endpoint, owner: StreamOwner) -> None:
        self.endpoint = endpoint
        self.closed = False
        """Whether it was lost or closed."""
        self.owner = owner
        self.attempt: asyncio.Task[None]
        """The task that connects."""
        self._connection: _StreamConnection | None = None

    @property
    def connecting(self) -> bool:
        """Whether the connection is still being made."""
        return self._connection is None and not self.closed

    @property
    def writable(self) -> bool:
        """Whether ``write`` may be called: it is open, and everything before was taken by the socket."""
        return self._connection is not None and self._connection.takes_more

    @property
    def unsent_bytes(self) -> int:
        """How many bytes given to ``write`` the socket has not taken; 0 once it is closed."""
        return 0 if self.closed or self._connection is None else self._connection.unsent_bytes

    @property
    def untouched(self) -> bool:
        """Whether no byte of what was given to ``write`` last has left; it stays known after the end."""
        return self._connection is not None and self._connection.untouched

    def write(self, data: bytes) -> None:
        """Write what the socket takes now, and the rest when it takes more; see ``writable``."""
        if self._connection is not None:
            self._connection.write(data)

    def report_at(self, count: int) -> None:
        """Report what the peer sends not before ``count`` bytes are there; its end is reported at once.

        Bytes that come one by one wake the loop only once that way. It must not wait for bytes that may
        never come: set 1 to have all that is there.
        """
        if self._connection is not None:
            self._connection.report_at(count)

    def close(self) -> None:
        """Close it at once, and tell the owner nothing; bytes that the socket has not taken are dropped."""
        if self.closed:
            return
        self.closed = True
        if self._connection is None:
            self.attempt.cancel()
        else:
            self._connection.close()

    def fail(self, cause: str) -> TubeMQConnectionError:
        """Close it, and return the error that says why."""
        condition = "TUBEMQ_CONNECT_FAILED" if self._connection is None else "TUBEMQ_CONNECTION_LOST"
        self.close()
        return TubeMQConnectionError(condition, endpoint=self.endpoint, cause=cause, during=_DURING)

    def stand_on(self, connection: "_StreamConnection") -> None:
        """Use a connection that was made."""
        self._connection = connection
        if connection.closed:
            self.report_end_of(connection)
        else:
            self.report_writable()

    def report_writable(self) -> None:
        """Tell the owner that it may write, if that is so."""
        if self.writable:
            self.owner.stream_writable(self)

    def report_lost(self, error: TubeMQConnectionError | OptionError) -> None:
        """Tell the owner that there is no connection."""
        if not self.closed:
            self.closed = True
            self.owner.stream_lost(self, error)

    def report_end_of(self, connection: "_StreamConnection") -> None:
        """Tell the owner that the connection is lost, if this one is used by now."""
        if connection is self._connection:
            self.report_lost(lost(self.endpoint, _DURING, connection.lost_because))


class SendStreams:
    """The streams of one sender."""

    def __init__(self, connect_timeout_ms: int, tls: TlsConfig | None, look_up: LookUp = look_up) -> None:
        """Begin without streams, in any thread."""
        self._connect_timeout_ms = connect_timeout_ms
        self._tls = tls
        self._look_up = look_up
        self._attempts: dict[asyncio.Task[None], SendStream] = {}
        self._connections: set[_StreamConnection] = set()
        self._received = memoryview(bytearray(_RECEIVE_BYTES))

    def connect(self, endpoint: Endpoint, owner: StreamOwner) -> SendStream:
        """Begin to connect, and return at once."""
        stream = SendStream(endpoint, owner)
        stream.attempt = asyncio.create_task(self._connect(stream))
        self._attempts[stream.attempt] = stream
        stream.attempt.add_done_callback(self._attempts.pop)
        return stream

    async def close(self) -> None:
        """Close all streams, and wait until their sockets are closed."""
        attempts = list(self._attempts)
        for stream in self._attempts.values():
            stream.close()
        for connection in list(self._connections):
            connection.stream.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await asyncio.gather(*attempts, return_exceptions=True)
                for connection in list(self._connections):
                    await connection.ended.wait()

    def abandon(self) -> None:
        """Drop the sockets in a forked child, and tell the peers nothing: they belong to the parent."""
        for stream in self._attempts.values():
            stream.closed = True
        for connection in self._connections:
            connection.stream.closed = True
            connection.abandon()
        self._connections.clear()

    async def _connect(self, stream: SendStream) -> None:
        ends_at = asyncio.get_running_loop().time() + self._connect_timeout_ms / 1000
        endpoint = stream.endpoint
        try:
            # Also when what is in the way of TLS is looked for.
            async with asyncio.timeout_at(ends_at):
                connection = await reach(
                    lambda context: _StreamConnection(
                        self._connections, self._received, stream, self._tls, context
                    ),
                    endpoint,
                    ends_at,
                    self._tls,
                    self._look_up,
                )
        except (TubeMQConnectionError, OptionError) as error:
            stream.report_lost(error)
        except (OSError, RuntimeError, ValueError) as error:  # no thread is left; the host can be no name
            failed = TubeMQConnectionError(
                "TUBEMQ_CONNECT_FAILED", endpoint=endpoint, cause=self._words_of(error)
            )
            failed.__cause__ = error
            stream.report_lost(failed)
        else:
            stream.stand_on(connection)

    def _words_of(self, error: Exception) -> str:
        number = error.errno if isinstance(error, OSError) else None
        if number in errno.errorcode:
            # asyncio's text has the address in it instead of what is wrong with it.
            return os.strerror(number or 0)
        if isinstance(error, TimeoutError):
            return f"no connection within {self._connect_timeout_ms:.0f} ms"
        return str(error)


class _StreamConnection(ByteConnection):
    """What a stream stands on, once an address took the connection."""

    def __init__(
        self,
        connections: "set[_StreamConnection]",
        received: memoryview,
        stream: SendStream,
        tls: TlsConfig | None,
        context: ssl.SSLContext | None,
    ) -> None:
        """Begin without a transport; stand among the others as long as there is a socket."""
        super().__init__(stream.endpoint, tls, context)
        self.stream = stream
        self._connections = connections
        self._received = received
        self._last_size = 0
        self._untouched_at_end = False
        self._report_at = 1

    @property
    def takes_more(self) -> bool:
        return not (self._transport.is_closing() or self._transport.get_write_buffer_size())

    @property
    def unsent_bytes(self) -> int:
        # What broke has dropped them, and this will be told soon.
        return self._last_size if self._transport.is_closing() else self._transport.get_write_buffer_size()

    @property
    def untouched(self) -> bool:
        if self._transport.is_closing():
            return self._untouched_at_end
        return 0 < self._last_size == self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        data = data if self._tls is None else self._tls.encrypt(data)
        self._last_size = len(data)
        self._transport.write(data)
        # Nothing waited, so either the socket took a part of it, or all of it waits, or the connection broke.
        self._untouched_at_end = self._transport.is_closing()

    def report_at(self, count: int) -> None:
        if count == self._report_at or self._tls is not None:
            # Over TLS, a part of a record, already read, may be what ``count`` is waiting for.
            return
        self._report_at = count
        with contextlib.suppress(OSError):  # a system without such a mark reports every byte
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._transport.set_write_buffer_limits(0)
        self._connections.add(self)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_IN_KERNEL_BYTES)

    def resume_writing(self) -> None:
        # The transport is not prepared for being closed in here.
        self._loop.call_soon(self.stream.report_writable)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed:
            self._drain()
        super().connection_lost(exc)
        self._connections.discard(self)

    def _drain(self) -> None:
        """Receive what the peer sent before a write failed: the transport has stopped receiving."""
        descriptor = self.socket.fileno()
        if descriptor < 0:  # a simulation has none
            return
        with contextlib.suppress(OSError):  # nothing more is there
            while not self.closed and (count := os.readv(descriptor, [self.get_buffer(-1)])):
                self.buffer_updated(count)

    def _room(self) -> memoryview:
        return self._received

    def _take(self, count: int) -> None:
        if not self.stream.closed:
            self.stream.owner.stream_received(self.stream, bytes(self._received[:count]))

    def _lose(self, cause: Cause) -> None:
        if not self._transport.is_closing():
            self._untouched_at_end = self.untouched
        super()._lose(cause)

    def _when_lost(self, cause: Cause) -> None:  # noqa: ARG002 (``lost_because`` has it)
        self.stream.report_end_of(self)
