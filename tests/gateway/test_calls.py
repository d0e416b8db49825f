"""What every call goes through: hooks are told of it; it is let in or refused before its message comes."""

import contextlib
import queue

import pytest

from testkit.forwarder import Forwarder
from tests.gateway.fleet import ROW, attach, batch_to, fleet_of, place
from tests.gateway.running import BAD_REQUEST, BUSY, PlainClient, RefusedError, refused
from tests.waiting import wait_until
from tubemq_spark.gateway import calls
from tubemq_spark.gateway.admission import Owner
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.gateway import gateway_pb2 as pb
from tubemq_spark.protocol.gateway.service import METHODS


class Seen:
    def __init__(self):
        self.calls = []

    def before(self, call):
        self.calls.append(("before", call.method.name))

    def after(self, call, status, seconds):
        self.calls.append(("after", call.method.name, status, call.rows, seconds >= 0))


class Broken:
    def before(self, call):
        raise ZeroDivisionError

    def after(self, call, status, seconds):
        raise ZeroDivisionError


def test_every_call_that_is_answered_once_has_a_usual_deadline():
    answered_once = {name for name, method in METHODS.items() if not method.gives_stream}
    assert answered_once - calls._WITHOUT_SESSION == set(calls.USUAL_DEADLINES_S)


def test_hooks_see_each_call_and_a_failing_hook_does_no_harm(fleet, monkeypatch):
    seen = Seen()
    monkeypatch.setattr(fleet.gateway._calls, "hooks", [Broken(), seen])
    topic = fleet.topic()
    client = fleet.client()
    client("PublishStream", batch=batch_to(topic, b"one", b"two"))
    attach(client, topic, 1)
    client("Fetch", wait_ms=10_000)
    client("Fetch", wait_ms=1)
    calls_with_rows = [
        ("OpenSession", 0),
        ("PublishStream", 2),
        ("AttachPartitions", 0),
        ("Fetch", 2),
        ("Fetch", 0),
    ]
    wait_until(lambda: len(seen.calls) == 2 * len(calls_with_rows))
    assert seen.calls == [
        told
        for name, rows in calls_with_rows
        for told in (("before", name), ("after", name, "OK", rows, True))
    ]
    assert "tubemq_gateway_hooks_failed_total 10.0" in fleet.gateway.metrics.text()


def test_whose_a_call_was_is_known_after_its_end(fleet, monkeypatch):
    """To ask gRPC then would crash the process."""
    ended = []
    monkeypatch.setattr(Seen, "after", lambda _, call, *__: ended.append(call))
    monkeypatch.setattr(fleet.gateway._calls, "hooks", [Seen()])
    with PlainClient(fleet.served.address) as client:
        client("DescribeGateway")
        (call,) = ended
        wait_until(call.context._context.done)
        assert call.who == Owner("ipv4:127.0.0.1")
        assert call.peer.startswith("ipv4:127.0.0.1:")


# Who is let in.


class Silent:
    """A call whose client sends its metadata, and then no message."""

    def __init__(self, client, name):
        self._messages = queue.SimpleQueue()
        begin = client.channel.stream_stream(METHODS[name].path)
        self.call = begin(iter(self._messages.get, None), metadata=client.metadata, timeout=30)

    def end(self):
        self.call.cancel()
        self._messages.put(None)

    def status(self):
        """Return how the gateway ends it, although nothing comes."""
        code = self.call.code().name
        self._messages.put(None)
        return code


@contextlib.contextmanager
def silent(client, name, count):
    calls = [Silent(client, name) for _ in range(count)]
    try:
        yield calls
    finally:
        for call in calls:
            call.end()


def under_way(fleet):
    return len(fleet.gateway._calls._running)


def test_a_call_is_judged_before_its_message_is_read(fleet):
    with PlainClient(fleet.served.address, "unknown") as stranger:
        assert Silent(stranger, "QueryBounds").status() == "FAILED_PRECONDITION"


def test_a_message_that_does_not_come_ends_its_call(fleet, monkeypatch):
    monkeypatch.setattr(calls, "_BODY_S", 0.05)
    silent_call = Silent(fleet.client(), "QueryBounds")
    assert silent_call.status() == "DEADLINE_EXCEEDED"
    assert "within 50 ms" in silent_call.call.details(), "its client ended it"


def test_messages_on_their_way_have_room_for_every_session(server):
    """Each counts as if it was as long as it may be; and the sessions of one client share it."""
    with fleet_of(server, total_bytes=64 << 20, session_bytes=64 << 20) as fleet:
        slow, other = fleet.client(), fleet.client()
        with silent(slow, "QueryBounds", 10):
            wait_until(lambda: under_way(fleet) == 10)
            assert fleet.gateway._admission._coming.used == 4 << 20
            assert other("Heartbeat").lease_ms == 30_000


def test_messages_of_strangers_that_do_not_come_hold_up_no_session(server):
    """From hosts that cost nothing many calls can come that belong to no session."""
    with fleet_of(server, total_bytes=4 << 20, session_bytes=4 << 20, max_message_bytes=1 << 20) as fleet:
        client = fleet.client()
        with (
            PlainClient(fleet.served.address, "stranger") as stranger,
            silent(stranger, "OpenSession", 20),
        ):
            wait_until(lambda: under_way(fleet) == 20)
            assert client("Heartbeat").lease_ms == 30_000


