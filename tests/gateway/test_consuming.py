"""Partitions that a session attaches: fetched with a wait, committed, and given up with the session.

Consumers whose sessions have ended: closing is never refused, and comes to its end.
"""

import contextlib
import threading

import pytest
from hypothesis import given, strategies as st

from tests.gateway.fleet import attach as attach_brokers, columns_of, values_of
from tests.gateway.running import PlainClient, RefusedError, gateway, tubemq
from tests.waiting import wait_until
from tubemq_spark.embedded.config.catalog import TopicSpec
from tubemq_spark.embedded.config.settings import EmbeddedSettings
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.gateway.consuming import EndOfLogWaiters
from tubemq_spark.gateway.sessions import LOST
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import TopicPartition
from tubemq_spark.net import loop
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, sends
from tubemq_spark.protocol.send_batch import MessageHeader, SendBatch

ROW = 28
BROKERS = (1, 2, 3)


@pytest.fixture
def server():
    with tubemq(demo=(1, 1), other=(1, 1)) as running:
        yield running


@pytest.fixture
def served(server):
    with gateway(server) as running:
        yield running


@pytest.fixture
def client(served):
    with PlainClient(served.address, "reader") as made:
        made.open()
        yield made


def place(broker_id=1, topic="demo"):
    return pb.Partition(topic=topic, broker_id=broker_id, partition_id=0)


def attach(client, *partitions, offset=0, **how):
    wanted = [pb.AttachPartitionsRequest.Wanted(partition=one, offset=offset) for one in partitions]
    return client("AttachPartitions", partitions=wanted, **how).partitions


def publish(served, *values, broker_id=1, header=None):
    message = sends.to_proto(SendBatch.of("demo", list(values), header=header))
    message.MergeFrom(
        pb.MessageBatch(places=[pb.Place(broker_id=broker_id)], place_codes=bytes(4 * len(values)))
    )
    with PlainClient(served.address, "writer") as writer:
        writer.open(group="writers")
        writer("PublishStream", batch=message)


def fetch(client, **how):
    return client("Fetch", **{"wait_ms": 10_000, "timeout": 15, **how})


def refused(client, name, **fields):
    with pytest.raises(RefusedError) as caught:
        client(name, **fields)
    return caught.value


def in_background(call):
    found = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    return thread, found


def test_messages_come_in_order_with_attributes_and_offsets(served, client):
    (attached,) = attach(client, place())
    assert attached.offset == 0
    publish(served, b"one", b"two", header=MessageHeader({"z": "1", "a": "2"}))

    answer = fetch(client)

    columns, records = columns_of(answer), answer.records
    assert columns.values() == [b"one", b"two"]
    assert [list(one.items()) for one in columns.attributes()] == [[("z", "1"), ("a", "2")]] * 2
    assert (answer.partition, records.start, records.next, records.dense) == (place(), 0, 2 * ROW, True)
    assert (answer.latest, answer.lag, records.bytes_behind, answer.slow) == (2 * ROW, 2, 0, False)
    counted = served.server.metrics.text()
    assert 'tubemq_gateway_rows_total{direction="read"} 2.0' in counted
    assert 'tubemq_gateway_behind_bytes_bucket{le="0.0"} 1.0' in counted


def test_a_filter_leaves_messages_of_other_types_out_and_its_fetches_are_to_be_slow():
    """A filter of the session, or of a topic that it attaches; brokers of TubeMQ slow both down."""
    settings = EmbeddedSettings(query_priority=301, flush_check_ms=20)
    topics = {"demo": TopicSpec(flush_messages=1)}
    by_session = {"message_types": ["wanted"]}, {}
    by_topic = {}, {"filters": [pb.TopicFilter(topic="demo", message_types=["wanted"])]}
    with EmbeddedTubeMQ(topics=topics, settings=settings) as server, gateway(server) as served:
        for value in ("other", "wanted"):
            publish(served, value.encode(), header=MessageHeader(message_type=value))
        for number, (opening, attaching) in enumerate([by_session, by_topic]):
            with PlainClient(served.address, f"picky{number}") as client:
                client.open(group=f"picky{number}", **opening)
                attach(client, place(), **attaching)

                answer = fetch(client)

                assert (values_of(answer), answer.slow) == ([b"wanted"], True)


