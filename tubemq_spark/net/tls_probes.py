"""Finding out whether a port speaks TLS, after a connection to it has failed: for the text of the error.

A server that expects the one and gets the other says nothing, or closes the connection; so does a server that
hangs or is being stopped. Asking the other way round tells them apart. No secret is sent.
"""

import contextlib
import socket
import ssl
from typing import Final

from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.connection import Role, RpcConnection
from tubemq_spark.protocol.constants import FRAME_TOKEN, ServiceType

_TIMEOUT_S: Final = 3.0
_TOKEN: Final = FRAME_TOKEN.to_bytes(4, "big")
_TLS_STARTS: Final = (b"\x16\x03", b"\x15\x03")
"""A record of a handshake, and one of an alert."""
_NO_METHOD: Final = 0


def answers_in_the_clear(endpoint: Endpoint) -> bool:
    """Tell whether a port answers TubeMQ's frames without TLS."""
    connection = RpcConnection(Role.CLIENT)
    # Every server answers, also a broker and one that does not lead: that it does not know the method.
    connection.send_request(ServiceType.MASTER, _NO_METHOD, b"", round(_TIMEOUT_S * 1000))
    return _answer(endpoint, connection.data_to_send(), len(_TOKEN)) == _TOKEN


def answers_in_tls(endpoint: Endpoint) -> bool:
    """Tell whether a port answers the first message of a TLS handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=endpoint.host).do_handshake()
    return _answer(endpoint, outgoing.read(), 2) in _TLS_STARTS


def _answer(endpoint: Endpoint, question: bytes, size: int) -> bytes:
    """Return the first bytes of an answer; fewer when there are no more in time."""
    answer = b""
    with (
        contextlib.suppress(OSError, UnicodeError),
        socket.create_connection((endpoint.host, endpoint.port), _TIMEOUT_S) as connected,
    ):
        connected.sendall(question)
        while len(answer) < size and (data := connected.recv(size - len(answer))):
            answer += data
    return answer
