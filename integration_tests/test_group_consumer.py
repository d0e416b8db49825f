"""Members of a group on two Java brokers: ours and a Java consumer share partitions, and lose nothing."""

import concurrent.futures
import contextlib
import dataclasses
import threading
import time
from collections import Counter

import pytest

from integration_tests.real.java_client import Subscription
from integration_tests.real.processes import wait_until
from integration_tests.rig.messages import client_config
from tubemq_spark.client import BoundStart, ConsumePosition, ConsumerConfig, TubeMQClient
from tubemq_spark.errors import ConsumeError

pytestmark = pytest.mark.timeout(600)

TOPIC, GROUP = "grouped", "mixed_members"
PARTITIONS = 12
OURS = 3
SECONDS = 180
FIRST = ConsumerConfig(consume_position=ConsumePosition.FIRST)


class Reading:
    """What all members have read, and the numbers that are still missing."""

    def __init__(self):
        self._lock = threading.Lock()
        self.copies = Counter()
        self.stopped = threading.Event()

    def add(self, bodies):
        with self._lock:
            self.copies.update(int(body) for body in bodies)

    def has(self, count):
        with self._lock:
            return len(self.copies) >= count

    def read_ours(self, consumer):
        with ends_with(consumer):
            while not self.stopped.is_set():
                batch = consumer.fetch(200)
                if batch is not None:
                    self.add(record.value for record in batch)
                    consumer.confirm(batch)

    def read_java(self, consumer):
        while not self.stopped.is_set():
            self.add(message.body for message in consumer.take())


@contextlib.contextmanager
def ends_with(consumer):
    """A thread that reads is told that its consumer was closed by another one."""
    try:
        yield
    except ConsumeError:
        if not consumer.closed:
            raise


def produce(client, count, start=0):
    with client.producer() as producer:
        for number in range(start, start + count):
            producer.send(TOPIC, b"%d" % number)


def send_to_all(producer, topic, numbers):
    """Send one number after the other to one partition after the other."""
    places = [(one.broker_id, one.partition_id) for one in producer.publishable(topic)]
    return [producer.send(topic, b"%d" % number, partition=places[number % PARTITIONS]) for number in numbers]


def shared(members, java):
    """Whether the members have all partitions, each of them once and everybody some."""
    ours = [{f"{p.broker_id}:{p.topic}:{p.partition_id}" for p in member.connected} for member in members]
    held = [*ours, java.partitions]
    return all(held) and sum(map(len, held)) == PARTITIONS == len(set().union(*held))


@pytest.mark.nightly
def test_three_of_ours_and_a_java_consumer_share_twelve_partitions(real_brokers, java_client):
    reading = Reading()
    with contextlib.ExitStack() as opened:
        threads = opened.enter_context(concurrent.futures.ThreadPoolExecutor(OURS + 1))
        opened.callback(reading.stopped.set)
        config = dataclasses.replace(client_config(real_brokers.master, GROUP), heartbeat_period_ms=1_000)
        client = opened.enter_context(TubeMQClient(config))
        members = [opened.enter_context(client.group_consumer(TOPIC, settings=FIRST)) for _ in range(OURS)]
        java = opened.enter_context(
            java_client.pull_consumer(Subscription(real_brokers.master, TOPIC, GROUP))
        )
        wait_until(lambda: shared(members, java), timeout_s=SECONDS, what="everybody to have partitions")
        running = [threads.submit(reading.read_ours, member) for member in members]
        running.append(threads.submit(reading.read_java, java))
        produce(client, 3_000)
        wait_until(lambda: reading.has(3_000), timeout_s=SECONDS, what="the first messages")

        time.sleep(1)  # so that each has confirmed what it has read
        members.pop().close()
        wait_until(lambda: shared(members, java), timeout_s=SECONDS, what="the others to take over")
        produce(client, 3_000, 3_000)
        wait_until(lambda: reading.has(6_000), timeout_s=SECONDS, what="the messages after one had left")

        members.append(opened.enter_context(client.group_consumer(TOPIC, settings=FIRST)))
        running.append(threads.submit(reading.read_ours, members[-1]))
        wait_until(lambda: shared(members, java), timeout_s=SECONDS, what="the new one to get partitions")
        produce(client, 3_000, 6_000)
        wait_until(lambda: reading.has(9_000), timeout_s=SECONDS, what="the messages after one had joined")
        time.sleep(1)
        reading.stopped.set()
        for one in running:
            one.result(timeout=60)

    assert set(reading.copies) == set(range(9_000))
    # Everybody had time to confirm before a partition went to another member.
    assert not {number for number, copies in reading.copies.items() if copies > 1}


