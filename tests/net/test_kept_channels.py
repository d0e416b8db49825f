"""Channels that serve one user after the other."""

import contextlib
import time

import pytest

from testkit.children import forks, in_child
from tests.net.test_channel import call, echo, ok, start
from tests.rpc_server import RpcServer
from tests.waiting import wait_until
from tubemq_spark.net import kept_channels
from tubemq_spark.net.kept_channels import KeptChannels, OwnChannel
from tubemq_spark.net.tls import TlsConfig

WAIT_MS = 5_000


@pytest.fixture
def stock():
    with contextlib.closing(KeptChannels()) as stock:
        yield stock


@pytest.fixture
def server():
    with RpcServer(echo) as server:
        yield server


def own(stock):
    return OwnChannel(stock, None, WAIT_MS)


def test_one_user_after_the_other_has_the_same_channel(stock, server):
    with own(stock) as first:
        channel = first.to(server.endpoint)
        assert first.to(server.endpoint) is channel
    with own(stock) as second:
        assert second.to(server.endpoint) is channel
        assert call(channel) == ok("me")


def test_users_at_the_same_time_have_different_channels(stock, server):
    with own(stock) as first, own(stock) as second:
        assert first.to(server.endpoint) is not second.to(server.endpoint)


def test_another_peer_or_tls_has_another_channel(stock, server):
    with RpcServer(echo) as other:
        with own(stock) as user:
            first = user.to(server.endpoint)
            second = user.to(other.endpoint)
            assert second.endpoint == other.endpoint
            assert user.to(server.endpoint) is first
        assert stock._pop((server.endpoint, TlsConfig())) is None


def test_a_channel_that_was_lost_is_replaced(stock, server):
    with own(stock) as user:
        lost = user.to(server.endpoint)
        lost.close()
        assert call(user.to(server.endpoint)) == ok("me")


def test_a_channel_that_ended_while_it_was_kept_is_replaced(stock, server):
    with own(stock) as user:
        first = user.to(server.endpoint)
    wait_until(lambda: server.accepted)
    server.drop_connections()
    wait_until(lambda: not first.quiet)
    with own(stock) as user:
        assert user.to(server.endpoint) is not first
        assert call(user.to(server.endpoint)) == ok("me")
    assert first.closed


def test_a_channel_with_a_call_in_flight_serves_nobody_else(stock, server):
    with own(stock) as user:
        first = user.to(server.endpoint)
        start(first)
    with own(stock) as user:
        assert user.to(server.endpoint) is not first
    assert first.closed


def test_few_channels_are_kept_and_none_for_long(stock, server, monkeypatch):
    users = [own(stock) for _ in range(kept_channels._MOST + 2)]
    channels = [user.to(server.endpoint) for user in users]
    for user in users:
        user.__exit__()
    assert [channel.closed for channel in channels] == [True] * 2 + [False] * kept_channels._MOST

    now = time.monotonic() + kept_channels.IDLE_LIMIT_S
    monkeypatch.setattr(kept_channels.time, "monotonic", lambda: now + 1)
    with own(stock) as user:
        last = user.to(server.endpoint)
    assert last is channels[-1]
    assert [channel for channel in channels if not channel.closed] == [last]


@forks
def test_a_child_leaves_the_parents_channels_alone(server):
    stock = kept_channels.process_channels()
    with own(stock) as user:
        parents = user.to(server.endpoint)

    def check():
        with own(stock) as user:
            assert user.to(server.endpoint) is not parents

    in_child(check)
    with own(stock) as user:
        assert user.to(server.endpoint) is parents
        assert call(parents) == ok("me")
