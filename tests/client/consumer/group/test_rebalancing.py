"""Events that a master sends to a member of a group, on a master that says what a test wants."""

import collections

import pytest

from tests.client.assigned import TOPIC, in_loop, produce, take
from tests.client.scripted_master import ScriptedMaster, config_for, member_beat
from tests.client.ways import served
from tests.waiting import until, wait_until
from tubemq_spark.client import ConsumePosition, ConsumerConfig, TubeMQClient
from tubemq_spark.client.consumer.group.core import Rebalancing
from tubemq_spark.client.consumer.group.session import GroupSession
from tubemq_spark.client.consumer.state import ConsumerState
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.messages import EventType, RebalanceEvent, format_event
from tubemq_spark.protocol.packed_strings import PartitionInfo

PARTITIONS = [TopicPartition(TOPIC, broker, 0) for broker in (1, 2, 3)]


brokers = served()


def event_of(brokers, number, kind, *partitions):
    places = tuple(
        PartitionInfo(where.broker_id, Endpoint.parse(brokers.brokers[where.broker_id]), where.topic, 0)
        for where in partitions
    )
    return RebalanceEvent(number, kind, places)


def beat_with(event):
    return member_beat(event=format_event(event, "c-1", "etl"))


class Script(collections.deque):
    """The answers to heartbeats, in turn; without one, there is nothing to do."""

    def __call__(self, request):
        return self.popleft() if self else member_beat()


def answers(master, number):
    return [sent for sent in master.of(Method.CONSUMER_HEARTBEAT) if sent.event.rebalanceId == number]


def wait_for_heartbeats(master, count):
    master.wait_for(Method.CONSUMER_HEARTBEAT, len(master.of(Method.CONSUMER_HEARTBEAT)) + count)


@pytest.mark.parametrize(
    "kind", [EventType.REPORT, EventType.REFRESH, EventType.STOP_REBALANCE, EventType.UNKNOWN]
)
def test_an_event_that_neither_gives_nor_takes_is_answered_with_all_that_is_held(brokers, kind):
    """It names other partitions than those that are held, or none."""
    script = Script([beat_with(event_of(brokers, 1, EventType.ONLY_CONNECT, *PARTITIONS[:2]))])
    with ScriptedMaster(consumer_heartbeat=script) as master:
        config = config_for(master, heartbeat_period_ms=20, consumer=ConsumerConfig(report_interval=1_000))
        with TubeMQClient(config) as client, client.group_consumer(TOPIC) as consumer:
            wait_until(lambda: consumer.connected == tuple(PARTITIONS[:2]))
            script.append(beat_with(event_of(brokers, 2, kind, PARTITIONS[2])))
            wait_until(lambda: answers(master, 2))
            (told,) = answers(master, 2)
            assert told.reportSubscribeInfo
            assert len(told.subscribeInfo) == 2
            assert consumer.connected == tuple(PARTITIONS[:2])


def test_an_event_is_answered_only_when_it_was_carried_out(brokers):
    """TubeMQ's Go client keeps events and answers in one list: it answers what it has not done."""
    script = Script([beat_with(event_of(brokers, 1, EventType.ONLY_CONNECT, *PARTITIONS))])
    held = brokers.faults.hold(Method.PARTITION_REGISTER, broker=2)
    with ScriptedMaster(consumer_heartbeat=script) as master:
        config = config_for(master, heartbeat_period_ms=10)
        with TubeMQClient(config) as client, client.group_consumer(TOPIC) as consumer:
            wait_until(lambda: held.hits)
            wait_for_heartbeats(master, 10)
            assert not any(sent.HasField("event") for sent in master.of(Method.CONSUMER_HEARTBEAT))
            held.release()
            wait_until(lambda: answers(master, 1))
            assert len(answers(master, 1)[0].subscribeInfo) == len(PARTITIONS)
            wait_for_heartbeats(master, 10)
            assert len(answers(master, 1)) == 1
            assert consumer.connected == tuple(PARTITIONS)

            # What is held already is not registered again.
            registers = brokers.faults.delay(Method.PARTITION_REGISTER, 0)
            script.append(beat_with(event_of(brokers, 2, EventType.CONNECT, *PARTITIONS)))
            wait_until(lambda: answers(master, 2))
            assert (held.hits, registers.hits) == (1, 0)