@pytest.mark.nightly
def test_a_bound_group_begins_at_the_offsets_that_its_members_name(real_brokers):
    """Two members name the third message of each partition; what was sent before is read by nobody."""
    topic, per_partition = "bound", 6
    config = dataclasses.replace(
        client_config(real_brokers.master, "bound_members"), heartbeat_period_ms=1_000
    )
    with contextlib.ExitStack() as opened:
        client = opened.enter_context(TubeMQClient(config))
        with client.producer() as producer:
            sent = send_to_all(producer, topic, range(per_partition * PARTITIONS))
        stored = [one.result() for one in sent]
        offsets = {result.partition: result.offset for result in stored[2 * PARTITIONS : 3 * PARTITIONS]}
        start = BoundStart("bound-run", 2, offsets)
        members = [opened.enter_context(client.group_consumer(topic, start=start)) for _ in range(2)]
        wait_until(
            lambda: sum(len(member.connected) for member in members) == PARTITIONS,
            timeout_s=SECONDS,
            what="both members to have all partitions",
        )
        read = []
        while len(read) < (per_partition - 2) * PARTITIONS:
            for member in members:
                if (batch := member.fetch(1_000)) is not None:
                    read += [int(record.value) for record in batch]
                    member.confirm(batch)
    assert sorted(read) == list(range(2 * PARTITIONS, per_partition * PARTITIONS))


def test_a_member_moves_the_group_back_and_on(real_brokers):
    """A broker takes the new position from the member that holds the partition."""
    config = client_config(real_brokers.master, "moved_members")
    here = set()
    told = {"on_assigned": here.update, "on_revoked": here.difference_update}
    with TubeMQClient(dataclasses.replace(config, heartbeat_period_ms=1_000)) as client:
        with client.producer() as producer:
            send_to_all(producer, TOPIC, range(240))
        with client.group_consumer(TOPIC, settings=FIRST, **told) as member:
            wait_until(lambda: len(here) == PARTITIONS, timeout_s=SECONDS, what="all partitions")
            assert here == set(member.connected)
            counts = member.lag()
            where = max(counts, key=lambda one: counts[one])
            begin = member.committed()[where]
            assert counts[where] > 0
            member.pause(set(member.connected) - {where})
            batch = member.fetch(30_000)
            middle = member.confirm(batch).offset
            with client.producer() as producer:
                send_to_all(producer, TOPIC, range(240, 480))
            later = member.fetch(30_000)
            assert member.seek(where, begin).offset == begin
            with pytest.raises(ConsumeError, match="TUBEMQ_CONFIRM_SOUGHT"):
                member.confirm(later)
            assert member.fetch(30_000).records[: len(batch)] == batch.records
            lag = member.lag(where)[where]
            end = begin + lag * 28
            assert member.seek_to_end(where)[where].offset == end
            assert member.lag(where) == {where: 0}
            assert member.seek_to_beginning(where)[where].offset == begin
            member.seek(where, middle)
        assert here == set(), "closing was told"
        with client.group_consumer(TOPIC, settings=FIRST) as member:
            wait_until(lambda: where in member.connected, timeout_s=SECONDS, what="the partition")
            assert member.committed(where) == {where: middle}
