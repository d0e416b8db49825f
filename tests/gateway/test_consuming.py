"""Partitions that a session attaches: fetched with a wait, committed, and given up with the session.

Consumers whose sessions have ended: closing is never refused, and comes to its end.
"""

import threading

import pytest

from tests.gateway.fleet import ROW, attach, columns_of, fetch, fleet_of, place, values_of
from tests.gateway.running import BUSY, refused, tubemq
from tests.waiting import wait_until
from tubemq_spark.embedded.config.catalog import TopicSpec
from tubemq_spark.embedded.config.settings import EmbeddedSettings
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.gateway.sessions import LOST
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.net import loop
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.gateway import gateway_pb2 as pb
from tubemq_spark.protocol.send_batch import MessageHeader

pytestmark = pytest.mark.usefixtures("nothing_left_behind_by_the_module")


@pytest.fixture
def topic(fleet):
    return fleet.topic()


@pytest.fixture
def client(fleet, topic):
    """A client that has attached a partition from its beginning."""
    return fleet.reader(topic)


@pytest.fixture
def of_topic(topic):
    """Limits a fault to requests about the topic: consumers of other tests may close at any time."""
    return {"only": lambda request: request.topicName == topic}


def kind_of(answer):
    return answer.WhichOneof("result")


def test_messages_come_in_order_with_attributes_and_offsets(server):
    with fleet_of(server) as fleet:
        topic = fleet.topic()
        client = fleet.client()
        (attached,) = attach(client, topic, 1)
        assert attached.offset == 0
        fleet.publish(topic, b"one", b"two", header=MessageHeader({"z": "1", "a": "2"}))

        answer = fetch(client)

        counted = fleet.gateway.metrics.text()
    columns, records = columns_of(answer), answer.records
    assert columns.values() == [b"one", b"two"]
    assert [list(each.items()) for each in columns.attributes()] == [[("z", "1"), ("a", "2")]] * 2
    assert (answer.partition, records.start, records.next, records.dense) == (place(topic), 0, 2 * ROW, True)
    assert (answer.latest, answer.lag, records.bytes_behind, answer.slow) == (2 * ROW, 2, 0, False)
    assert 'tubemq_gateway_rows_total{direction="read"} 2.0' in counted
    assert 'tubemq_gateway_behind_bytes_bucket{le="0.0"} 1.0' in counted


def test_a_filter_leaves_messages_of_other_types_out_and_its_fetches_are_to_be_slow():
    """A filter of the session, or of a topic that it attaches; brokers of TubeMQ slow both down."""
    settings = EmbeddedSettings(query_priority=301, flush_check_ms=20)
    topics = {"demo": TopicSpec(flush_messages=1)}
    by_session = {"message_types": ["wanted"]}, {}
    by_topic = {}, {"filters": [pb.TopicFilter(topic="demo", message_types=["wanted"])]}
    with EmbeddedTubeMQ(topics=topics, settings=settings) as server, fleet_of(server) as fleet:
        for value in ("other", "wanted"):
            fleet.publish("demo", value.encode(), header=MessageHeader(message_type=value))
        for opening, attaching in (by_session, by_topic):
            client = fleet.client(**opening)
            attach(client, "demo", 1, **attaching)

            answer = fetch(client)

            assert (values_of(answer), answer.slow) == ([b"wanted"], True)


def test_a_fetch_waits_for_messages_of_any_attached_partition(fleet, topic):
    call = fleet.reader(topic, 1, 2, 3).begin("Fetch", wait_ms=10_000)
    fleet.publish(topic, b"late", broker_id=3)
    answer = call.result(20)
    assert values_of(answer) == [b"late"]
    assert answer.partition == place(topic, 3)


def test_a_fetch_without_messages_is_answered_after_its_wait(server):
    with fleet_of(server) as fleet:  # which seldom asks
        answer = fleet.reader(fleet.topic()).begin("Fetch", wait_ms=50, timeout=60).result(10)
    assert (answer.records.count, answer.batch) == (0, "")
    assert answer.reason == pb.FetchResponse.REASON_AT_ENDS


