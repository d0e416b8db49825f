"""The whole client over TLS, on an embedded server of two brokers; and what it says when TLS does not fit."""

import dataclasses
import logging
import threading
from contextlib import contextmanager

import pytest

from testkit.certificates import Authority
from testkit.connections import opened_connections
from tests.waiting import wait_until
from tubemq_spark.client import ClientConfig, TlsConfig, TubeMQClient
from tubemq_spark.client.master.session import broker_endpoints
from tubemq_spark.embedded.config.settings import EmbeddedSettings
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.errors import OptionError, TlsError, TubeMQConnectionError
from tubemq_spark.model import Endpoint
from tubemq_spark.net import loop
from tubemq_spark.net.tls import ServerTls
from tubemq_spark.protocol.constants import Method

ROWS = 2_000
PATIENT_MS = 600_000
"""A wait for an answer would be longer than a test may take."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def pair(authority):
    return authority.issue("server")


@contextmanager
def server_with(pair, client_ca=None, brokers=2):
    tls = ServerTls(str(pair.cert), str(pair.key), client_ca_file=client_ca and str(client_ca.cert))
    settings = EmbeddedSettings(tls=tls)
    with EmbeddedTubeMQ(topics={"demo": (2, 1)}, brokers=brokers, settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def one_way(pair):
    with server_with(pair) as running:
        yield running


@pytest.fixture(scope="module")
def mutual(pair, authority):
    with server_with(pair, authority) as running:
        yield running


@pytest.fixture(scope="module")
def plain():
    with EmbeddedTubeMQ(topics={"demo": (1, 1)}, brokers=2) as running:
        yield running


def trusting(authority, pair=None, **changes):
    cert, key = (None, None) if pair is None else (str(pair.cert), str(pair.key))
    return TlsConfig(str(authority.cert), cert, key, **changes)


@contextmanager
def using(pair, authority):
    """Yield a server with a certificate, and a client that trusts its authority."""
    with server_with(pair) as server, TubeMQClient.connect(server.master, tls=trusting(authority)) as client:
        yield server, client


def produce_and_read(master, tls):
    values = [b"%d" % number * 50 for number in range(ROWS)]
    with TubeMQClient.connect(master, tls=tls) as client:
        before = len(list(client.read("demo")))
        with client.producer() as producer:
            for value in values:
                producer.send("demo", value)
            producer.flush()
            assert {receipt.partition.broker_id for receipt in producer.receipts()} == {1, 2}
        records = list(client.read("demo"))
        assert len(records) == before + ROWS
        assert {record.value for record in records} == set(values)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_producing_planning_and_reading_over_one_way_tls(one_way, authority, version):
    tls = trusting(authority)
    produce_and_read(one_way.master, dataclasses.replace(tls, min_version=type(tls.min_version)(version)))


def test_producing_planning_and_reading_over_mutual_tls(mutual, authority):
    produce_and_read(mutual.master, trusting(authority, authority.issue("client")))


def test_certificates_may_have_one_name_for_all_servers(authority):
    with server_with(authority.issue("one-name", "tube.example")) as server:
        produce_and_read(server.master, trusting(authority, server_name="tube.example"))


def use(master, tls, client=None):
    """Do what begins with the masters, and what begins with the brokers' connections."""
    config = ClientConfig((Endpoint.parse(master),), "etl", tls=tls, delivery_timeout_ms=PATIENT_MS)
    errors = []
    for act in (lambda client: client.layout("demo"), lambda client: client.producer().send("demo", b"x")):
        with (
            TubeMQClient(config) as client,
            pytest.raises((TlsError, OptionError, TubeMQConnectionError)) as caught,
        ):
            act(client)
        assert not caught.value.retriable
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
    return errors[0]


def test_a_certificate_of_an_unknown_authority_is_not_accepted(one_way, tmp_path):
    for tls in (trusting(Authority(tmp_path, "other")), TlsConfig()):
        said = use(one_way.master, tls)
        assert said.startswith(
            f"[TUBEMQ_TLS_CERTIFICATE] The certificate of {one_way.master} is not accepted: its issuer is not"
        )
        assert "set tubemq.tls.caFile to the certificate of the CA that issued it" in said