def test_an_event_that_fails_is_answered_and_the_next_one_is_carried_out(brokers, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no memory is left")

    script = Script([beat_with(event_of(brokers, 1, EventType.ONLY_CONNECT, *PARTITIONS))])
    monkeypatch.setattr(ConsumerState, "register", fail)
    with ScriptedMaster(consumer_heartbeat=script) as master:
        config = config_for(master, heartbeat_period_ms=10)
        with TubeMQClient(config) as client, client.group_consumer(TOPIC) as consumer:
            wait_until(lambda: answers(master, 1))
            assert not answers(master, 1)[0].subscribeInfo
            monkeypatch.undo()
            script.append(beat_with(event_of(brokers, 2, EventType.ONLY_CONNECT, *PARTITIONS)))
            wait_until(lambda: consumer.connected == tuple(PARTITIONS))


def test_an_event_that_comes_before_the_consumer_is_open_waits_for_that(brokers):
    with ScriptedMaster() as master, TubeMQClient(config_for(master)) as client:
        consumer = client.group_consumer(TOPIC)
        in_loop(consumer._core._rebalancing.put, event_of(brokers, 1, EventType.ONLY_CONNECT, *PARTITIONS))
        assert consumer._core._rebalancing._under_way is None
        with consumer:
            wait_until(lambda: consumer.connected == tuple(PARTITIONS))


def test_an_event_that_comes_while_the_consumer_opens_is_carried_out_when_it_is_open(brokers, monkeypatch):
    """The first heartbeat may have its answer before the consumer counts as open."""
    open_session = GroupSession.open

    async def open_slowly(session):
        await open_session(session)
        await until(lambda: consumer._core._rebalancing._events)

    monkeypatch.setattr(GroupSession, "open", open_slowly)
    script = Script([beat_with(event_of(brokers, 1, EventType.ONLY_CONNECT, *PARTITIONS))])
    with (
        ScriptedMaster(consumer_heartbeat=script) as master,
        TubeMQClient(config_for(master, heartbeat_period_ms=20)) as client,
    ):
        consumer = client.group_consumer(TOPIC)
        with consumer:
            wait_until(lambda: consumer.connected == tuple(PARTITIONS))


def test_a_partition_stays_until_its_batch_is_confirmed(brokers):
    where = PARTITIONS[0]
    script = Script([beat_with(event_of(brokers, 1, EventType.ONLY_CONNECT, where))])
    produce(brokers, [b"one"], where=where)
    settings = ConsumerConfig(consume_position=ConsumePosition.FIRST, rebalance_wait_ms=600_000)
    with ScriptedMaster(consumer_heartbeat=script) as master:
        config = config_for(master, heartbeat_period_ms=20, consumer=settings)
        with TubeMQClient(config) as client, client.group_consumer(TOPIC) as consumer:
            batch = consumer.fetch()
            script.append(beat_with(event_of(brokers, 2, EventType.ONLY_DISCONNECT, where)))
            wait_until(lambda: consumer._core.state.cache._leaving)
            wait_for_heartbeats(master, 3)
            assert not answers(master, 2)
            assert consumer.confirm(batch).offset == 28
            wait_until(lambda: answers(master, 2))
            assert not consumer.connected


def test_no_member_polls_for_events(monkeypatch):
    """TubeMQ's Go client keeps a processor busy with that."""
    begun = []
    begin = Rebalancing.begin

    def counted(rebalancing):
        begun.append(rebalancing)
        begin(rebalancing)

    monkeypatch.setattr(Rebalancing, "begin", counted)
    with ScriptedMaster() as master, TubeMQClient(config_for(master, heartbeat_period_ms=10)) as client:
        with client.group_consumer(TOPIC):
            master.wait_for(Method.CONSUMER_HEARTBEAT, 20)
        assert len(begun) == 1


def test_a_partition_that_comes_back_is_not_read_from_its_end_again(brokers):
    """TubeMQ's Go and C++ clients jump to the newest data with every rebalance, and lose what came."""
    where = PARTITIONS[0]
    script = Script([beat_with(event_of(brokers, 1, EventType.ONLY_CONNECT, where))])
    produce(brokers, [b"old"], where=where)
    settings = ConsumerConfig(consume_position=ConsumePosition.ALWAYS_LATEST, not_found_wait_ms=20)
    with ScriptedMaster(consumer_heartbeat=script) as master:
        config = config_for(master, heartbeat_period_ms=20, consumer=settings)
        with TubeMQClient(config) as client, client.group_consumer(TOPIC) as consumer:
            wait_until(lambda: consumer.connected)
            produce(brokers, [b"one"], where=where)
            script.append(beat_with(event_of(brokers, 2, EventType.ONLY_DISCONNECT, where)))
            wait_until(lambda: not consumer.connected)
            produce(brokers, [b"two"], where=where)
            script.append(beat_with(event_of(brokers, 3, EventType.ONLY_CONNECT, where)))
            assert take(consumer, 2) == [b"one", b"two"]
