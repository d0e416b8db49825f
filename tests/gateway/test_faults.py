"""Whatever TubeMQ does, each call has a status before its deadline, and the gateway serves on."""

import concurrent.futures

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.gateway.fleet import attach, batch_to, fleet_of, fresh, place, publish, values_of
from tests.gateway.running import SERVICE, RefusedError, refused
from tests.waiting import wait_until
from tubemq_spark.gateway import calls
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.gateway import gateway_pb2 as pb

DEADLINE_S = 20
IMPATIENT = {
    "register_attempts": 1,
    "rpc_timeout_ms": 300,
    "connect_timeout_ms": 200,
    "fetch_timeout_ms": 500,
    "lease_wait_ms": 500,
    "delivery_timeout_ms": 600,
}
METHODS = (
    Method.BALANCE_REGISTER,
    Method.PARTITION_REGISTER,
    Method.GET_MESSAGE,
    Method.COMMIT_OFFSET,
    Method.SEND_MESSAGE,
)
FAULTS = {
    "hangs": lambda faults, method: faults.hold(method),
    "hangs up": lambda faults, method: faults.drop_connection(method),
    "hangs up when it is done": lambda faults, method: faults.drop_connection(method, carried_out=True),
    "breaks its frame off": lambda faults, method: faults.truncate(method),
    "sends garbage": lambda faults, method: faults.corrupt(method, 0),
    "answers under another serial number": lambda faults, method: faults.corrupt(method, 7),
    "sends a message that cannot be read": lambda faults, method: faults.corrupt(method, -1),
    "sends only the frame's head": lambda faults, method: faults.truncate(method, 12),
    "refuses": lambda faults, method: faults.answer(method, 500),
    "is not ready": lambda faults, method: faults.answer(method, 503),
    "answers with 28 MiB": lambda faults, method: faults.answer(method, 599, "x" * (28 << 20)),
}
STATUSES = {
    "ABORTED",
    "DATA_LOSS",
    "DEADLINE_EXCEEDED",
    "FAILED_PRECONDITION",
    "INTERNAL",
    "NOT_FOUND",
    "OK",
    "RESOURCE_EXHAUSTED",
    "UNAVAILABLE",
    "UNKNOWN",
}


def status_of(call):
    """The status, and whether the gateway gave it; OK with an error for a part of it too."""
    try:
        call()
    except RefusedError as error:
        return error.status, error.error is not None
    return "OK", True


@pytest.mark.sampled
@pytest.mark.parametrize("fault", FAULTS)
def test_each_call_has_a_status_of_the_gateway(fleet, fault):
    topic = fleet.topic()
    fleet.publish(topic, b"there")
    reader, other = fleet.reader(topic, 1, **IMPATIENT), fleet.client(**IMPATIENT)
    batch = reader("Fetch", wait_ms=10_000).batch
    store = pb.Store(topic=topic, broker_id=1, store=0)
    calls = (
        lambda: other("QueryRoute", topics=[topic], timeout=DEADLINE_S),
        lambda: other("QueryBounds", stores=[store], timeout=DEADLINE_S),
        lambda: other("PublishStream", batch=batch_to(topic, b"more"), timeout=DEADLINE_S),
        lambda: other("ReadRange", partition=place(topic), start=0, end=28, timeout=DEADLINE_S),
        lambda: other("ResetOffsets", positions=[reset(topic)], timeout=DEADLINE_S),
        lambda: attach(other, topic, 2, timeout=DEADLINE_S),
        lambda: reader("Commit", batch=batch, timeout=DEADLINE_S),
    )
    try:
        for method in METHODS:
            FAULTS[fault](fleet.server.faults, method)
        with concurrent.futures.ThreadPoolExecutor(len(calls)) as executor:
            found = list(executor.map(status_of, calls))
    finally:
        fleet.server.faults.clear()
    assert {status for status, _ in found} <= STATUSES
    assert all(ours for _, ours in found), found
    # Nothing of that lasts.
    assert len(fleet.client()("QueryRoute", topics=[topic]).partitions) == 3


def reset(topic):
    return pb.PartitionOffset(partition=place(topic, 3), offset=0)