def test_an_expired_certificate_is_not_accepted(authority):
    with server_with(authority.issue("old", expired=True)) as server:
        assert use(server.master, trusting(authority)) == (
            f"[TUBEMQ_TLS_CERTIFICATE] The certificate of {server.master} is not accepted: it has expired, "
            "or its CA's has; renew it on the server."
        )


@pytest.mark.parametrize("hosts", [("tube.example",), ("127.0.0.9",)])
def test_a_certificate_of_another_host(authority, hosts):
    with server_with(authority.issue("elsewhere", *hosts)) as server:
        assert use(server.master, trusting(authority)) == (
            f"[TUBEMQ_TLS_CERTIFICATE] The certificate of {server.master} is not accepted: it does not name "
            "'127.0.0.1'; address the server by a name in its certificate, or set that in "
            "tubemq.tls.serverName."
        )


def test_a_certificate_without_the_servers_name_is_not_accepted(one_way, authority):
    assert "it does not name 'tube.example'" in use(
        one_way.master, trusting(authority, server_name="tube.example")
    )


def test_a_server_that_wants_certificates_refuses_a_client_without_one(mutual, authority):
    assert use(mutual.master, trusting(authority)) == (
        f"[TUBEMQ_TLS_REFUSED] {mutual.master} refuses TLS with this client: it answers 'certificate "
        "required'; set tubemq.tls.certFile and tubemq.tls.keyFile if it wants a certificate of its clients."
    )


def test_a_server_refuses_a_client_certificate_that_it_does_not_trust(mutual, authority, tmp_path):
    stranger = Authority(tmp_path, "stranger").issue("client")
    said = use(mutual.master, trusting(authority, stranger))
    assert said.startswith("[TUBEMQ_TLS_REFUSED]")
    assert f"check that the certificate in {stranger.cert} is valid and that the server trusts its CA" in said


def test_tls_to_a_plain_port_is_refused_with_advice(plain, authority):
    assert use(plain.master, trusting(authority)) == (
        f"[TUBEMQ_TLS_NOT_SPOKEN] {plain.master} does not speak TLS: it answers without it; name the TLS "
        "port (masters: 8716 by default), or set tubemq.tls.enabled=false."
    )


def test_tls_with_a_web_port(plain, authority):
    assert "does not speak TLS: its answer is not TLS" in use(plain.master_web, trusting(authority))


def test_a_plain_connection_to_a_tls_port_is_refused_with_advice(one_way, mutual):
    for server in (one_way, mutual):
        assert use(server.master, None) == (
            f"[TUBEMQ_TLS_EXPECTED] {server.master} speaks TLS only; set tubemq.tls.enabled=true, or name "
            "the port without TLS (masters: 8715 by default)."
        )


def test_a_tls_file_that_went_away_is_named_when_a_client_connects(one_way, authority, tmp_path):
    """A task may run where the file is not."""
    said = use_config_unchecked(one_way.master, TlsConfig(str(tmp_path / "gone.pem")))
    assert f"names {tmp_path / 'gone.pem'}, which cannot be used" in said


def use_config_unchecked(master, tls):
    config = ClientConfig((Endpoint.parse(master),), "etl", tls=tls)
    with pytest.raises(OptionError):
        config.validate()
    with opened_connections() as connections, pytest.raises(OptionError) as caught:
        loop.run(connections.get(config.masters[0], 1_000, tls))
    return str(caught.value)


def test_a_client_with_tls_passes_over_a_plain_master(one_way, plain, authority):
    masters = f"{plain.master},{one_way.master}"
    with TubeMQClient.connect(masters, tls=trusting(authority)) as client:
        assert len(client.layout("demo").partitions) == 4


NOT_TRUSTED = r"TUBEMQ_TLS_CERTIFICATE.*127\.0\.0\.[12].*not trusted"


def send_some(producer):
    for number in range(100):
        producer.send("demo", b"%d" % number)
    producer.flush()


class Swapped:
    """Brokers that show another certificate than their master does, from their restart on."""

    def __init__(self, authority, directory):
        self.pair = authority.issue("swapped")
        self.stranger = Authority(directory, "stranger").issue("swapped")

    def swap(self):
        self.pair.cert.write_bytes(self.stranger.cert.read_bytes())
        self.pair.key.write_bytes(self.stranger.key.read_bytes())


