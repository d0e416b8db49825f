"""A session that has ended: its calls end at once, and nothing of it is stored or committed any more."""

import contextlib
import queue
import threading

import grpc
import pytest

from tests.gateway.fleet import Fleet, attach, batch_to, fresh, place, values_of
from tests.gateway.running import PlainClient, RefusedError, gateway
from tests.waiting import wait_until
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.gateway import gateway_pb2 as pb

Publish = pb.PublishStreamRequest


class Stream:
    """A stream of requests, and of answers."""

    def __init__(self, client, name):
        self._sent = queue.SimpleQueue()
        self.call = client.method(name)(iter(self._sent.get, None), timeout=30)

    def ask(self, request):
        self._sent.put(request)
        return next(self.call)

    def send(self, request):
        self._sent.put(request)

    def close(self):
        self._sent.put(None)


@pytest.fixture
def begin():
    """Begins streams, which are ended with the test."""
    with contextlib.ExitStack() as stack:
        yield lambda client, name: stack.enter_context(contextlib.closing(Stream(client, name)))


def end_of(call):
    """How a call ended: its status, and the condition of its error if there is one."""
    try:
        for _ in call:
            pass
    except grpc.RpcError as error:
        refused = RefusedError(error)
        return refused.status, refused.condition
    return "OK", None


FENCED = ("ABORTED", "TUBEMQ_SESSION_FENCED")
UNKNOWN = ("FAILED_PRECONDITION", "TUBEMQ_SESSION_UNKNOWN")
DRAINING = ("UNAVAILABLE", "TUBEMQ_GATEWAY_DRAINING")


def reading(client, topic, _):
    """A range that comes to no end, since its client does not read on."""
    stored = client("QueryBounds", stores=[pb.Store(topic=topic, broker_id=1)]).answers[0].bounds.latest
    call = client.method("ReadRange")(
        client.request("ReadRange", partition=place(topic), end=stored), timeout=30
    )
    next(call)
    return call


def publishing(_, topic, begin):
    stream = begin("PublishStream")
    stream.ask(Publish(begin=Publish.Begin()))
    stream.ask(Publish(batch=batch_to(topic, b"before"), number=1))
    return stream.call


def consuming(client, topic, begin):
    attach(client, topic, 1)
    stream = begin("Consume")
    stream.send(pb.ConsumeRequest(begin=pb.ConsumeRequest.Begin()))
    stream.send(pb.ConsumeRequest(credit=1))
    next(stream.call)
    return stream.call


def hearing(client, *_):
    call = client.method("SessionEvents")(client.request("SessionEvents"), timeout=30)
    call.initial_metadata()
    return call


def fence(client, again):
    again.session.epoch += 1
    again.open(group="twins")


def close(_, again):
    again("CloseSession")


@pytest.mark.parametrize(
    ("call", "end", "how"),
    [
        *((call, fence, FENCED) for call in (reading, publishing, consuming, hearing)),
        *((call, close, UNKNOWN) for call in (reading, publishing)),
        # These two say all there is to say, so their end is complete.
        *((call, close, ("OK", None)) for call in (consuming, hearing)),
    ],
)
def test_a_call_under_way_ends_with_its_session(fleet, begin, call, end, how):
    topic = fleet.topic()
    for _ in range(10):
        fleet.publish(topic, *[bytes(1 << 19)] * 2)
    # A group of its own: consumers of ended sessions close in the background.
    client = fleet.client(f"readers_of_{topic}")
    under_way = call(client, topic, lambda name: begin(client, name))
    with PlainClient(fleet.served.address, client.session.client_id) as again:
        end(client, again)
        assert end_of(under_way) == how


def test_nothing_of_a_fenced_session_is_stored_after_the_fence_was_answered(fleet, begin):
    topic = fleet.topic()
    older = fleet.client("twins")
    stream = begin(older, "PublishStream")
    stream.ask(Publish(begin=Publish.Begin()))
    stream.ask(Publish(batch=batch_to(topic, b"before"), number=1))
    with PlainClient(fleet.served.address, older.session.client_id, epoch=2) as newer:
        newer.open(group="twins")
        stores = [pb.Store(topic=topic, broker_id=1)]

        def stored():
            return newer("QueryBounds", stores=stores).answers[0].bounds.latest

        at_the_fence = stored()
        stream.send(Publish(batch=batch_to(topic, b"after"), number=2))
        assert end_of(stream.call) == FENCED
        newer("PublishStream", batch=batch_to(topic, b"newer"))
        assert stored() == at_the_fence + 28


def test_a_fetch_that_waits_and_a_topic_that_is_waited_for_end_with_their_session(fleet):
    client = fleet.client("waiting", delivery_timeout_ms=60_000)
    attach(client, fleet.topic(), 1)
    fetch = client.method("Fetch").future(client.request("Fetch", wait_ms=20_000), timeout=25)
    wait_until(lambda: fleet.served.server._consuming.places.used)
    with PlainClient(fleet.served.address, client.session.client_id, epoch=2) as newer:
        newer.open(group="twins")
    error = RefusedError(fetch.exception(20))
    assert (error.status, error.condition) == FENCED


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
    with PlainClient(fleet.served.address, fresh("unknown")) as stranger:
        stranger("CloseSession")


