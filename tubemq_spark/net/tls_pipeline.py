"""Non-blocking connections over TLS, for the same selector as those without.

**States.** *connecting* until TCP is there; then *handshaking*, which the owner sees as connecting too: its
time-out covers both; then *open*. What is written waits as ciphertext. One read may bring several records
or a part of one: all plain bytes that are complete are handed on, so none wait inside OpenSSL for a selector
that does not know of them.
"""

import contextlib
import functools
import selectors
import socket
import ssl
from collections.abc import Callable

from tubemq_spark.model import Endpoint
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.pipeline import Pipeline
from tubemq_spark.net.tls import TlsConfig
from tubemq_spark.net.tls_errors import handshake_error, refusal
from tubemq_spark.net.tls_session import TlsSession

MakePipeline = Callable[[Endpoint, selectors.BaseSelector, Deadline], Pipeline]


def pipeline_maker(tls: TlsConfig | None) -> MakePipeline:
    """Return what makes the connections of one sender, with or without TLS."""
    return Pipeline if tls is None else functools.partial(TlsPipeline, tls)


class TlsPipeline(Pipeline):
    """A pipeline whose bytes are encrypted."""

    def __init__(
        self, tls: TlsConfig, endpoint: Endpoint, selector: selectors.BaseSelector, deadline: Deadline
    ) -> None:
        """Start to connect.

        Raises:
            OptionError: a file of the settings cannot be used.
            ValueError: the host can have no certificate, since it is no name.
            TubeMQConnectionError: as ``Pipeline``.
        """
        self._tls = tls
        self._session = TlsSession(tls.context(), name=tls.name_of(endpoint.host))
        self._handshaking = False
        super().__init__(endpoint, selector, deadline)

    def write(self, data: bytes) -> None:
        """Encrypt, and write what the socket takes now."""
        super().write(self._session.encrypt(data))

    def report_at(self, count: int) -> None:
        """Report all that comes: a part of a record, already read, may be what ``count`` is waiting for."""

    def handle(self, events: int) -> bytes | None:
        """Do what the selector says is possible; return the plain bytes read, or nothing.

        Raises:
            TlsError: the peer speaks no TLS, or its certificate, ours or the versions do not fit.
            TubeMQConnectionError: the connection failed or was lost.
        """
        if not self._handshaking:
            return super().handle(events)
        received = super()._read() if events & selectors.EVENT_READ else b""
        self._shake_hands(received or b"")
        # The peer's first bytes may have come with the last ones of its handshake.
        return self._decrypt(b"") if self._session.established else None

    def _connected(self) -> None:
        self._handshaking = True  # which begins when the selector says again that bytes can be written

    def _shake_hands(self, received: bytes) -> None:
        try:
            answer = self._session.handshake(received)
        except ssl.SSLError as error:
            # One attempt: the peer learns from it why we leave, and nothing depends on it.
            self._unsent = memoryview(self._session.last_words())
            self._write_more()
            self.close()
            raise handshake_error(error, self.endpoint, self._tls) from error
        self._unsent = memoryview(bytes(self._unsent) + answer)
        if self._unsent:
            self._write_more()
        if self._session.established:
            self._handshaking = self._connecting = False
        self._watch(selectors.EVENT_READ | (selectors.EVENT_WRITE if self._writing else 0))

    def _read(self) -> bytes | None:
        received = super()._read()
        return None if received is None else self._decrypt(received)

    def _decrypt(self, received: bytes) -> bytes | None:
        try:
            plain = self._session.decrypt(received)
        except ssl.SSLError as error:
            lost = self.fail(str(error))
            raise refusal(error, self.endpoint, self._tls) or lost from error
        if self._session.ended:
            with contextlib.suppress(OSError):  # the peer has closed it by now
                self._open_socket().shutdown(socket.SHUT_RD)  # so the next read finds the end
        return plain or None
