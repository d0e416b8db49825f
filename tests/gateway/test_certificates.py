"""Certificates of a gateway are renewed while it runs; what is open stays open."""

import datetime
import logging
import re
import shutil
import socket
import ssl

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from testkit.certificates import Authority
from tests.gateway.running import RefusedError, gateway, tubemq
from tests.gateway.secured import SecuredClient
from tubemq_spark.net.tls_contexts import expiry_of

pytestmark = pytest.mark.usefixtures("nothing_left_behind_by_the_module")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


class Files:
    """The files of a gateway, which a test replaces."""

    def __init__(self, directory, authority):
        self.cert, self.key, self.ca = (directory / name for name in ("cert.pem", "key.pem", "ca.pem"))
        self.install(authority.issue("first"))
        shutil.copy(authority.cert, self.ca)

    def install(self, pair):
        shutil.copy(pair.cert, self.cert)
        shutil.copy(pair.key, self.key)


@pytest.fixture(scope="module")
def files(tmp_path_factory, authority):
    return Files(tmp_path_factory.mktemp("files"), authority)


@pytest.fixture(scope="module")
def served(files, nothing_left_behind_by_the_module):
    changes = {"tls_cert": str(files.cert), "tls_key": str(files.key), "tls_client_ca": str(files.ca)}
    with tubemq(demo=(1, 1)) as server, gateway(server, **changes) as running:
        yield running


def shown(served, authority, pair):
    """Return the common name of the certificate that a new connection sees."""
    context = ssl.create_default_context(cafile=authority.cert)
    context.load_cert_chain(pair.cert, pair.key)
    context.set_alpn_protocols(["h2"])
    host, port = served.address.split(":")
    with (
        socket.create_connection((host, int(port)), 10) as plain,
        context.wrap_socket(plain, server_hostname=host) as tls,
    ):
        return dict(part[0] for part in tls.getpeercert()["subject"])["commonName"]


def test_a_new_connection_sees_the_new_certificate_and_an_open_one_goes_on(served, authority, files, caplog):
    caplog.set_level(logging.INFO, "tubemq_spark")
    client = authority.issue("client")
    files.install(authority.issue("first"))
    with SecuredClient(served.address, authority, pair=client) as open_one:
        open_one.open()
        assert shown(served, authority, client) == "first"
        second = authority.issue("second")
        shutil.copy(second.cert, files.cert)
        # The key is still that of the other certificate.
        assert shown(served, authority, client) == "first"
        assert any("not used yet" in one.getMessage() for one in caplog.records)
        shutil.copy(second.key, files.key)
        assert shown(served, authority, client) == "second"
        assert list(open_one("ListTopics").topics) == ["demo"]
    with SecuredClient(served.address, authority, "another", pair=client) as another:
        another.open()
        assert list(another("ListTopics").topics) == ["demo"]


def test_the_cas_of_clients_are_renewed_too(served, authority, files, tmp_path):
    other = Authority(tmp_path, "other")
    newcomer, known = other.issue("newcomer"), authority.issue("known")
    with SecuredClient(served.address, authority, pair=newcomer) as refused, pytest.raises(RefusedError):
        refused.open()
    try:
        files.ca.write_bytes(authority.cert.read_bytes() + other.cert.read_bytes())
        with SecuredClient(served.address, authority, "newcomer", pair=newcomer) as client:
            client.open()
        files.ca.write_bytes(other.cert.read_bytes())
        with (
            SecuredClient(served.address, authority, "known", pair=known) as refused,
            pytest.raises(RefusedError) as caught,
        ):
            refused.open()
        assert caught.value.status == grpc.StatusCode.UNAVAILABLE.name
    finally:
        shutil.copy(authority.cert, files.ca)


def test_the_end_of_the_certificate_in_use_is_a_metric(served, files, authority):
    text = served.server.metrics.text()
    gateway_certificate = x509.load_pem_x509_certificate(files.cert.read_bytes())
    (line,) = re.findall(r"^tubemq_gateway_certificate_expires_seconds (.*)$", text, re.MULTILINE)
    assert float(line) == gateway_certificate.not_valid_after_utc.timestamp()


def certificate(until):
    """A certificate whose last second is given."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "n" * 60)])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime(1980, 1, 1, tzinfo=datetime.UTC))
        .not_valid_after(until)
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize("year", [1999, 2026, 2049, 2050, 9999])
def test_the_end_of_a_certificate_is_read_in_both_forms(year):
    until = datetime.datetime(year, 12, 31, 23, 59, 58, tzinfo=datetime.UTC)
    first, second = certificate(until), certificate(until.replace(month=1))
    assert expiry_of(b"text before\n" + first + second) == until.timestamp()
    assert expiry_of(b"none") == 0
