"""Calls over one connection in an event loop, and everything that may happen instead of an answer."""

import asyncio
import contextlib
import queue
import socket
import threading

import pytest

from testkit.children import forks, in_child
from tests.net.test_receive_buffer import in_chunks
from tests.rpc_server import RpcServer
from tests.waiting import until
from tubemq_spark.errors import (
    HttpAnswerError,
    LocalProtocolError,
    OptionError,
    RemoteProtocolError,
    RpcError,
    TlsError,
    TubeMQConnectionError,
    TubeMQTimeoutError,
)
from tubemq_spark.model import Endpoint
from tubemq_spark.net import addresses, tls_errors
from tubemq_spark.net.connection import connect
from tubemq_spark.net.listener import Listener
from tubemq_spark.net.tls import ServerTls, TlsConfig
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.constants import Method, ServiceType, Status
from tubemq_spark.protocol.pb import master_pb2

HERE = "127.0.0.1"
REQUEST = master_pb2.CloseRequestP2M(clientId="me")
FOREVER_MS = 600_000


def ok(text="fine"):
    return master_pb2.CloseResponseM2P(success=True, errCode=200, errMsg=text)


def echo(exchange):
    exchange.answer(ok(exchange.parse(master_pb2.CloseRequestP2M).clientId))


def silent(exchange):
    pass


def start(connection, timeout_ms=FOREVER_MS, request=REQUEST):
    return connection.start(
        ServiceType.MASTER, Method.PRODUCER_CLOSE, request, timeout_ms=timeout_ms, during="closing"
    )


async def answer(pending):
    await pending
    return pending.result(master_pb2.CloseResponseM2P, "closing")


async def call(connection, timeout_ms=FOREVER_MS, request=REQUEST):
    return await answer(start(connection, timeout_ms, request))


async def taken(held):
    """Return the next of what a handler has put into a queue."""
    return await asyncio.to_thread(held.get, timeout=60)


@contextlib.asynccontextmanager
async def over(server, **how):
    connection = await connect(server.endpoint, 60_000, **how)
    try:
        yield connection
    finally:
        connection.close()
        await connection.ended.wait()


@contextlib.asynccontextmanager
async def served(handler, **how):
    """Yield a server with a handler, and a connection to it."""
    with RpcServer(handler) as server:
        async with over(server, **how) as connection:
            yield server, connection


async def test_a_call_brings_the_answer():
    with RpcServer(echo) as server:
        async with over(server) as connection:
            assert await call(connection) == ok("me")
            assert not connection.closed
        assert connection.closed


async def test_a_connection_tells_what_it_was_used_for(caplog):
    caplog.set_level("DEBUG", logger="tubemq_spark.net.connection")
    with RpcServer(echo) as server:
        async with over(server) as first, over(server) as second:
            unused = second.traffic
            await call(first)
            await call(first)
            used = first.traffic
            assert (first.heard, second.heard) == (True, False)
    assert (unused.requests, unused.frames) == (0, 0)
    assert (used.requests, used.frames) == (2, 2)
    assert 0 <= used.silent_s < used.age_s
    assert unused.silent_s == unused.age_s
    assert first.number != second.number
    lines = [record.getMessage() for record in caplog.records]
    for connection, count in ((first, 2), (second, 0)):
        begin = f"connection {connection.number} to {server.endpoint} ended: it was closed ({count} requests"
        assert any(line.startswith(begin) for line in lines), lines


async def test_the_request_travels_whole():
    held = queue.Queue()

    def note(exchange):
        held.put(exchange.request)
        echo(exchange)

    async with served(note) as (_, connection):
        await call(connection, timeout_ms=12_345)
    request = held.get()
    assert (request.service, request.method, request.timeout_ms) == (1, 3, 12_345)
    assert request.body == REQUEST.SerializeToString()


async def test_big_requests_and_answers_at_once_do_not_mix():
    async def same(connection, number):
        name = f"{number}-" + "x" * (number * 40_000)
        return await call(connection, request=master_pb2.CloseRequestP2M(clientId=name)) == ok(name)

    async with served(echo) as (_, connection):
        answers = await asyncio.gather(*[same(connection, number) for number in range(16)])
    assert answers == [True] * 16


