"""Pipelines over TLS: what the owner sees is what it sees of others."""

import contextlib
import dataclasses
import random
import socket
import ssl
import threading
import time

import pytest

from testkit.certificates import Authority
from tubemq_spark.errors import OptionError, TlsError, TubeMQConnectionError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.pipeline import Pipeline, Pipelines
from tubemq_spark.net.tls import ServerTls, TlsConfig
from tubemq_spark.net.tls_pipeline import TlsPipeline, pipeline_maker

HERE = "127.0.0.1"


@pytest.fixture(scope="module")
def tls(authority):
    return TlsConfig(str(authority.cert))


class Peer:
    """A server of one connection, written with Python's own TLS sockets."""

    def __init__(self, server_tls, act):
        self._listening = socket.create_server((HERE, 0))
        self.endpoint = Endpoint(HERE, self._listening.getsockname()[1])
        self._context = server_tls and server_tls.context()
        self._act = act
        self.errors = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        accepted, _ = self._listening.accept()
        try:
            with accepted:
                if self._context is None:
                    self._act(accepted)
                else:
                    with self._context.wrap_socket(accepted, server_side=True) as secured:
                        self._act(secured)
        except OSError as error:
            self.errors.append(error)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listening.close()
        self._thread.join()


def drive_until(pipelines, holds, timeout_s=10.0):
    arrivals = []
    end = time.monotonic() + timeout_s
    while not holds(arrivals):
        assert time.monotonic() < end, arrivals
        arrivals += pipelines.drive(0.05)
    return arrivals


@contextlib.contextmanager
def connected(tls, endpoint, timeout_ms=5_000):
    with contextlib.closing(Pipelines(timeout_ms, make=pipeline_maker(tls))) as pipelines:
        yield pipelines, pipelines.connect(endpoint)


def failure(tls, endpoint, timeout_ms=5_000):
    with connected(tls, endpoint, timeout_ms) as (pipelines, pipeline):
        ((which, error),) = drive_until(pipelines, bool)
        assert which is pipeline
        assert pipeline.closed
        assert not pipeline.writable
    return error


def test_without_tls_nothing_changes():
    assert pipeline_maker(None) is Pipeline


def echo(peer):
    while data := peer.recv(1 << 16):
        peer.sendall(data)


def test_bytes_go_both_ways(tls, server_tls):
    data = random.Random(3).randbytes(4 << 20)
    with Peer(server_tls, echo) as peer, connected(tls, peer.endpoint) as (pipelines, pipeline):
        assert isinstance(pipeline, TlsPipeline)
        assert pipeline.connecting
        assert not pipeline.writable
        drive_until(pipelines, lambda _: pipeline.writable)
        assert not pipeline.connecting
        received, start = b"", 0
        while len(received) < len(data):
            if pipeline.writable and start < len(data):
                pipeline.write(data[start : start + 300_000])
                start += 300_000
            received += b"".join(arrival for _, arrival in pipelines.drive(0.05))
        assert received == data


def test_one_byte_after_another_is_enough_to_shake_hands(tls, server_tls):
    """Neither the handshake nor a record comes in one piece."""
    ours, theirs = socket.socketpair()
    server = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = server_tls.context().wrap_bio(*server, server_side=True)
    with ours, theirs, socket.create_server((HERE, 0)) as listening:
        endpoint = Endpoint(HERE, listening.getsockname()[1])
        with connected(tls, endpoint) as (pipelines, pipeline):
            accepted, _ = listening.accept()
            with accepted:
                accepted.setblocking(False)
                done, arrivals = False, []
                while not done or not arrivals:
                    arrivals += pipelines.drive(0.001)
                    with contextlib.suppress(BlockingIOError):
                        server[0].write(accepted.recv(1))
                    with contextlib.suppress(ssl.SSLWantReadError):
                        if not done:
                            session.do_handshake()
                            done = True
                            session.write(b"hello")
                    if server[1].pending:
                        accepted.send(server[1].read(1))
                assert b"".join(data for _, data in arrivals)[:1] == b"h"
                assert pipeline.writable