@pytest.mark.parametrize("name", ["OpenSession", "QueryBounds"])
def test_a_message_that_does_not_come_gives_way_to_others(server, name):
    """Each holds all the room for messages on their way, of strangers and of sessions."""
    with fleet_of(server, total_bytes=4 << 20, session_bytes=4 << 20, max_message_bytes=1 << 20) as fleet:
        slow, other = fleet.client(), fleet.client()
        rooms = fleet.gateway._admission._coming_of_strangers, fleet.gateway._admission._coming
        with silent(slow, name, 1) as (call,):
            wait_until(lambda: any(room.used for room in rooms))
            if name == "OpenSession":
                # Of another host: those without a session are one owner.
                with (
                    Forwarder(fleet.served.address, source="127.0.0.9") as forwarder,
                    PlainClient(forwarder.address, "stranger") as stranger,
                ):
                    assert stranger("DescribeGateway").uptime_ms >= 0
            else:
                assert other("Heartbeat").lease_ms == 30_000
            assert call.status() == "RESOURCE_EXHAUSTED"


def test_a_gateway_with_too_many_calls_refuses_further_ones_but_no_ending(server):
    with fleet_of(server, calls=8) as fleet:
        client, other = fleet.client(), fleet.client()
        with silent(client, "PublishStream", 7):
            wait_until(lambda: under_way(fleet) == 7)
            refusal = refused(other, "ListTopics")
            assert refusal.end == BUSY
            assert refusal.error.parameters["retry_after_ms"] > 0
            other("CloseSession")
        wait_until(lambda: under_way(fleet) == 0)
        assert client("ListTopics").topics


def test_further_calls_of_a_connection_wait_at_their_client(server):
    with fleet_of(server, streams=4) as fleet:
        client, other = fleet.client(), fleet.client()
        with silent(client, "PublishStream", 6):
            wait_until(lambda: under_way(fleet) == 4)
            assert other("ListTopics").topics
            assert under_way(fleet) == 4


def test_lists_of_a_request_have_a_limit(fleet):
    stores = [pb.Store(topic="demo", broker_id=1)] * 10_001
    with pytest.raises(RefusedError, match=r"QueryBoundsRequest\.stores has 10001 items") as refused:
        fleet.client()("QueryBounds", stores=stores)
    assert (refused.value.status, refused.value.condition) == BAD_REQUEST


def test_a_reader_that_does_not_read_gives_its_place_to_one_that_does(server):
    """All readers are of one host."""
    with fleet_of(server, reads=2, stall_ms=50) as fleet:
        topic = fleet.topic()
        for _ in range(8):
            fleet.publish(topic, *[b"x" * (250 << 10)] * 4)
        asked = {"partition": place(topic), "start": 0, "end": 32 * ROW, "own_store": True}
        sleepers = [fleet.client() for _ in range(2)]
        sleeping = [sleeper.begin("ReadRange", **asked, timeout=60) for sleeper in sleepers]
        reads = fleet.gateway._admission.reads
        wait_until(lambda: reads.quota.used == 2)
        events = fleet.client()("ReadRange", timeout=60, **asked)
        assert sum(event.batch.count for event in events) == 32
        ended = [call for call in sleeping if not call.is_active()]
        assert [call.code().name for call in ended] in ([], ["RESOURCE_EXHAUSTED"])
        for call in sleeping:
            call.cancel()
        wait_until(lambda: reads.quota.used == 0)


def test_who_waits_for_a_closed_topic_holds_no_place(server):
    server.add_topic("closed")
    server.close_topic("closed")
    with fleet_of(server, publishes=1, reads=1) as fleet:
        patient = fleet.client(delivery_timeout_ms=86_400_000)
        questions = fleet.gateway._admission.questions
        asked = {"topic": "closed", "publishable": True}
        waiting = [patient.begin("CheckTopic", **asked) for _ in range(2 * questions.quota.limit)]
        wait_until(lambda: under_way(fleet) == len(waiting))
        assert questions.quota.used == 0
        assert fleet.client()("ListTopics").topics
        for call in waiting:
            call.cancel()
        wait_until(lambda: under_way(fleet) == 0)


def test_what_a_client_chooses_is_limited_by_the_settings(server):
    with fleet_of(server, longest_wait_ms=30_000, session_bytes=1 << 20) as fleet:
        fleet.client(delivery_timeout_ms=86_400_000, max_in_flight=1 << 31, max_in_flight_bytes=1 << 62)
        (session,) = fleet.gateway._sessions
        config = session.access.config
        assert (config.delivery_timeout_ms, config.max_in_flight) == (30_000, 100_000)
        assert config.max_in_flight_bytes == 1 << 20


def test_one_client_does_not_take_all_sessions(server):
    with fleet_of(server, sessions=16) as fleet:
        mine = [fleet.client() for _ in range(14)]
        assert refused(fleet.client).condition == "TUBEMQ_GATEWAY_BUSY"
        room = fleet.gateway._admission.sessions
        assert room.take(Owner("another"))
        room.give(Owner("another"))
        mine[0]("CloseSession")
        fleet.client()


def test_a_long_request_takes_room_for_its_bytes_as_long_as_it_is_under_way(server):
    with fleet_of(server) as fleet, server.faults.hold(Method.BALANCE_REGISTER) as held:
        client, other = fleet.client(), fleet.client()

        def in_flight():
            return other("DescribeGateway").bytes_in_flight

        asked = {"topics": [f"{'t' * 60}{n:04}" for n in range(1_000)]}
        call = client.begin("QueryRoute", **asked)
        wait_until(lambda: in_flight() >= client.request("QueryRoute", **asked).ByteSize())
        held.release()
        assert call.exception(20) is not None, "there are no such topics"
        wait_until(lambda: in_flight() == 0)


def test_a_session_with_long_settings_opens_and_leaves_no_bytes_held(fleet):
    groups = [f"{'g' * 100}{n:03}" for n in range(200)]
    client = fleet.client(reader_groups=groups)
    assert client("DescribeGateway").bytes_in_flight == 0
