"""What is asked of gateways, and what is made of answers of several pages and of those that make no sense."""

import dataclasses

import pytest

from tests.client.remote.scripted_gateway import scripted
from tubemq_spark.client.consumer.core import ConsumerSetup
from tubemq_spark.client.consumer.user_code import UserThread
from tubemq_spark.client.consumer_config import Subscription
from tubemq_spark.client.transport.gateway import GatewayTransport
from tubemq_spark.errors import RemoteProtocolError, TubeMQConnectionError
from tubemq_spark.model import (
    Endpoint,
    OffsetBounds,
    StoreBounds,
    StoredOffset,
    StoredOffsets,
    StoreId,
    TopicPartition,
    TopicsLayout,
)
from tubemq_spark.net import loop
from tubemq_spark.protocol.errcodes import rpc_error
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, values

HERE, THERE = TopicPartition("demo", 1, 0), TopicPartition("demo", 2, 0)
LAYOUT = TopicsLayout(dict.fromkeys((HERE, THERE), Endpoint("127.0.0.1", 9)), 0)


def noting(asked, answer):
    """A method that notes its requests."""

    def serve(request):
        asked.append(request)
        return answer(request)

    return serve


def test_stored_offsets_are_asked_for_until_their_last_page_and_of_the_group_only():
    known = [StoredOffset("etl", where, 28, 0, 56, None) for where in (HERE, THERE)]
    away = {2: rpc_error(500, "no", peer="a broker", during="asking")}
    whole, asked = StoredOffsets(tuple(known), away), []

    def page(request):
        return values.stored_offsets_to_proto(whole, 1, request.page_token)

    with scripted({"QueryStoredOffsets": noting(asked, page)}) as (_, gateways):
        answer = loop.run(GatewayTransport(gateways).stored_offsets("etl", ["demo"]))
        loop.run(GatewayTransport(gateways).stored_offsets())
    assert answer.offsets == tuple(known)
    assert answer.failures.keys() == {2}
    assert [(one.group, list(one.topics)) for one in asked[:2]] == [("etl", ["demo"])] * 2
    assert [one.HasField("group") for one in asked] == [True, True, False, False]


def test_what_a_gateway_could_not_move_is_told():
    refusal = rpc_error(500, "no", peer="a broker", during="asking")

    def move(_):
        return values.reset_failures_to_proto({THERE: refusal})

    with scripted({"ResetOffsets": move}) as (_, gateways):
        failures = loop.run(GatewayTransport(gateways).move_group(LAYOUT, {HERE: 28, THERE: 28}))
    assert {where: error.condition for where, error in failures.items()} == {THERE: "TUBEMQ_RPC"}


def test_bounds_are_asked_for_as_they_are_wanted():
    store, asked = StoreId("demo", 1, 0), []

    def bounds(_):
        return values.store_bounds_to_proto(StoreBounds({store: OffsetBounds(0, 28)}, {}), [store])

    with scripted({"QueryBounds": noting(asked, bounds)}) as (_, gateways):
        transport = GatewayTransport(gateways)
        loop.run(transport.bounds(LAYOUT, [store], flushed=True, timeout_ms=700))
        loop.run(transport.bounds(LAYOUT, [store]))
    assert [(one.flushed, one.HasField("timeout_ms"), one.timeout_ms) for one in asked] == [
        (True, True, 700),
        (False, False, 0),
    ]


def test_the_consumers_of_a_client_share_the_session_for_their_questions():
    with scripted({}) as (_, gateways):
        transport = GatewayTransport(gateways)
        setup = ConsumerSetup(gateways.config, Subscription.of("demo"), UserThread())
        first, second = (transport.group_consumer(setup) for _ in range(2))
        assert first.questions is second.questions
        assert first.questions.config.group == f"{gateways.config.group}_probe"
        transport.close()


def test_transports_of_a_closed_one_are_refused_whenever_they_were_made():
    with scripted({}) as (_, gateways):
        transport = GatewayTransport(gateways)
        other = transport.with_config(dataclasses.replace(gateways.config, group="other", reader_groups=()))
        transport.close()
        for closed in (transport, other):
            later = closed.with_config(dataclasses.replace(closed.config, linger_ms=7))
            for refusing in (closed, later):
                with pytest.raises(TubeMQConnectionError, match="TUBEMQ_CLIENT_CLOSED"):
                    loop.run(refusing.topics())


def test_topics_are_asked_for_until_their_last_page():
    pages = {
        "": pb.ListTopicsResponse(topics=["a"], next_page_token="second"),
        "second": pb.ListTopicsResponse(topics=["b"]),
    }
    with scripted({"ListTopics": lambda request: pages[request.page_token]}) as (_, gateways):
        assert loop.run(GatewayTransport(gateways).topics()) == {"a", "b"}


def test_bounds_of_other_stores_than_were_asked_for_make_no_sense():
    with (
        scripted({"QueryBounds": lambda _: pb.QueryBoundsResponse()}) as (_, gateways),
        pytest.raises(RemoteProtocolError, match="TUBEMQ_GATEWAY_ANSWER"),
    ):
        loop.run(GatewayTransport(gateways).bounds(LAYOUT, [StoreId("demo", 1, 0)]))
