"""Clients that are wrong, late, dead or hostile: a status for them, and nothing for the others."""

import contextlib
import socket

import grpc
import pytest

from testkit.forwarder import Forwarder
from tests.cases import in_one_test
from tests.gateway.fleet import ROW, attach, batch_to, fleet_of, fresh, place, publish, values_of
from tests.gateway.running import (
    BAD_REQUEST,
    FENCED,
    NO_SESSION,
    SERVICE,
    PlainClient,
    RefusedError,
    Stream,
    end_of,
    refused,
)
from tests.waiting import wait_until
from tubemq_spark.protocol.gateway import gateway_pb2 as pb

MUCH = 1 << 30
UNKNOWN_FIELD = b"\xfa\x3e\x05hello"
"""Field 999, of type bytes."""


def raw(client, name, data):
    call = client.channel.unary_unary(f"/{SERVICE}/{name}")
    return call(data, timeout=10, metadata=client.metadata)


# What is said.


def test_fields_of_a_newer_release_are_passed_over(fleet):
    client = fleet.client()
    asked = client.request("Heartbeat").SerializeToString() + UNKNOWN_FIELD
    assert pb.HeartbeatResponse.FromString(raw(client, "Heartbeat", asked)).lease_ms


@pytest.mark.parametrize("data", [b"\xff" * 20, b"\x0a\x7f", b"\x08"], ids=repr)
def test_bytes_that_are_no_message_are_refused(fleet, data):
    client = fleet.client()
    with pytest.raises(grpc.RpcError) as caught:
        raw(client, "Heartbeat", data)
    assert caught.value.code().name == "INVALID_ARGUMENT"
    client("Heartbeat")


def test_a_command_that_is_no_message_ends_its_stream(fleet):
    client = fleet.client()
    method = client.channel.stream_stream(f"/{SERVICE}/PublishStream")
    call = method(iter([b"\xff"]), timeout=10, metadata=client.metadata)
    with pytest.raises(grpc.RpcError):
        list(call)
    assert call.code().name == "INVALID_ARGUMENT"


