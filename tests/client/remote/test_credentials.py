"""TLS between clients and gateways: files that change, and mistakes in the words of other connections."""

import asyncio
import contextlib
import dataclasses
import shutil
import threading

import pytest

from testkit.certificates import Authority
from tests.gateway.running import gateway, tubemq
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.remote.gateways import Gateways
from tubemq_spark.cluster.config import ClusterConfig
from tubemq_spark.errors import OptionError, TlsError, TubeMQConnectionError
from tubemq_spark.model import Endpoint
from tubemq_spark.net import loop
from tubemq_spark.net.tls import TlsConfig, TlsVersion
from tubemq_spark.protocol.gateway import gateway_pb2 as pb


@pytest.fixture(scope="module")
def server():
    with tubemq(demo=(1, 1)) as running:
        yield running


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("other"), "other")


@contextlib.contextmanager
def tls_gateway(server, pair, client_ca=None, **changes):
    own = {"tls_cert": str(pair.cert), "tls_key": str(pair.key)}
    if client_ca is not None:
        own["tls_client_ca"] = str(client_ca.cert)
    with gateway(server, **own, **changes) as running:
        yield running


@contextlib.contextmanager
def client_of(running, tls=None, **changes):
    config = ClientConfig((), "group", tls=tls, register_attempts=3, register_retry_ms=20, **changes)
    gateways = Gateways((Endpoint.parse(running.address),), config)
    try:
        yield gateways
    finally:
        gateways.close()


def ask(gateways):
    request = pb.ListTopicsRequest()
    return list(loop.run(gateways.calling("ListTopics", request, pb.ListTopicsResponse, "listing")).topics)


def copy(pair, folder):
    for name, path in (("cert", pair.cert), ("key", pair.key)):
        shutil.copy(path, folder / f"client.{name}")


def test_files_that_are_renewed_count_for_the_next_call(server, authority, other, tmp_path):
    ca = tmp_path / "ca.pem"
    shutil.copy(authority.cert, ca)
    copy(authority.issue("client"), tmp_path)
    tls = TlsConfig(str(ca), str(tmp_path / "client.cert"), str(tmp_path / "client.key"))
    with tls_gateway(server, authority.issue("server"), authority) as first:
        address = Endpoint.parse(first.address)
        with client_of(first, tls) as gateways:
            assert ask(gateways) == ["demo"]
            first.stop(0)
            with tls_gateway(server, other.issue("server"), other, listen=address):
                shutil.copy(other.cert, ca)
                copy(other.issue("client"), tmp_path)
                assert ask(gateways) == ["demo"]


def test_calls_under_way_keep_the_connection_that_they_have(server, authority, tmp_path):
    ca = tmp_path / "ca.pem"
    shutil.copy(authority.cert, ca)
    with (
        tls_gateway(server, authority.issue("server")) as running,
        client_of(running, TlsConfig(str(ca))) as to,
    ):
        assert ask(to) == ["demo"]
        address = Endpoint.parse(running.address)
        before = to._channels.existing(address)

        async def ask_during_a_stream():
            async with to.stream(0, "SessionEvents", pb.SessionEventsRequest()) as events:
                ca.write_bytes(ca.read_bytes() + b"\n")
                to._channels.look_again()
                await to.calling("ListTopics", pb.ListTopicsRequest(), pb.ListTopicsResponse, "listing")
                assert to._channels.existing(address) is not before
                async with asyncio.timeout(0.2):
                    await events.read()

        with pytest.raises(TimeoutError):  # it is still open
            loop.run(ask_during_a_stream())


