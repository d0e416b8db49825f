"""Accepting and serving connections: answers in order, ends that leave nothing behind."""

import contextlib
import dataclasses
import re
import socket
import ssl
import struct
import threading
import time
import types

import pytest

from tests.waiting import wait_until
from tubemq_spark.errors import OptionError, TubeMQConnectionError
from tubemq_spark.net import listener as listener_module
from tubemq_spark.net.listener import Acceptor, Fault, Listener, Reply
from tubemq_spark.net.tls import ServerTls, TlsConfig
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.connection import Role, RpcConnection
from tubemq_spark.protocol.constants import Status


def echo(requests):
    return [request.body for request in requests]


class TlsListener(Listener):
    """One that ``dial`` connects to over TLS."""

    client_tls: ssl.SSLContext


@pytest.fixture
def listen(request):
    opened = []

    def start(service=echo, port=0):
        if getattr(request, "param", "plain") == "tls":
            opened.append(
                TlsListener("test", "127.0.0.1", port, service, request.getfixturevalue("server_tls"))
            )
            opened[-1].client_tls = TlsConfig(str(request.getfixturevalue("authority").cert)).context()
        else:
            opened.append(Listener("test", "127.0.0.1", port, service))
        return opened[-1]

    yield start
    for listener in opened:
        listener.close()


over_tls = pytest.mark.parametrize("listen", ["tls"], indirect=True)
over_both = pytest.mark.parametrize("listen", ["plain", "tls"], indirect=True)


def dial_plain(listener):
    return socket.create_connection((listener.endpoint.host, listener.endpoint.port), 5)


def dial(listener):
    connected = dial_plain(listener)
    if isinstance(listener, TlsListener):
        return listener.client_tls.wrap_socket(connected, server_hostname="127.0.0.1")
    return connected


def requests(*bodies):
    """Return a client that asks all of this, and the bytes that it sends."""
    client = RpcConnection(Role.CLIENT)
    for body in bodies:
        client.send_request(1, 2, body, 1000)
    return client, client.data_to_send()


def ask(connected, *bodies):
    """Send requests in one piece and return their answers."""
    client, data = requests(*bodies)
    connected.sendall(data)
    answers = []
    while len(answers) < len(bodies):
        answers += client.receive_data(connected.recv(1 << 16))
    return answers


@over_both
def test_requests_of_one_read_come_together_and_are_answered_in_order(listen, monkeypatch):
    seen, sent, data_to_send = [], [], RpcConnection.data_to_send
    monkeypatch.setattr(RpcConnection, "data_to_send", lambda own: sent.append(own) or data_to_send(own))

    def service(requests):
        seen.append(len(requests))
        return echo(requests)

    with dial(listen(service)) as connected:
        answers = ask(connected, *(b"%d" % number for number in range(50)))
    assert [answer.body for answer in answers] == [b"%d" % number for number in range(50)]
    assert sum(seen) == 50
    assert len(seen) < 50
    assert len(sent) == 1 + len(seen), "the client's requests, and the answers to each read"


@over_both
def test_what_came_while_others_were_answered_is_one_read(listen):
    seen, entered, all_sent = [], threading.Event(), threading.Event()

    def service(requests):
        seen.append(len(requests))
        entered.set()
        all_sent.wait(5)
        return echo(requests)

    client = RpcConnection(Role.CLIENT)
    with dial(listen(service)) as connected:
        for _ in range(50):
            client.send_request(1, 2, b"x" * 1000, 1000)
            connected.sendall(client.data_to_send())
            entered.wait(5)
        all_sent.set()
        while client.in_flight and (data := connected.recv(1 << 16)):
            client.receive_data(data)
    assert seen == [1, 49]


def test_a_fault_is_an_exception(listen):
    with dial(
        listen(lambda requests: [Fault(Status.ERROR, "x.StandbyException", "no") for _ in requests])
    ) as connected:
        (answer,) = ask(connected, b"")
    assert isinstance(answer, rpc.Failure)
    assert (answer.status, answer.exception_class, answer.text) == (Status.ERROR, "StandbyException", "no")


def test_connections_are_served_side_by_side(listen):
    both = threading.Barrier(2, timeout=5)

    def service(requests):
        both.wait()
        return echo(requests)

    listener = listen(service)
    with dial(listener) as first, dial(listener) as second:
        other = threading.Thread(target=ask, args=(first, b"a"))
        other.start()
        assert ask(second, b"b")[0].body == b"b"
        other.join()


