"""Streams of a sender: bytes go out and come in, and whatever ends a connection is told once."""

import asyncio
import contextlib
import random
import socket
import ssl
import threading

import pytest

from testkit.children import forks, in_child
from tests.net.test_connection import HERE, speaking
from tubemq_spark.errors import OptionError
from tubemq_spark.model import Endpoint
from tubemq_spark.net import addresses
from tubemq_spark.net.send_stream import SendStreams
from tubemq_spark.net.tls import TlsConfig


class Owner:
    """Notes what it is told."""

    def __init__(self):
        self.received = bytearray()
        self.errors = []
        self.writable = 0
        self._changed = asyncio.Event()

    def stream_received(self, stream, data):
        assert not self.errors
        self.received += data
        self._changed.set()

    def stream_lost(self, stream, error):
        assert stream.closed
        assert not stream.writable
        self.errors.append(error)
        self._changed.set()

    def stream_writable(self, stream):
        assert stream.writable
        self.writable += 1
        self._changed.set()

    async def until(self, holds):
        async with asyncio.timeout(60):
            while not holds():
                await self._changed.wait()
                self._changed.clear()

    async def error(self):
        await self.until(lambda: self.errors)
        (error,) = self.errors
        return error


@contextlib.asynccontextmanager
async def streams(timeout_ms=60_000, tls=None):
    opened = SendStreams(timeout_ms, tls)
    try:
        yield opened
    finally:
        await opened.close()


@contextlib.asynccontextmanager
async def connecting(endpoint, timeout_ms=60_000, tls=None):
    async with streams(timeout_ms, tls) as opened:
        owner = Owner()
        stream = opened.connect(endpoint, owner)
        assert stream.connecting
        assert not stream.writable
        yield stream, owner


@contextlib.asynccontextmanager
async def connected(timeout_ms=60_000):
    """Yield an open stream with its owner, and the peer's socket."""
    with socket.create_server((HERE, 0)) as listener:
        async with connecting(Endpoint(*listener.getsockname()), timeout_ms) as (stream, owner):
            peer, _ = await asyncio.to_thread(listener.accept)
            with peer:
                await owner.until(lambda: stream.writable)
                assert not stream.connecting
                assert owner.writable == 1
                yield stream, owner, peer


def reset(peer):
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    peer.close()


def receive(peer, count):
    received = bytearray()
    while len(received) < count and (data := peer.recv(1 << 20)):
        received += data
    return bytes(received)


def socket_of(stream):
    return stream._connection._transport.get_extra_info("socket")


async def test_bytes_go_both_ways():
    async with connected() as (stream, owner, peer):
        assert socket_of(stream).getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY), "also a few at once"
        stream.write(b"question")
        assert stream.writable
        assert not stream.untouched
        assert peer.recv(100) == b"question"
        peer.sendall(b"answer")
        await owner.until(lambda: owner.received == b"answer")
        assert owner.writable == 1, "the socket took everything at once"


async def test_what_the_socket_does_not_take_is_written_later():
    data = bytes(range(256)) * (1 << 16)
    async with connected() as (stream, owner, peer):
        stream.write(data)
        assert not stream.writable
        assert not stream.untouched
        assert 0 < stream.unsent_bytes < len(data)
        assert await asyncio.to_thread(receive, peer, len(data)) == data
        await owner.until(lambda: owner.writable == 2)
        assert stream.unsent_bytes == 0


async def test_an_owner_may_close_a_stream_as_soon_as_it_may_write():
    async with connected() as (stream, owner, peer):
        ends = asyncio.Event()
        owner.stream_writable = lambda stream: (stream.close(), ends.set())
        stream.write(bytes(16 << 20))
        await asyncio.to_thread(receive, peer, 16 << 20)
        await ends.wait()
        assert await asyncio.to_thread(peer.recv, 1) == b""
        assert not owner.errors


async def test_the_kernel_takes_little_ahead_of_the_network():
    """What it has taken looks sent, and the time for an answer runs."""
    size = 64 << 20
    async with connected() as (stream, _, _):
        stream.write(bytes(size))
        assert socket_of(stream).getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 1 << 17
        assert stream.unsent_bytes > size // 2
        stream.close()
        assert stream.unsent_bytes == 0, "nothing holds them"


