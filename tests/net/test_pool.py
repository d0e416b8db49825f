"""Connections of the process's loop as threads see them."""

import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from testkit.children import forks, in_child
from tests.net.test_connection import REQUEST, echo, ok, silent
from tests.rpc_server import RpcServer
from tests.waiting import wait_until
from tubemq_spark.errors import (
    LocalProtocolError,
    TubeMQConnectionError,
    TubeMQTimeoutError,
)
from tubemq_spark.model import Endpoint
from tubemq_spark.net import addresses, loop
from tubemq_spark.net.pool import ChannelPool, process_pool
from tubemq_spark.net.retry import SLEEP, Sleep
from tubemq_spark.protocol.constants import Method, ServiceType
from tubemq_spark.protocol.pb import master_pb2

FOREVER_MS = 600_000


def start(channel, timeout_ms=FOREVER_MS, request=REQUEST, wait=None):
    return channel.start(
        ServiceType.MASTER,
        Method.PRODUCER_CLOSE,
        request,
        timeout_ms=timeout_ms,
        during="closing",
        wait=wait,
    )


def call(channel, timeout_ms=FOREVER_MS, request=REQUEST, wait=None):
    return channel.call(
        ServiceType.MASTER,
        Method.PRODUCER_CLOSE,
        request,
        master_pb2.CloseResponseM2P,
        timeout_ms=timeout_ms,
        during="closing",
        wait=wait,
    )


@pytest.fixture
def pool():
    with ChannelPool() as pool:
        yield pool


def test_threads_share_a_connection(pool):
    with RpcServer(echo) as server, ThreadPoolExecutor(8) as threads:
        together = threading.Barrier(8)

        def ask(number):
            together.wait()
            name = f"{number}-" + "x" * (number * 40_000)
            return call(pool.get(server.endpoint), request=master_pb2.CloseRequestP2M(clientId=name)) == ok(
                name
            )

        assert list(threads.map(ask, range(8))) == [True] * 8
        assert len(server.accepted) == pool.open_count == 1


def test_requests_of_a_thread_arrive_in_the_order_of_their_calls(pool):
    names = []

    def note(exchange):
        names.append(exchange.parse(master_pb2.CloseRequestP2M).clientId)
        echo(exchange)

    with RpcServer(note) as server:
        channel = pool.get(server.endpoint)
        calls = [
            start(channel, request=master_pb2.CloseRequestP2M(clientId=str(number))) for number in range(50)
        ]
        for pending in reversed(calls):
            pending.body("closing")
    assert names == [str(number) for number in range(50)]


def test_a_lost_connection_is_replaced(pool):
    with RpcServer(echo) as server:
        channel = pool.get(server.endpoint)
        assert call(channel) == ok("me")
        server.drop_connections()
        wait_until(lambda: channel.closed)
        with pytest.raises(TubeMQConnectionError, match="was lost while closing"):
            call(channel)
        assert call(pool.get(server.endpoint)) == ok("me")


def test_a_listener_is_called_once_before_and_after_the_answer(pool):
    held = []
    with RpcServer(held.append) as server:
        early, calls = start(pool.get(server.endpoint), timeout_ms=60_000), []
        early.when_done(lambda: calls.append(early.done))
        assert 0 < early.remaining_s <= 60
        wait_until(lambda: held)
        assert calls == []
        held[0].answer(ok())
        wait_until(lambda: calls)
        early.when_done(lambda: calls.append("late"))
        assert calls == [True, "late"]


class NotWantedError(Exception):
    pass


def test_a_wait_for_an_answer_ends_when_the_caller_gives_up(pool):
    asked, held = [], []

    def three_times():
        asked.append(1)
        if len(asked) == 3:
            raise NotWantedError

    with RpcServer(held.append) as server:
        channel = pool.get(server.endpoint)
        pending = start(channel, wait=Sleep(check=three_times))
        with pytest.raises(NotWantedError):
            pending.body("closing")
        assert asked == [1, 1, 1]
        held[0].answer(ok())
        second = start(channel, wait=SLEEP)
        wait_until(lambda: len(held) == 2)
        held[1].answer(ok("second"))
        assert second.result(master_pb2.CloseResponseM2P, "closing") == ok("second")
        assert not pending.done


def test_a_request_without_answer_times_out(pool):
    with RpcServer(silent) as server:
        channel = pool.get(server.endpoint)
        for _ in range(2):
            with pytest.raises(TubeMQTimeoutError, match="within 50 ms while closing"):
                call(channel, timeout_ms=50)
        wait_until(lambda: channel.closed)
        with pytest.raises(TubeMQConnectionError, match="2 calls in a row were not answered"):
            call(channel)


def test_a_request_that_cannot_be_sent_is_a_bug_and_harms_no_other(pool):
    with RpcServer(echo) as server:
        channel = pool.get(server.endpoint)
        with pytest.raises(LocalProtocolError):
            call(channel, request=master_pb2.CloseRequestP2M())
        with pytest.raises(LocalProtocolError):
            call(channel, timeout_ms=0)
        with pytest.raises(LocalProtocolError):
            call(channel, request=master_pb2.CloseRequestP2M(clientId="x" * (28 << 20)))
        assert call(channel) == ok("me")


