"""A server that was reached once is found again while its name cannot be resolved."""

import contextlib
import logging
import socket

import pytest

from tests.net.test_channel import call, echo, ok
from tests.rpc_server import RpcServer
from tests.waiting import wait_until
from tubemq_spark.errors import TubeMQConnectionError
from tubemq_spark.model import Endpoint
from tubemq_spark.net import addresses
from tubemq_spark.net.pipeline import Pipelines
from tubemq_spark.net.pool import RpcChannel

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


def answers():
    with RpcChannel.connect(NAMED, 1_000) as channel:
        return call(channel) == ok("me")


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
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        names[NAMED.host] = Endpoint(*nobody.getsockname())
    with pytest.raises(TubeMQConnectionError, match="Connection refused"):
        RpcChannel.connect(NAMED, 1_000)
    names.clear()
    with pytest.raises(TubeMQConnectionError, match="Temporary failure in name resolution"):
        RpcChannel.connect(NAMED, 1_000)


def test_senders_and_callers_know_the_same_addresses(names):
    with RpcServer(echo) as server, contextlib.closing(Pipelines(connect_timeout_ms=1_000)) as pipelines:
        names[NAMED.host] = server.endpoint
        pipeline = pipelines.connect(NAMED)
        wait_until(lambda: pipelines.drive(0.01) == [] and pipeline.writable)
        names.clear()
        assert answers()
        second = pipelines.connect(NAMED)
        wait_until(lambda: pipelines.drive(0.01) == [] and second.writable)


def test_the_address_that_was_reached_is_tried_first_the_next_time(monkeypatch):
    monkeypatch.setattr(addresses, "_reached", {})
    with socket.create_server(("127.0.0.1", 0)) as gone:
        away = gone.getsockname()
    with RpcServer(echo) as server, contextlib.closing(Pipelines(connect_timeout_ms=1_000)) as pipelines:
        there = server.endpoint.host, server.endpoint.port
        places = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", place) for place in (away, there)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: places)
        assert answers()
        with socket.create_server(away):
            assert answers()
            pipeline = pipelines.connect(NAMED)
            wait_until(lambda: pipelines.drive(0.01) == [] and pipeline.writable)
            wait_until(lambda: len(server.accepted) == 3)


def test_a_server_may_have_an_ipv6_address():
    try:
        listening = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError as error:
        pytest.skip(f"this host has no IPv6: {error}")
    with listening:
        endpoint = Endpoint.parse(f"tubemq://[::1]:{listening.getsockname()[1]}")
        with addresses.connect(endpoint, 5) as connected, listening.accept()[0] as accepted:
            connected.sendall(b"x")
            assert accepted.recv(1) == b"x"


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
    with pytest.raises(OSError, match="the name has no address"):
        addresses.connect(NAMED, 1)
