"""TLS of one connection: bytes in any pieces, two threads at once, and how it ends."""

import contextlib
import itertools
import random
import socket
import ssl
import threading

import pytest
from hypothesis import given, strategies as st

from testkit.certificates import Authority
from tubemq_spark.errors import TlsError, TubeMQConnectionError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.tls import ServerTls, TlsConfig
from tubemq_spark.net.tls_session import TlsSession, TlsSocket

HERE = "127.0.0.1"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def client_tls(authority):
    return TlsConfig(str(authority.cert))


@pytest.fixture(scope="module")
def server_tls(authority):
    pair = authority.issue("server")
    return ServerTls(str(pair.cert), str(pair.key))


def established(client_tls, server_tls):
    client = TlsSession(client_tls.context(), name=HERE)
    server = TlsSession(server_tls.context(), server_side=True)
    to_server = client.handshake(b"")
    while not (client.established and server.established):
        to_client = server.handshake(to_server)
        to_server = client.handshake(to_client)
    server.decrypt(to_server)
    return client, server


def pieces(data, cuts):
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@given(
    st.lists(st.binary(min_size=1, max_size=50_000), min_size=1, max_size=4),
    st.lists(st.integers(0, 1 << 20), max_size=8),
)
def test_bytes_arrive_whole_however_they_are_cut(client_tls, server_tls, messages, cuts):
    client, server = established(client_tls, server_tls)
    wire = b"".join(map(client.encrypt, messages))
    assert b"".join(map(server.decrypt, pieces(wire, cuts))) == b"".join(messages)
    assert server.decrypt(client.goodbye()) == b""
    assert server.ended


@given(st.lists(st.integers(0, 1 << 12), max_size=8))
def test_a_handshake_may_be_cut_anywhere(client_tls, server_tls, cuts):
    client = TlsSession(client_tls.context(), name=HERE)
    server = TlsSession(server_tls.context(), server_side=True)
    to_server = client.handshake(b"")
    while not server.established:
        to_client = b"".join([server.handshake(piece) for piece in pieces(to_server, cuts)])
        to_server = b"".join([client.handshake(piece) for piece in pieces(to_client, cuts)])
    assert client.established


def test_a_change_of_keys_needs_no_word_of_the_reader(client_tls, server_tls):
    """Its answer goes out with the next bytes that are written."""
    client, server = established(client_tls, server_tls)
    assert client.decrypt(server.encrypt(b"one")) == b"one"
    assert server.decrypt(client.encrypt(b"two")) == b"two"


def test_bytes_that_were_changed_on_the_way_are_not_handed_out(client_tls, server_tls):
    client, server = established(client_tls, server_tls)
    wire = bytearray(client.encrypt(b"good") + client.encrypt(b"bad"))
    wire[-1] ^= 1
    assert server.decrypt(bytes(wire)) == b"good"
    with pytest.raises(ssl.SSLError):
        server.decrypt(b"")


@pytest.fixture
def sockets(client_tls, server_tls):
    """A client that has shaken hands with the socket of a server."""
    with socket.create_server((HERE, 0)) as listening, contextlib.ExitStack() as closing:
        accepted = []

        def accept():
            connected, _ = listening.accept()
            connected.settimeout(5)
            secured = server_tls.context().wrap_socket(connected, server_side=True)
            accepted.append(closing.enter_context(secured))

        thread = threading.Thread(target=accept)
        thread.start()
        raw = closing.enter_context(socket.create_connection(listening.getsockname()))
        endpoint = Endpoint(HERE, listening.getsockname()[1])
        client = TlsSocket.connect(raw, endpoint, client_tls, Deadline.after_ms(5_000))
        thread.join()
        raw.settimeout(5)
        yield client, accepted[0]


def receive(stream, size):
    received = bytearray()
    while len(received) < size and (data := stream.recv(min(size - len(received), 1 << 18))):
        received += data
    return bytes(received)


def test_bytes_go_in_both_directions_at_once(sockets):
    """OpenSSL's object must not be used by two threads at once, and a reader must not hold up writers."""
    client, server = sockets
    data = random.Random(7).randbytes(8 << 20)
    received = []

    def echo():
        for _ in range(0, len(data), 1 << 14):
            server.sendall(receive(server, 1 << 14))

    def read():
        received.append(receive(client, len(data)))

    threads = [threading.Thread(target=act) for act in (echo, read)]
    for thread in threads:
        thread.start()
    for start in range(0, len(data), 100_003):
        client.sendall(data[start : start + 100_003])
    for thread in threads:
        thread.join()
    assert received == [data]


def test_what_came_with_the_end_of_the_handshake_is_read_first(client_tls, server_tls):
    client, server = established(client_tls, server_tls)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        server.handshake(client.encrypt(b"early"))
        stream = TlsSocket(ours, server)
        assert stream.recv(100) == b"early"
        theirs.sendall(client.encrypt(b"late"))
        assert stream.recv(100) == b"late"


def test_the_end_of_the_session_is_the_end_of_the_stream(sockets):
    client, server = sockets
    server.sendall(b"last")
    server.setblocking(False)
    with pytest.raises(ssl.SSLWantReadError):  # The client's goodbye has not come.
        server.unwrap()
    assert receive(client, 100) == b"last"
    assert client.recv(100) == b""


def test_a_record_that_was_changed_on_the_way_is_an_error_of_the_reader(sockets):
    client, server = sockets
    socket.socket.sendall(server, b"\x17\x03\x03\x00\x13" + bytes(19))
    with pytest.raises(ssl.SSLError):
        client.recv(100)


def test_a_shutdown_ends_a_read_beside_a_silent_peer(sockets):
    client, _ = sockets
    client.shutdown(socket.SHUT_RDWR)
    assert client.recv(100) == b""


def test_what_does_not_fit_a_buffer_comes_with_the_next_one(sockets):
    client, server = sockets
    server.sendall(b"abcdef")
    buffer = bytearray(4)
    received = b""
    while len(received) < 6:
        received += buffer[: client.recv_into(memoryview(buffer))]
    assert received == b"abcdef"


def test_a_connection_that_breaks_off_ends_the_stream(sockets):
    client, server = sockets
    server.close()
    assert client.recv(100) == b""


def test_a_server_that_hangs_is_not_waited_for_longer_than_it_takes_to_connect(client_tls):
    with socket.create_server((HERE, 0)) as hanging:
        endpoint = Endpoint(HERE, hanging.getsockname()[1])
        raw = socket.create_connection((HERE, endpoint.port))
        with pytest.raises(
            TubeMQConnectionError, match=r"handshake was broken off \(no answer in time"
        ) as caught:
            TlsSocket.connect(raw, endpoint, client_tls, Deadline.after_ms(50))
    assert caught.value.retriable
    assert not isinstance(caught.value, TlsError)
    assert raw.fileno() == -1