async def test_a_connection_the_peer_closes_is_reported_once():
    async with connected() as (stream, owner, peer):
        peer.sendall(b"last words")
        peer.close()
        error = await owner.error()
        assert owner.received == b"last words"
        assert error.condition == "TUBEMQ_CONNECTION_LOST"
        assert "was lost while sending messages: the peer closed it" in str(error)
        stream.close()


async def test_few_bytes_are_reported_when_they_are_asked_for():
    async with connected() as (stream, owner, peer):
        stream.report_at(8)
        assert socket_of(stream).getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 8
        peer.sendall(b"few")
        peer.sendall(b" more")
        await owner.until(lambda: owner.received == b"few more")
        peer.sendall(b"few")
        stream.report_at(1)
        await owner.until(lambda: owner.received == b"few morefew")


async def test_the_end_is_reported_however_many_bytes_are_waited_for():
    async with connected() as (stream, owner, peer):
        stream.report_at(1_000)
        peer.sendall(b"last words")
        peer.close()
        await owner.error()
        assert owner.received == b"last words"


async def test_what_fails_at_once_is_untouched():
    async with connected() as (stream, owner, peer):
        reset(peer)
        stream.write(b"too late")
        assert not stream.writable
        assert stream.unsent_bytes == 8
        assert stream.untouched
        assert not owner.errors, "not inside write"
        assert (await owner.error()).condition == "TUBEMQ_CONNECTION_LOST"
        assert stream.untouched


async def test_what_came_before_a_failed_write_is_still_received():
    answers = b"answer" * 20_000
    async with connected() as (stream, owner, peer):
        peer.sendall(answers)
        reset(peer)
        stream.write(b"too late")
        await owner.error()
        assert owner.received == answers


async def test_what_waits_behind_a_full_socket_is_untouched():
    async with connected() as (stream, _, peer):
        while stream.writable:
            stream.write(bytes(1 << 15))
        # What is left of the last one; then one byte after the other, of which nothing is left.
        while not stream.writable:
            await asyncio.to_thread(peer.recv, 1 << 16)
        while stream.writable:
            stream.write(b"x")
        assert stream.untouched
        assert stream.unsent_bytes == 1
        error = stream.fail("it took no bytes")
        assert stream.untouched
        assert stream.closed
        assert str(error) == (
            f"[TUBEMQ_CONNECTION_LOST] The connection to {stream.endpoint} was lost while sending messages: "
            "it took no bytes; try again."
        )
        stream.write(b"more")


async def test_a_refused_connection_is_reported():
    with socket.create_server((HERE, 0)) as gone:
        endpoint = Endpoint(*gone.getsockname())
    async with connecting(endpoint) as (stream, owner):
        error = await owner.error()
        assert not stream.untouched
    assert error.condition == "TUBEMQ_CONNECT_FAILED"
    assert f"Cannot connect to {endpoint}: Connection refused;" in str(error)


def unknown(*_, **__):
    raise socket.gaierror(-2, "Name or service not known")


@pytest.mark.parametrize(
    ("look_up", "said"),
    [(unknown, "[Errno -2] Name or service not known"), (lambda *_, **__: [], "the name has no address")],
)
async def test_a_name_without_address_is_reported(monkeypatch, look_up, said):
    monkeypatch.setattr(addresses.socket, "getaddrinfo", look_up)
    async with connecting(Endpoint("nowhere.test", 8123)) as (_, owner):
        assert f"Cannot connect to nowhere.test:8123: {said};" in str(await owner.error())


async def test_a_connection_that_is_not_made_in_time_is_given_up(full):
    async with connecting(Endpoint(*full), timeout_ms=100) as (_, owner):
        assert "no connection within 100 ms" in str(await owner.error())