@pytest.mark.parametrize("name", ["Guess", "heartbeat", ""])
def test_unknown_methods_are_refused(fleet, name):
    with pytest.raises(grpc.RpcError) as caught:
        raw(fleet.client(), name, b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_body_that_tubemq_would_not_take_is_refused_before_it_is_sent(fleet):
    topic = fleet.topic()
    client = fleet.client()
    refusal = refused(client, "PublishStream", batch=batch_to(topic, b"x" * (2 << 20)))
    assert refusal.end == ("INVALID_ARGUMENT", "TUBEMQ_MESSAGE_TOO_LONG")
    assert (refusal.outcome, refusal.error.row) == (pb.TubeError.OUTCOME_NOT_STORED, 0)
    assert fleet.latest(topic) == 0


@pytest.mark.parametrize(
    "types",
    [["a,b"], [""], ["x" * 300], [f"t{number}" for number in range(600)], ["two words ", "\n"]],
    ids=["a comma", "blank", "too long", "too many", "a line"],
)
def test_malformed_filters_are_refused_when_the_session_is_opened(fleet, types):
    assert refused(fleet.client, message_types=types).status == "INVALID_ARGUMENT"


def test_invalid_groups_are_refused_and_an_empty_one_has_the_default_name(fleet):
    assert refused(fleet.client, "x" * 2_000).end == BAD_REQUEST
    for group in ("ümlaut", "a b"):
        assert refused(fleet.client, group).end == ("INVALID_ARGUMENT", "TUBEMQ_BAD_SETTING")
    with PlainClient(fleet.served.address, fresh("client")) as client:
        client.open(group="")


@in_one_test(
    "client_id",
    ["", " ", "x" * 1_025, "a\n2026-01-01T00:00:00Z INFO forged", "\x1b[2J", "a\u202eb", "a\u2028b", "\x9b"],
)
def test_invalid_client_ids_are_refused(fleet, client_id):
    client = PlainClient(fleet.served.address, client_id)
    with client:
        assert refused(client.open).end == BAD_REQUEST


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("AttachPartitions", {"topics": [f"t{number}" for number in range(1_025)]}),
        ("QueryRoute", {"topics": [f"t{number}" for number in range(1_025)]}),
        ("QueryBounds", {"stores": [pb.Store()] * 10_001}),
        ("QueryGroupPositions", {"partitions": [pb.Partition()] * 10_001}),
        ("QueryBounds", {"stores": [pb.Store()] * 400_000}),
        ("CheckTopic", {"topic": "x" * (2 << 20)}),
        ("CloseSession", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_request_with_more_than_it_may_have_is_refused_before_anything_is_done(fleet, name, fields):
    client = fleet.client()
    if not fields:
        with pytest.raises(grpc.RpcError) as caught:
            raw(client, name, UNKNOWN_FIELD * 200_000)
        assert caught.value.code().name == "INVALID_ARGUMENT"
    else:
        assert refused(client, name, **fields).end == BAD_REQUEST
    client("Heartbeat")


@pytest.mark.parametrize("character", ["x", "ü", "\n"], ids=ascii)
def test_the_error_of_a_call_with_a_long_text_arrives_at_a_client_with_the_usual_limits(fleet, character):
    """Trailers beyond a client's limit of metadata would arrive as RESOURCE_EXHAUSTED, without a reason."""
    refusal = refused(fleet.client(), "QueryRoute", topics=[character * 300_000])
    assert refusal.status != "RESOURCE_EXHAUSTED"
    assert refusal.condition


# Who says it.


def test_a_batch_of_another_session_cannot_be_committed(fleet):
    topic = fleet.topic()
    fleet.publish(topic, b"mine")
    mine, other = fleet.reader(topic), fleet.reader(topic, 2)
    batch = mine("Fetch", wait_ms=10_000)
    assert refused(other, "Commit", batch=batch.batch).status in {"NOT_FOUND", "INVALID_ARGUMENT"}
    assert mine("Commit", batch=batch.batch).offset == ROW


def test_partitions_that_are_not_owned_are_neither_read_nor_given_up(fleet):
    topic, group = fleet.topic(), fresh("group")
    owner, other = fleet.reader(topic, 1, group=group), fleet.reader(topic, 2, group=group)
    (answer,) = attach(other, topic, 1)
    assert (answer.error.code, answer.error.kind) == (410, "RpcError")
    assert owner.session.client_id in answer.error.text
    assert not other("DetachPartitions", partitions=[place(topic)]).partitions
    fleet.publish(topic, b"for the owner")
    assert other("Fetch", wait_ms=0).reason != pb.FetchResponse.REASON_READY
    assert values_of(owner("Fetch", wait_ms=10_000)) == [b"for the owner"]


def test_a_session_of_another_epoch_is_refused(fleet):
    client = fleet.client(epoch=5)
    for epoch, end in ((4, FENCED), (6, NO_SESSION)):
        client.session.epoch = epoch
        assert refused(client, "Heartbeat").end == end
    client.session.epoch = 5
    client("Heartbeat")


def test_a_client_whose_clock_went_back_is_told_so_until_the_older_session_has_ended(server):
    """Its epoch is a time: after a restart it is smaller than the one before."""
    with fleet_of(server, lease_ms=300, heartbeat_ms=100, housekeeping_ms=20) as fleet:
        name = fresh("skewed")
        fleet.client(client_id=name, epoch=1 << 62)
        late = PlainClient(fleet.served.address, name, 1)
        with late:
            assert refused(late.open).end == FENCED

            def accepted():
                with contextlib.suppress(RefusedError):
                    late.open()
                    return True
                return False

            wait_until(accepted)


@pytest.mark.parametrize("when", ["tomorrow", "209913312560", "20990101"])
def test_invalid_message_times_are_refused(fleet, when):
    topic = fleet.topic()
    batch = batch_to(topic, b"x")
    batch.headers[0].message_time = when
    assert refused(fleet.client(), "PublishStream", batch=batch).status == "INVALID_ARGUMENT"


# How it is connected.


def test_bytes_that_are_no_grpc_do_no_harm(fleet):
    host, _, port = fleet.served.address.rpartition(":")
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + bytes(300), bytes(64)):
        with socket.create_connection((host, int(port)), timeout=5) as stranger:
            stranger.sendall(data)
            with contextlib.suppress(OSError):
                while stranger.recv(4096):
                    pass
    fleet.client()("Heartbeat")


def test_a_half_open_connection_is_noticed_and_its_fetch_given_up(server):
    with fleet_of(server, keepalive_ms=100, keepalive_timeout_ms=1_000) as fleet:
        topic = fleet.topic()
        with Forwarder(fleet.served.address) as way, PlainClient(way.address, fresh("client")) as client:
            client.open(group=fresh("group"))
            attach(client, topic, 1)
            call = client.begin("Fetch", wait_ms=20_000)
            fleet.wait_for_fetches(1)
            way.stall()
            fleet.wait_for_fetches(0)
            call.cancel()
            # The same client comes back on another way.
            again = fleet.client(client_id=client.session.client_id, epoch=1)
            attach(again, topic, 1)
            publish(again, topic, b"one")
            assert values_of(again("Fetch", wait_ms=10_000)) == [b"one"]


# Who does not read.


def test_a_client_that_never_reads_a_range_gives_way_when_others_wait_for_the_room(server):
    limit = 256 << 10
    with fleet_of(server, session_bytes=limit, total_bytes=limit, stall_ms=100) as fleet:
        topic = fleet.topic()
        for broker_id in [1, 2] * 8:
            fleet.publish(topic, *[b"x" * (250 << 10)] * 4, broker_id=broker_id)
        sleeper, other = fleet.client(), fleet.client()
        asked = {"start": 0, "end": 32 * ROW, "own_store": True}
        call = sleeper.begin("ReadRange", partition=place(topic), **asked, timeout=60)
        wait_until(lambda: other("DescribeGateway").bytes_in_flight > 0)
        found = other("ReadRange", partition=place(topic, 2), timeout=60, **asked)
        assert sum(event.batch.count for event in found) == 32
        assert end_of(call)[0] == "RESOURCE_EXHAUSTED"
        wait_until(lambda: other("DescribeGateway").bytes_in_flight == 0)


def test_a_client_that_goes_while_a_range_is_written_is_no_mistake(server, caplog):
    with fleet_of(server) as fleet:
        topic = fleet.topic()
        reader = fleet.client()
        for _ in range(8):
            fleet.publish(topic, *[b"x" * (250 << 10)] * 4)
        asked = {"start": 0, "end": 32 * ROW, "own_store": True}
        for _ in range(5):
            call = reader.begin("ReadRange", partition=place(topic), **asked, timeout=60)
            wait_until(lambda: reader("DescribeGateway").bytes_in_flight > 0)
            call.cancel()
            wait_until(lambda: reader("DescribeGateway").bytes_in_flight == 0)
    assert "mistake" not in caplog.text


def test_a_client_that_never_reads_a_stream_of_batches_does_not_hold_up_the_others_nor_the_end(server):
    with fleet_of(server) as fleet:
        topic = fleet.topic()
        sleeper, other = fleet.reader(topic), fleet.reader(topic)
        begin = pb.ConsumeRequest(begin=pb.ConsumeRequest.Begin())
        stream = Stream(sleeper, "Consume", begin, pb.ConsumeRequest(credit=MUCH))
        fleet.publish(topic, b"x" * (512 << 10))
        assert values_of(other("Fetch", wait_ms=10_000)) == [b"x" * (512 << 10)]
        fleet.served.stop(0)
        assert stream.end() != ("OK", None)
