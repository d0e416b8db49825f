"""The certificate that a gateway shows, and the CAs whose clients it takes, as their files are now.

gRPC asks before each handshake whether something is new (``dynamic_ssl_server_credentials``). Connections
that are open stay as they are. As long as the files do not fit together, because only one of them has been
replaced, what was read before is used, and the log has a warning.
"""

import datetime
import logging
import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import grpc

from tubemq_spark.net.tls import ServerTls

logger = logging.getLogger(__name__)

_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


class Certificates:
    """Reads the files of a listener when they have changed; gRPC asks in threads of its own."""

    def __init__(self, tls: ServerTls) -> None:
        """Read them.

        Raises:
            OptionError: they cannot be used.
        """
        self._tls = tls
        self._read: ssl.SSLContext | None = None
        self.expires_at = 0.0
        """When the certificate in use expires, in seconds since 1970."""
        self._first = self._read_now()

    def credentials(self) -> grpc.ServerCredentials:
        """Return gRPC's credentials of the listener."""
        return grpc.dynamic_ssl_server_credentials(
            self._first,
            self._look,
            require_client_authentication=self._tls.client_ca_file is not None,
        )

    def _look(self) -> object | None:
        """Return what to use from now on; None: as before."""
        try:
            if self._tls.context() is self._read:
                return None
            files = self._read_now()
        except Exception:  # (the handshake would fail, and so would all later ones)
            logger.exception("certificates could not be read again; those of before are used")
            return None
        logger.info("the certificate %s was read again", self._tls.cert_file)
        return files

    def _read_now(self) -> object:
        tls = self._tls
        while True:
            # A context is a new one only when the files have changed and fit together.
            context = tls.context()
            cert = Path(tls.cert_file).read_bytes()
            key = Path(tls.key_file or tls.cert_file).read_bytes()
            cas = None if tls.client_ca_file is None else Path(tls.client_ca_file).read_bytes()
            if tls.context() is context:
                self._read = context
                self.expires_at = expiry_of(cert)
                return grpc.ssl_server_certificate_configuration([(key, cert)], cas)


def expiry_of(pem: bytes) -> float:
    """Return when the first certificate of a file expires, in seconds since 1970 (RFC 5280, 4.1)."""
    block = _CERTIFICATE.search(pem)
    if block is None:
        return 0.0
    der = ssl.PEM_cert_to_DER_cert(block[0].decode("ascii"))
    ((_, certificate),) = _items(der)
    _, to_sign = next(_items(certificate))
    # A version that is not the first one has a field of its own, tagged 0.
    fields = [content for tag, content in _items(to_sign) if tag != 0xA0]
    _serial, _algorithm, _issuer, validity, *_ = fields
    _, (tag, until) = _items(validity)
    text = until.decode("ascii")
    if tag == 0x17:  # (a time with two digits for its year)
        text = ("20" if text < "50" else "19") + text
    return datetime.datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=datetime.UTC).timestamp()


def _items(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tags and contents of the items one behind the other (X.690)."""
    place = 0
    while place < len(der):
        tag, size, place = der[place], der[place + 1], place + 2
        if size >= 0x80:
            digits = size & 0x7F
            size, place = int.from_bytes(der[place : place + digits]), place + digits
        yield tag, der[place : place + size]
        place += size
