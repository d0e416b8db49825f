"""A server that was reached once is found again while its name cannot be resolved."""

import asyncio
import logging
import socket

import pytest

from tests.net.test_connection import call, echo, ok, start
from tests.net.test_send_stream import connecting
from tests.rpc_server import RpcServer
from tests.waiting import wait_until
from tubemq_spark.errors import TubeMQConnectionError
from tubemq_spark.model import Endpoint
from tubemq_spark.net import addresses
from tubemq_spark.net.connection import connect

NAMED = Endpoint("master.test", 8715)


@pytest.fixture
def names(monkeypatch):
    """What the resolver knows, by name; a name that it does not know is an error."""
    known = {}

    def resolve(host, port, *_, **__):
        if host not in known:
            raise socket.gaierror(-3, "Temporary failure in name resolution")
        place = known[host]
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (place.host, place.port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(addresses, "_reached", {})
    return known


def reach(endpoint):
    """Connect to a server and call it; return what it answers."""

    async def ask():
        connection = await connect(endpoint, 60_000)
        answer = await call(connection)
        connection.close()
        await connection.ended.wait()
        return answer

    return asyncio.run(ask())


def answers():
    return reach(NAMED) == ok("me")


def test_the_last_address_counts_while_the_resolver_fails(names, caplog):
    with RpcServer(echo) as server:
        names[NAMED.host] = server.endpoint
        assert answers()
        names.clear()
        with caplog.at_level(logging.WARNING):
            assert answers()
        assert len(server.accepted) == 2
    (line,) = caplog.messages
    assert line.startswith("master.test:8715 cannot be resolved (")
    assert line.endswith("Temporary failure in name resolution); trying its last address 127.0.0.1")


def test_a_server_that_moved_is_found_where_it_is_now(names):
    with RpcServer(echo) as first, RpcServer(echo) as second:
        for server in (first, second):
            names[NAMED.host] = server.endpoint
            assert answers()
        names.clear()
        assert answers()
        assert (len(first.accepted), len(second.accepted)) == (1, 2)


def test_a_name_that_was_never_reached_is_an_error(names):
    with socket.create_server(("127.0.0.1", 0)) as unused:
        names[NAMED.host] = Endpoint(*unused.getsockname())
    with pytest.raises(TubeMQConnectionError, match="Connection refused"):
        reach(NAMED)
    names.clear()
    with pytest.raises(TubeMQConnectionError, match="Temporary failure in name resolution"):
        reach(NAMED)


async def open_stream():
    """Connect as a sender does, and return when it may write."""
    async with connecting(NAMED) as (stream, owner):
        await owner.until(lambda: stream.writable)


def test_senders_and_callers_know_the_same_addresses(names):
    with RpcServer(echo) as server:
        names[NAMED.host] = server.endpoint
        asyncio.run(open_stream())
        names.clear()
        assert answers()
        asyncio.run(open_stream())


def test_the_address_that_was_reached_is_tried_first_the_next_time(monkeypatch):
    monkeypatch.setattr(addresses, "_reached", {})
    with socket.create_server(("127.0.0.1", 0)) as gone:
        away = gone.getsockname()
    with RpcServer(echo) as server:
        there = server.endpoint.host, server.endpoint.port
        places = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", place) for place in (away, there)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: places)
        assert answers()
        with socket.create_server(away):
            assert answers()
            asyncio.run(open_stream())
            wait_until(lambda: len(server.accepted) == 3)


async def test_a_server_may_have_an_ipv6_address():
    try:
        listening = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError as error:
        pytest.skip(f"this host has no IPv6: {error}")
    with listening:
        connection = await connect(Endpoint.parse(f"tubemq://[::1]:{listening.getsockname()[1]}"), 60_000)
        start(connection)
        accepted, _ = await asyncio.to_thread(listening.accept)
        with accepted:
            assert await asyncio.to_thread(accepted.recv, 1)
        await connection.ended.wait()


def test_a_name_may_begin_with_a_digit(monkeypatch):
    asked = []

    def resolve(host, port, **_):
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    found = addresses.addresses_of(Endpoint.parse("10.10.example:8715"))
    assert (asked, [address for *_, address in found]) == (["10.10.example"], [("127.0.0.1", 8715)])


def test_a_name_may_have_no_address(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [])
    with pytest.raises(TubeMQConnectionError, match="the name has no address"):
        reach(NAMED)
