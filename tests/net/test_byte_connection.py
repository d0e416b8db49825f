"""TLS of one connection: bytes in any pieces, and changed ones."""

import itertools
import ssl

import pytest
from hypothesis import given, strategies as st

from tubemq_spark.net.byte_connection import TlsSession

HERE = "127.0.0.1"


class Server(TlsSession):
    """The other side, which has no part in the package."""

    def __init__(self, context):
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.established = self.ended = False


def established(client_tls, server_tls):
    client = TlsSession(client_tls.context(), HERE)
    server = Server(server_tls.context())
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
    client = TlsSession(client_tls.context(), HERE)
    server = Server(server_tls.context())
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