def test_files_are_looked_at_once_a_second_and_not_for_each_call(server, authority, monkeypatch, tmp_path):
    ca, now, looks, look = tmp_path / "ca.pem", [100.0], [], TlsConfig.context
    shutil.copy(authority.cert, ca)
    with tls_gateway(server, authority.issue("server")) as running:
        address = Endpoint.parse(running.address)
        config = ClientConfig((), "group", tls=TlsConfig(str(ca)))
        with contextlib.closing(Gateways((address,), config, clock=lambda: now[0])) as gateways:
            monkeypatch.setattr(TlsConfig, "context", lambda tls: looks.append(None) or look(tls))
            assert [ask(gateways) for _ in range(5)] == [["demo"]] * 5
            assert len(looks) == 1
            ca.write_bytes(ca.read_bytes() + b"\n")
            before = gateways._channels.existing(address)
            now[0] += 1
            assert ask(gateways) == ["demo"]
            assert gateways._channels.existing(address) is not before


def test_files_that_cannot_be_read_in_time_are_told_as_a_gateway_that_is_away(authority, monkeypatch):
    may_end = threading.Event()
    config = ClientConfig(
        (), "group", tls=TlsConfig(str(authority.cert)), connect_timeout_ms=50, register_attempts=1
    )
    gateways = Gateways((Endpoint("127.0.0.1", 1),), config)
    monkeypatch.setattr(TlsConfig, "context", lambda _: may_end.wait(20))
    try:
        with pytest.raises(TubeMQConnectionError, match="the files of TLS were not read in time"):
            ask(gateways)
    finally:
        may_end.set()


@pytest.mark.parametrize(
    ("trusted", "mutual", "shown", "error", "condition"),
    [
        ("other", False, None, TlsError, "TUBEMQ_TLS_CERTIFICATE"),
        ("authority", True, None, TlsError, "TUBEMQ_TLS_REFUSED"),
        ("authority", True, "other", TlsError, "TUBEMQ_TLS_REFUSED"),
        (None, False, None, OptionError, "TUBEMQ_TLS_EXPECTED"),
    ],
)
def test_mistakes_are_told_as_those_of_masters_are(
    server, authority, other, trusted, mutual, shown, error, condition
):
    known = {"authority": authority, "other": other}
    tls = None if trusted is None else TlsConfig(str(known[trusted].cert))
    if shown is not None:
        pair = known[shown].issue("client")
        tls = dataclasses.replace(tls, cert_file=str(pair.cert), key_file=str(pair.key))
    client_ca = authority if mutual else None
    with tls_gateway(server, authority.issue("server"), client_ca) as running, client_of(running, tls) as to:
        with pytest.raises(error) as failed:
            ask(to)
        assert failed.value.condition == condition
        assert running.address in str(failed.value)


def test_a_certificate_of_another_name_is_told_as_that(server, authority):
    tls = TlsConfig(str(authority.cert), server_name="elsewhere")
    with (
        tls_gateway(server, authority.issue("server")) as running,
        client_of(running, tls) as to,
        pytest.raises(TlsError, match="does not name 'elsewhere'"),
    ):
        ask(to)


def test_a_gateway_without_tls_is_told_as_that(server, authority):
    with (
        gateway(server) as running,
        client_of(running, TlsConfig(str(authority.cert))) as to,
        pytest.raises(TlsError, match="TUBEMQ_TLS_NOT_SPOKEN"),
    ):
        ask(to)


def test_without_a_file_those_count_that_the_system_trusts(server, authority, monkeypatch):
    with tls_gateway(server, authority.issue("server")) as running:
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.cert))
        with client_of(running, TlsConfig(server_name="server")) as to:
            assert ask(to) == ["demo"]


def test_where_the_system_trusts_no_authority_the_option_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    config = ClientConfig((), "group", tls=TlsConfig(key_password=None, server_name="nothing"))
    with pytest.raises(OptionError, match=r"tubemq\.tls\.caFile"):
        Gateways((Endpoint("127.0.0.1", 1),), config)


def test_a_limit_of_versions_that_grpc_does_not_know_is_refused():
    client = ClientConfig((), "group", tls=TlsConfig(min_version=TlsVersion.V1_3))
    with pytest.raises(OptionError, match=r"tubemq\.tls\.minVersion.*TLSv1\.3.*at the gateway"):
        ClusterConfig(client, (Endpoint("127.0.0.1", 1),)).validate()
