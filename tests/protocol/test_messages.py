"""Every method has its two messages; signatures and events are those of Java."""

import pytest
from hypothesis import given, strategies as st

from tests import strategies as own
from tests.cases import in_one_test
from tests.protocol.vectors import DOCUMENT, VECTORS, build, named
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.protocol import messages
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.messages import (
    CONNECTS,
    DISCONNECTS,
    MESSAGES,
    EventStatus,
    EventType,
    RebalanceEvent,
    format_event,
    parse_event,
    subscribe_infos,
)
from tubemq_spark.protocol.packed_strings import PartitionInfo
from tubemq_spark.protocol.pb import common_pb2, master_pb2


def test_every_method_is_there():
    assert set(MESSAGES) == set(Method)


@in_one_test("method", MESSAGES)
def test_every_answer_has_a_code_and_a_text(method):
    assert {"errCode", "errMsg"} <= set(MESSAGES[method].response.DESCRIPTOR.fields_by_name)


def test_the_recorded_requests_are_those_of_their_methods():
    for vector in VECTORS:
        if vector["kind"] == "request":
            method = Method(vector["requestBody"]["method"])
            assert MESSAGES[method].request.DESCRIPTOR.name == vector["message"]


each_signature = pytest.mark.parametrize("entry", DOCUMENT["authSignature"], ids=lambda entry: entry["user"])


def parts(entry) -> tuple[str, str, int, int]:
    return entry["user"], entry["password"], entry["timestamp"], entry["nonce"]


@each_signature
def test_signatures(entry):
    assert messages.sign(*parts(entry)) == entry["signature"]


@each_signature
def test_broker_tokens(entry):
    assert messages.broker_token(*parts(entry)) == entry["brokerToken"]


def test_authenticate_info_is_the_recorded_one():
    fields = named("producer_register_auth_req")["fields"]["authInfo"]["authInfo"]
    expected = build(common_pb2.AuthenticateInfo(), fields)
    assert messages.authenticate_info("alice", "secret", fields["timestamp"], fields["nonce"]) == expected


@given(
    st.text(max_size=20).filter(lambda text: text.isprintable()),
    st.text(max_size=20),
    own.int64s,
    own.naturals,
)
def test_signatures_hold_no_character_that_needs_escaping(user, password, timestamp_ms, nonce):
    signature = messages.sign(user, password, timestamp_ms, nonce)
    assert signature.replace("%", "").isalnum()
    assert messages.authenticate_info(user, password, timestamp_ms, nonce).IsInitialized()


ME = "grp_a_10.1.2.3-4321-1700000000000-2-Pull-py-0.1"
HERE = PartitionInfo(1, Endpoint("10.1.2.10", 8123), "demo", 0)
THERE = PartitionInfo(2, Endpoint("10.1.2.11", 8200), "demo", 2)
RECORDED = RebalanceEvent(47, EventType.ONLY_CONNECT, (HERE, THERE))


def message(name):
    vector = named(name)
    return build(getattr(master_pb2, vector["message"])(), vector["fields"])


def test_the_recorded_event_is_read():
    assert parse_event(message("consumer_heartbeat_master_event_rsp").event) == RECORDED


def test_the_answer_to_an_event_is_the_recorded_one():
    answered = message("consumer_heartbeat_master_ack_req")
    assert format_event(RECORDED, ME, "grp_a") == answered.event
    assert subscribe_infos((HERE, THERE), ME, "grp_a") == list(answered.subscribeInfo)


def test_an_answer_without_an_event_has_none():
    assert parse_event(master_pb2.HeartResponseM2C().event) is None
    assert parse_event(common_pb2.EventProto(rebalanceId=0, opType=1)) is None


def test_partitions_that_cannot_be_read_do_not_spoil_the_others():
    proto = format_event(RECORDED, ME, "grp_a")
    proto.subscribeInfo.insert(1, "grp_a#garbage")

    event = parse_event(proto)

    assert event.partitions == (HERE, THERE)
    assert event.unreadable == ("grp_a#garbage",)


@pytest.mark.parametrize("number", [0, 7, -1, 21])
def test_an_unknown_type_is_an_event_all_the_same(number):
    """It must be answered, or the master sends no other one."""
    event = parse_event(common_pb2.EventProto(rebalanceId=3, opType=number))
    assert event == RebalanceEvent(3, EventType.UNKNOWN, ())


def test_types_and_states_have_javas_numbers():
    assert {kind.name: int(kind) for kind in EventType} == {
        "UNKNOWN": -1,
        "CONNECT": 1,
        "DISCONNECT": 2,
        "REPORT": 3,
        "REFRESH": 4,
        "STOP_REBALANCE": 5,
        "ONLY_CONNECT": 10,
        "ONLY_DISCONNECT": 20,
    }
    assert {status.name: int(status) for status in EventStatus} == {
        "FAILED": -2,
        "UNKNOWN": -1,
        "TODO": 0,
        "PROCESSING": 1,
        "DONE": 2,
    }
    assert [kind for kind in EventType if kind in CONNECTS] == [1, 10]
    assert [kind for kind in EventType if kind in DISCONNECTS] == [2, 20]


def test_an_event_tells_what_it_is():
    assert str(RECORDED) == "rebalance 47, ONLY_CONNECT: demo/1:0, demo/2:2"
    assert str(RebalanceEvent(5, EventType.STOP_REBALANCE, ())) == "rebalance 5, STOP_REBALANCE: no partition"


infos = st.builds(PartitionInfo, own.naturals, own.endpoints, own.names, own.naturals)


@given(
    st.builds(
        RebalanceEvent,
        st.integers(1, 1 << 60),
        st.sampled_from(EventType),
        st.lists(infos, max_size=3).map(tuple),
    )
)
def test_events_round_trip(event):
    assert parse_event(format_event(event, "c-1", "grp")) == event


def test_the_key_of_a_partition_is_its_place_and_not_its_address():
    moved = PartitionInfo(1, Endpoint("10.9.9.9", 8123), "demo", 0)
    assert moved.partition == HERE.partition == TopicPartition("demo", 1, 0)
