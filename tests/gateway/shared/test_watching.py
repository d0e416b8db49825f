"""Routes as a client watches them: at once, after each change, and not again without one."""

import contextlib
import threading

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.gateway.fleet import Fleet, fresh
from tests.gateway.running import SERVICE, RefusedError, gateway
from tests.waiting import wait_until
from tubemq_spark.protocol.gateway.failures import ERROR_TRAILER, parse_error

NEVER_MS = 86_400_000


def watch(client, *topics, **how):
    request = client.request("WatchRoute", topics=topics, **how)
    return client.method("WatchRoute")(request, timeout=30)


def error_of(call):
    with contextlib.suppress(grpc.RpcError):
        list(call)
    return call.code().name, parse_error(dict(call.trailing_metadata())[ERROR_TRAILER]).condition


def test_partitions_are_told_at_once_and_when_there_are_more(fleet):
    topic = fleet.topic()
    call = watch(fleet.client(), topic)
    assert len(next(call).partitions) == 3
    fleet.server.add_topic(topic, 1, 2)
    # The brokers change one after the other.
    assert any(len(answer.partitions) == 6 for answer in call)


def test_a_topic_that_comes_later_is_told_of(fleet):
    topic = fresh("later")
    call = watch(fleet.client(), topic, missing_ok=True)
    assert list(next(call).missing_topics) == [topic]
    fleet.server.add_topic(topic)
    assert any(len(answer.partitions) == 3 and not answer.missing_topics for answer in call)


def test_a_change_that_another_session_noticed_is_told_at_once(server):
    """Long before the gateway would ask again by itself."""
    with gateway(server, route_refresh_ms=NEVER_MS, route_expiry_ms=NEVER_MS) as served:
        fleet = Fleet(server, served)
        topic, group = fleet.topic(), fresh("group")
        call = watch(fleet.client(group), topic)
        assert len(next(call).partitions) == 3
        server.add_topic(topic, 1, 2)
        fleet.client(group)("QueryRoute", topics=[topic])
        assert len(next(call).partitions) == 6
        fleet.close()


def test_an_unknown_topic_is_refused(fleet):
    with pytest.raises(RefusedError) as caught:
        fleet.client()("WatchRoute", topics=["nowhere"])
    assert caught.value.status == "NOT_FOUND"


def test_a_watch_goes_on_while_no_master_answers_and_the_gateway_says_so(server):
    with gateway(server, route_refresh_ms=20) as served:
        fleet = Fleet(server, served)
        client = fleet.client(register_attempts=1, rpc_timeout_ms=500, connect_timeout_ms=200)
        call = watch(client, "demo")
        assert len(next(call).partitions) == 3
        server.faults.become_standby()
        wait_until(lambda: client("DescribeGateway").degraded)
        assert "tubemq_gateway_degraded 1.0" in served.server.metrics.text()
        health = health_pb2_grpc.HealthStub(client.channel)
        answer = health.Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        # What a master said before is used, and nothing has changed.
        assert len(client("QueryRoute", topics=["demo"], missing_ok=True, max_age_ms=60_000).partitions) == 3
        server.faults.become_active()
        wait_until(lambda: not client("DescribeGateway").degraded)
        assert call.is_active()
        fleet.close()


def test_a_watch_ends_with_its_session_or_with_the_gateway(server):
    with gateway(server) as served:
        fleet = Fleet(server, served)
        closed, older, stays = fleet.client(), fleet.client(client_id=fresh("twin")), fleet.client()
        calls = [watch(one, "demo") for one in (closed, older, stays)]
        for call in calls:
            next(call)
        closed("CloseSession")
        fleet.client(client_id=older.session.client_id, epoch=2)
        assert list(calls[0]) == []
        assert error_of(calls[1]) == ("ABORTED", "TUBEMQ_SESSION_FENCED")
        stopping = threading.Thread(target=served.stop, args=(10_000,))
        stopping.start()
        assert error_of(calls[2]) == ("UNAVAILABLE", "TUBEMQ_GATEWAY_DRAINING")
        stopping.join(10)
        assert not stopping.is_alive()
        fleet.close()
