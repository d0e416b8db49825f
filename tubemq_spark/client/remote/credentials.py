"""TLS with gateways, which gRPC speaks by itself: its credentials, and what is wrong when it cannot connect.

gRPC has a TLS library of its own, which reads no files, knows no limit of versions, and tells little. So the
files are checked, and their changes are seen, as for every other connection (``net/tls.py``); and after a
connection has failed, our own TLS finds out why.
"""

import socket
import ssl
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from tubemq_spark.errors import OptionError, TlsError, TubeMQError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.tls import TlsConfig, certificate_name, own_context_of
from tubemq_spark.net.tls_errors import handshake_error, hung_up
from tubemq_spark.net.tls_probes import answers_in_tls

_ANSWER_S: Final = 1.0
"""How long to wait for a gateway's word about our certificate."""


def credentials(grpc: ModuleType, tls: TlsConfig) -> Any:  # noqa: ANN401 (gRPC has no types)
    """Return gRPC's credentials for a new connection, from what is in the files now."""
    return grpc.ssl_channel_credentials(
        _roots(tls), *map(_content, (tls.key_file or tls.cert_file, tls.cert_file))
    )


def tls_fault(endpoint: Endpoint, tls: TlsConfig | None, timeout_ms: int) -> TubeMQError | None:
    """Return why a gateway and this client do not agree on TLS; None: they do, or it does not answer.

    It is connected to once more. No secret and no data is sent.
    """
    if tls is None:
        return OptionError("TUBEMQ_TLS_EXPECTED", endpoint=endpoint) if answers_in_tls(endpoint) else None
    try:
        # A gateway that was just stopping may hang up on one, not on the next.
        if _hangs_up(endpoint, tls, timeout_ms) and _hangs_up(endpoint, tls, timeout_ms):
            return hung_up(endpoint, tls)
    except OptionError as error:
        return error
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
        return None
    except ssl.SSLError as error:
        fault = handshake_error(error, endpoint, tls)
        return fault if isinstance(fault, TlsError) else None
    except OSError:
        return None
    return None


def _hangs_up(endpoint: Endpoint, tls: TlsConfig, timeout_ms: int) -> bool:
    """Whether a gateway closes the connection after the handshake: it does not like our certificate."""
    context = own_context_of(tls)
    context.set_alpn_protocols(["h2"])  # without it gRPC hangs up
    address, name = (endpoint.host, endpoint.port), certificate_name(tls, endpoint.host)
    with (
        socket.create_connection(address, timeout_ms / 1000) as connected,
        context.wrap_socket(connected, server_hostname=name) as secured,
    ):
        secured.settimeout(_ANSWER_S)
        try:
            # Only now, with TLS 1.3, a server says what it thinks of the client's certificate.
            return not secured.recv(1)
        except TimeoutError:
            return False
        except ConnectionResetError:
            return True


def _roots(tls: TlsConfig) -> bytes:
    """Return the CAs that are trusted; gRPC's own list is not used."""
    if tls.ca_file is not None:
        return Path(tls.ca_file).read_bytes()
    trusted = ssl.create_default_context().get_ca_certs(binary_form=True)
    roots = "".join(map(ssl.DER_cert_to_PEM_cert, trusted)).encode()
    folder = ssl.get_default_verify_paths().capath
    if not roots and folder is not None:  # OpenSSL looks into it for each certificate
        roots = b"\n".join(path.read_bytes() for path in sorted(Path(folder).glob("*.[0-9]")))
    if not roots:
        raise OptionError("TUBEMQ_OPTION_NEEDED", option="tubemq.tls.caFile", other="tubemq.tls.enabled")
    return roots


def _content(path: str | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()
