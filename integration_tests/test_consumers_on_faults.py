"""Consumers without supervision: brokers and masters go away and come back, and every message is read.

A group consumer on a thread, one for coroutines and an assigned consumer read the same topic, each in a group
of its own. None of them is told of the fault, and none may end by itself.
"""

import asyncio
import concurrent.futures
import contextlib
import threading
import time
from collections import Counter

import pytest

from integration_tests.real.artifacts import require_real_tubemq
from integration_tests.real.cluster import RealTubeMQ, TopicSpec
from integration_tests.real.processes import wait_until
from integration_tests.real.servers import ServerSettings
from integration_tests.rig.clusters import partitions
from integration_tests.rig.runs import form
from testkit.forwarder import Forwarder
from tubemq_spark.client import ClientConfig, ConsumePosition, ConsumerConfig, TubeMQClient
from tubemq_spark.client.aio import AsyncTubeMQClient
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import Endpoint

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

FIRST = ConsumerConfig(consume_position=ConsumePosition.FIRST)
MESSAGES = 600
SECONDS = 240
MASTER_AWAY = form(short=5, long=60)
MOST_LINES = 6
"""Of one text, for all three consumers: each says once what went away, and once that it is back."""


class Reader:
    """A consumer on a thread, and how often it has read each number."""

    def __init__(self, config: ClientConfig, topic: str):
        self.copies = Counter()
        self.stopped = threading.Event()
        self._config = config
        self._topic = topic

    def take(self, batch):
        self.copies.update(int(record.value) for record in batch)

    def run(self):
        raise NotImplementedError


class GroupReader(Reader):
    def run(self):
        with (
            TubeMQClient(self._config) as client,
            client.group_consumer(self._topic, settings=FIRST) as consumer,
        ):
            while not self.stopped.is_set():
                if (batch := consumer.fetch(200)) is not None:
                    self.take(batch)
                    consumer.confirm(batch)


class CoroutineReader(Reader):
    def run(self):
        asyncio.run(self._read())

    async def _read(self):
        async with (
            AsyncTubeMQClient(TubeMQClient(self._config)) as client,
            client.group_consumer(self._topic, settings=FIRST) as consumer,
        ):
            while not self.stopped.is_set():
                if (batch := await consumer.fetch(200)) is not None:
                    self.take(batch)
                    await consumer.confirm(batch)


class AssignedReader(Reader):
    """Connects again to what was given up because the master had given its broker up."""

    def run(self):
        with (
            TubeMQClient(self._config) as client,
            client.assigned_consumer(self._topic, settings=FIRST) as consumer,
        ):
            share = consumer.share()
            while not self.stopped.is_set():
                self._connect(consumer, share)
                if (batch := consumer.fetch(200)) is not None:
                    self.take(batch)
                    consumer.confirm(batch)

    @staticmethod
    def _connect(consumer, share):
        for partition in set(share).difference(consumer.connected):
            with contextlib.suppress(TubeMQError):  # its broker is still away
                consumer.connect(partition)


READERS = {"fault_group": GroupReader, "fault_coroutines": CoroutineReader, "fault_assigned": AssignedReader}