def test_a_stranger_closes_no_session(fleet):
    client = fleet.client()
    with PlainClient(fleet.served.address, client.session.client_id, secret=b"another secret!!") as stranger:
        stranger("CloseSession")
    assert client("Heartbeat").gateway


def test_a_password_is_taken_over_tls_only(fleet):
    with (
        PlainClient(fleet.served.address, fresh("login")) as client,
        pytest.raises(RefusedError) as caught,
    ):
        client.open(username="ann", password="hush")
    refused = caught.value
    assert (refused.status, refused.condition) == ("FAILED_PRECONDITION", "TUBEMQ_GATEWAY_PLAINTEXT")
    assert "hush" not in str(refused)


def counted(served, metric):
    lines = served.server.metrics.text().splitlines()
    return {line.rpartition(" ")[0] for line in lines if line.startswith(f"tubemq_gateway_{metric}_total")}


def test_what_every_client_meets_is_no_failure(server, caplog):
    """A gateway that was restarted, one that is about to stop, and a client that ends in good order."""
    caplog.set_level("INFO", "tubemq_spark.gateway.access")
    with gateway(server, access_log_every=0) as served, PlainClient(served.address, "usual") as client:
        with pytest.raises(RefusedError):
            client("Heartbeat")
        client.open()
        events = hearing(client)
        client("CloseSession")
        assert end_of(events) == ("OK", None)
        served.server._calls.draining = True
        with pytest.raises(RefusedError):
            client("QueryRoute", topics=["demo"])
        wait_until(lambda: len(counted(served, "calls_redirected")) == 2)
        assert counted(served, "calls_redirected") == {
            'tubemq_gateway_calls_redirected_total{method="Heartbeat",reason="session_unknown"}',
            'tubemq_gateway_calls_redirected_total{method="QueryRoute",reason="draining"}',
        }
        assert all('status="OK"' in line for line in counted(served, "calls"))
        assert counted(served, "sessions_ended") == {'tubemq_gateway_sessions_ended_total{end="closed"}'}
    assert not caplog.records


def test_sessions_that_are_lost_are_told_apart_from_those_that_had_nothing(server):
    settings = {"lease_ms": 300, "heartbeat_ms": 100, "housekeeping_ms": 20}
    with gateway(server, **settings) as served:
        fleet = Fleet(server, served)
        fleet.client()
        fleet.reader(fleet.topic(), 1)
        wait_until(lambda: not len(served.server._sessions))
        ends = counted(served, "sessions_ended")
        assert ends == {f'tubemq_gateway_sessions_ended_total{{end="{end}"}}' for end in ("idle", "lost")}
        fleet.close()


def test_a_session_that_has_detached_everything_is_not_lost(server):
    settings = {"lease_ms": 300, "heartbeat_ms": 100, "housekeeping_ms": 20}
    with gateway(server, **settings) as served:
        fleet = Fleet(server, served)
        topic = fleet.topic()
        reader = fleet.reader(topic, 1, 2)
        reader("DetachPartitions", partitions=[place(topic, 1)])
        (session,) = served.server._sessions
        assert session.attached == {topic}
        reader("DetachPartitions", partitions=[place(topic, 2)])
        wait_until(lambda: not len(served.server._sessions))
        assert counted(served, "sessions_ended") == {'tubemq_gateway_sessions_ended_total{end="idle"}'}
        fleet.close()


@pytest.mark.parametrize("rests", ["begun", "stored"])
def test_a_gateway_that_drains_ends_a_publish_stream_at_rest(server, begin, rests):
    with gateway(server, drain_ms=3_600_000) as served:
        fleet = Fleet(server, served)
        topic = fleet.topic()
        stream = begin(fleet.client(), "PublishStream")
        stream.ask(Publish(begin=Publish.Begin()))
        if rests == "stored":
            stream.ask(Publish(batch=batch_to(topic, b"value"), number=1))
        stopping = threading.Thread(target=served.stop)
        stopping.start()
        assert end_of(stream.call) == DRAINING
        stopping.join(20)
        assert not stopping.is_alive()
        fleet.close()


def test_a_gateway_that_drains_waits_for_a_publish_stream_that_has_sent(server, begin):
    with gateway(server, drain_ms=3_600_000) as served:
        fleet = Fleet(server, served)
        topic = fleet.topic()
        stream = begin(fleet.client(), "PublishStream")
        stream.ask(Publish(begin=Publish.Begin()))
        held = server.faults.hold(Method.SEND_MESSAGE)
        stream.send(Publish(batch=batch_to(topic, b"value"), number=1))
        wait_until(lambda: held.hits)
        stopping = threading.Thread(target=served.stop)
        stopping.start()
        wait_until(lambda: served.server._calls.draining)
        held.release()
        server.faults.clear()
        answer = next(stream.call)
        assert (answer.draining, sum(receipt.count for receipt in answer.receipts)) == (True, 1)
        stopping.join(20)
        assert not stopping.is_alive()
        fleet.close()