async def test_answers_may_come_in_any_order():
    waiting = []

    def backwards(exchange):
        waiting.append(exchange)
        if len(waiting) == 3:
            for number, held in reversed(list(enumerate(waiting))):
                held.answer(ok(str(number)))

    async with served(backwards) as (_, connection):
        calls = [start(connection) for _ in range(3)]
        assert [(await answer(pending)).errMsg for pending in calls] == ["0", "1", "2"]


@pytest.mark.parametrize("size", [10, 20_000, 700_000, 5_000_000])
async def test_answers_of_any_size_come_whole(size):
    async with served(lambda exchange: exchange.answer(ok("x" * size))) as (_, connection):
        for _ in range(3):
            assert await call(connection) == ok("x" * size)


@pytest.mark.parametrize("sizes", [[8192, 100], [100, 8192], [8192, 0, 8192], [8192] * 30 + [5_000]])
async def test_an_answer_in_unusual_chunks_comes_without_waiting_for_the_time_out(sizes):
    body = ok("x" * 300_000).SerializeToString()
    stream = rpc.answer_head(Method.PRODUCER_CLOSE, len(body)) + body

    def in_unusual_chunks(exchange):
        exchange.send_bytes(in_chunks(exchange.request.serial_no, stream, sizes))

    async with served(in_unusual_chunks) as (_, connection):
        for _ in range(2):
            assert await call(connection) == ok("x" * 300_000)


async def test_an_answer_that_came_in_time_is_good_however_late_it_is_asked_for():
    async with served(echo) as (_, connection):
        pending = start(connection, timeout_ms=1_000)
        await until(lambda: pending.done)
        pending._ends_at = 0.0
        assert await answer(pending) == ok("me")


async def test_a_request_without_answer_times_out_and_the_connection_stays():
    requests = []

    def only_second(exchange):
        requests.append(exchange)
        if len(requests) > 1:
            echo(exchange)

    async with served(only_second) as (server, connection):
        with pytest.raises(TubeMQTimeoutError, match="within 50 ms while closing") as caught:
            await call(connection, timeout_ms=50)
        assert caught.value.parameters["endpoint"] == str(server.endpoint)
        assert await call(connection) == ok("me")
        assert len(server.accepted) == 1


async def test_a_half_frame_and_then_silence_is_a_time_out():
    half = rpc.answer_head(Method.PRODUCER_CLOSE, 1_000)

    def begin(exchange):
        exchange.send_bytes(in_chunks(exchange.request.serial_no, half, [])[:-1])

    async with served(begin) as (server, connection):
        with pytest.raises(TubeMQTimeoutError):
            await call(connection, timeout_ms=300)
        assert connection.in_use
        server.drop_connections()
        await connection.ended.wait()
        assert connection.lost_because == "the peer closed it"


async def test_a_late_answer_is_dropped():
    held = []

    def late(exchange):
        held.append(exchange)
        if len(held) == 2:
            held[0].answer(ok("late"))
            held[1].answer(ok("in time"))

    async with served(late) as (_, connection):
        with pytest.raises(TubeMQTimeoutError):
            await call(connection, timeout_ms=30)
        assert await call(connection) == ok("in time")


@pytest.mark.parametrize(("most", "why"), [(1, "a call was not"), (2, "2 calls in a row were not")])
async def test_a_connection_that_only_swallows_requests_is_given_up(most, why):
    async with served(silent, silent_timeouts=most) as (_, connection):
        last = start(connection)
        for _ in range(most):
            assert not connection.closed
            with pytest.raises(TubeMQTimeoutError):
                await call(connection, timeout_ms=20)
        assert connection.closed
        with pytest.raises(TubeMQConnectionError, match=f"{why} answered"):
            await answer(last)


