"""Calls go to any gateway that can serve them, and only what TubeMQ says is an answer."""

import asyncio
import dataclasses
import gc
import itertools
import random
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from testkit.virtual_loop import in_virtual_time
from tests.client.remote.scripted_calls import ADDRESSES, StillChannels
from tests.client.remote.scripted_gateway import scripted
from tests.cluster import gateways as running
from tests.gateway.running import PlainClient
from tests.waiting import wait_until
from tubemq_spark.client import TubeMQClient
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.remote.attempts import AwayError
from tubemq_spark.client.remote.gateways import Gateways, close_process_gateways, process_gateways
from tubemq_spark.cluster.config import ClusterConfig
from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.errors import GatewayError, OptionError, RpcError, TubeMQConnectionError
from tubemq_spark.model import Endpoint
from tubemq_spark.net import loop
from tubemq_spark.protocol.gateway import gateway_pb2 as pb


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
    monkeypatch.setattr(Gateways, "patience_s", 2.0)
    workers = parts.running[0].server._admission.questions
    asked = []

    async def hang(owner, _):
        asked.append(owner)
        await asyncio.Event().wait()

    monkeypatch.setattr(workers, "_begin", hang)
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
    list_topics(gateways)
    channels = gateways._channels._channels
    try:
        gateways.restart_in_child()
        assert gateways._channels._channels == {}
        assert gateways.session.client_id != before
    finally:
        for channel, _ in channels.values():
            channel.close()


def test_the_event_loop_does_not_keep_a_session_that_was_dropped(parts):
    gateways = Gateways(parts.addresses, parts.config)
    list_topics(gateways)
    dropped = weakref.ref(gateways)
    for channel in gateways._channels.take_all().values():
        channel.close()
    del gateways, channel
    wait_until(lambda: gc.collect() is None or dropped() is None)


# Many clients.


def test_each_process_has_the_gateways_in_an_order_of_its_own(monkeypatch):
    monkeypatch.setattr("tubemq_spark.client.remote.gateways.shuffle", random.Random(7).shuffle)
    addresses = tuple(Endpoint("127.0.0.1", port) for port in range(1, 5))
    first = [str(Gateways(addresses, ClientConfig((), "group")).addresses[0]) for _ in range(200)]
    assert set(first) == set(map(str, addresses))
    assert max(first.count(name) for name in set(first)) < 100


def refusing(times):
    """Return the methods of a gateway that is busy so often."""
    refusals = itertools.repeat("it is full", times)

    def list_topics(_):
        for what in refusals:
            raise GatewayError("TUBEMQ_GATEWAY_BUSY", gateway="g", what=what, retry_after_ms=20)
        return pb.ListTopicsResponse(topics=["demo"])

    return {"ListTopics": list_topics}


def test_a_busy_gateway_keeps_its_clients():
    with scripted(refusing(3), {}) as ((first, second), gateways):
        assert list_topics(gateways) == ["demo"]
    assert first.calls.count("ListTopics") == 4
    assert second.calls == []


def test_who_gives_up_says_what_the_gateway_said(monkeypatch):
    monkeypatch.setattr(Gateways, "patience_s", 0.1)
    with (
        scripted(refusing(1_000), refusing(1_000)) as (_, gateways),
        pytest.raises(GatewayError, match="it is full; try again in 20 ms") as busy,
    ):
        list_topics(gateways)
    assert busy.value.retriable


# The session.


def list_topics(gateways):
    request = pb.ListTopicsRequest()
    return loop.run(gateways.calling("ListTopics", request, pb.ListTopicsResponse, "listing")).topics


def calls(parts, gateway):
    """Return how often each call ended in which way."""
    metrics = parts.running[gateway].server.metrics
    return {
        (sample.labels["method"], sample.labels["status"]): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "tubemq_gateway_calls_total"
    }


def test_a_session_is_opened_before_the_first_call_and_closed_at_the_end(parts):
    assert parts.cluster.layout(["demo"]).partitions
    assert calls(parts, 0) == {("OpenSession", "OK"): 1, ("QueryRoute", "OK"): 1}
    assert len(parts.running[0].server._sessions) == 1
    close_process_gateways()
    wait_until(lambda: not len(parts.running[0].server._sessions))
    assert calls(parts, 0)["CloseSession", "OK"] == 1


