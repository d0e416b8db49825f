"""TLS on one connection: the state without its socket, and a stream over a blocking socket.

``TlsSession`` turns what the socket brings into plain bytes and the reverse, and never waits: whether the
socket blocks or is driven by a selector is its owner's business. OpenSSL's object must not be used by two
threads at once, so a lock guards it. It is held during encryption, never during a wait for the socket.

**Who writes.** Only ``encrypt`` hands out bytes to send once the handshake is over. What TLS itself
wants to send (its answer to a new key) leaves with the next bytes of the owner, as the protocol allows. So a
reader never writes, and cannot wait for a peer that waits for it.
"""

import contextlib
import socket
import ssl
import threading
from typing import Final, Self

from tubemq_spark.errors import TlsError, TubeMQConnectionError, TubeMQError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.tls import TlsConfig
from tubemq_spark.net.tls_errors import handshake_broken_off, handshake_error, refusal
from tubemq_spark.net.tls_probes import answers_in_the_clear

_RECORD_BYTES: Final = 1 << 14
"""No record is longer, and a read returns one at most."""
_RECEIVE_BYTES: Final = 1 << 16
_SOON_S: Final = 0.001
"""Instead of 0, which would mean something else to a socket."""


class TlsSession:
    """One side of TLS on one connection. One thread may encrypt while another decrypts."""

    def __init__(
        self, context: ssl.SSLContext, *, server_side: bool = False, name: str | None = None
    ) -> None:
        """Begin; a client gives the ``name`` that the server's certificate must have."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=name
        )
        self._lock = threading.Lock()
        self.established = False
        """Whether the handshake is over."""
        self.ended = False
        """Whether the peer said that nothing follows."""

    def handshake(self, received: bytes) -> bytes:
        """Take bytes of the peer and return those to send; see ``established``.

        Raises:
            ssl.SSLError: TLS cannot be agreed on; ``last_words`` has what the peer should still be told.
        """
        with self._lock:
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
        with self._lock:
            self._tls.write(data)
            return self._outgoing.read()

    def decrypt(self, received: bytes) -> bytes:
        """Take bytes of the peer and return all plain bytes that are complete now; maybe none.

        Raises:
            ssl.SSLError: the bytes are not of this session, or the peer says that it refuses us.
        """
        with self._lock:
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
        with self._lock, contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()
        return self._outgoing.read()


class TlsSocket:
    """A connected socket whose bytes are encrypted; has those methods of a socket that channels use."""

    def __init__(
        self, connected: socket.socket, session: TlsSession, server: tuple[Endpoint, TlsConfig] | None = None
    ) -> None:
        """Take a socket with an established session; a client gives the server, for the text of errors."""
        self._socket = connected
        self._session = session
        self._server = server
        self._sending = threading.Lock()
        # The peer's first bytes may have come with the last ones of its handshake.
        self._ready = session.decrypt(b"")

    @property
    def raw(self) -> socket.socket:
        """The socket below, for its time-out; its bytes are encrypted."""
        return self._socket

    @classmethod
    def connect(
        cls, connected: socket.socket, endpoint: Endpoint, config: TlsConfig, deadline: Deadline
    ) -> Self:
        """Shake hands with the server at the other end; the socket is closed when that fails.

        Raises:
            OptionError: a file of the settings cannot be used.
            TlsError: the peer speaks no TLS, or its certificate, ours or the versions do not fit.
            TubeMQConnectionError: there was no answer in time, or the connection ended.
        """
        try:
            session = TlsSession(config.context(), name=config.name_of(endpoint.host))
            _shake_hands(connected, session, deadline)
            return cls(connected, session, (endpoint, config))
        except BaseException as error:
            connected.close()
            if isinstance(error, TubeMQError) or not isinstance(error, OSError):
                raise
            raise _why(error, endpoint, config) from error

    def recv(self, size: int) -> bytes:
        """Wait for plain bytes; none: the peer closed the connection.

        Raises:
            TlsError: the server refuses us.
            OSError: as ``socket.recv``.
        """
        if self._ready:
            ready, self._ready = self._ready, b""
            return ready
        while not self._session.ended:
            data = self._socket.recv(size)
            if not data:
                break
            try:
                plain = self._session.decrypt(data)
            except ssl.SSLError as error:
                refused = self._server and refusal(error, *self._server)
                if not refused:
                    raise
                raise refused from error
            if plain:
                return plain
        return b""

    def recv_into(self, buffer: memoryview) -> int:
        """Wait for plain bytes and put them into a buffer, which is not empty; return how many there are.

        Raises:
            TubeMQError: as ``recv``.
            OSError: as ``recv``.
        """
        data = self.recv(len(buffer))
        taken = data[: len(buffer)]
        self._ready = data[len(buffer) :]
        buffer[: len(taken)] = taken
        return len(taken)

    def sendall(self, data: bytes) -> None:
        """Send plain bytes.

        Raises:
            OSError: as ``socket.sendall``.
        """
        # The reader finds out why the peer is gone: an alert may have come that says so.
        with self._sending, contextlib.suppress(ConnectionResetError, BrokenPipeError):
            self._socket.sendall(self._session.encrypt(data))

    def shutdown(self, how: int) -> None:
        """End the connection, or only reading; of an end in both directions the peer is told if it can be."""
        if how == socket.SHUT_RDWR and self._sending.acquire(blocking=False):
            try:
                with contextlib.suppress(OSError):
                    self._socket.send(self._session.goodbye(), socket.MSG_DONTWAIT)
            finally:
                self._sending.release()
        self._socket.shutdown(how)

    def close(self) -> None:
        """Close the socket without a word: in a forked child the session belongs to the parent."""
        self._socket.close()


def _shake_hands(connected: socket.socket, session: TlsSession, deadline: Deadline) -> None:
    """Exchange what has to be exchanged before the first byte of the owner.

    Raises:
        OSError: TLS cannot be agreed on, the peer is gone, or the time is over.
    """
    received = b""
    while True:
        try:
            answer = session.handshake(received)
        except ssl.SSLError:
            with contextlib.suppress(OSError):
                connected.sendall(session.last_words())
            raise
        if answer:
            connected.sendall(answer)
        if session.established:
            return
        if deadline.expired:
            raise TimeoutError("no answer in time")
        connected.settimeout(deadline.remaining() or _SOON_S)
        received = connected.recv(_RECEIVE_BYTES)
        if not received:
            raise ConnectionResetError("the peer closed it during the TLS handshake")


def _why(error: OSError, endpoint: Endpoint, config: TlsConfig) -> TubeMQConnectionError:
    if isinstance(error, ssl.SSLError):
        return handshake_error(error, endpoint, config)
    if answers_in_the_clear(endpoint):
        return TlsError("TUBEMQ_TLS_NOT_SPOKEN", endpoint=endpoint, cause="it answers without it")
    what = "no answer in time" if isinstance(error, TimeoutError) else str(error)
    return handshake_broken_off(what, endpoint)