async def test_bytes_between_two_timeouts_show_that_the_peer_lives():
    requests = []

    def every_other(exchange):
        requests.append(exchange)
        if len(requests) % 2 == 0:
            echo(exchange)

    async with served(every_other) as (_, connection):
        for _ in range(3):
            with pytest.raises(TubeMQTimeoutError):
                await call(connection, timeout_ms=20)
            await call(connection)
        assert not connection.closed


async def test_a_forgotten_call_leaves_nothing_behind():
    held = queue.Queue()
    async with served(held.put) as (_, connection):
        pending = start(connection)
        pending.forget()
        (await taken(held)).answer(ok())
        second = start(connection)
        (await taken(held)).answer(ok("second"))
        assert await answer(second) == ok("second")
        assert not pending.done
        assert not connection.in_use


async def test_a_task_that_is_cancelled_forgets_its_call():
    held = queue.Queue()
    async with served(held.put) as (_, connection):
        task = asyncio.create_task(call(connection))
        exchange = await taken(held)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not connection.in_use
        exchange.answer(ok("late"))
        second = start(connection)
        (await taken(held)).answer(ok("second"))
        assert await answer(second) == ok("second")


async def test_a_lost_connection_fails_all_calls_under_way():
    held = queue.Queue()
    async with served(held.put) as (server, connection):
        calls = [start(connection) for _ in range(3)]
        for _ in calls:
            await taken(held)
        server.drop_connections()
        for pending in calls:
            with pytest.raises(TubeMQConnectionError, match="was lost while closing") as caught:
                await answer(pending)
            assert caught.value.retriable
        assert connection.closed
        with pytest.raises(TubeMQConnectionError, match="was lost while closing"):
            start(connection)


async def test_closing_fails_all_calls_under_way():
    async with served(silent) as (_, connection):
        pending = start(connection)
        connection.close()
        connection.close()
        assert pending.done
        with pytest.raises(TubeMQConnectionError, match="it was closed"):
            await answer(pending)


async def test_a_peer_that_takes_no_bytes_is_given_up_and_holds_up_no_end():
    with socket.create_server((HERE, 0)) as deaf:
        connection = await connect(Endpoint(*deaf.getsockname()), 60_000)
        huge = master_pb2.CloseRequestP2M(clientId="x" * (20 << 20))
        for _ in range(2):
            with pytest.raises(TubeMQTimeoutError):
                await call(connection, timeout_ms=20, request=huge)
        assert connection.closed
        async with asyncio.timeout(60):
            await connection.ended.wait()


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", id="another protocol"),
        pytest.param(b"\xff\x7f\xf4\xfe\x00\x00\x00\x01\x00\x00\x00\x00", id="a frame without chunks"),
        pytest.param(
            b"\xff\x7f\xf4\xfe\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x02\xff\xff",
            id="an unreadable answer",
        ),
    ],
)
async def test_a_peer_that_breaks_the_protocol_is_hung_up_on(garbage):
    async with served(lambda exchange: exchange.send_bytes(garbage)) as (_, connection):
        with pytest.raises(TubeMQConnectionError, match="broke the protocol"):
            await call(connection)
        assert connection.closed


@pytest.mark.parametrize("words", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"<!DOCTYPE html><html></html>"])
async def test_an_http_server_is_recognised(words):
    async with served(lambda exchange: exchange.send_bytes(words)) as (_, connection):
        with pytest.raises(TubeMQConnectionError, match="answered in HTTP") as caught:
            await call(connection)
        assert isinstance(caught.value.__cause__, HttpAnswerError)
        assert "; try again." in str(caught.value)
        assert ".;" not in str(caught.value)


async def test_an_answer_of_another_kind_fails_that_call_only():
    other = master_pb2.HeartRequestC2MV2(clientId="x", groupName="y")
    async with served(lambda exchange: exchange.answer(other)) as (_, connection):
        with pytest.raises(RemoteProtocolError, match="CloseResponseM2P"):
            await call(connection)
        assert not connection.closed


