import contextlib
import socket
import threading
import time

import pytest

from tubemq_spark.errors import TubeMQConnectionError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.pipeline import Pipeline, Pipelines


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def pipelines():
    made = Pipelines(connect_timeout_ms=2_000)
    with contextlib.closing(made):
        yield made


def endpoint_of(server: socket.socket) -> Endpoint:
    return Endpoint("127.0.0.1", server.getsockname()[1])


def drive_until(pipelines: Pipelines, holds, timeout_s: float = 5.0) -> list:
    arrivals = []
    end = time.monotonic() + timeout_s
    while not holds(arrivals):
        assert time.monotonic() < end, arrivals
        arrivals += pipelines.drive(0.05)
    return arrivals


def open_pair(pipelines: Pipelines, listener: socket.socket) -> tuple[Pipeline, socket.socket]:
    pipeline = pipelines.connect(endpoint_of(listener))
    assert pipeline.connecting
    peer, _ = listener.accept()
    drive_until(pipelines, lambda _: pipeline.writable)
    return pipeline, peer


def test_bytes_go_both_ways(pipelines, listener):
    pipeline, peer = open_pair(pipelines, listener)
    assert pipeline._open_socket().getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY), "also a few at once"
    with peer:
        pipeline.write(b"question")
        assert peer.recv(100) == b"question"
        peer.sendall(b"answer")
        assert drive_until(pipelines, bool) == [(pipeline, b"answer")]


def test_what_the_socket_does_not_take_is_written_later(pipelines, listener):
    pipeline, peer = open_pair(pipelines, listener)
    data = bytes(range(256)) * (1 << 16)
    with peer:
        pipeline.write(data)
        assert not pipeline.writable
        assert not pipeline.untouched
        peer.setblocking(False)
        received = bytearray()
        while len(received) < len(data):
            pipelines.drive(0.01)
            with contextlib.suppress(BlockingIOError):
                received += peer.recv(1 << 20)
        assert bytes(received) == data
        drive_until(pipelines, lambda _: pipeline.writable)


def test_a_connection_the_peer_closes_is_reported_once(pipelines, listener):
    pipeline, peer = open_pair(pipelines, listener)
    peer.sendall(b"last words")
    peer.close()
    arrivals = drive_until(pipelines, lambda arrivals: pipeline.closed)
    assert arrivals[0] == (pipeline, b"last words")
    assert isinstance(arrivals[1][1], TubeMQConnectionError)
    assert arrivals[1][1].condition == "TUBEMQ_CONNECTION_LOST"
    assert not pipeline.writable
    assert pipelines.drive(0) == []


def test_few_bytes_are_reported_when_they_are_asked_for(pipelines, listener):
    pipeline, peer = open_pair(pipelines, listener)
    with peer:
        pipeline.report_at(8)
        peer.sendall(b"few")
        assert pipelines.drive(0.05) == []
        peer.sendall(b" more")
        assert drive_until(pipelines, bool) == [(pipeline, b"few more")]
        peer.sendall(b"few")
        assert pipelines.drive(0.05) == []
        pipeline.report_at(1)
        assert drive_until(pipelines, bool) == [(pipeline, b"few")]


def test_few_bytes_are_reported_when_they_are_asked_for_also_behind_a_look_up(
    pipelines, listener, monkeypatch
):
    place = (socket.AF_INET, socket.SOCK_STREAM, 0, "", listener.getsockname())
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [place])
    pipeline = pipelines.connect(Endpoint("broker.test", 8123))
    pipeline.report_at(8)
    drive_until(pipelines, lambda _: pipeline.writable)
    pipeline.report_at(8)
    with listener.accept()[0] as peer:
        peer.sendall(b"few")
        assert pipelines.drive(0.05) == []
        peer.sendall(b" more")
        assert drive_until(pipelines, bool) == [(pipeline, b"few more")]


def test_the_end_is_reported_however_many_bytes_are_waited_for(pipelines, listener):
    pipeline, peer = open_pair(pipelines, listener)
    pipeline.report_at(1_000)
    peer.sendall(b"last words")
    peer.close()
    arrivals = drive_until(pipelines, lambda arrivals: pipeline.closed)
    assert arrivals[0] == (pipeline, b"last words")