class Readers:
    """All three, and a producer that waits until they have read what it sent."""

    def __init__(self, masters, topic, **settings):
        endpoints = tuple(map(Endpoint.parse, masters))
        self._producing = ClientConfig(endpoints, "it_group")
        self._topic = topic
        self._readers = [
            kind(ClientConfig(endpoints, group, heartbeat_period_ms=1_000, **settings), topic)
            for group, kind in READERS.items()
        ]
        self._sent = 0
        self._threads = concurrent.futures.ThreadPoolExecutor(len(READERS))

    def __enter__(self):
        self._running = [self._threads.submit(reader.run) for reader in self._readers]
        return self

    def __exit__(self, *_):
        for reader in self._readers:
            reader.stopped.set()
        for running in self._running:
            running.result(timeout=SECONDS)
        self._threads.shutdown()

    def send(self, places=(None,)):
        """Send the next numbers, to these partitions in turn."""
        with TubeMQClient(self._producing) as client, client.producer() as producer:
            for number in range(self._sent, self._sent + MESSAGES):
                producer.send(self._topic, b"%d" % number, partition=places[number % len(places)])
        self._sent += MESSAGES

    def await_all(self):
        """Wait until each has read all that was sent; none may end before."""
        wait_until(self._have_read_all, timeout_s=SECONDS, what=f"{self._sent} numbers with each consumer")

    def repeats(self):
        """Return how many messages each reader had more than once."""
        return [sum(copies > 1 for copies in reader.copies.values()) for reader in self._readers]

    def _have_read_all(self):
        for running in self._running:
            if running.done():
                running.result()
                pytest.fail("a consumer ended by itself")
        return all(len(reader.copies) == self._sent for reader in self._readers)


def assert_told_once(caplog):
    """No text comes again and again while something is away."""
    texts = Counter(record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert texts, "no consumer was told"
    assert not {text: count for text, count in texts.items() if count > MOST_LINES}


def settings_of(cluster):
    """Return the times of the cluster that are a consumer's too."""
    return {name: value for name, value in cluster.times.client.items() if name != "heartbeat_period_ms"}


@pytest.mark.parametrize("how", ["kill", "freeze"])
def test_a_broker_is_away(faulty_cluster, how, caplog, record_property):
    cluster, topic = faulty_cluster, faulty_cluster.fresh_topic()
    away, *_ = cluster.brokers
    with Readers([cluster.master], topic, **settings_of(cluster)) as readers:
        readers.send(partitions(cluster))
        readers.await_all()
        if how == "kill":
            cluster.kill(away)
        else:
            cluster.freeze(away)
        readers.send([place for place in partitions(cluster) if place[0] != away])
        readers.await_all()
        time.sleep(cluster.times.away)
        if how == "kill":
            cluster.start(away)
        cluster.settle()
        readers.send(partitions(cluster))
        readers.await_all()
        record_property("repeats", readers.repeats())
    assert_told_once(caplog)


def test_a_master_forgets_its_clients(faulty_cluster, record_property):
    cluster, topic = faulty_cluster, faulty_cluster.fresh_topic()
    with Readers([cluster.master], topic, **settings_of(cluster)) as readers:
        readers.send()
        readers.await_all()
        cluster.restart_master()
        readers.send()
        readers.await_all()
        record_property("repeats", readers.repeats())


@pytest.mark.parametrize("how", ["cut", "stalled"])
def test_the_way_to_the_master_is_away(faulty_cluster, how, caplog, record_property):
    """What is assigned is read on; after that time the master has forgotten its clients."""
    cluster, topic = faulty_cluster, faulty_cluster.fresh_topic()
    with Forwarder(cluster.master) as way, Readers([way.address], topic, **settings_of(cluster)) as readers:
        readers.send()
        readers.await_all()
        if how == "cut":
            way.close_port()
        else:
            way.stall()
        time.sleep(MASTER_AWAY)
        if how == "cut":
            way.open_port()
        else:
            way.resume()
        readers.send()
        readers.await_all()
        record_property("repeats", readers.repeats())
    if how == "cut":
        assert_told_once(caplog)


@pytest.fixture
def three_masters():
    require_real_tubemq()
    settings = ServerSettings(use_memory_store=False)
    with RealTubeMQ({"led": TopicSpec(2)}, brokers=2, settings=settings, standbys=2) as cluster:
        yield cluster


@pytest.mark.real
def test_another_master_takes_the_lead(three_masters, caplog, record_property):
    """Three Java masters, of which the leader is killed."""
    three_masters.start_standbys()
    with Readers(three_masters.masters, "led") as readers:
        readers.send()
        readers.await_all()
        three_masters.kill_leader()
        readers.send()
        readers.await_all()
        record_property("repeats", readers.repeats())
    assert_told_once(caplog)