@pytest.mark.parametrize(
    ("exception", "status", "retriable"),
    [
        ("corerpc.exception.StandbyException", Status.ERROR, True),
        ("corerpc.exception.ServerNotReadyException", Status.FATAL, True),
        ("corerpc.exception.ServiceStoppingException", Status.ERROR, True),
        ("any.InvocationTargetException", Status.ERROR, True),
        ("any.Exception", Status.FATAL, False),
    ],
)
async def test_an_exception_of_the_peer_is_an_error_of_ours(exception, status, retriable):
    async with served(lambda exchange: exchange.fail(exception, "it says no", status)) as (_, connection):
        with pytest.raises(RpcError, match="it says no") as caught:
            await call(connection)
    assert caught.value.condition == "TUBEMQ_REMOTE_EXCEPTION"
    assert caught.value.parameters["exception"] == exception.rpartition(".")[2]
    assert caught.value.retriable is retriable
    assert caught.value.code == 0


async def test_an_exception_without_text_has_one_anyway():
    async with served(lambda exchange: exchange.fail("any.Exception", "")) as (_, connection):
        with pytest.raises(RpcError, match="no text"):
            await call(connection)


async def test_a_request_that_cannot_be_sent_is_a_bug_and_harms_no_other():
    async with served(echo) as (_, connection):
        for wrong in (
            {"request": master_pb2.CloseRequestP2M()},
            {"timeout_ms": 0},
            {"request": master_pb2.CloseRequestP2M(clientId="x" * (28 << 20))},
        ):
            with pytest.raises(LocalProtocolError):
                await call(connection, **wrong)
        assert await call(connection) == ok("me")


async def test_a_peer_that_is_not_there():
    with socket.create_server((HERE, 0)) as gone:
        endpoint = Endpoint(*gone.getsockname())
    with pytest.raises(TubeMQConnectionError, match=f"Cannot connect to {endpoint}") as caught:
        await connect(endpoint, 60_000)
    assert "[Errno 111] Connection refused" in str(caught.value)
    assert caught.value.retriable


async def test_a_connection_that_is_not_made_in_time_is_given_up(full):
    with pytest.raises(TubeMQConnectionError, match="timed out"):
        await connect(Endpoint(*full), 100)


async def test_an_attempt_that_is_cancelled_leaves_nothing(full):
    async def look_up(endpoint):
        looked_up.set()
        return addresses.addresses_of(endpoint)

    looked_up = asyncio.Event()
    attempt = asyncio.create_task(connect(Endpoint(*full), 60_000, look_up=look_up))
    await looked_up.wait()
    await asyncio.sleep(0)
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt


async def test_an_address_that_swallows_packets_leaves_time_for_the_next(full):
    with RpcServer(echo) as server:
        there = server.endpoint.host, server.endpoint.port

        async def both(_):
            return [
                (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, place) for place in (full, there)
            ]

        connection = await connect(Endpoint("two.test", 1), 1_000, look_up=both)
        assert await call(connection) == ok("me")
        connection.close()
        await connection.ended.wait()


async def test_a_resolver_that_hangs_is_not_waited_for_longer_than_it_takes_to_connect(monkeypatch):
    release = threading.Event()

    def hang(*_, **__):
        release.wait(60)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(addresses.socket, "getaddrinfo", hang)
    with pytest.raises(TubeMQConnectionError, match="timed out"):
        await connect(Endpoint("master.test", 8715), 20)
    release.set()
    with pytest.raises(TubeMQConnectionError, match=r"\[Errno -2\] Name or service not known"):
        await connect(Endpoint("master.test", 8715), 60_000)


async def test_small_requests_do_not_wait_for_more():
    async with served(echo) as (_, connection):
        connected = connection._transport.get_extra_info("socket")
        assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@forks
async def test_a_child_drops_the_socket_and_the_peer_hears_nothing():
    async with served(echo) as (server, connection):
        await call(connection)

        def check():
            connection.abandon()
            assert connection.closed
            with pytest.raises(TubeMQConnectionError, match="the parent process"):
                asyncio.run(call(connection))

        in_child(check)
        assert await call(connection) == ok("me")
        assert len(server.accepted) == 1


