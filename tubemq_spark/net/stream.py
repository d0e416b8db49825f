"""Connected sockets, plain or over TLS."""

import socket
from typing import TYPE_CHECKING, Final, TypeAlias

from tubemq_spark.errors import TubeMQConnectionError
from tubemq_spark.model import Endpoint
from tubemq_spark.net import addresses
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.tls import TlsConfig

if TYPE_CHECKING:
    from tubemq_spark.net.tls_session import TlsSocket

Stream: TypeAlias = "socket.socket | TlsSocket"

IO_TIMEOUT_S: Final = 10.0
"""A peer that accepts no byte for so long is gone. (Reading has no limit: an idle connection is fine.)"""


def connect(endpoint: Endpoint, connect_timeout_ms: int, tls: TlsConfig | None = None) -> Stream:
    """Connect, over TLS with ``tls``; the host name is resolved each time.

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
    stream: Stream = connected
    if tls is not None:
        # OpenSSL takes a while to load, and few clusters speak TLS.
        from tubemq_spark.net.tls_session import TlsSocket

        stream = TlsSocket.connect(connected, endpoint, tls, deadline)
    connected.settimeout(IO_TIMEOUT_S)
    return stream
