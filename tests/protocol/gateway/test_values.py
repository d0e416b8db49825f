"""Layouts, bounds, offsets and receipts arrive as they were sent."""

import dataclasses
import math

import pytest
from hypothesis import given, strategies as st

from tests import strategies as own
from tests.protocol.gateway.gateway_values import offsets
from tubemq_spark.errors import OptionError, RpcError, TubeMQConnectionError
from tubemq_spark.model import (
    OffsetBounds,
    StoreBounds,
    StoredOffset,
    StoredOffsets,
    StoreId,
    TopicPartition,
    TopicsLayout,
)
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, service, values
from tubemq_spark.protocol.gateway.batches import MalformedMessageError
from tubemq_spark.receipts import Receipt

bounds = st.builds(OffsetBounds, offsets, offsets)
stores = st.builds(StoreId, own.names, own.naturals, own.naturals)
counts = st.integers(0, 1 << 50)
FAILURE = TubeMQConnectionError("TUBEMQ_CONNECT_FAILED", endpoint="h:1", cause="it is away")


def sent(message):
    return type(message).FromString(message.SerializeToString())


@given(
    st.dictionaries(own.partitions, own.endpoints, max_size=5),
    own.int64s,
    st.frozensets(own.names, max_size=3),
    st.frozensets(own.partitions, max_size=3),
)
def test_a_layout_arrives_in_its_order_but_without_the_masters_token(partitions, token, missing, unread):
    layout = TopicsLayout(partitions, token, missing, unread)

    message = sent(values.layout_to_proto(layout))
    again = values.layout_from_proto(message)

    assert again == dataclasses.replace(layout, visit_token=values.NO_TOKEN)
    assert list(again.partitions) == list(partitions)
    assert len(message.brokers) == len(set(partitions.values()))


def test_a_layout_with_a_broker_that_is_not_listed_is_refused():
    message = pb.QueryRouteResponse()
    message.partitions.add(broker=0)
    with pytest.raises(MalformedMessageError):
        values.layout_from_proto(message)


def test_what_cannot_be_a_partition_is_refused_before_it_is_sent():
    with pytest.raises(OptionError, match="TUBEMQ_PARTITION_NOT_LISTED"):
        values.partition_to_proto(TopicPartition("demo", 1 << 31, 0))


@given(st.dictionaries(stores, st.none() | bounds, max_size=5))
def test_bounds_and_failures_arrive_for_their_stores(found):
    asked = list(found)
    known = {store: one for store, one in found.items() if one is not None}
    answer = StoreBounds(known, {store: FAILURE for store in found if store not in known})

    assert values.stores_from_proto(map(sent, values.stores_to_proto(asked))) == asked
    again = values.store_bounds_from_proto(sent(values.store_bounds_to_proto(answer, asked)), asked)

    assert again.by_store == known
    assert {store: str(error) for store, error in again.failures.items()} == dict.fromkeys(
        answer.failures, str(FAILURE)
    )


def test_bounds_for_other_stores_are_refused():
    store = StoreId("demo", 1, 0)
    with pytest.raises(MalformedMessageError):
        values.store_bounds_from_proto(pb.QueryBoundsResponse(), [store])
    silent = pb.QueryBoundsResponse()
    silent.answers.add()
    with pytest.raises(MalformedMessageError):
        values.store_bounds_from_proto(silent, [store])


@given(st.dictionaries(own.partitions, offsets, max_size=5))
def test_offsets_arrive(found):
    assert values.offsets_from_proto(map(sent, values.offsets_to_proto(found))) == found


@given(
    st.lists(
        st.builds(
            StoredOffset,
            own.names,
            own.partitions,
            offsets,
            offsets,
            st.none() | offsets,
            st.none() | own.names,
        ),
        max_size=4,
        unique_by=lambda one: (one.group, one.partition),
    ),
    st.integers(0, 5),
)
def test_where_groups_stand_arrives_page_by_page_in_the_order_of_brokers_and_groups(known, size):
    error = RpcError("TUBEMQ_REMOTE_EXCEPTION", peer="p", during="d", exception="e", text="t")
    offsets, token, pages = [], "", 0
    while not pages or token:
        answer = sent(values.stored_offsets_to_proto(StoredOffsets(tuple(known), {7: error}), size, token))
        again = values.stored_offsets_from_proto(answer)
        offsets += again.offsets
        assert {broker: str(one) for broker, one in again.failures.items()} == {7: str(error)}
        token, pages = answer.next_page_token, pages + 1

    assert offsets == sorted(known, key=lambda one: (one.partition.broker_id, one.group, one.partition))
    assert pages == max(1, math.ceil(len(known) / (size or len(known) or 1)))


@given(
    st.lists(
        st.builds(
            Receipt,
            own.partitions,
            counts,
            offsets,
            offsets,
            counts,
            counts,
            counts,
            st.none() | st.integers(0, own.INT64_MAX),
        ),
        max_size=4,
    )
)
def test_receipts_arrive(receipts):
    assert values.receipts_from_proto(map(sent, values.receipts_to_proto(receipts))) == receipts


def test_the_table_of_methods_is_that_of_the_service():
    assert service.SERVICE == "tubemq.gateway.v1.GatewayService"
    assert service.METHODS["ReadRange"].path == "/tubemq.gateway.v1.GatewayService/ReadRange"
    assert service.METHODS["ReadRange"].gives_stream
    assert service.METHODS["PublishStream"].takes_stream
    assert service.METHODS["OpenSession"].request is pb.OpenSessionRequest
