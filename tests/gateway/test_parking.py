"""Fetches that wait: one consumer asks for all that wait for a partition, and wakes them by what it sees."""

import pytest

from tests.gateway.fleet import attach, fleet_of, fresh, place, values_of
from tests.gateway.running import FENCED, RefusedError
from tests.waiting import wait_until
from tubemq_spark.gateway import consuming
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.gateway import gateway_pb2 as pb
from tubemq_spark.protocol.send_batch import MessageHeader

NEVER_MS = 86_400_000


@pytest.fixture(autouse=True)
def nobody_looks_by_itself(monkeypatch):
    """But the first one that waits for a partition: the others have to be woken."""
    monkeypatch.setattr(consuming, "UNWOKEN_MS", NEVER_MS)


@pytest.fixture
def silent(server):
    """A gateway that asks no broker again: only news wake."""
    with fleet_of(server, poll_ms=NEVER_MS) as fleet:
        yield fleet


def park(client, wait_ms=20_000):
    return client.begin("Fetch", wait_ms=wait_ms, timeout=25)


def waiters(fleet, topic):
    """How many consumers wait for the topic's partitions, as the gateway sees it."""
    by_partition = fleet.gateway._waiters._waiting.copy()
    return sum(
        len(one)
        for partition, filters in by_partition.items()
        if partition.topic == topic
        for one in filters.values()
    )


def test_one_consumer_asks_for_all_that_wait_for_a_partition(fleet):
    """Messages that no publisher of the gateway sent: the others are woken by the first one."""
    topic = fleet.topic()
    readers = [fleet.reader(topic) for _ in range(8)]
    calls = [park(one) for one in readers]
    wait_until(lambda: waiters(fleet, topic) == 8)
    asked = []
    fleet.server.faults.delay(Method.GET_MESSAGE, 0, only=lambda sent: asked.append(sent.clientId) or True)
    wait_until(lambda: len(asked) >= 3)
    assert len(set(asked)) == 1
    with fleet_of(fleet.server) as other:
        other.publish(topic, b"for all")
    assert [values_of(call.result(10)) for call in calls] == [[b"for all"]] * 8


def test_another_consumer_asks_when_the_first_has_gone(fleet):
    topic = fleet.topic()
    first, second = fleet.reader(topic), fleet.reader(topic)
    call = park(first)
    wait_until(lambda: waiters(fleet, topic) == 1)
    waiting = park(second)
    wait_until(lambda: waiters(fleet, topic) == 2)
    call.cancel()
    wait_until(lambda: waiters(fleet, topic) == 1)
    with fleet_of(fleet.server) as other:
        other.publish(topic, b"late")
    assert values_of(waiting.result(10)) == [b"late"]


def test_messages_published_through_the_gateway_wake_fetches_at_once(silent):
    topic = silent.topic()
    readers = [silent.reader(topic), silent.reader(topic), silent.reader(topic, message_types=["news"])]
    calls = [park(reader) for reader in readers]
    wait_until(lambda: waiters(silent, topic) == 3)
    silent.publish(topic, b"news", header=MessageHeader(message_type="news"))
    assert [values_of(call.result(10)) for call in calls] == [[b"news"]] * 3


def test_a_commit_lets_a_fetch_go_on_that_waits_for_it(silent):
    topic = silent.topic()
    reader = silent.reader(topic)
    silent.publish(topic, b"one")
    first = reader("Fetch", wait_ms=10_000)
    call = park(reader)
    silent.wait_for_fetches(1)
    silent.publish(topic, b"two")
    reader("Commit", batch=first.batch)
    assert values_of(call.result(10)) == [b"two"]


def test_a_waiting_fetch_reads_a_partition_that_is_attached_later(silent):
    topic = silent.topic()
    silent.publish(topic, b"there", broker_id=2)
    reader = silent.reader(topic, 1)
    call = park(reader)
    wait_until(lambda: waiters(silent, topic) == 1)
    attach(reader, topic, 2)
    assert values_of(call.result(10)) == [b"there"]


def test_a_fetch_ends_when_its_last_partition_is_detached(silent):
    topic = silent.topic()
    reader = silent.reader(topic)
    call = park(reader)
    wait_until(lambda: waiters(silent, topic) == 1)
    reader("DetachPartitions", partitions=[place(topic)])
    assert call.result(10).reason == pb.FetchResponse.REASON_NOTHING_ATTACHED


def test_a_fetch_ends_with_its_session(silent):
    topic = silent.topic()
    reader = silent.reader(topic, client_id=fresh("twin"))
    call = park(reader)
    wait_until(lambda: waiters(silent, topic) == 1)
    silent.client(client_id=reader.session.client_id, epoch=2)
    assert RefusedError(call.exception(10)).end == FENCED
    wait_until(lambda: waiters(silent, topic) == 0)


def test_fetches_of_one_session_are_served_in_the_order_in_which_they_came(silent):
    topic = silent.topic()
    reader = silent.reader(topic, 1, 2, 3)
    calls = []
    for number in range(3):
        calls.append(park(reader))
        silent.wait_for_fetches(number + 1)
    for broker in (1, 2, 3):
        silent.publish(topic, b"%d" % broker, broker_id=broker)
        assert values_of(calls[broker - 1].result(10)) == [b"%d" % broker]


def test_many_fetches_that_wait_leave_heartbeats_alone(fleet):
    """And a message is given to the one of each consumer that came first."""
    topic = fleet.topic()
    readers = [fleet.reader(topic) for _ in range(10)]
    calls = {reader: [park(reader) for _ in range(50)] for reader in readers}
    fleet.wait_for_fetches(500)
    other = fleet.client()
    for _ in range(20):
        other("Heartbeat", timeout=5)
    fleet.publish(topic, b"one")
    fleet.wait_for_fetches(490)
    for reader in readers:
        # The gateway counts a fetch no longer before its client has the answer.
        wait_until(lambda: any(call.done() for call in calls[reader]))  # noqa: B023 (called at once)
        (answered,) = (call for call in calls[reader] if call.done())
        assert values_of(answered.result()) == [b"one"]
        for call in calls[reader]:
            call.cancel()
    fleet.wait_for_fetches(0)