@over_both
def test_a_broken_frame_closes_its_connection_only(listen):
    listener = listen()
    with dial(listener) as good, dial(listener) as bad:
        ask(good, b"1")
        bad.sendall(b"this is not TubeMQ")
        assert bad.recv(1) == b""
        assert ask(good, b"2")[0].body == b"2"
        assert listener.connection_count == 1


@pytest.mark.parametrize("interceptor", [None, lambda _, handle: Reply(handle())])
def test_an_unreadable_request_is_answered_and_the_connection_stays(listen, interceptor):
    listener = listen()
    listener.interceptor = interceptor
    with dial(listener) as connected:
        connected.sendall(b"\xff\x7f\xf4\xfe" + b"\0\0\0\1" * 3 + b"\xff")
        assert connected.recv(1 << 16).startswith(b"\xff\x7f\xf4\xfe")
        assert ask(connected, b"2")[0].body == b"2"


@over_both
def test_a_peer_that_does_not_read_holds_up_neither_others_nor_the_end(listen):
    listener = listen(lambda requests: [bytes(1 << 20) for _ in requests])
    with dial(listener) as lazy, dial(listener) as other:
        lazy.sendall(requests(*[b""] * 20)[1])
        assert len(ask(other, b"")[0].body) == 1 << 20
        listener.close()
    assert listener.connection_count == 0


def test_answers_leave_before_all_of_a_read_are_there(listen):
    """What a connection holds of them is a slice, whatever one read asks for."""
    answered = 0

    def service(requests):
        nonlocal answered
        for _ in requests:
            answered += 1
            yield bytes(1 << 20)

    with dial(listen(service)) as connected:
        client, data = requests(*[b""] * 300)
        connected.sendall(data)
        answers = client.receive_data(connected.recv(1))
        # The rest is in no buffer of the connection.
        assert answered < 150
        while len(answers) < 300:
            answers += client.receive_data(connected.recv(1 << 20))
    assert [answer.serial_no for answer in answers] == list(range(1, 301))


@over_both
def test_close_ends_open_connections_and_is_done_once(listen):
    listener = listen()
    with dial(listener) as connected:
        ask(connected, b"")
        listener.close()
        assert connected.recv(1) == b""
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        dial(listener)


@over_both
def test_a_port_can_be_used_again_at_once(listen):
    first = listen()
    with dial(first) as connected:
        ask(connected, b"")
        first.close()
    second = listen(port=first.endpoint.port)
    assert second.endpoint == first.endpoint
    with dial(second) as connected:
        assert ask(connected, b"again")[0].body == b"again"


def test_a_port_in_use_is_an_error_that_says_so(listen):
    taken = listen().endpoint
    with pytest.raises(TubeMQConnectionError, match=rf"^\[TUBEMQ_LISTEN_FAILED\] Cannot listen on {taken}:"):
        listen(port=taken.port)


def test_a_failed_accept_is_logged_and_tried_again(listen, monkeypatch, caplog):
    """Out of file descriptors: it passes."""
    monkeypatch.setattr(listener_module, "_ACCEPT_PAUSE_S", 0.01)
    real = socket.socket.accept
    failures = [OSError(24, "Too many open files"), BlockingIOError()]

    def failing(self):
        if failures:
            raise failures.pop()
        return real(self)

    monkeypatch.setattr(socket.socket, "accept", failing)
    with dial(listen()) as connected:
        assert ask(connected, b"x")[0].body == b"x"
    assert "test cannot accept a connection: [Errno 24] Too many open files" in caplog.text


def test_a_thread_that_cannot_start_costs_one_connection(listen, monkeypatch, caplog):
    monkeypatch.setattr(listener_module, "_ACCEPT_PAUSE_S", 0.01)
    listener = listen()
    failures = [RuntimeError("can't start new thread")]
    start = threading.Thread.start

    def failing(self):
        if failures:
            raise failures.pop()
        start(self)

    monkeypatch.setattr(threading.Thread, "start", failing)
    with dial(listener) as first:
        assert first.recv(1) == b""
    with dial(listener) as second:
        assert ask(second, b"x")[0].body == b"x"
    assert "test cannot accept a connection: can't start new thread" in caplog.text


def test_threads_are_named_and_end_with_their_connection(listen):
    listener = listen()
    with dial(listener) as connected:
        ask(connected, b"")
        names = {thread.name for thread in threading.enumerate()}
        assert {"tubemq-listen-test", "tubemq-serve-test-1"} <= names
    wait_until(lambda: listener.connection_count == 0)