def test_a_fetch_waits_for_messages_of_any_attached_partition(served, client):
    attach(client, *map(place, BROKERS))
    thread, found = in_background(lambda: fetch(client))
    publish(served, b"late", broker_id=3)
    thread.join(20)
    assert values_of(found[0]) == [b"late"]
    assert found[0].partition == place(3)


def test_a_fetch_without_messages_is_answered_after_its_wait(client):
    attach(client, place())
    answer = client.method("Fetch").future(client.request("Fetch", wait_ms=50), timeout=60).result(10)
    assert (answer.records.count, answer.batch) == (0, "")
    assert answer.reason == pb.FetchResponse.REASON_AT_ENDS


def test_a_commit_moves_the_group_and_uncommitted_messages_come_again(served, client):
    attach(client, place())
    publish(served, b"one")
    first = fetch(client)
    assert client("Commit", batch=first.batch).offset == ROW
    publish(served, b"two")
    assert values_of(fetch(client)) == [b"two"]

    assert list(client("DetachPartitions", partitions=[place(), place(2)]).partitions) == [place()]
    wanted = pb.AttachPartitionsRequest.Wanted(partition=place())
    (again,) = client("AttachPartitions", partitions=[wanted]).partitions
    assert again.offset == ROW
    assert values_of(fetch(client)) == [b"two"]


def test_a_commit_rides_on_the_next_fetch(served, client):
    attach(client, place())
    publish(served, b"one")
    first = fetch(client)
    assert fetch(client, wait_ms=0).reason == pb.FetchResponse.REASON_UNCOMMITTED
    publish(served, b"two")
    second = fetch(client, commit=[first.batch])
    assert values_of(second) == [b"two"]
    assert client("Commit", batch=first.batch).offset == ROW, "a repeat"


def test_a_commit_may_be_repeated_and_two_at_once_are_one(server, served, client):
    attach(client, place())
    publish(served, b"one")
    first = fetch(client)
    with server.faults.hold(Method.COMMIT_OFFSET) as held:
        request = client.request("Commit", batch=first.batch)
        calls = [client.method("Commit").future(request, timeout=10) for _ in range(2)]
        assert held.wait_for_hits()
    assert [call.result(10).offset for call in calls] == [ROW, ROW]
    assert client("Commit", batch=first.batch).offset == ROW
    assert held.hits == 1
    assert refused(client, "Commit", batch=first.batch, roll_back=True).condition == "TUBEMQ_CONFIRM_LATE"


def test_a_commit_whose_broker_did_not_answer_may_be_tried_again(server, served, client):
    attach(client, place())
    publish(served, b"one")
    first = fetch(client)
    server.faults.answer(Method.COMMIT_OFFSET, ErrCode.INTERNAL_SERVER_ERROR, times=1)
    refusal = refused(client, "Commit", batch=first.batch)
    assert refusal.condition != "TUBEMQ_CONFIRM_LATE"
    assert refused(client, "Commit", batch=first.batch).condition == "TUBEMQ_CONFIRM_LATE", "it comes again"
    wait_until(lambda: values_of(fetch(client)) == [b"one"])


def test_a_batch_that_is_taken_back_comes_again(served, client):
    attach(client, place())
    publish(served, b"one")
    first = fetch(client)
    assert client("Commit", batch=first.batch, roll_back=True).offset == 0
    assert values_of(fetch(client)) == [b"one"]


def test_a_parked_fetch_holds_no_thread(server):
    with gateway(server, reads=1, publishes=1) as served, contextlib.ExitStack() as running:
        clients = [running.enter_context(PlainClient(served.address, f"reader{n}")) for n in range(30)]
        for number, client in enumerate(clients):
            client.open(group=f"group_{number}")
            attach(client, place())
        parked = [in_background(lambda client=client: fetch(client)) for client in clients]
        with PlainClient(served.address, "other") as other:
            other.open()
            for _ in range(5):
                assert other("QueryRoute", topics=["demo"], timeout=5).partitions
                other("Heartbeat", timeout=5)
        publish(served, b"for all")
        for thread, _ in parked:
            thread.join(20)
        assert [values_of(found[0]) for _, found in parked] == [[b"for all"]] * 30