def test_a_commit_moves_the_group_and_uncommitted_messages_come_again(fleet, topic, client):
    fleet.publish(topic, b"one")
    first = fetch(client)
    assert client("Commit", batch=first.batch).offset == ROW
    fleet.publish(topic, b"two")
    assert values_of(fetch(client)) == [b"two"]

    asked = [place(topic), place(topic, 2)]
    assert list(client("DetachPartitions", partitions=asked).partitions) == [place(topic)]
    (again,) = attach(client, topic, 1, offset=None)
    assert again.offset == ROW
    assert values_of(fetch(client)) == [b"two"]


def test_a_commit_rides_on_the_next_fetch(fleet, topic, client):
    fleet.publish(topic, b"one")
    first = fetch(client)
    assert fetch(client, wait_ms=0).reason == pb.FetchResponse.REASON_UNCOMMITTED
    fleet.publish(topic, b"two")
    second = fetch(client, commit=[first.batch])
    assert values_of(second) == [b"two"]
    assert client("Commit", batch=first.batch).offset == ROW, "a repeat"


def test_a_commit_may_be_repeated_and_two_at_once_are_one(server, fleet, topic, client, of_topic):
    fleet.publish(topic, b"one")
    first = fetch(client)
    with server.faults.hold(Method.COMMIT_OFFSET, **of_topic) as held:
        calls = [client.begin("Commit", batch=first.batch, timeout=10) for _ in range(2)]
        assert held.wait_for_hits()
    assert [call.result(10).offset for call in calls] == [ROW, ROW]
    assert client("Commit", batch=first.batch).offset == ROW
    assert held.hits == 1
    assert refused(client, "Commit", batch=first.batch, roll_back=True).condition == "TUBEMQ_CONFIRM_LATE"


def test_a_commit_whose_broker_did_not_answer_may_be_tried_again(server, fleet, topic, client, of_topic):
    fleet.publish(topic, b"one")
    first = fetch(client)
    server.faults.answer(Method.COMMIT_OFFSET, ErrCode.INTERNAL_SERVER_ERROR, times=1, **of_topic)
    assert refused(client, "Commit", batch=first.batch).condition != "TUBEMQ_CONFIRM_LATE"
    assert refused(client, "Commit", batch=first.batch).condition == "TUBEMQ_CONFIRM_LATE", "it comes again"
    wait_until(lambda: values_of(fetch(client)) == [b"one"])


def test_a_batch_that_is_taken_back_comes_again(fleet, topic, client):
    fleet.publish(topic, b"one")
    first = fetch(client)
    assert client("Commit", batch=first.batch, roll_back=True).offset == 0
    assert values_of(fetch(client)) == [b"one"]


def test_a_parked_fetch_holds_no_thread(server):
    with fleet_of(server, reads=1, publishes=1) as fleet:
        topic = fleet.topic()
        parked = [fleet.reader(topic).begin("Fetch", wait_ms=10_000) for _ in range(30)]
        other = fleet.client()
        for _ in range(5):
            assert other("QueryRoute", topics=["demo"], timeout=5).partitions
            other("Heartbeat", timeout=5)
        fleet.publish(topic, b"for all")
        assert [values_of(call.result(20)) for call in parked] == [[b"for all"]] * 30


def test_messages_fetched_after_the_client_had_gone_come_again(server, fleet, topic, client, of_topic):
    """The broker answers only when the client has gone, and the gateway knows it."""
    fleet.publish(topic, b"one")
    (session,) = (each for each in fleet.gateway._sessions if each.client_id == client.session.client_id)
    with server.faults.hold(Method.GET_MESSAGE, **of_topic) as held:
        call = client.begin("Fetch", wait_ms=5_000)
        assert held.wait_for_hits()
        call.cancel()
        wait_until(lambda: session.under_way == set())
    assert values_of(fetch(client)) == [b"one"]


