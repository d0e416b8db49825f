"""Which connections there are: shared, private and kept ones, and attempts that fail or are given up."""

import asyncio
import contextlib
import socket
import subprocess
import sys
import time

import pytest

from testkit.children import forks, in_child
from testkit.connections import opened_connections, submit_call
from tests.net.test_connection import FOREVER_MS, REQUEST, call, echo, ok, silent, start
from tests.rpc_server import RpcServer
from tests.waiting import wait_until
from tubemq_spark.errors import OptionError, TubeMQConnectionError
from tubemq_spark.model import Endpoint
from tubemq_spark.net import addresses, connections as connections_module, loop
from tubemq_spark.net.connections import Connections, close_connections, process_connections
from tubemq_spark.net.tls import TlsConfig
from tubemq_spark.protocol.constants import Method, ServiceType
from tubemq_spark.protocol.pb import master_pb2

PATIENT_MS = 60_000


@contextlib.asynccontextmanager
async def opened(**how):
    connections = Connections(PATIENT_MS, **how)
    try:
        yield connections
    finally:
        await connections.close()


@contextlib.asynccontextmanager
async def serving(handler=echo, **how):
    """Yield a server and connections, of which none leads to it yet."""
    with RpcServer(handler) as server:
        async with opened(**how) as connections:
            yield server, connections