def test_an_acceptor_hands_sockets_over_and_closes_them():
    def greet(connected):
        assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        connected.sendall(b"hello")

    acceptor = Acceptor("plain", "127.0.0.1", 0, greet)
    try:
        with dial(acceptor) as connected:
            assert connected.recv(5) == b"hello"
            assert connected.recv(5) == b""
    finally:
        acceptor.close()


def test_an_interceptor_gets_requests_one_by_one_from_the_next_read_on(listen):
    listener = listen()
    seen = []

    def intercept(request, handle):
        seen.append(request.body)
        return Reply(b"<" + handle() + b">")

    with dial(listener) as connected:
        assert ask(connected, b"1")[0].body == b"1"
        listener.interceptor = intercept
        assert [answer.body for answer in ask(connected, b"2", b"3")] == [b"<2>", b"<3>"]
        listener.interceptor = None
        assert ask(connected, b"4")[0].body == b"4"
    assert seen == [b"2", b"3"]


@over_both
def test_an_interceptor_can_change_a_frame_send_nothing_and_hang_up(listen):
    listener = listen()
    replies = {
        b"changed": Reply(b"x", lambda frame: frame[:3]),
        b"silent": Reply(None),
        b"fault": Reply(Fault(Status.ERROR, "x.StandbyException", "no"), hang_up=True),
        b"never": Reply(b"never"),
    }
    listener.interceptor = lambda request, _: replies[request.body]
    with dial(listener) as connected:
        client, data = requests(*replies)
        connected.sendall(data)
        received = b""
        while data := receive(connected):
            received += data
    assert received[:3] == b"\xff\x7f\xf4"
    (failure,) = client.receive_data(received[3:])
    assert (failure.serial_no, failure.text) == (3, "no")


@pytest.mark.parametrize("intercepted", [False, True])
def test_what_is_answered_while_it_is_frozen_is_sent_when_it_thaws(listen, intercepted):
    def service(requests):
        listener.freeze()
        return echo(requests)

    listener = listen(service)
    if intercepted:
        listener.interceptor = lambda _, handle: Reply(handle())
    client, data = requests(b"x")
    with dial(listener) as connected:
        connected.sendall(data)
        connected.settimeout(0.1)
        with pytest.raises(TimeoutError):
            connected.recv(1)
        listener.thaw()
        connected.settimeout(5)
        assert [answer.body for answer in client.receive_data(connected.recv(1 << 16))] == [b"x"]


def test_what_comes_while_it_is_frozen_is_answered_when_it_thaws(listen):
    seen = []
    listener = listen(lambda requests: seen.append(len(requests)) or echo(requests))
    client, data = requests(b"2")
    with dial(listener) as connected:
        ask(connected, b"1")
        listener.freeze()
        connected.sendall(data)
        connected.settimeout(0.1)
        with pytest.raises(TimeoutError):
            connected.recv(1)
        assert seen == [1]
        listener.thaw()
        connected.settimeout(5)
        assert [answer.body for answer in client.receive_data(connected.recv(1 << 16))] == [b"2"]


def test_a_connection_that_is_frozen_ends_with_the_listener(listen):
    listener = listen()
    listener.freeze()
    with dial(listener) as connected:
        wait_until(lambda: listener.connection_count == 1)
        listener.close()
        assert receive(connected) == b""


def receive(connected):
    try:
        return connected.recv(1 << 16)
    except ConnectionResetError:
        return b""


def read_to_the_end(connected):
    while connected.recv(1 << 16):
        pass


def half_frame(claimed, sent):
    """A frame of one chunk that claims more bytes than come."""
    return struct.pack(">Iiii", 0xFF7FF4FE, 1, 1, claimed) + bytes(sent)


@over_both
def test_answers_wait_for_the_peer_longer_than_one_look(listen, monkeypatch):
    monkeypatch.setattr(listener_module, "_LOOK_S", 0.05)
    listener = listen(lambda requests: [bytes(20 << 20) for _ in requests])
    client, frame = requests(b"x" * 100)
    with dial(listener) as connected:
        connected.sendall(frame[:50])
        wait_until(lambda: listener._held)
        connected.sendall(frame[50:])
        time.sleep(0.3)
        while client.in_flight and (data := connected.recv(1 << 20)):
            client.receive_data(data)
    assert not client.in_flight