def test_a_client_asks_gateways_for_everything_and_brokers_for_nothing(parts):
    with TubeMQClient.connect(f"gateway://{parts.addresses[0]}") as client:
        with client.producer() as producer:
            producer.send("demo", b"x")
        assert [record.value for record in client.read("demo")] == [b"x"]
    asked = {"OpenSession", "CheckTopic", "PublishStream", "QueryRoute", "QueryBounds", "ReadRange"}
    wait_until(lambda: {name for name, _ in calls(parts, 0)} >= asked)


def test_threads_that_begin_together_open_one_session(parts):
    cluster = parts.cluster
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda _: cluster.layout(["demo"]).partitions, range(8)))
    assert calls(parts, 0)["OpenSession", "OK"] == 1


def test_a_session_that_is_not_used_is_closed_before_it_counts_as_lost(parts):
    now = [100.0]
    gateways = Gateways(parts.addresses, parts.config, clock=lambda: now[0])
    try:
        list_topics(gateways)
        (use,) = gateways._uses._uses.values()
        assert not gateways.close_if_idle(0, use)
        assert len(parts.running[0].server._sessions) == 1
        now[0] += 16.0
        assert gateways.close_if_idle(0, use)
        wait_until(lambda: not len(parts.running[0].server._sessions))
        assert list_topics(gateways)
        assert calls(parts, 0)["OpenSession", "OK"] == 2
    finally:
        gateways.close()


def test_without_grpc_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "grpc", None)
    config = ClusterConfig(ClientConfig((), "group"), (Endpoint("127.0.0.1", 1),)).validate()
    with pytest.raises(OptionError, match=r"pip install 'tubemq_spark\[gateway\]'"):
        open_cluster(config)


async def test_a_caller_that_is_cancelled_while_the_session_is_opened_takes_nothing_from_others():
    may_answer = threading.Event()

    def open_session(_):
        may_answer.wait(20)
        return pb.OpenSessionResponse(lease_ms=60_000)

    def list_topics(_):
        return pb.ListTopicsResponse(topics=["demo"])

    with scripted({"OpenSession": open_session, "ListTopics": list_topics}) as ((running,), gateways):
        request = pb.ListTopicsRequest()
        one, other = (
            asyncio.create_task(gateways.calling("ListTopics", request, pb.ListTopicsResponse, "listing"))
            for _ in range(2)
        )
        async with asyncio.timeout(20):
            while "OpenSession" not in running.calls:
                await asyncio.sleep(0.001)
            one.cancel()
            await asyncio.wait([one])
            may_answer.set()
            assert list((await other).topics) == ["demo"]
    assert one.cancelled()
    assert running.calls.count("OpenSession") == 2


async def test_a_caller_does_not_wait_for_good_for_one_whose_loop_hangs(monkeypatch):
    monkeypatch.setattr("tubemq_spark.client.remote.gateways._MARGIN_MS", 100)
    may_answer = threading.Event()

    def open_session(_):
        may_answer.wait(20)
        return pb.OpenSessionResponse(lease_ms=60_000)

    settings = {"rpc_timeout_ms": 500, "connect_timeout_ms": 100, "register_attempts": 1}
    with scripted({"OpenSession": open_session}, **settings) as ((running,), gateways):

        def listing():
            return gateways.calling("ListTopics", pb.ListTopicsRequest(), pb.ListTopicsResponse, "listing")

        opener = asyncio.create_task(listing())
        async with asyncio.timeout(20):
            while "OpenSession" not in running.calls:
                await asyncio.sleep(0.001)
        waiting = loop.submit(listing())
        try:
            # This loop hangs all the while.
            with pytest.raises(TubeMQConnectionError, match="the session was not opened in time"):
                waiting.result(10)
        finally:
            waiting.stop()
            may_answer.set()
            opener.cancel()
            await asyncio.wait([opener])


@in_virtual_time
@pytest.mark.parametrize("leave", ["begin_epoch", "close"])
async def test_a_session_is_ended_wherever_it_was_opened_though_a_call_was_lost_there(leave):
    """A gateway that lives on would keep the partitions of a consumer until the lease ends."""
    channels = StillChannels(lose="Fetch")
    gateways = Gateways(ADDRESSES, ClientConfig((), "etl"), channels=lambda *_: channels)
    for gateway in range(2):
        await gateways.opening(gateway)
    with pytest.raises(AwayError):
        await gateways.ask_at(0, "Fetch", pb.FetchRequest(), pb.FetchResponse, 1.0)
    if leave == "close":
        await gateways.closing(0)
    else:
        gateways.begin_epoch()
    assert channels.closed_at == set(ADDRESSES)
