"""Asking others over HTTP: an answer comes whole and in time, however its bytes arrive, or there is none.

One deadline counts for connecting, TLS, the request, and the head and the body of the answer, where the
time-outs of HTTP libraries begin again with each read. Servers are reached directly: a proxy that the
environment names would be told what is meant for an inner server, tokens included.
"""

import http.client
import ssl
import urllib.parse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast

from tubemq_spark.model import Endpoint
from tubemq_spark.net import addresses
from tubemq_spark.net.deadline import Deadline, UntilDeadline

if TYPE_CHECKING:
    import socket

_PORTS: Final = {"http": http.client.HTTP_PORT, "https": http.client.HTTPS_PORT}
_NOT_QUOTED: Final = "!$%&'()*+,/:;=?@[]~"
_SHOWN: Final = 120
"""How many characters of something that is not HTTP an error shows."""


def fetch(url: str, timeout_s: float, most_bytes: int, form: Mapping[str, str] | None = None) -> bytes:
    """Return the body of an answer.

    ``https`` asks a server whose certificate the system trusts. The time counts for everything but the
    look-up of the name, which has the limit of the system's resolver. A ``form`` is sent by POST. Redirects
    are not followed, and an OSError says why there is no answer, without the URL and the form.
    """
    deadline = Deadline.after_ms(timeout_s * 1000)
    try:
        parts = urllib.parse.urlsplit(url)
        with _connected(parts, deadline) as connection:
            connection.settimeout(deadline.remaining())  # for all of it, not for each packet
            connection.sendall(_request(parts, form))
            source = cast("socket.socket", UntilDeadline(connection, deadline))
            return _body(http.client.HTTPResponse(source), most_bytes)
    except TimeoutError as error:
        raise TimeoutError(f"no whole answer came within {timeout_s:g} s") from error
    except (http.client.HTTPException, ValueError) as error:
        if isinstance(error, OSError):
            raise
        raise OSError(f"no answer over HTTP: {error!r:.{_SHOWN}}") from error


def _connected(url: urllib.parse.SplitResult, deadline: Deadline) -> "socket.socket":
    host = url.hostname or ""
    connection = addresses.connect(Endpoint(host, url.port or _PORTS[url.scheme]), deadline.remaining())
    if url.scheme == "http":
        return connection
    try:
        connection.settimeout(deadline.remaining())  # for the whole handshake
        return ssl.create_default_context().wrap_socket(connection, server_hostname=host)
    except BaseException:
        connection.close()
        raise


def _request(url: urllib.parse.SplitResult, form: Mapping[str, str] | None) -> bytes:
    target = urllib.parse.quote(f"{url.path or '/'}{url.query and f'?{url.query}'}", safe=_NOT_QUOTED)
    common = b"Host: " + url.netloc.encode("idna") + b"\r\nAccept-Encoding: identity\r\nConnection: close\r\n"
    if form is None:
        return f"GET {target} HTTP/1.1\r\n".encode() + common + b"\r\n"
    body = urllib.parse.urlencode(form).encode()
    own = f"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {len(body)}\r\n\r\n"
    return f"POST {target} HTTP/1.1\r\n".encode() + common + own.encode() + body


def _body(response: http.client.HTTPResponse, most_bytes: int) -> bytes:
    with response:
        response.begin()
        if not 200 <= response.status < 300:
            redirect = ", a redirect, which is not followed" if 300 <= response.status < 400 else ""
            raise OSError(f"HTTP status {response.status}{redirect}")
        body = response.read(most_bytes + 1)
        if len(body) > most_bytes:
            raise OSError(f"the answer is longer than {most_bytes} bytes")
        if response.length:
            raise OSError(f"the answer ended {response.length} bytes early")
        return body