def closed_soon(connected):
    connected.settimeout(20)
    return receive(connected) == b""


@over_both
def test_a_frame_that_does_not_come_whole_in_time_closes_its_connection_only(listen, monkeypatch, caplog):
    monkeypatch.setattr(listener_module, "_LOOK_S", 0.05)
    monkeypatch.setattr(listener_module, "_FRAME_TIMEOUT_S", 0.3)
    listener = listen()
    with dial(listener) as idle, dial(listener) as late, dial(listener) as slow:
        ask(idle, b"1")
        late.sendall(half_frame(100, 50))
        slow.sendall(half_frame(1000, 1))
        slow.settimeout(0.02)
        closed = False
        while not closed:  # Byte by byte: that does not put it off.
            try:
                slow.sendall(b"x")
                closed = slow.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                closed = True
        assert closed_soon(late)
        assert ask(idle, b"2")[0].body == b"2", "idle for longer than that, with no frame begun"
    said = [line.getMessage() for line in caplog.records if line.levelname == "WARNING"]
    assert said == ["test cut off a connection from 127.0.0.1: a frame was not here whole after 0.3 s"]


@over_both
def test_a_peer_that_always_has_a_frame_under_way_goes_on(listen, monkeypatch):
    monkeypatch.setattr(listener_module, "_LOOK_S", 0.02)
    monkeypatch.setattr(listener_module, "_FRAME_TIMEOUT_S", 0.2)
    now = time.monotonic()
    monkeypatch.setattr(listener_module, "time", types.SimpleNamespace(monotonic=lambda: now))
    client = RpcConnection(Role.CLIENT)
    with dial(listen()) as connected:
        rest = b""
        for _ in range(10):
            client.send_request(1, 2, b"x" * 100, 1000)
            frame = client.data_to_send()
            connected.sendall(rest + frame[:50])
            rest = frame[50:]
            while len(client.in_flight) > 1:
                client.receive_data(connected.recv(1 << 16))
            now += 0.15
        connected.sendall(rest)
        while client.in_flight:
            client.receive_data(connected.recv(1 << 16))


@over_both
def test_unfinished_frames_hold_bounded_memory(listen, monkeypatch, caplog):
    monkeypatch.setattr(listener_module, "_MAX_HELD_BYTES", 1 << 20)
    listener = listen()
    with dial(listener) as first, dial(listener) as second, dial(listener) as good:
        first.sendall(half_frame(4 << 20, 600_000))
        wait_until(lambda: sum(held.size for held in listener._held.values()) >= 600_000, 20)
        second.sendall(half_frame(4 << 20, 600_000))
        assert closed_soon(second)
        assert ask(good, b"1")[0].body == b"1"
        assert listener.connection_count == 2, "who came first keeps what it has"
    assert "unfinished frames hold more than 1 MiB" in caplog.text


@over_both
def test_a_frame_that_came_whole_holds_nothing_more(listen):
    listener = listen()
    with dial(listener) as connected:
        client, frame = requests(b"x" * 100)
        connected.sendall(frame[:10])
        wait_until(lambda: listener._held)
        connected.sendall(frame[10:])
        assert client.receive_data(connected.recv(1 << 16))
        wait_until(lambda: not listener._held)
        assert listener.connection_count == 1


@over_tls
def test_half_a_record_does_not_put_off_the_end_of_a_frame(listen, monkeypatch):
    monkeypatch.setattr(listener_module, "_LOOK_S", 0.05)
    monkeypatch.setattr(listener_module, "_FRAME_TIMEOUT_S", 0.3)
    with dial(listen()) as connected:
        connected.sendall(half_frame(100, 50))
        socket.socket.sendall(connected, b"\x17\x03\x03\x00\x40" + bytes(10))
        assert closed_soon(connected)


@over_tls
def test_requests_before_a_record_that_was_changed_on_the_way_are_served(listen):
    seen, entered, all_sent = [], threading.Event(), threading.Event()

    def service(requests):
        seen.extend(request.body for request in requests)
        entered.set()
        all_sent.wait(5)
        return echo(requests)

    client = RpcConnection(Role.CLIENT)
    with dial(listen(service)) as connected:
        for body in (b"first", b"second"):
            client.send_request(1, 2, body, 1000)
            connected.sendall(client.data_to_send())
            entered.wait(5)
        socket.socket.sendall(connected, b"\x17\x03\x03\x00\x13" + bytes(19))
        all_sent.set()
        with pytest.raises(ssl.SSLError, match="BAD_RECORD_MAC"):
            read_to_the_end(connected)
        wait_until(lambda: len(seen) == 2)
    assert seen == [b"first", b"second"]