def test_messages_fetched_after_the_client_had_gone_come_again(server, served, client):
    """The broker answers only when the client has gone, and the gateway knows it."""
    attach(client, place())
    publish(served, b"one")
    with server.faults.hold(Method.GET_MESSAGE) as held:
        call = client.method("Fetch").future(client.request("Fetch", wait_ms=5_000), timeout=10)
        assert held.wait_for_hits()
        call.cancel()
        wait_until(lambda: next(iter(served.server._sessions)).under_way == set())
    assert values_of(fetch(client)) == [b"one"]


def test_the_same_client_takes_its_partitions_over_at_another_gateway(server, served, client):
    """Without a word to the first one, as after a cut of the network."""
    attach(client, place())
    publish(served, b"one", b"two")
    assert len(values_of(fetch(client))) == 2
    with gateway(server) as other, PlainClient(other.address, "reader") as moved:
        moved.open()
        wanted = pb.AttachPartitionsRequest.Wanted(partition=place())
        (attached,) = moved("AttachPartitions", partitions=[wanted]).partitions
        assert attached.offset == 0
        assert values_of(fetch(moved)) == [b"one", b"two"]


def test_another_client_of_the_group_is_told_who_has_a_partition(served, client):
    attach(client, place())
    with PlainClient(served.address, "second") as second:
        second.open()
        (refusal,) = attach(second, place())
        assert (refusal.error.code, refusal.error.kind) == (410, "RpcError")


@pytest.fixture
def slow_to_close(server):
    """Partitions are given up only after a while, as with brokers that are busy. Counts those that were."""
    return server.faults.delay(Method.PARTITION_REGISTER, 300)


@pytest.mark.usefixtures("slow_to_close")
def test_the_partitions_of_a_closed_session_are_free_when_the_call_returns(served, client):
    attach(client, place())
    client("CloseSession")
    with PlainClient(served.address, "second") as second:
        second.open()
        (answer,) = attach(second, place())
        assert answer.WhichOneof("result") == "offset", answer


@pytest.mark.usefixtures("slow_to_close")
def test_a_member_that_hears_that_another_has_gone_can_take_its_partitions(served, client):
    attach(client, place(2))
    with PlainClient(served.address, "goes") as goes:
        goes.open()
        attach(goes, place(1))
        (came,) = client("Heartbeat").events
        closing = goes.method("CloseSession").future(goes.request("CloseSession"))
        wait_until(lambda: client("Heartbeat", seen=came.number).events)
        (answer,) = attach(client, place(1))
        assert answer.WhichOneof("result") == "offset", answer
        closing.result(10)


def test_closing_a_session_does_not_wait_for_a_broker_that_is_silent(server, client, monkeypatch):
    monkeypatch.setattr("tubemq_spark.gateway.consuming._LONGEST_CLOSE_S", 0.1)
    attach(client, place())
    with server.faults.hold(Method.PARTITION_REGISTER) as held:
        client("CloseSession")
        assert held.wait_for_hits()


def test_a_client_that_opens_its_session_again_does_not_hear_that_it_has_gone(served, client, slow_to_close):
    attach(client, place())
    client.session.epoch += 1
    client.open()
    attach(client, place())
    assert slow_to_close.hits == 3, "the older consumer was closed before the newer one came"
    assert not client("Heartbeat").events


def test_a_silent_session_gives_its_partitions_up(server):
    with (
        gateway(server, lease_ms=300, heartbeat_ms=100, housekeeping_ms=20) as served,
        PlainClient(served.address, "silent") as silent,
        PlainClient(served.address, "next") as following,
    ):
        silent.open()
        attach(silent, place())
        wait_until(lambda: len(served.server._consuming) == 0)

        def taken():
            following.open()
            return attach(following, place())[0].WhichOneof("result") == "offset"

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
def test_calls_that_make_no_sense_are_refused(client, name, fields):
    assert refused(client, name, **fields).status == "INVALID_ARGUMENT"


