"""Calls go to any gateway that can serve them, and only what TubeMQ says is an answer."""

import asyncio
import dataclasses
import sys

import pytest

from tests.cluster import gateways as running
from tests.gateway.running import PlainClient
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.remote.connections import Gateways, process_gateways
from tubemq_spark.cluster.config import ClusterConfig
from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.errors import GatewayError, OptionError, RpcError, TubeMQConnectionError
from tubemq_spark.model import Endpoint


@pytest.fixture
def parts():
    with running.three_brokers(gateways=2) as made:
        yield made


def test_a_call_goes_to_the_next_gateway_when_one_is_away(parts):
    # gRPC tries an address again after a moment only.
    cluster = parts.with_settings(register_attempts=100, register_retry_ms=50).cluster
    assert cluster.layout(["demo"]).partitions
    parts.kill(0)
    assert cluster.layout(["demo"]).partitions
    parts.restart(0)
    parts.kill(1)
    assert cluster.layout(["demo"]).partitions


def test_a_gateway_that_comes_to_no_end_is_left_for_the_next_one(parts, monkeypatch):
    """As when its own way to TubeMQ hangs."""
    monkeypatch.setattr(Gateways, "_patience_ms", lambda _: 2_000)
    workers = parts.running[0].server._control_workers
    asked = []

    async def hang(work):
        asked.append(work)
        await asyncio.Event().wait()

    monkeypatch.setattr(workers, "run", hang)
    assert parts.cluster.layout(["demo"]).partitions
    assert len(asked) == 1


def test_without_any_gateway_the_error_names_all_gateways(parts):
    cluster = parts.cluster
    parts.kill(0)
    parts.kill(1)
    with pytest.raises(TubeMQConnectionError, match="TUBEMQ_GATEWAY_AWAY") as away:
        cluster.layout(["demo"])
    assert away.value.retriable
    for address in parts.addresses:
        assert str(address) in str(away.value)
    assert "asking for a layout" in str(away.value)


def test_an_error_of_tubemq_is_raised_and_no_other_gateway_is_asked(parts):
    with pytest.raises(RpcError) as refused:
        parts.cluster.layout(["nowhere"])
    assert refused.value.code == 431
    with PlainClient(str(parts.addresses[1])) as second:
        assert second("DescribeGateway").sessions == 0


def test_a_session_that_has_ended_is_opened_again(parts):
    cluster = parts.cluster
    cluster.layout(["demo"])
    (session,) = parts.running[0].server._sessions
    parts.running[0].server._sessions.close(session)
    assert cluster.layout(["demo"]).partitions


def test_a_client_that_was_fenced_does_not_come_back(parts):
    mine = process_gateways(parts.addresses, parts.config).session
    cluster = parts.cluster
    cluster.layout(["demo"])
    with PlainClient(str(parts.addresses[0]), mine.client_id, mine.epoch + 1, mine.secret) as newer:
        newer.open()
    with pytest.raises(GatewayError, match="TUBEMQ_SESSION_FENCED"):
        cluster.layout(["demo"])


def test_a_gateway_never_tells_the_masters_token(parts):
    layout = parts.cluster.layout(["demo"])
    assert layout.visit_token == 0


def test_a_process_has_one_connection_for_equal_settings(parts):
    same = process_gateways(parts.addresses, dataclasses.replace(parts.config))
    assert same is process_gateways(parts.addresses, parts.config)
    other = dataclasses.replace(parts.config, group="another")
    assert process_gateways(parts.addresses, other) is not same


def test_a_forked_child_is_another_client_and_leaves_the_connections_to_its_parent(parts):
    gateways = Gateways(parts.addresses, parts.config)
    before = gateways.session.client_id
    gateways._channel(0)
    kept = gateways._channels
    try:
        gateways.start_anew()
        assert gateways._channels == {}
        assert gateways.session.client_id != before
    finally:
        for channel in kept.values():
            channel.close()


def test_without_grpc_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "grpc", None)
    config = ClusterConfig(ClientConfig((), "group"), (Endpoint("127.0.0.1", 1),)).validate()
    with pytest.raises(OptionError, match=r"pip install 'tubemq_spark\[gateway\]'"):
        open_cluster(config)
