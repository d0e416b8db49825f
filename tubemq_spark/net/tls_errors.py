"""What went wrong with TLS, in words that say what to do.

After a connection has failed, a port is asked whether it speaks TLS, for the text of the error. A server that
expects the one and gets the other says nothing, or closes the connection; so does a server that hangs or is
being stopped. Asking the other way round tells them apart. No secret is sent.
"""

import contextlib
import re
import socket
import ssl
from typing import Final

from tubemq_spark.errors import TlsError, TubeMQConnectionError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.tls import TlsConfig, certificate_name
from tubemq_spark.protocol.connection import Role, RpcConnection
from tubemq_spark.protocol.constants import FRAME_TOKEN, ServiceType

_ALERT: Final = re.compile(r"(?:SSLV3|TLSV1|TLSV13)_ALERT_(\w+)|TLSV1_(\w+)")
"""OpenSSL's names of what a peer says before it closes the connection."""
_PASSING_ALERTS: Final = frozenset(
    {
        "close notify",
        "internal error",
        "user cancelled",
        "bad record mac",
        "decode error",
        "unexpected message",
    }
)
"""Those that tell of the peer, or of bytes that were changed on the way, and not of this client."""
_OTHER_BYTES: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "BAD_RECORD_TYPE"}
)
"""What OpenSSL makes of an answer that is not TLS."""
_CHANGED_BYTES: Final = "DECRYPTION_FAILED_OR_BAD_RECORD_MAC"
"""What OpenSSL makes of bytes that were changed on the way."""
_NO_COMMON_VERSION: Final = frozenset({"UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE"})
_VERSION_ALERTS: Final = frozenset({"protocol version", "insufficient security"})
_OTHER_CERTIFICATE_ALERTS: Final = frozenset({"unknown ca", "handshake failure", "access denied"})
"""Beside those that have the word: Java's servers answer so to some certificates, or to none."""
_LOOK_AT_LOG: Final = "look at the server's log"
_OTHER_VERSION: Final = "compare tubemq.tls.minVersion with the versions that the server allows"

# X509_V_ERR_* of OpenSSL, which Python does not name.
_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
_UNTRUSTED: Final = frozenset({18, 19, 20, 21})
_OTHER_NAME: Final = frozenset({62, 64})


def handshake_error(error: ssl.SSLError, endpoint: Endpoint, config: TlsConfig) -> TubeMQConnectionError:
    """Return the error for a handshake with a server that failed; trying again rarely helps."""
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        cause, hint = _certificate_fault(error, certificate_name(config, endpoint.host))
        return TlsError("TUBEMQ_TLS_CERTIFICATE", endpoint=endpoint, cause=cause, hint=hint)
    if reason in _OTHER_BYTES:
        return TlsError("TUBEMQ_TLS_NOT_SPOKEN", endpoint=endpoint, cause="its answer is not TLS")
    if refused := refusal(error, endpoint, config):
        return refused
    if alert := alert_of(error):
        return handshake_broken_off(f"it answers '{alert}'", endpoint)
    words = reason.lower().replace("_", " ")
    if reason == _CHANGED_BYTES:
        return handshake_broken_off(words, endpoint)
    cause, hint = f"the handshake failed ('{words}')", _LOOK_AT_LOG
    if reason in _NO_COMMON_VERSION:
        cause, hint = "it offers no version of TLS that is allowed here", _OTHER_VERSION
    return TlsError("TUBEMQ_TLS_REFUSED", endpoint=endpoint, cause=cause, hint=hint)


def refusal(error: ssl.SSLError, endpoint: Endpoint, config: TlsConfig) -> TlsError | None:
    """Return the error for a server that refuses us, maybe after the handshake; None for anything else."""
    alert = alert_of(error)
    if not alert or alert in _PASSING_ALERTS:
        return None
    cause, hint = f"it answers '{alert}'", _hint(alert, config)
    return TlsError("TUBEMQ_TLS_REFUSED", endpoint=endpoint, cause=cause, hint=hint)


def hung_up(endpoint: Endpoint, config: TlsConfig) -> TlsError:
    """Return the error for a server that agreed on TLS and then said nothing and closed the connection."""
    cause, hint = "it closes the connection without a word", _hint("certificate required", config)
    return TlsError("TUBEMQ_TLS_REFUSED", endpoint=endpoint, cause=cause, hint=hint)


def handshake_broken_off(what: str, endpoint: Endpoint) -> TubeMQConnectionError:
    """Return the error for a peer that fell silent, or closed the connection, during a handshake."""
    return TubeMQConnectionError(
        "TUBEMQ_CONNECT_FAILED", endpoint=endpoint, cause=f"the TLS handshake was broken off ({what})"
    )


def alert_of(error: ssl.SSLError) -> str:
    """Return the peer's alert in the words of the protocol, such as ``certificate required``; maybe blank."""
    match = _ALERT.fullmatch(error.reason or "")
    return "" if match is None else (match[1] or match[2]).lower().replace("_", " ")


def _hint(alert: str, config: TlsConfig) -> str:
    """Return what to do about a server's alert."""
    if alert in _VERSION_ALERTS:
        return _OTHER_VERSION
    if "certificate" not in alert and alert not in _OTHER_CERTIFICATE_ALERTS:
        return _LOOK_AT_LOG
    if config.cert_file is None:
        return "set tubemq.tls.certFile and tubemq.tls.keyFile if it wants a certificate of its clients"
    return f"check that the certificate in {config.cert_file} is valid and that the server trusts its CA"


def _certificate_fault(error: ssl.SSLCertVerificationError, name: str) -> tuple[str, str]:
    """Return what is wrong with a server's certificate, and what to do."""
    code = error.verify_code
    if code == _EXPIRED:
        return "it has expired, or its CA's has", "renew it on the server"
    if code == _NOT_YET_VALID:
        return "it is not valid yet, or its CA's is not", "compare the clocks of both machines"
    if code in _OTHER_NAME:
        return (
            f"it does not name '{name}'",
            "address the server by a name in its certificate, or set that in tubemq.tls.serverName",
        )
    if code in _UNTRUSTED:
        return (
            f"its issuer is not trusted ({error.verify_message})",
            "set tubemq.tls.caFile to the certificate of the CA that issued it",
        )
    return error.verify_message, "look at it with: openssl s_client -showcerts -connect host:port"


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