def test_each_of_several_partitions_has_its_own_answer(client):
    one, unknown, unaligned = (
        pb.AttachPartitionsRequest.Wanted(partition=place(broker), offset=offset)
        for broker, offset in ((1, 0), (9, 0), (2, 1))
    )
    answers = client("AttachPartitions", partitions=[one, unknown, unaligned]).partitions
    assert [answer.WhichOneof("result") for answer in answers] == ["offset", "error", "error"]
    assert answers[1].error.condition == "TUBEMQ_CONNECT.UNKNOWN"
    assert answers[2].error.condition == "TUBEMQ_OFFSET_UNALIGNED"


def test_a_session_reads_the_topics_that_it_named_first(client):
    attach(client, place())
    refusal = refused(
        client,
        "AttachPartitions",
        partitions=[pb.AttachPartitionsRequest.Wanted(partition=place(topic="other"))],
    )
    assert refusal.condition == "TUBEMQ_GATEWAY_REQUEST"
    assert "other" in str(refusal.error)


def test_a_parked_fetch_is_answered_when_the_gateway_drains(server):
    with gateway(server) as served, PlainClient(served.address, "reader") as client:
        client.open()
        attach(client, place())
        thread, found = in_background(lambda: fetch(client, wait_ms=20_000, timeout=30))
        wait_until(lambda: served.server._consuming.places.used == 1)
        served.stop(10_000)
        thread.join(20)
        assert found[0].draining
        assert not found[0].records.count


def test_only_so_many_fetches_wait_and_the_next_is_told_when_to_try_again(server):
    with gateway(server, fetches=1) as served, PlainClient(served.address, "reader") as client:
        client.open()
        attach(client, place())
        thread, _ = in_background(lambda: fetch(client))
        consuming = served.server._consuming
        wait_until(lambda: consuming.places.used == 1)
        refusal = refused(client, "Fetch")
        assert (refusal.status, refusal.condition) == ("RESOURCE_EXHAUSTED", "TUBEMQ_GATEWAY_BUSY")
        assert refusal.error.parameters["retry_after_ms"] > 0
        publish(served, b"one")
        thread.join(20)
        assert consuming.places.used == 0


def test_a_fetch_brings_nothing_of_partitions_that_its_client_has_paused(client, served):
    attach(client, place(1), place(2))
    publish(served, b"paused", broker_id=1)
    publish(served, b"other", broker_id=2)
    first = fetch(client, paused=[place(1)])
    assert values_of(first) == [b"other"]
    assert values_of(fetch(client, commit=[first.batch], paused=[place(1)], wait_ms=300)) == []
    assert values_of(fetch(client)) == [b"paused"]


_SESSIONS = 20
STORE = pb.Store(topic="demo", broker_id=1, store=0)


def counts(server):
    """How many members there are, and how many leases at brokers that run."""
    found = server.overview()
    return found.consumers, found.leases


def refusal_of(client):
    with pytest.raises(RefusedError) as caught:
        client("QueryBounds", stores=[STORE])
    return caught.value.condition


def lose(served, name):
    """End the sessions of clients that are silent."""
    sessions = served.server._sessions
    lost = [one for one in sessions if one.client_id.startswith(name)]
    loop.call_soon(lambda: [sessions.close(one, LOST) for one in lost])


@contextlib.contextmanager
def clients_of(served, count, name):
    with contextlib.ExitStack() as stack:
        made = [
            stack.enter_context(PlainClient(served.address, f"{name}{number}")) for number in range(count)
        ]
        for client in made:
            client.open(group=client.session.client_id)
        yield made