@over_tls
@pytest.mark.parametrize(
    ("sent", "ends", "cause"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", False, r"\[SSL: HTTP_REQUEST\] http request"),
        (b"\x16\x03\x01", True, "the peer closed it during the TLS handshake"),
        (b"\x16\x03\x01", False, "timed out"),
    ],
)
def test_a_client_that_does_not_agree_to_tls_is_cut_off(listen, monkeypatch, caplog, sent, ends, cause):
    monkeypatch.setattr(listener_module, "_HANDSHAKE_S", 0.3)
    listener = listen()
    with dial(listener) as good:
        with dial_plain(listener) as bad:
            bad.sendall(sent)
            if ends:
                bad.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                read_to_the_end(bad)
        assert ask(good, b"x")[0].body == b"x"
        wait_until(lambda: listener.connection_count == 1)
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert re.match(f"test cut off a connection from 127.0.0.1 that did not agree to TLS: {cause}", said)


@over_tls
def test_close_ends_connections_that_shake_hands(listen, monkeypatch, caplog):
    monkeypatch.setattr(listener_module, "_HANDSHAKE_S", 3600.0)
    for _ in range(10):
        listener = listen()
        with dial_plain(listener) as connected:
            wait_until(lambda listener=listener: listener.connection_count == 1)
            listener.close()
            assert receive(connected) == b""
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_an_alert_reaches_a_client_that_has_sent_requests(authority, server_tls):
    """Bytes that nothing reads would reset the connection."""
    tls = dataclasses.replace(server_tls, client_ca_file=str(authority.cert))
    listener = Listener("test", "127.0.0.1", 0, echo, tls)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = (
        TlsConfig(str(authority.cert)).context().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    )
    try:
        with dial(listener) as connected:
            with contextlib.suppress(ssl.SSLWantReadError):
                session.do_handshake()
            connected.sendall(outgoing.read())
            while True:
                incoming.write(connected.recv(1 << 16))
                with contextlib.suppress(ssl.SSLWantReadError):
                    session.do_handshake()
                    break
            session.write(b"x" * 1000)
            connected.sendall(outgoing.read())
            while data := connected.recv(1 << 16):
                incoming.write(data)
            with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
                session.read(1)
    finally:
        listener.close()


def test_connections_beyond_the_limit_are_closed_at_once(caplog):
    acceptor = Acceptor("small", "127.0.0.1", 0, lambda connected: connected.recv(1), max_connections=2)
    try:
        with dial(acceptor) as first, dial(acceptor):
            for _ in range(3):
                with dial(acceptor) as more:
                    assert closed_soon(more)
            first.sendall(b"x")
            assert closed_soon(first)
            with dial(acceptor) as instead:
                instead.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    instead.recv(1)
    finally:
        acceptor.close()
    said = [line.getMessage() for line in caplog.records if line.levelname == "WARNING"]
    assert said == ["small cut off a connection from 127.0.0.1: 2 connections are open"]


@pytest.mark.parametrize(
    ("host", "port", "sentence"),
    [
        ("127.0.0.1", 65_536, "The setting port is 65536; it must be from 0 to 65535"),
        ("127.0.0.1", -1, "The setting port is -1"),
        ("192.0.2.1", 0, "'192.0.2.1' is not an address of this machine"),
        ("no.such.host.invalid", 0, "'no.such.host.invalid' is not an address of this machine"),
    ],
)
def test_an_address_that_cannot_be_listened_at_is_refused(host, port, sentence):
    with pytest.raises(OptionError, match=re.escape(sentence)):
        Listener("test", host, port, echo)


def test_a_listener_reads_the_files_of_tls_before_it_opens_its_port(tmp_path):
    with pytest.raises(OptionError, match="gone, which cannot be used"):
        Listener("test", "127.0.0.1", 0, echo, ServerTls(str(tmp_path / "gone")))


def test_an_address_of_ip_6_is_listened_at():
    acceptor = Acceptor("test", "::1", 0, lambda connected: connected.sendall(b"hello"))
    try:
        with socket.create_connection(("::1", acceptor.endpoint.port), 5) as connected:
            assert connected.recv(5) == b"hello"
        assert str(acceptor.endpoint) == f"[::1]:{acceptor.endpoint.port}"
    finally:
        acceptor.close()