def test_the_next_address_of_a_name_is_tried(tls, server_tls, monkeypatch):
    with socket.create_server((HERE, 0)) as server:
        gone = server.getsockname()
    with Peer(server_tls, echo) as peer:
        places = [gone, (peer.endpoint.host, peer.endpoint.port)]
        answers = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", place) for place in places]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers)
        named = dataclasses.replace(tls, server_name=HERE)
        with connected(named, Endpoint("broker.test", 8123)) as (pipelines, pipeline):
            drive_until(pipelines, lambda _: pipeline.writable)


def test_bytes_that_come_with_the_end_of_the_handshake_are_reported(tls, server_tls):
    """In TLS 1.2 a server has the last word of a handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server_tls.cert_file, server_tls.key_file)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing, server_side=True)
    with (
        socket.create_server((HERE, 0)) as listening,
        connected(tls, Endpoint(HERE, listening.getsockname()[1])) as (pipelines, pipeline),
        listening.accept()[0] as accepted,
    ):
        accepted.setblocking(False)
        while True:
            assert pipelines.drive(0.01) == []
            with contextlib.suppress(BlockingIOError):
                incoming.write(accepted.recv(1 << 16))
            with contextlib.suppress(ssl.SSLWantReadError):
                session.do_handshake()
                break
            accepted.send(outgoing.read())
        session.write(b"hello")
        accepted.send(outgoing.read())
        assert drive_until(pipelines, bool) == [(pipeline, b"hello")]


@pytest.mark.parametrize("end", [lambda peer: None, ssl.SSLSocket.unwrap], ids=["closes", "says goodbye"])
def test_a_connection_the_peer_ends_is_reported_once(tls, server_tls, end):
    def act(peer):
        peer.sendall(b"last words")
        end(peer)  # a goodbye waits for ours

    with (
        Peer(server_tls, act) as peer,
        connected(tls, peer.endpoint) as (pipelines, pipeline),
    ):
        arrivals = drive_until(pipelines, lambda _: pipeline.closed)
        assert arrivals[0] == (pipeline, b"last words")
        assert arrivals[1][1].condition == "TUBEMQ_CONNECTION_LOST"
        assert len(arrivals) == 2
        assert pipelines.drive(0) == []


def test_a_certificate_that_is_not_trusted(server_tls, tmp_path):
    with Peer(server_tls, echo) as peer:
        error = failure(TlsConfig(str(Authority(tmp_path, "other").cert)), peer.endpoint)
    assert isinstance(error, TlsError)
    assert error.condition == "TUBEMQ_TLS_CERTIFICATE"
    assert "unknown ca" in str(peer.errors)  # the server is told


def test_a_server_that_wants_a_certificate(authority, tls):
    pair = authority.issue("server")
    mutual = ServerTls(str(pair.cert), str(pair.key), client_ca_file=str(authority.cert))
    with Peer(mutual, echo) as peer, connected(tls, peer.endpoint) as (pipelines, pipeline):
        arrivals = drive_until(pipelines, lambda _: pipeline.closed)
    assert isinstance(arrivals[-1][1], TlsError)
    assert "it answers 'certificate required'" in str(arrivals[-1][1])


def test_a_server_that_speaks_something_else(tls):
    with Peer(None, lambda peer: peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as peer:
        assert failure(tls, peer.endpoint).condition == "TUBEMQ_TLS_NOT_SPOKEN"


def test_a_server_that_leaves_during_the_handshake(tls):
    with Peer(None, lambda peer: peer.recv(1 << 16)) as peer:
        error = failure(tls, peer.endpoint)
    assert error.condition == "TUBEMQ_CONNECT_FAILED"
    assert error.retriable


def test_a_server_that_says_nothing_is_given_up(tls):
    with socket.create_server((HERE, 0)) as silent:
        error = failure(tls, Endpoint(HERE, silent.getsockname()[1]), timeout_ms=100)
    assert isinstance(error, TubeMQConnectionError)
    assert "no connection within 100 ms" in str(error)
    assert error.retriable


def test_a_file_that_is_missing_is_no_matter_of_the_connection(tmp_path):
    with (
        contextlib.closing(
            Pipelines(1_000, make=pipeline_maker(TlsConfig(str(tmp_path / "gone"))))
        ) as pipelines,
        pytest.raises(OptionError, match="gone, which cannot be used: No such file"),
    ):
        pipelines.connect(Endpoint(HERE, 1))