def test_consumers_of_lost_clients_close_while_all_queues_are_full_and_a_broker_hangs(server, monkeypatch):
    """With one thread and one place to wait for it, no member, lease or thread is left in the end."""
    monkeypatch.setattr(GatewaySettings, "questions", 1)
    with (
        gateway(server, waiting_calls=1, queue_ms=60_000) as served,
        contextlib.ExitStack() as stack,
    ):
        consuming = served.server._consuming
        with clients_of(served, _SESSIONS, "lost") as lost:
            for client in lost:
                assert attach_brokers(client, "demo", 1)[0].WhichOneof("result") == "offset"
        others = stack.enter_context(clients_of(served, 3, "stays"))
        assert attach_brokers(others[0], "demo", 2)[0].WhichOneof("result") == "offset"
        assert counts(server) == (_SESSIONS + 1, _SESSIONS + 1)
        threads = threading.active_count()
        server.faults.freeze_broker(1)
        calls = [
            client.method("QueryBounds").future(client.request("QueryBounds", stores=[STORE]), timeout=60)
            for client in others[:2]
        ]
        wait_until(lambda: served.server._admission.waiting == 1)
        assert refusal_of(others[2]) == "TUBEMQ_GATEWAY_BUSY", "all is full"
        lose(served, "lost")
        wait_until(lambda: len(consuming) == 1, 20)
        wait_until(lambda: "tubemq_gateway_endings 0.0" in served.server.metrics.text(), 20)
        wait_until(lambda: counts(server)[0] == 1)  # the one that stays
        assert threading.active_count() <= threads + 5
        server.faults.start_broker(1)
        for call in calls:
            call.exception(30)


def test_a_session_that_ends_while_its_consumer_opens_leaves_no_member(server):
    with gateway(server) as served, PlainClient(served.address, "short") as client:
        client.open()
        with server.faults.hold(Method.BALANCE_REGISTER, carried_out=True) as held:
            wanted = client.request("AttachPartitions", topics=["demo"])
            call = client.method("AttachPartitions").future(wanted, timeout=20)
            assert held.wait_for_hits()
            call.cancel()
            client("CloseSession")
            consuming = served.server._consuming
            assert (len(consuming), consuming.endings) == (0, 1), "it opens first"
        wait_until(lambda: consuming.endings == 0, 10)
        assert counts(server)[0] == 0


# Who is the first to wait for a partition, and who is woken when messages have come.

A, B = TopicPartition("demo", 1, 0), TopicPartition("demo", 2, 0)


class Waiter:
    def __init__(self, types=()):
        self.filter = frozenset(types)
        self.woken = []

    def wake(self, partition):
        self.woken.append(partition)


@pytest.fixture
def waiting():
    return EndOfLogWaiters()


def test_the_first_of_each_partition_asks(waiting):
    first, second = Waiter(), Waiter()
    assert waiting.wait(first, A)
    assert not waiting.wait(second, A)
    assert waiting.wait(second, B)
    assert waiting.wait(first, A), "it keeps its place"


def test_all_waiting_fetches_are_woken_but_the_one_that_saw_the_messages(waiting):
    waiters = [Waiter(), Waiter(), Waiter(["type"]), Waiter()]
    for waiter in waiters[:3]:
        waiting.wait(waiter, A)
    waiting.wait(waiters[3], B)
    waiting.arrived([A], seen_by=waiters[0])
    assert [waiter.woken for waiter in waiters] == [[], [A], [A], []]


def test_the_next_waiting_fetch_is_woken_when_the_first_leaves(waiting):
    first, second = Waiter(), Waiter()
    for waiter in (first, second):
        waiting.wait(waiter, A)
        waiting.wait(waiter, B)
    waiting.leave(first, [A])
    assert second.woken == [A]
    waiting.leave(first)
    assert second.woken == [A, B]
    assert waiting.wait(second, A)


def test_fetches_with_a_filter_ask_for_themselves(waiting):
    plain, filtered = Waiter(), Waiter(["type"])
    assert waiting.wait(plain, A)
    assert waiting.wait(filtered, A)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([A, B]), st.booleans())))
def test_each_partition_that_is_waited_for_has_one_first_who_came_first(steps):
    waiting, waiters = EndOfLogWaiters(), [Waiter() for _ in range(4)]
    queues = {A: [], B: []}
    for number, partition, comes in steps:
        queue = queues[partition]
        if comes:
            queue += [] if number in queue else [number]
            assert waiting.wait(waiters[number], partition) is (queue[0] == number)
        else:
            waiting.leave(waiters[number], [partition])
            queue[:] = [other for other in queue if other != number]
    for waiter in waiters:
        waiting.leave(waiter)
    assert not waiting._waiting
    assert not waiting._partitions