def test_the_same_client_takes_its_partitions_over_at_another_gateway(server, fleet, topic):
    """Without a word to the first one, as after a cut of the network."""
    client = fleet.reader(topic, group="moves")
    fleet.publish(topic, b"one", b"two")
    assert len(values_of(fetch(client))) == 2
    with fleet_of(server) as other:
        moved = other.client("moves", client_id=client.session.client_id)
        (attached,) = attach(moved, topic, 1, offset=None)
        assert attached.offset == 0
        assert values_of(fetch(moved)) == [b"one", b"two"]


@pytest.fixture
def slow_to_close(server, of_topic):
    """Partitions are given up only after a while, as with brokers that are busy. Counts those that were."""
    with server.faults.delay(Method.PARTITION_REGISTER, 300, **of_topic) as delay:
        yield delay


@pytest.mark.usefixtures("slow_to_close")
def test_the_partitions_of_a_closed_session_are_free_when_the_call_returns(fleet, topic):
    fleet.reader(topic, group="frees")("CloseSession")
    (answer,) = attach(fleet.client("frees"), topic, 1)
    assert kind_of(answer) == "offset", answer


@pytest.mark.usefixtures("slow_to_close")
def test_a_member_that_hears_that_another_has_gone_can_take_its_partitions(fleet, topic):
    stays = fleet.reader(topic, 2, group="takes")
    goes = fleet.reader(topic, 1, group="takes")
    (came,) = stays("Heartbeat").events
    closing = goes.begin("CloseSession")
    wait_until(lambda: stays("Heartbeat", seen=came.number).events)
    (answer,) = attach(stays, topic, 1)
    assert kind_of(answer) == "offset", answer
    closing.result(10)


def test_closing_a_session_does_not_wait_for_a_broker_that_is_silent(server, client, of_topic, monkeypatch):
    monkeypatch.setattr("tubemq_spark.gateway.consuming._LONGEST_CLOSE_S", 0.1)
    with server.faults.hold(Method.PARTITION_REGISTER, **of_topic) as held:
        client("CloseSession")
        assert held.wait_for_hits()


def test_a_client_that_opens_its_session_again_does_not_hear_that_it_has_gone(fleet, topic, slow_to_close):
    client = fleet.reader(topic, group="again")
    client.session.epoch += 1
    client.open(group="again")
    attach(client, topic, 1)
    assert slow_to_close.hits == 3, "the older consumer was closed before the newer one came"
    assert not client("Heartbeat").events


def test_a_silent_session_gives_its_partitions_up(server):
    with fleet_of(server, lease_ms=300, heartbeat_ms=100, housekeeping_ms=20) as fleet:
        topic = fleet.topic()
        silent = fleet.reader(topic, group="silent")
        wait_until(lambda: len(fleet.gateway._consuming) == 0)
        following = fleet.client("silent")

        def taken():
            following.open(group="silent")
            return kind_of(attach(following, topic, 1)[0]) == "offset"

        wait_until(taken, 10)
        assert refused(silent, "Fetch").condition == "TUBEMQ_SESSION_UNKNOWN"


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("Fetch", {}),
        ("Commit", {"batch": "x"}),
        ("DetachPartitions", {}),
        ("AttachPartitions", {}),
        ("AttachPartitions", {"topics": ["not a topic"]}),
    ],
    ids=str,
)
def test_calls_that_make_no_sense_are_refused(fleet, name, fields):
    assert refused(fleet.client(), name, **fields).status == "INVALID_ARGUMENT"


def test_each_of_several_partitions_has_its_own_answer(fleet, topic):
    asked = [{"partition": place(topic, broker), "offset": at} for broker, at in ((1, 0), (9, 0), (2, 1))]
    answers = fleet.client()("AttachPartitions", partitions=asked).partitions
    assert [kind_of(answer) for answer in answers] == ["offset", "error", "error"]
    assert answers[1].error.condition == "TUBEMQ_CONNECT.UNKNOWN"
    assert answers[2].error.condition == "TUBEMQ_OFFSET_UNALIGNED"


def test_a_session_reads_the_topics_that_it_named_first(fleet, client):
    other = fleet.topic()
    refusal = refused(attach, client, other, 1, offset=None)
    assert refusal.condition == "TUBEMQ_GATEWAY_REQUEST"
    assert other in str(refusal.error)