def gone():
    """Return an endpoint where there is no server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return Endpoint(*listener.getsockname())


class Resolver:
    """Looks up names when it is released, and counts how often it was asked."""

    def __init__(self):
        self.asked, self.released, self.count = asyncio.Event(), asyncio.Event(), 0

    async def __call__(self, endpoint):
        self.count += 1
        self.asked.set()
        await self.released.wait()
        return addresses.addresses_of(endpoint)


class Later:
    """Moves the clock of the loop and of the process on."""

    def __init__(self, patch):
        self._offset, self._monotonic = 0.0, time.monotonic
        patch.setattr(time, "monotonic", lambda: self._monotonic() + self._offset)

    def __call__(self, seconds):
        self._offset += seconds


@pytest.fixture
def later(monkeypatch):
    return Later(monkeypatch)


async def test_a_peer_has_one_connection():
    with RpcServer(echo) as first, RpcServer(echo) as second:
        async with opened() as connections:
            connection = await connections.get(first.endpoint)
            assert await connections.get(first.endpoint) is connection
            assert connections.connected(first.endpoint) is connection
            assert connections.connected(second.endpoint) is None
            assert connections.connected(first.endpoint, TlsConfig()) is None
            other = await connections.get(second.endpoint)
            assert other is not connection
            assert connections.shared() == [connection, other]
            assert await call(connection) == ok("me")


async def test_a_lost_connection_is_replaced():
    async with serving() as (server, connections):
        lost = await connections.get(server.endpoint)
        lost.close()
        assert connections.connected(server.endpoint) is None
        assert await call(await connections.get(server.endpoint)) == ok("me")


async def test_all_that_ask_together_wait_for_one_attempt_and_one_that_leaves_takes_nothing_from_others():
    resolver = Resolver()
    async with serving(look_up=resolver) as (server, connections):
        asking = [asyncio.create_task(connections.get(server.endpoint)) for _ in range(4)]
        await resolver.asked.wait()
        asking[0].cancel()
        await asyncio.wait(asking[:1])
        assert asking[0].cancelled()
        with pytest.raises(TubeMQConnectionError, match="timed out"):
            await connections.get(server.endpoint, 10)
        resolver.released.set()
        assert len({id(await task) for task in asking[1:]}) == 1
        assert resolver.count == 1
        assert len(server.accepted) <= 1


async def test_all_that_ask_together_for_a_peer_that_is_away_fail_together():
    resolver = Resolver()
    async with opened(look_up=resolver) as connections:
        endpoint = gone()
        asking = [asyncio.create_task(connections.get(endpoint)) for _ in range(4)]
        await resolver.asked.wait()
        resolver.released.set()
        errors = await asyncio.gather(*asking, return_exceptions=True)
        assert ["refused" in str(error) for error in errors] == [True] * 4
        assert resolver.count == 1
        with pytest.raises(TubeMQConnectionError):
            await connections.get(endpoint)
        assert resolver.count == 2


async def test_an_attempt_that_fails_when_all_have_left_complains_to_no_one():
    resolver = Resolver()
    async with opened(look_up=resolver) as connections:
        endpoint = gone()
        asking = asyncio.create_task(connections.get(endpoint))
        await resolver.asked.wait()
        asking.cancel()
        await asyncio.wait([asking])
        (shared,) = connections._shared.values()
        attempt = shared.attempt
        resolver.released.set()
        await asyncio.wait([attempt])
        assert connections.failed_lately(endpoint, None, 60)


async def test_an_unreachable_peer_keeps_no_other_waiting():
    resolver = Resolver()

    async def look_up(endpoint):
        return await resolver(endpoint) if endpoint.host == "slow" else addresses.addresses_of(endpoint)

    slow = Endpoint("slow", 1)
    async with serving(look_up=look_up) as (server, connections):
        asking = asyncio.create_task(connections.to_all([slow, server.endpoint], PATIENT_MS, None))
        await resolver.asked.wait()
        assert await call(await connections.get(server.endpoint)) == ok("me")
        assert not asking.done()
        asking.cancel()
        await asyncio.wait([asking])


async def test_many_are_connected_to_at_once_and_those_that_are_away_are_named():
    with RpcServer(echo) as first, RpcServer(echo) as second:
        away = gone()
        async with opened() as connections:
            connected = await connections.get(first.endpoint)
            found, errors = await connections.to_all(
                [first.endpoint, second.endpoint, away], PATIENT_MS, None
            )
            assert found.keys() == {first.endpoint, second.endpoint}
            assert found[first.endpoint] is connected
            assert errors.keys() == {away}
            assert "refused" in str(errors[away])


async def test_a_peer_that_was_not_reached_is_known_for_a_while(later):
    async with opened() as connections:
        with RpcServer(echo) as server:
            assert not connections.failed_lately(server.endpoint, None, 10), "it was not asked for"
            connection = await connections.get(server.endpoint)
            assert not connections.failed_lately(server.endpoint, None, 10)
        await connection.ended.wait()
        with pytest.raises(TubeMQConnectionError):
            await connections.get(server.endpoint)
        assert connections.failed_lately(server.endpoint, None, 10)
        later(11)
        assert not connections.failed_lately(server.endpoint, None, 10)
        with RpcServer(echo, server.endpoint.port) as again:
            await connections.get(again.endpoint)
            assert not connections.failed_lately(server.endpoint, None, 60)


async def test_a_wrong_setting_says_nothing_of_the_peer(tmp_path):
    tls = TlsConfig(str(tmp_path / "gone.pem"))
    async with serving() as (server, connections):
        with pytest.raises(OptionError):
            await connections.get(server.endpoint, tls=tls)
        assert not connections.failed_lately(server.endpoint, tls, 60)


async def test_those_that_are_idle_are_closed_when_any_is_asked_for(later):
    with RpcServer(echo) as first, RpcServer(echo) as second:
        async with opened() as connections:
            idle, other = await connections.get(first.endpoint), await connections.get(second.endpoint)
            later(179)
            await call(other)  # and so it was heard just now
            assert await connections.get(second.endpoint) is other
            assert not idle.closed
            later(2)
            assert await connections.get(second.endpoint) is other
            assert not idle.closed, "it was looked at a moment ago"
            later(20)
            assert await connections.get(second.endpoint) is other
            assert idle.lost_because == "it was idle for 180 s"
            assert connections.shared() == [other]
            assert await call(await connections.get(first.endpoint)) == ok("me")


async def test_one_with_a_call_in_flight_is_not_idle(later):
    async with serving(silent) as (server, connections):
        connection = await connections.get(server.endpoint)
        start(connection, timeout_ms=600_000_000)
        later(500)
        assert await connections.get(server.endpoint) is connection


async def test_closing_is_for_good_and_ends_attempts():
    resolver = Resolver()

    async def look_up(endpoint):
        return await resolver(endpoint) if endpoint.host == "slow" else addresses.addresses_of(endpoint)

    async with serving(look_up=look_up) as (server, connections):
        connection = await connections.get(server.endpoint)
        coming = asyncio.create_task(connections.get(Endpoint("slow", 1)))
        await resolver.asked.wait()
        await connections.close()
        assert connection.ended.is_set()
        for late in (
            coming,
            connections.get(server.endpoint),
            connections.take((server.endpoint, None), PATIENT_MS),
        ):
            with pytest.raises(TubeMQConnectionError, match="pool of connections is closed"):
                await late


async def test_a_private_connection_that_is_made_while_all_are_closed_is_closed():
    resolver = Resolver()
    with RpcServer(echo) as server:
        connections = Connections(PATIENT_MS, resolver)
        taking = asyncio.create_task(connections.take((server.endpoint, None), PATIENT_MS))
        await resolver.asked.wait()
        await connections.close()
        resolver.released.set()
        with pytest.raises(TubeMQConnectionError, match="pool of connections is closed"):
            await taking


def private(connections):
    return connections.private(PATIENT_MS, None)


async def test_one_user_after_the_other_has_the_same_private_connection():
    async with serving() as (server, connections):
        async with private(connections) as first:
            connection = await first.to(server.endpoint)
            assert await first.to(server.endpoint) is connection
            assert connections.shared() == []
        async with private(connections) as second:
            assert await second.to(server.endpoint) is connection
            assert await call(connection) == ok("me")
            assert await connections.get(server.endpoint) is not connection


async def test_users_at_the_same_time_and_of_other_peers_have_different_ones():
    with RpcServer(echo) as server, RpcServer(echo) as other:
        async with opened() as connections, private(connections) as first, private(connections) as second:
            mine = await first.to(server.endpoint)
            assert await second.to(server.endpoint) is not mine
            assert (await first.to(other.endpoint)).endpoint == other.endpoint
            assert await first.to(server.endpoint) is mine


async def test_a_private_connection_that_was_lost_is_replaced():
    async with serving() as (server, connections):
        async with private(connections) as user:
            (await user.to(server.endpoint)).close()
            kept = await user.to(server.endpoint)
            assert await call(kept) == ok("me")
        async with private(connections) as first, private(connections) as second:
            both = [await user.to(server.endpoint) for user in (first, second)]
            for connection in both:
                await call(connection)
        server.drop_connections()
        for connection in both:
            await connection.ended.wait()
        async with private(connections) as user:
            assert await user.to(server.endpoint) is not kept
            assert await call(await user.to(server.endpoint)) == ok("me")


async def test_a_private_connection_with_a_call_in_flight_serves_no_other():
    async with serving() as (server, connections):
        async with private(connections) as user:
            first = await user.to(server.endpoint)
            start(first)
        assert first.closed
        async with private(connections) as user:
            assert await user.to(server.endpoint) is not first


async def test_few_private_connections_are_kept_and_none_for_long(later):
    most = connections_module._MOST_KEPT
    async with serving() as (server, connections):
        async with contextlib.AsyncExitStack() as users:
            users_connections = [
                await (await users.enter_async_context(private(connections))).to(server.endpoint)
                for _ in range(most + 2)
            ]
        assert sum(connection.closed for connection in users_connections) == 2
        later(connections_module.IDLE_LIMIT_S + 1)
        async with private(connections) as user:
            last = await user.to(server.endpoint)
        assert [connection for connection in users_connections if not connection.closed] == [last]
        connections.close_kept()
        assert last.closed


def connected(connections, endpoint):
    return loop.run(connections.get(endpoint))


def call_in_thread(connection):
    types = ServiceType.MASTER, Method.PRODUCER_CLOSE, REQUEST, master_pb2.CloseResponseM2P
    return submit_call(connection, *types, timeout_ms=FOREVER_MS).result()


def test_closing_is_for_good_and_may_be_repeated():
    with RpcServer(echo) as server:
        with opened_connections() as connections:
            connection = connected(connections, server.endpoint)
        assert connection.closed
        with pytest.raises(TubeMQConnectionError, match="pool of connections is closed"):
            connected(connections, server.endpoint)
        close_connections(connections)


def test_the_process_shares_connections():
    assert process_connections() is process_connections()


def test_those_that_are_dropped_end_with_a_warning():
    with RpcServer(echo) as server:
        connections = Connections()
        connection = connected(connections, server.endpoint)
        with pytest.warns(ResourceWarning, match=f"{server.endpoint} were not closed"):
            del connections
        wait_until(connection.ended.is_set)


def test_those_that_are_dropped_closed_say_nothing(recwarn):
    with RpcServer(echo) as server:
        with opened_connections() as connections:
            connected(connections, server.endpoint)
        del connections
    assert not [warning for warning in recwarn if "were not closed" in str(warning.message)]


@forks
def test_a_child_has_none_and_leaves_the_parents_alone():
    with RpcServer(echo) as server, opened_connections() as connections:
        connection, number = connected(connections, server.endpoint), []

        async def private():
            async with connections.private(FOREVER_MS, None) as user:
                number.append((await user.to(server.endpoint)).number)

        loop.run(private())

        def check():
            assert connection.closed
            assert connections.shared() == []
            assert call_in_thread(connected(connections, server.endpoint)) == ok("me")
            close_connections(connections)

        in_child(check)
        assert call_in_thread(connection) == ok("me")
        assert connected(connections, server.endpoint) is connection
        loop.run(private())
        assert number[0] == number[1]


EXITS = """
import atexit, sys, threading
from tubemq_spark.model import Endpoint
from tubemq_spark.net import loop
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.connections import close_connections, process_connections
{use}
print([thread.name for thread in threading.enumerate() if thread.name == "tubemq-loop"])
sys.stdout.flush()
atexit.register(lambda: print([thread.name for thread in threading.enumerate()]))
"""
USE = "connection = loop.run({connections}.get(Endpoint('127.0.0.1', {port})))"


def run_process(code, *options):
    command = [sys.executable, *options, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)


@pytest.mark.process
@pytest.mark.parametrize("use", ["", USE])
def test_a_process_exits_with_open_connections_and_without_any(use):
    with RpcServer(silent) as server:
        use = use.format(connections="process_connections()", port=server.endpoint.port)
        ended = run_process(EXITS.format(use=use), "-W", "error")
    assert ("tubemq-loop" in ended.stdout) is bool(use)
    assert ended.stderr == ""


@pytest.mark.process
def test_users_code_at_the_exit_may_still_close_its_connections():
    code = "import atexit\nowners = []\natexit.register(lambda: close_connections(owners[0]))\n"
    with RpcServer(silent) as server:
        use = USE.format(connections="owners[0]", port=server.endpoint.port)
        ended = run_process(code + EXITS.format(use="owners.append(Connections())\n" + use))
    assert ended.stderr == ""