def test_a_wait_in_the_loops_thread_is_refused_at_once(pool):
    with RpcServer(silent) as server:
        channel = pool.get(server.endpoint)

        async def calls():
            with pytest.raises(LocalProtocolError, match="in the thread of the event loop"):
                call(channel)
            with pytest.raises(LocalProtocolError, match="in the thread of the event loop"):
                pool.start(Endpoint("127.0.0.1", 1)).result()

        loop.run(calls())


def test_closing_the_pool_closes_its_connections_for_good():
    with RpcServer(echo) as server:
        with ChannelPool() as pool:
            channel = pool.get(server.endpoint)
        assert channel.closed
        with pytest.raises(TubeMQConnectionError, match="pool of connections is closed"):
            pool.get(server.endpoint)
        pool.close()


def test_the_process_has_one_pool():
    assert process_pool() is process_pool()


def test_callers_that_must_not_wait_get_a_channel_later(pool, monkeypatch):
    release, resolve = threading.Event(), socket.getaddrinfo

    def hang(host, port, **how):
        assert release.wait(60)
        return resolve("127.0.0.1", port, **how)

    monkeypatch.setattr(addresses.socket, "getaddrinfo", hang)
    monkeypatch.setattr(addresses, "_reached", {})
    with RpcServer(echo) as server:
        named = Endpoint("master.test", server.endpoint.port)
        first, second = pool.start(named, 60_000), pool.start(named, 60_000)
        calls = threading.Event()
        second.when_done(calls.set)
        with pytest.raises(TubeMQConnectionError, match=r"master\.test.*timed out"):
            pool.start(named, 20).result()
        assert not calls.is_set()
        release.set()
        assert calls.wait(60)
        assert first.result().connection is second.result().connection
        assert call(pool.start(named).result()) == ok("me")


def test_a_channel_that_cannot_be_opened_is_an_error_for_all_that_wait(pool):
    with RpcServer(echo) as server:
        gone = server.endpoint
    for started in [pool.start(gone), pool.start(gone)]:
        with pytest.raises(TubeMQConnectionError, match="refused"):
            started.result()
    assert pool.failed_lately(gone, None, 60)


def test_a_dropped_pool_ends_its_connections_with_a_warning():
    with RpcServer(echo) as server:
        pool = ChannelPool()
        connection = pool.get(server.endpoint).connection
        with pytest.warns(ResourceWarning, match=f"{server.endpoint} were not closed"):
            del pool
        wait_until(connection.ended.is_set)


def test_a_dropped_pool_without_connections_says_nothing(recwarn):
    with RpcServer(echo) as server:
        pool = ChannelPool()
        pool.get(server.endpoint)
        pool.close()
        del pool
    assert not [warning for warning in recwarn if "were not closed" in str(warning.message)]


@forks
def test_a_child_finds_the_pool_empty_and_leaves_the_parents_connections_alone(pool):
    with RpcServer(echo) as server:
        channel, number = pool.get(server.endpoint), []

        async def private():
            async with pool.connections.private(FOREVER_MS, None) as user:
                number.append((await user.to(server.endpoint)).number)

        loop.run(private())

        def check():
            assert channel.closed
            with pytest.raises(TubeMQConnectionError, match="the parent process"):
                call(channel)
            assert pool.open_count == 0
            assert call(pool.get(server.endpoint)) == ok("me")
            pool.close()

        in_child(check)
        assert call(channel) == ok("me")
        assert pool.get(server.endpoint).connection is channel.connection
        loop.run(private())
        assert number[0] == number[1]


EXITS = """
import atexit, sys, threading
from tubemq_spark.model import Endpoint
from tubemq_spark.net.pool import ChannelPool, process_pool
{use}
print([thread.name for thread in threading.enumerate() if thread.name == "tubemq-loop"])
sys.stdout.flush()
atexit.register(lambda: print([thread.name for thread in threading.enumerate()]))
"""
USE = "channel = process_pool().get(Endpoint('127.0.0.1', {port}))"


@pytest.mark.process
@pytest.mark.parametrize("use", ["", USE])
def test_a_process_exits_with_open_connections_and_without_any(use):
    with RpcServer(silent) as server:
        ended = subprocess.run(
            [sys.executable, "-W", "error", "-c", EXITS.format(use=use.format(port=server.endpoint.port))],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    assert ("tubemq-loop" in ended.stdout) is bool(use)
    assert ended.stderr == ""


@pytest.mark.process
def test_users_code_at_the_exit_may_still_close_its_pool():
    code = "import atexit\npools = []\natexit.register(lambda: [pool.close() for pool in pools])\n"
    code += EXITS.format(use="pools.append(ChannelPool())\n" + USE.replace("process_pool()", "pools[0]"))
    with RpcServer(silent) as server:
        ended = subprocess.run(
            [sys.executable, "-c", code.replace("{port}", str(server.endpoint.port))],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    assert ended.stderr == ""