def test_a_parked_fetch_is_answered_when_the_gateway_drains(server):
    with fleet_of(server) as fleet:
        call = fleet.reader(fleet.topic()).begin("Fetch", wait_ms=20_000)
        fleet.wait_for_fetches(1)
        fleet.served.stop(10_000)
        answer = call.result(20)
        assert answer.draining
        assert not answer.records.count


def test_only_so_many_fetches_wait_and_the_next_is_told_when_to_try_again(server):
    with fleet_of(server, fetches=1) as fleet:
        topic = fleet.topic()
        client = fleet.reader(topic)
        call = client.begin("Fetch", wait_ms=10_000)
        fleet.wait_for_fetches(1)
        refusal = refused(client, "Fetch")
        assert refusal.end == BUSY
        assert refusal.error.parameters["retry_after_ms"] > 0
        fleet.publish(topic, b"one")
        call.result(20)
        assert fleet.gateway._consuming.places.used == 0


def test_a_fetch_brings_nothing_of_partitions_that_its_client_has_paused(fleet, topic):
    client = fleet.reader(topic, 1, 2)
    fleet.publish(topic, b"paused", broker_id=1)
    fleet.publish(topic, b"other", broker_id=2)
    paused = [place(topic)]
    first = fetch(client, paused=paused)
    assert values_of(first) == [b"other"]
    assert values_of(fetch(client, commit=[first.batch], paused=paused, wait_ms=300)) == []
    assert values_of(fetch(client)) == [b"paused"]


_SESSIONS = 20


def counts(server):
    """How many members there are, and how many leases at brokers that run."""
    found = server.overview()
    return found.consumers, found.leases


def test_consumers_of_lost_clients_close_while_all_queues_are_full_and_a_broker_hangs(monkeypatch):
    """With one thread and one place to wait for it, no member, lease or thread is left in the end."""
    monkeypatch.setattr(GatewaySettings, "questions", 1)
    question = {"stores": [pb.Store(topic="demo", broker_id=1, store=0)]}
    with tubemq(demo=(1, 1)) as server, fleet_of(server, waiting_calls=1, queue_ms=60_000) as fleet:
        consuming, sessions = fleet.gateway._consuming, fleet.gateway._sessions
        for _ in range(_SESSIONS):
            fleet.reader("demo")
        lost = list(sessions)
        fleet.reader("demo", 2)
        others = [fleet.client() for _ in range(3)]
        assert counts(server) == (_SESSIONS + 1, _SESSIONS + 1)
        threads = threading.active_count()
        server.faults.freeze_broker(1)
        calls = [client.begin("QueryBounds", **question, timeout=60) for client in others[:2]]
        wait_until(lambda: fleet.gateway._admission.waiting == 1)
        assert refused(others[2], "QueryBounds", **question).condition == "TUBEMQ_GATEWAY_BUSY", "all is full"
        loop.call_soon(lambda: [sessions.close(session, LOST) for session in lost])
        wait_until(lambda: len(consuming) == 1, 20)
        wait_until(lambda: "tubemq_gateway_endings 0.0" in fleet.gateway.metrics.text(), 20)
        wait_until(lambda: counts(server)[0] == 1)  # the one that stays
        assert threading.active_count() <= threads + 5
        server.faults.start_broker(1)
        for call in calls:
            call.exception(30)


def test_a_session_that_ends_while_its_consumer_opens_leaves_no_member():
    with tubemq(demo=(1, 1)) as server, fleet_of(server) as fleet:
        client, consuming = fleet.client(), fleet.gateway._consuming
        with server.faults.hold(Method.BALANCE_REGISTER, carried_out=True) as held:
            call = client.begin("AttachPartitions", topics=["demo"])
            assert held.wait_for_hits()
            call.cancel()
            client("CloseSession")
            assert (len(consuming), consuming.endings) == (0, 1), "it opens first"
        wait_until(lambda: consuming.endings == 0, 10)
        assert counts(server)[0] == 0
