"""Certificates of an authority that a test makes, as files: in PEM, and as Java's key stores."""

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)

STORE_PASSWORD: Final = "store_password"
_LOOPBACK: Final = tuple(f"127.0.0.{number}" for number in range(1, 6))
LONG_AGO: Final = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key."""

    cert: Path
    key: Path

    @property
    def both(self) -> Path:
        """A file that holds both."""
        path = self.cert.with_suffix(".both.pem")
        path.write_bytes(self.key.read_bytes() + self.cert.read_bytes())
        return path

    def encrypted_key(self, password: str) -> Path:
        """Return the key in a file that the password opens."""
        key = load_pem_private_key(self.key.read_bytes(), None)
        path = self.key.with_suffix(".encrypted.pem")
        path.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password.encode()))
        )
        return path

    def key_store(self) -> Path:
        """Return both in a store that Java reads."""
        path = self.cert.with_suffix(".p12")
        chain = x509.load_pem_x509_certificates(self.cert.read_bytes())
        path.write_bytes(
            pkcs12.serialize_key_and_certificates(
                b"pair",
                load_pem_private_key(self.key.read_bytes(), None),  # type: ignore[arg-type]
                chain[0],
                chain[1:],
                BestAvailableEncryption(STORE_PASSWORD.encode()),
            )
        )
        return path


class Authority:
    """Signs certificates for servers and clients, into files of a directory."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._directory = directory
        self._name = name
        self._ca = trustme.CA(organization_name=name)
        self.cert = directory / f"{name}.pem"
        """The authority's own certificate."""
        self._ca.cert_pem.write_to_path(self.cert)

    def issue(self, name: str, *hosts: str, expired: bool = False) -> Pair:
        """Sign a certificate for hosts, by default for the addresses of brokers; ``name`` names its files."""
        until = LONG_AGO + datetime.timedelta(days=1) if expired else None
        leaf = self._ca.issue_cert(
            *(hosts or _LOOPBACK), common_name=name, not_before=LONG_AGO, not_after=until
        )
        stem = f"{self._name}-{name}"
        pair = Pair(self._directory / f"{stem}.cert.pem", self._directory / f"{stem}.key.pem")
        pair.cert.write_bytes(b"".join(part.bytes() for part in leaf.cert_chain_pems))
        leaf.private_key_pem.write_to_path(pair.key)
        return pair

    def trust_store(self) -> Path:
        """Return the authority's certificate in a store that Java reads."""
        path = self.cert.with_suffix(".trust.p12")
        certificate = x509.load_pem_x509_certificate(self.cert.read_bytes())
        path.write_bytes(
            pkcs12.serialize_java_truststore(
                [pkcs12.PKCS12Certificate(certificate, b"authority")],
                BestAvailableEncryption(STORE_PASSWORD.encode()),
            )
        )
        return path