@pytest.fixture
def swapped(authority, tmp_path):
    return Swapped(authority, tmp_path)


def test_a_broker_whose_certificate_does_not_fit_fails_a_write_at_once(swapped, authority):
    with using(swapped.pair, authority) as (_, client):
        client.layout("demo")  # connects to the master
        swapped.swap()
        producer = client.producer()
        with pytest.raises(TlsError, match=NOT_TRUSTED):
            send_some(producer)
        producer.close()


def test_a_broker_whose_certificate_does_not_fit_fails_a_read_at_once(swapped, authority):
    with using(swapped.pair, authority) as (_, client):
        client.layout("demo")
        swapped.swap()
        with pytest.raises(TlsError, match=NOT_TRUSTED):
            list(client.read("demo"))


def test_messages_wait_for_a_broker_that_restarts(authority, pair):
    """Over TLS, too: nothing is lost, and what was not answered is sent again."""
    with using(pair, authority) as (server, client):
        with client.producer() as producer:
            for number in range(50):
                producer.send("demo", b"%d" % number)
            producer.flush()
            server.faults.stop_broker(1)
            for number in range(50, 100):
                producer.send("demo", b"%d" % number)
            server.faults.start_broker(1)
        assert {int(record.value) for record in client.read("demo")} == set(range(100))


def test_nonsense_of_one_broker_over_tls_ends_no_producer(authority, pair):
    with using(pair, authority) as (server, client), client.producer() as producer:
        rule = server.faults.corrupt(Method.SEND_MESSAGE, broker=2, times=1)
        sent = [producer.send("demo", b"%d" % number) for number in range(200)]
        for future in sent:
            future.result(20)
        assert rule.hits == 1


def test_connections_with_and_without_a_certificate_are_not_shared(mutual, authority):
    """Two queries of a process may be two users."""
    anna, bert = (trusting(authority, authority.issue(name)) for name in ("anna", "bert"))
    endpoint = Endpoint.parse(mutual.master)
    with opened_connections() as connections:
        connection = loop.run(connections.get(endpoint, 5_000, anna))
        assert loop.run(connections.get(endpoint, 5_000, anna)) is connection
        assert loop.run(connections.get(endpoint, 5_000, bert)) is not connection
        assert connections.connected(endpoint, anna) is connection
        assert connections.connected(endpoint) is None


def test_threads_share_a_connection(one_way, authority):
    with TubeMQClient.connect(one_way.master, tls=trusting(authority)) as client:
        found = []
        threads = [threading.Thread(target=lambda: found.append(client.layout("demo"))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({len(layout.partitions) for layout in found}) == 1
        assert len(found) == 8


def test_a_master_over_tls_that_leaves_out_the_usual_port_means_that_of_tls():
    assert broker_endpoints(["1:10.1.2.3: ", "2:10.1.2.4:9000"], tls=True) == {
        1: Endpoint("10.1.2.3", 8124),
        2: Endpoint("10.1.2.4", 9000),
    }
    assert broker_endpoints(["1:10.1.2.3: "]) == {1: Endpoint("10.1.2.3", 8123)}


def test_a_plain_server_that_hangs_up_is_not_taken_for_one_with_tls():
    """It may just be restarting."""
    with EmbeddedTubeMQ(topics={"demo": (1, 1)}) as server:
        server.faults.drop_connection(Method.BALANCE_REGISTER)
        config = ClientConfig((Endpoint.parse(server.master),), "etl", register_attempts=1)
        with TubeMQClient(config) as client, pytest.raises(TubeMQConnectionError) as caught:
            client.layout("demo")
    assert caught.value.condition == "TUBEMQ_NO_MASTER"
    assert caught.value.retriable


def test_the_server_logs_who_did_not_agree_once(pair, caplog):
    caplog.set_level(logging.INFO)
    with server_with(pair, brokers=1) as server:
        for _ in range(2):
            with pytest.raises(TlsError), TubeMQClient.connect(server.master, tls=TlsConfig()) as client:
                client.layout("demo")

        def told():
            return [record for record in caplog.records if "did not agree to TLS" in record.getMessage()]

        wait_until(told)
    assert [record.levelname for record in told()] == ["WARNING"]
    assert "127.0.0.1" in told()[0].message
    assert "unknown ca" in told()[0].message