def test_a_fetch_goes_on_when_its_broker_has_come_back(server):
    """The lease is gone with it, so the gateway registers again, where the group stands."""
    with fleet_of(server, poll_ms=20) as fleet:
        topic = fleet.topic()
        fleet.publish(topic, b"one")
        reader = fleet.reader(topic)
        first = reader("Fetch", wait_ms=10_000)
        reader("Commit", batch=first.batch)
        call = reader.begin("Fetch", wait_ms=20_000, timeout=30)
        wait_until(lambda: fleet.gateway._consuming.places.used == 1)
        server.faults.stop_broker(1, graceful=True)
        server.faults.start_broker(1)
        fleet.publish(topic, b"two")
        assert values_of(call.result(25)) == [b"two"]


def test_a_lease_that_the_broker_has_forgotten_costs_one_batch_that_comes_again(fleet):
    topic = fleet.topic()
    fleet.publish(topic, b"one")
    reader = fleet.reader(topic)
    first = reader("Fetch", wait_ms=10_000)
    assert fleet.server.faults.forget_leases(topic)
    assert refused(reader, "Commit", batch=first.batch).status in {"ABORTED", "FAILED_PRECONDITION"}
    again = reader("Fetch", wait_ms=10_000)
    assert values_of(again) == [b"one"]
    assert reader("Commit", batch=again.batch).offset == 28


def test_a_master_that_has_forgotten_all_is_registered_at_again(fleet):
    topic, group = fleet.topic(), fresh("group")
    reader = fleet.reader(topic, group=group)
    fleet.server.faults.forget_clients()
    fleet.publish(topic, b"one")
    assert values_of(reader("Fetch", wait_ms=10_000)) == [b"one"]


def test_while_no_master_answers_routes_of_before_are_used_and_the_gateway_says_so(server):
    with fleet_of(server, route_refresh_ms=20) as fleet:
        client = fleet.client(register_attempts=1, rpc_timeout_ms=500, connect_timeout_ms=200)
        assert len(client("QueryRoute", topics=["demo"]).partitions) == 3
        server.faults.become_standby()
        wait_until(lambda: client("DescribeGateway").degraded)
        assert "tubemq_gateway_degraded 1.0" in fleet.gateway.metrics.text()
        health = health_pb2_grpc.HealthStub(client.channel)
        answer = health.Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        for missing_ok in (True, False):
            older = client("QueryRoute", topics=["demo"], missing_ok=missing_ok, max_age_ms=60_000)
            assert len(older.partitions) == 3
        server.faults.become_active()
        wait_until(lambda: not client("DescribeGateway").degraded)


def test_a_visit_token_that_is_too_old_is_renewed(fleet):
    topic = fleet.topic()
    reader = fleet.reader(topic)
    client = fleet.client("writers")
    publish(client, topic, b"one")
    fleet.server.faults.expire_visit_tokens()
    store = pb.Store(topic=topic, broker_id=1, store=0)
    assert client("QueryBounds", stores=[store]).answers[0].bounds.latest == 28
    assert values_of(reader("Fetch", wait_ms=10_000)) == [b"one"]


@pytest.mark.parametrize(
    "method", [Method.PARTITION_REGISTER, Method.BALANCE_REGISTER, Method.BALANCE_PARTITION_META]
)
def test_a_call_ends_before_its_deadline(fleet, monkeypatch, method):
    """A frozen master is asked to forget what it may have registered, and not waited for."""
    # The answer may take its time on a busy machine.
    monkeypatch.setattr(calls, "_RESERVE_S", 1.5)
    client, topic = fleet.client(), fleet.topic()
    name, asked = "QueryRoute", {"topics": [topic]}
    if method is Method.PARTITION_REGISTER:
        name, asked = "ResetOffsets", {"positions": [reset(topic)]}
    with fleet.server.faults.hold(method):
        refusal = refused(client, name, **asked, timeout=3)
    assert refusal.end == ("DEADLINE_EXCEEDED", "TUBEMQ_GATEWAY_DEADLINE")
    assert refusal.error.parameters["method"] == name
