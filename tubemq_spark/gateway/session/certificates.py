"""The certificate that a gateway shows, and the CAs whose clients it takes, as their files are now.

gRPC asks before each handshake whether something is new (``dynamic_ssl_server_credentials``). Connections
that are open stay as they are. As long as the files do not fit together, because only one of them has been
replaced, what was read before is used, and the log has a warning.
"""

import logging
import ssl
from pathlib import Path

import grpc

from tubemq_spark.net.tls import ServerTls

logger = logging.getLogger(__name__)


class Certificates:
    """Reads the files of a listener when they have changed; gRPC asks in threads of its own."""

    def __init__(self, tls: ServerTls) -> None:
        """Read them.

        Raises:
            OptionError: they cannot be used.
        """
        self._tls = tls
        self._read: ssl.SSLContext | None = None
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
                return grpc.ssl_server_certificate_configuration([(key, cert)], cas)