async def test_closing_closes_every_connection(full):
    async with connected() as (stream, owner, _):
        async with streams() as opened:
            with socket.create_server((HERE, 0)) as listener:
                established = opened.connect(Endpoint(*listener.getsockname()), owner)
                half_open = opened.connect(Endpoint(*full), owner)
                with (await asyncio.to_thread(listener.accept))[0] as second:
                    await owner.until(lambda: established.writable)
                    await opened.close()
                    assert second.recv(1) == b""
        assert established.closed
        assert half_open.closed
        assert stream.writable
        assert not owner.errors


@forks
async def test_a_child_drops_the_sockets_and_the_peer_hears_nothing():
    with socket.create_server((HERE, 0)) as listener:
        async with streams() as opened:
            owner = Owner()
            stream = opened.connect(Endpoint(*listener.getsockname()), owner)
            with (await asyncio.to_thread(listener.accept))[0] as peer:
                await owner.until(lambda: stream.writable)

                def check():
                    opened.abandon()
                    assert stream.closed
                    stream.close()

                in_child(check)
                stream.write(b"question")
                assert peer.recv(100) == b"question"


# Over TLS.


def secured(server_tls, act):
    """Yield the endpoint of a server over TLS that does something with each connection, and closes it."""
    context = server_tls.context()

    def act_secured(accepted):
        with context.wrap_socket(accepted, server_side=True) as peer:
            act(peer)

    return speaking(act_secured)


def echo(peer):
    while data := peer.recv(1 << 16):
        peer.sendall(data)


async def test_bytes_go_both_ways_over_tls(client_tls, server_tls):
    data = random.Random(3).randbytes(4 << 20)
    with secured(server_tls, echo) as endpoint:
        async with connecting(endpoint, tls=client_tls) as (stream, owner):
            for start in range(0, len(data), 300_000):
                await owner.until(lambda: stream.writable)
                stream.write(data[start : start + 300_000])
            await owner.until(lambda: len(owner.received) == len(data))
            assert owner.received == data


async def test_bytes_that_come_with_the_end_of_the_handshake_are_reported(client_tls, server_tls):
    """In TLS 1.2 a server has the last word of a handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server_tls.cert_file, server_tls.key_file)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing, server_side=True)

    def act(accepted):
        while True:
            incoming.write(accepted.recv(1 << 16))
            with contextlib.suppress(ssl.SSLWantReadError):
                session.do_handshake()
                break
            accepted.send(outgoing.read())
        session.write(b"hello")
        accepted.send(outgoing.read())
        accepted.recv(1)

    with speaking(act) as endpoint:
        async with connecting(endpoint, tls=client_tls) as (_, owner):
            await owner.until(lambda: owner.received == b"hello")


@pytest.mark.parametrize("end", [lambda peer: None, ssl.SSLSocket.unwrap], ids=["closes", "says goodbye"])
async def test_a_connection_over_tls_that_the_peer_ends_is_reported_once(client_tls, server_tls, end):
    def act(peer):
        peer.sendall(b"last words")
        end(peer)  # a goodbye waits for ours

    with secured(server_tls, act) as endpoint:
        async with connecting(endpoint, tls=client_tls) as (_, owner):
            error = await owner.error()
            assert owner.received == b"last words"
    assert error.condition == "TUBEMQ_CONNECTION_LOST"


async def test_answers_over_tls_before_a_failed_write_are_still_received(client_tls, server_tls):
    answers = b"answer" * 5_000
    sent = threading.Event()

    def act(peer):
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else some may never leave
        peer.recv(1)
        peer.sendall(answers)
        reset(peer)
        sent.set()

    with secured(server_tls, act) as endpoint:
        async with connecting(endpoint, tls=client_tls) as (stream, owner):
            await owner.until(lambda: stream.writable)
            stream.write(b"q")
            sent.wait(60)  # the loop must not receive them before
            stream.write(b"too late")
            await owner.error()
            assert owner.received == answers


async def test_a_file_that_is_missing_is_reported_as_such(tmp_path):
    async with connecting(Endpoint(HERE, 1), tls=TlsConfig(str(tmp_path / "gone"))) as (_, owner):
        error = await owner.error()
    assert isinstance(error, OptionError)
    assert "gone, which cannot be used: No such file" in str(error)
