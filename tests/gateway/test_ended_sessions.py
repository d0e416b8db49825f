"""A session that has ended: its calls end at once, and nothing of it is stored or committed any more."""

import pytest

from tests.gateway.fleet import (
    BEGIN,
    batch_to,
    consuming,
    fleet_of,
    fresh,
    hearing,
    place,
    publishing,
    values_of,
)
from tests.gateway.running import DRAINING, FENCED, NO_SESSION, Answers, PlainClient, Stream, refused
from tests.waiting import wait_until
from tubemq_spark.protocol.gateway import gateway_pb2 as pb


def reading(client, topic):
    """A range that comes to no end, since its client does not read on."""
    stored = client("QueryBounds", stores=[pb.Store(topic=topic, broker_id=1)]).answers[0].bounds.latest
    call = client.begin("ReadRange", partition=place(topic), end=stored)
    next(call)
    return Answers(call)


def fence(client, again):
    again.session.epoch += 1
    again.open(group="twins")


def close(_, again):
    again("CloseSession")


@pytest.mark.parametrize(
    ("call", "end", "how"),
    [
        *((call, fence, FENCED) for call in (reading, publishing, consuming, hearing)),
        *((call, close, NO_SESSION) for call in (reading, publishing)),
        # These two say all there is to say, so their end is complete.
        *((call, close, ("OK", None)) for call in (consuming, hearing)),
    ],
)
def test_a_call_under_way_ends_with_its_session(fleet, call, end, how):
    topic = fleet.topic()
    for _ in range(10):
        fleet.publish(topic, *[bytes(1 << 19)] * 2)
    # A group of its own: consumers of ended sessions close in the background.
    client = fleet.client(f"readers_of_{topic}")
    under_way = call(client, topic)
    with PlainClient(fleet.served.address, client.session.client_id) as again:
        end(client, again)
        assert under_way.end() == how


def test_nothing_of_a_fenced_session_is_stored_after_the_fence_was_answered(fleet):
    topic = fleet.topic()
    older = fleet.client("twins")
    stream = publishing(older, topic)
    with PlainClient(fleet.served.address, older.session.client_id, epoch=2) as newer:
        newer.open(group="twins")
        at_the_fence = fleet.latest(topic)
        stream.send(pb.PublishStreamRequest(batch=batch_to(topic, b"after"), number=2))
        assert stream.end() == FENCED
        newer("PublishStream", batch=batch_to(topic, b"newer"))
        assert fleet.latest(topic) == at_the_fence + 28


def test_opening_a_session_again_leaves_what_it_has_attached_and_what_is_to_be_committed(fleet):
    topic = fleet.topic()
    fleet.publish(topic, b"value")
    client = fleet.reader(topic, 1, group="again")
    batch = client("Fetch", wait_ms=5_000)
    assert values_of(batch) == [b"value"]
    client.open(group="again")
    assert client("Commit", batch=batch.batch).offset == 28


def test_a_session_that_is_closed_or_unknown_is_closed_again(fleet):
    client = fleet.client()
    for _ in range(2):
        client("CloseSession")
        assert refused(client, "Heartbeat").end == NO_SESSION
    with PlainClient(fleet.served.address, fresh("unknown")) as stranger:
        stranger("CloseSession")


def test_a_stranger_closes_no_session(fleet):
    client = fleet.client()
    with PlainClient(fleet.served.address, client.session.client_id, secret=b"another secret!!") as stranger:
        stranger("CloseSession")
    assert client("Heartbeat").gateway


def test_a_password_is_taken_over_tls_only(fleet):
    refusal = refused(fleet.client, username="ann", password="hush")
    assert refusal.end == ("FAILED_PRECONDITION", "TUBEMQ_GATEWAY_PLAINTEXT")
    assert "hush" not in str(refusal)


def counted(fleet, metric):
    lines = fleet.gateway.metrics.text().splitlines()
    return {line.rpartition(" ")[0] for line in lines if line.startswith(f"tubemq_gateway_{metric}_total")}


def test_what_every_client_meets_is_no_failure(server, caplog):
    """A gateway that was restarted, one that is about to stop, and a client that ends in good order."""
    caplog.set_level("INFO", "tubemq_spark.gateway.access")
    with fleet_of(server, access_log_every=0) as fleet, PlainClient(fleet.served.address) as client:
        refused(client, "Heartbeat")
        client.open()
        events = hearing(client)
        client("CloseSession")
        assert events.end() == ("OK", None)
        fleet.gateway._calls.draining = True
        refused(client, "QueryRoute", topics=["demo"])
        wait_until(lambda: len(counted(fleet, "calls_redirected")) == 2)
        assert counted(fleet, "calls_redirected") == {
            'tubemq_gateway_calls_redirected_total{method="Heartbeat",reason="session_unknown"}',
            'tubemq_gateway_calls_redirected_total{method="QueryRoute",reason="draining"}',
        }
        assert all('status="OK"' in line for line in counted(fleet, "calls"))
        assert counted(fleet, "sessions_ended") == {'tubemq_gateway_sessions_ended_total{end="closed"}'}
    assert not caplog.records


SHORT_LIVED = {"lease_ms": 300, "heartbeat_ms": 100, "housekeeping_ms": 20}


def test_sessions_that_are_lost_are_told_apart_from_those_that_had_nothing(server):
    with fleet_of(server, **SHORT_LIVED) as fleet:
        fleet.client()
        fleet.reader(fleet.topic(), 1)
        wait_until(lambda: not len(fleet.gateway._sessions))
        ends = counted(fleet, "sessions_ended")
        assert ends == {f'tubemq_gateway_sessions_ended_total{{end="{end}"}}' for end in ("idle", "lost")}


def test_a_session_that_has_detached_everything_is_not_lost(server):
    with fleet_of(server, **SHORT_LIVED) as fleet:
        topic = fleet.topic()
        reader = fleet.reader(topic, 1, 2)
        reader("DetachPartitions", partitions=[place(topic, 1)])
        (session,) = fleet.gateway._sessions
        assert session.attached == {topic}
        reader("DetachPartitions", partitions=[place(topic, 2)])
        wait_until(lambda: not len(fleet.gateway._sessions))
        assert counted(fleet, "sessions_ended") == {'tubemq_gateway_sessions_ended_total{end="idle"}'}


def test_a_gateway_that_drains_ends_publish_streams_at_rest(server):
    with fleet_of(server, drain_ms=3_600_000) as fleet:
        begun, stored = Stream(fleet.client(), "PublishStream"), publishing(fleet.client(), fleet.topic())
        begun.ask(BEGIN)
        with fleet.draining():
            assert [begun.end(), stored.end()] == [DRAINING] * 2
