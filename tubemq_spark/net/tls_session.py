"""TLS on one connection: the state without its socket.

``TlsSession`` turns what the socket brings into plain bytes and the reverse, and never waits: the socket
is its owner's business. OpenSSL's object must not be used by two threads at once: it belongs to its owner's
event loop.

**Who writes.** Only ``encrypt`` hands out bytes to send once the handshake is over. What TLS itself
wants to send (its answer to a new key) leaves with the next bytes of the owner, as the protocol allows. So a
reader never writes, and cannot wait for a peer that waits for it.
"""

import contextlib
import ssl
from typing import Final

_RECORD_BYTES: Final = 1 << 14
"""No record is longer, and a read returns one at most."""


class TlsSession:
    """One side of TLS on one connection."""

    def __init__(
        self, context: ssl.SSLContext, *, server_side: bool = False, name: str | None = None
    ) -> None:
        """Begin; a client gives the ``name`` that the server's certificate must have."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=name
        )
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