def listener(tls=None):
    """Return the embedded server's listener, which answers each request, to be closed."""

    def answers(requests):
        return [rpc.serialize_message(ok("me")) for _ in requests]

    return contextlib.closing(Listener("test", HERE, 0, answers, tls))


async def test_a_server_that_hangs_in_the_handshake_is_given_up(client_tls, monkeypatch):
    monkeypatch.setattr(tls_errors, "_TIMEOUT_S", 0.05)
    with (
        socket.create_server((HERE, 0)) as hanging,
        pytest.raises(TubeMQConnectionError, match=r"handshake was broken off \(no answer in time") as caught,
    ):
        await connect(Endpoint(*hanging.getsockname()), 1_000, client_tls)
    assert caught.value.retriable
    assert not isinstance(caught.value, TlsError)


@contextlib.contextmanager
def speaking(act):
    """Yield the endpoint of a server that does something with each connection, and closes it."""
    with socket.create_server((HERE, 0)) as listener:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    accepted, _ = listener.accept()
                    with accepted:
                        act(accepted)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Endpoint(*listener.getsockname())
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize(
    "begin", [lambda _: None, lambda accepted: accepted.recv(1)], ids=["at once", "later"]
)
async def test_a_server_that_hangs_up_in_the_handshake_says_so(client_tls, begin):
    with (
        speaking(begin) as endpoint,
        pytest.raises(TubeMQConnectionError, match="TLS handshake was broken off") as caught,
    ):
        await connect(endpoint, 60_000, client_tls)
    assert caught.value.retriable
    assert "()" not in str(caught.value)


async def test_a_server_that_speaks_something_else_is_no_server_over_tls(client_tls):
    def web(accepted):
        accepted.recv(1 << 16)
        accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    words = r"TUBEMQ_TLS_NOT_SPOKEN.*its answer is not TLS"
    with speaking(web) as endpoint, pytest.raises(TlsError, match=words):
        await connect(endpoint, 60_000, client_tls)


async def test_a_plain_server_is_told_from_one_over_tls(client_tls):
    words = r"TUBEMQ_TLS_NOT_SPOKEN.*it answers without it"
    with listener() as plain, pytest.raises(TlsError, match=words):
        await connect(plain.endpoint, 60_000, client_tls)


async def test_calls_over_tls_and_a_goodbye(pair, client_tls):
    with listener(ServerTls(str(pair.cert), str(pair.key))) as server:
        async with over(server, tls=client_tls) as connection:
            assert await asyncio.gather(*[call(connection) for _ in range(9)]) == [ok("me")] * 9


async def test_a_server_over_tls_that_ends_fails_calls(pair, client_tls):
    with listener(ServerTls(str(pair.cert), str(pair.key))) as server:
        connection = await connect(server.endpoint, 60_000, client_tls)
        await call(connection)
    await connection.ended.wait()
    assert connection.lost_because == "the peer closed it"
    with pytest.raises(TubeMQConnectionError, match=r"TUBEMQ_CONNECTION_LOST.*the peer closed it"):
        start(connection)


async def test_a_server_that_wants_certificates_refuses_after_the_handshake(authority, pair, client_tls):
    """TLS 1.3 has no answer to the client's certificate: the first call hears of it."""
    mutual = ServerTls(str(pair.cert), str(pair.key), client_ca_file=str(authority.cert))
    with listener(mutual) as server:
        connection = await connect(server.endpoint, 60_000, client_tls)
        with pytest.raises(TlsError, match=r"TUBEMQ_TLS_REFUSED.*certificate required.*certFile"):
            await call(connection)
        await connection.ended.wait()
        with_certificate = TlsConfig(str(authority.cert), str(pair.cert), str(pair.key))
        async with over(server, tls=with_certificate) as connection:
            assert await call(connection) == ok("me")


async def test_a_file_that_is_gone_is_an_error_before_there_is_a_connection(tmp_path):
    with RpcServer(echo) as server:
        with pytest.raises(OptionError, match="TUBEMQ_TLS_FILE"):
            await connect(server.endpoint, 60_000, TlsConfig(str(tmp_path / "gone.pem")))
        assert not server.accepted