def reset(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    peer.close()


def test_writing_to_a_connection_the_peer_reset_is_reported(pipelines, listener):
    pipeline, peer = open_pair(pipelines, listener)
    reset(peer)
    pipeline.write(b"too late")
    assert not pipeline.writable
    assert pipeline.unsent_bytes == 8
    ((which, error),) = drive_until(pipelines, bool)
    assert which is pipeline
    assert isinstance(error, TubeMQConnectionError)
    assert pipeline.closed
    assert pipeline.untouched


def test_what_came_before_a_failed_write_is_still_read(pipelines, listener):
    pipeline, peer = open_pair(pipelines, listener)
    answers = b"answer" * 5_000
    peer.sendall(answers)
    reset(peer)
    pipeline.write(b"too late")
    arrivals = drive_until(pipelines, lambda _: pipeline.closed)
    assert b"".join(data for _, data in arrivals[:-1]) == answers
    assert isinstance(arrivals[-1][1], TubeMQConnectionError)


def test_a_socket_that_cannot_be_made_is_a_failed_connection(pipelines, listener, monkeypatch):
    def out_of_files(*_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("tubemq_spark.net.pipeline.socket.socket", out_of_files)
    with pytest.raises(TubeMQConnectionError, match=r"TUBEMQ_CONNECT_FAILED.*Too many open files"):
        pipelines.connect(endpoint_of(listener))


def test_the_kernel_takes_little_ahead_of_the_network(pipelines, listener):
    """What it has taken looks sent, and the time for an answer runs."""
    pipeline, peer = open_pair(pipelines, listener)
    size = 64 << 20
    with peer:
        pipeline.write(bytes(size))
        held = pipeline._open_socket().getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
        assert held == 1 << 17
        assert pipeline.unsent_bytes > size // 2
        pipeline.close()
        assert pipeline.unsent_bytes == 0, "nothing holds them"


def test_a_refused_connection_is_reported(pipelines):
    with socket.create_server(("127.0.0.1", 0)) as server:
        gone = endpoint_of(server)
    pipeline = pipelines.connect(gone)
    ((which, error),) = drive_until(pipelines, bool)
    assert which is pipeline
    assert isinstance(error, TubeMQConnectionError)
    assert error.condition == "TUBEMQ_CONNECT_FAILED"
    assert "refused" in str(error)


def test_the_next_address_of_a_name_is_tried(pipelines, listener, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        gone = server.getsockname()
    both = [
        (socket.AF_INET, socket.SOCK_STREAM, 0, "", gone),
        (socket.AF_INET, socket.SOCK_STREAM, 0, "", listener.getsockname()),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    pipeline = pipelines.connect(Endpoint("broker.test", 8123))
    drive_until(pipelines, lambda _: pipeline.writable)


def unknown(*_, **__):
    raise socket.gaierror(-2, "Name or service not known")


@pytest.mark.parametrize(
    ("look_up", "said"), [(unknown, "not known"), (lambda *_, **__: [], "the name has no address")]
)
def test_a_name_without_address_is_reported(pipelines, monkeypatch, look_up, said):
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    pipeline = pipelines.connect(Endpoint("nowhere.test", 8123))
    ((which, error),) = drive_until(pipelines, bool)
    assert which is pipeline
    assert "Cannot connect to nowhere.test:8123: " in str(error)
    assert said in str(error)


@pytest.fixture
def silent_resolver(monkeypatch):
    """Answer no question about a name until the test is over."""
    over = threading.Event()
    look_up = socket.getaddrinfo

    def wait(host, *arguments, **named):
        if host.endswith(".test"):
            over.wait(10)
        return look_up("127.0.0.1", *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", wait)
    yield
    over.set()


@pytest.mark.usefixtures("silent_resolver")
def test_a_resolver_that_does_not_answer_holds_up_no_other_peer(pipelines, listener):
    waiting = pipelines.connect(Endpoint("unanswered.test", 8123))
    pipeline, peer = open_pair(pipelines, listener)
    with peer:
        pipeline.write(b"question")
        assert peer.recv(100) == b"question"
    assert waiting.connecting


@pytest.mark.usefixtures("silent_resolver")
def test_a_name_that_is_not_resolved_in_time_is_given_up(monkeypatch):
    now, waits = 1.0, []
    made = Pipelines(connect_timeout_ms=2_000, clock=lambda: now)
    with contextlib.closing(made):
        pipeline = made.connect(Endpoint("unanswered.test", 8123))
        monkeypatch.setattr(made._selector, "select", lambda wait: waits.append(wait) or [])
        now = 2.5
        assert made.drive(60) == []
        assert waits == [0.5]
        now = 3.0
        ((which, error),) = made.drive(0)
        assert which is pipeline
        assert pipeline.closed
        assert "no connection within 2000 ms" in str(error)


def test_a_connection_that_is_not_made_in_time_is_given_up(listener):
    """A full backlog answers nothing, as a dropped packet."""
    fillers = []
    listener.listen(0)
    for _ in range(4):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(listener.getsockname())
        fillers.append(filler)
    with contextlib.closing(Pipelines(connect_timeout_ms=100)) as pipelines:
        pipeline = pipelines.connect(endpoint_of(listener))
        ((which, error),) = drive_until(pipelines, bool)
        assert which is pipeline
        assert "no connection within 100 ms" in str(error)
        assert pipeline.closed
    for filler in fillers:
        filler.close()


def test_waiting_ends_when_the_time_is_over(pipelines, listener, monkeypatch):
    _, peer = open_pair(pipelines, listener)
    waits, select = [], pipelines._selector.select
    monkeypatch.setattr(pipelines._selector, "select", lambda wait: waits.append(wait) or select(wait))
    with peer:
        assert pipelines.drive(0.05) == []
    assert waits == [0.05]


def test_one_drive_serves_all_connections(pipelines, listener):
    pairs = [open_pair(pipelines, listener) for _ in range(3)]
    for number, (_, peer) in enumerate(pairs):
        peer.sendall(b"%d" % number)
    arrivals = drive_until(pipelines, lambda arrivals: len(arrivals) == 3)
    assert {(id(pipeline), data) for pipeline, data in arrivals} == {
        (id(pipeline), b"%d" % number) for number, (pipeline, _) in enumerate(pairs)
    }
    for _, peer in pairs:
        peer.close()


def test_closing_closes_every_connection(listener):
    pipelines = Pipelines(connect_timeout_ms=1_000)
    pipeline, peer = open_pair(pipelines, listener)
    half_open = pipelines.connect(endpoint_of(listener))
    pipelines.close()
    pipelines.close()
    with peer:
        assert peer.recv(1) == b""
    assert pipeline.closed
    assert half_open.closed


def test_what_is_abandoned_is_closed_and_may_be_closed_again(listener):
    pipelines = Pipelines(connect_timeout_ms=1_000)
    pipeline, peer = open_pair(pipelines, listener)
    pipelines.abandon()
    assert pipeline.closed
    with pytest.raises(ValueError, match="closed"):
        pipelines.drive(0)
    pipeline.close()
    pipelines.close()
    with peer:
        assert peer.recv(1) == b""
