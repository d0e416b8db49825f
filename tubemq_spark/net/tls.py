"""TLS settings of a client and of a server.

Certificates are always verified: no setting turns that off. Every process has these settings, and few speak
TLS: so OpenSSL, which takes longer to load, is imported with the first context (``net.tls_contexts``).
"""

import dataclasses
import enum
from typing import TYPE_CHECKING

from tubemq_spark.settings.fields import setting
from tubemq_spark.settings.kinds import HOST, PATH, VERBATIM, choice

if TYPE_CHECKING:
    import ssl


class TlsVersion(enum.Enum):
    """The versions of TLS that are in use; the value is what users write."""

    V1_2 = "TLSv1.2"
    V1_3 = "TLSv1.3"


@dataclasses.dataclass(frozen=True, slots=True)
class TlsConfig:
    """How a client speaks TLS. Picklable; files are read where a connection is made; safe to log.

    For example:

        tls = TlsConfig(ca_file="ca.pem", cert_file="client.pem", key_file="client.key").validate()
        client = TubeMQClient.connect("10.1.2.3:8716", tls=tls)
        tls.context().wrap_socket(sock)  # what a connection does
    """

    ca_file: str | None = setting(
        PATH,
        "the certificates of the CAs that issued those of the servers, in PEM (default: those that the "
        "system trusts)",
        None,
    )
    cert_file: str | None = setting(
        PATH,
        "the certificate to show to servers that ask for one (mutual TLS), in PEM, followed by its chain",
        None,
    )
    key_file: str | None = setting(
        PATH, "the private key of that certificate, in PEM (default: in the same file)", None
    )
    key_password: str | None = setting(
        VERBATIM, "the password of the private key, if it is encrypted", None, secret=True
    )
    server_name: str | None = setting(
        HOST,
        "the name that the certificates of all masters and brokers must have, where it is not the host they "
        "are reached at",
        None,
    )
    min_version: TlsVersion = setting(
        choice(TlsVersion), "the oldest version of TLS to accept", TlsVersion.V1_2
    )

    def validate(self) -> "TlsConfig":
        """Return the settings if their files can be used here.

        Raises:
            OptionError: a file is missing, is not PEM, or does not fit the others; the text names it.
        """
        self.context()
        return self

    def context(self) -> "ssl.SSLContext":
        """Return the context for a new connection.

        Raises:
            OptionError: as ``validate``.
        """
        from tubemq_spark.net.tls_contexts import client_contexts

        return client_contexts.get(self)


def own_context_of(tls: TlsConfig) -> "ssl.SSLContext":
    """Return a context that its caller may change.

    Raises:
        OptionError: as ``TlsConfig.validate``.
    """
    from tubemq_spark.net.tls_contexts import client_context

    return client_context(tls)


def certificate_name(tls: TlsConfig, host: str) -> str:
    """Return the name that the certificate of a server at this host must have."""
    return tls.server_name or host


@dataclasses.dataclass(frozen=True, slots=True)
class ServerTls:
    """How a server speaks TLS. Safe to log."""

    cert_file: str
    """The server's certificate and its chain, in PEM."""
    key_file: str | None = None
    """The private key, in PEM; None: it is in ``cert_file`` as well."""
    key_password: str | None = dataclasses.field(default=None, repr=False)
    client_ca_file: str | None = None
    """The CAs whose certificates clients must show (mutual TLS); None: they need none (one-way TLS)."""

    def context(self) -> "ssl.SSLContext":
        """Return the context for a new connection.

        Raises:
            OptionError: a file is missing, is not PEM, or does not fit the others; the text names it.
        """
        from tubemq_spark.net.tls_contexts import server_contexts

        return server_contexts.get(self)
