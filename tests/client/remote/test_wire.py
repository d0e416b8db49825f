"""A session's settings and losses arrive as they were sent."""

import dataclasses

import pytest
from hypothesis import given, strategies as st

from tests import strategies as own
from tests.protocol.gateway.gateway_values import offsets
from tubemq_spark.client.config import BuiltInPartitioner, ClientConfig
from tubemq_spark.client.consumer_config import ConsumePosition, ConsumerConfig
from tubemq_spark.client.remote import wire
from tubemq_spark.errors import OptionError
from tubemq_spark.model import Endpoint
from tubemq_spark.offsets.loss import Loss, LossRecord
from tubemq_spark.protocol.gateway import gateway_pb2 as pb
from tubemq_spark.protocol.gateway.batches import MalformedMessageError

BASE = ClientConfig((Endpoint("m", 1),), "base", rpc_timeout_ms=7_000)
milliseconds = st.integers(1, 86_400_000)


@given(
    st.builds(
        ClientConfig,
        masters=st.just(BASE.masters),
        group=st.sampled_from(["etl", "group_2"]),
        username=st.just("user"),
        password=st.just("secret"),
        rpc_timeout_ms=milliseconds,
        connect_timeout_ms=milliseconds,
        register_attempts=st.integers(1, 1000),
        reader_groups=st.sampled_from([(), ("mine", "yours")]),
        message_types=st.sampled_from([(), ("red", "blue")]),
        fetch_timeout_ms=milliseconds,
        delivery_timeout_ms=milliseconds,
        retry_ambiguous=st.booleans(),
        keep_order=st.booleans(),
        partitioner=st.sampled_from(BuiltInPartitioner),
        max_in_flight=st.integers(1, 1 << 30),
        max_in_flight_bytes=st.integers(1, 1 << 62),
        checksums=st.booleans(),
        consumer=st.builds(
            ConsumerConfig,
            consume_position=st.sampled_from(ConsumePosition),
            confirm_timeout_ms=milliseconds,
            rollback=st.booleans(),
            not_found_wait_ms=st.integers(400, 86_400_000),
            rebalance_wait_ms=milliseconds,
        ),
    )
)
def test_settings_arrive(config):
    message = pb.SessionSettings.FromString(wire.settings_to_proto(config).SerializeToString())
    assert wire.settings_from_proto(message, BASE) == config


def test_clients_do_not_have_masters_and_brokers_asked_without_a_pause():
    eager = ClientConfig(
        BASE.masters, "etl", heartbeat_period_ms=1, consumer=ConsumerConfig(not_found_wait_ms=1)
    )
    config = wire.settings_from_proto(wire.settings_to_proto(eager), BASE)
    assert config.heartbeat_period_ms == 1_000
    assert config.consumer.not_found_wait_ms == BASE.consumer.not_found_wait_ms


def test_unset_settings_are_those_of_the_gateway():
    assert wire.settings_from_proto(pb.SessionSettings(group="etl"), BASE) == dataclasses.replace(
        BASE, group="etl", reader_groups=()
    )


def test_a_client_gets_no_more_of_a_setting_than_the_gateway_allows():
    asked = pb.SessionSettings(
        delivery_timeout_ms=86_400_000,
        max_in_flight_bytes=1 << 62,
        rpc_timeout_ms=5_000,
        confirm_timeout_ms=90_000,
    )
    most = {"delivery_timeout_ms": 60_000, "max_in_flight_bytes": 1 << 20, "rpc_timeout_ms": 60_000}
    config = wire.settings_from_proto(asked, BASE, {**most, "confirm_timeout_ms": 60_000})
    assert (config.delivery_timeout_ms, config.max_in_flight_bytes) == (60_000, 1 << 20)
    assert (config.rpc_timeout_ms, config.consumer.confirm_timeout_ms) == (5_000, 60_000)
    # What the gateway itself is set to stays.
    assert wire.settings_from_proto(pb.SessionSettings(), BASE, {"lease_wait_ms": 1}) == BASE


@pytest.mark.parametrize(
    "settings",
    [
        {"group": "1 bad"},
        {"rpc_timeout_ms": 0},
        {"password": "alone"},
        {"partitioner": "by magic"},
        {"message_types": [""]},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(OptionError):
        wire.settings_from_proto(pb.SessionSettings(**settings), BASE)


def test_a_partitioner_of_the_users_own_cannot_go_through_a_gateway():
    class Own:
        def choose(self, topic, key, value, partitions):
            return partitions[0]

    with pytest.raises(OptionError):
        wire.settings_to_proto(dataclasses.replace(BASE, partitioner=Own()))


@given(st.sampled_from(Loss), own.partitions, offsets, offsets, st.none() | own.naturals)
def test_a_loss_arrives(kind, partition, start, end, rows):
    loss = LossRecord(kind, partition, start, end, rows)
    message = pb.Loss.FromString(wire.loss_to_proto(loss).SerializeToString())

    again = wire.loss_from_proto(message, partition)

    assert (again, again.rows) == (loss, rows)


def test_a_loss_of_an_unknown_kind_is_refused():
    with pytest.raises(MalformedMessageError):
        wire.loss_from_proto(pb.Loss(kind="STOLEN"), None)
