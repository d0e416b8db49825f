"""Consumers through gateways that are lost in turn: only what was not confirmed comes again."""

import collections
import contextlib
import threading

import pytest

from tests.client.assigned import ROW, TOPIC, client_of, numbered, produce
from tests.client.members import client_of as client_of_members
from tests.gateway.running import settings
from tests.waiting import wait_until
from tubemq_spark.client import AssignedConsumer, GroupConsumer
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.errors import DataLossError, TubeMQError
from tubemq_spark.gateway.process import BackgroundGateway
from tubemq_spark.model import Endpoint
from tubemq_spark.offsets.loss import fail_on_loss
from tubemq_spark.protocol.constants import Method


class Gateways:
    """Two gateways before three brokers, which a test stops and starts."""

    def __init__(self, server):
        self.server = server
        self.running = [self._started() for _ in range(2)]
        server.gateways = list(self.running)

    def _started(self, **changes):
        made = BackgroundGateway(settings(self.server, poll_ms=20, **changes))
        made.start()
        return made

    def used_by(self, consumer):
        membership = consumer._core.membership
        wait_until(lambda: membership.gateway is not None)
        name = str(membership.gateways.addresses[membership.gateway])
        return next(number for number, one in enumerate(self.running) if one.address == name)

    def kill(self, number, drain_ms=0):
        self.running[number].stop(drain_ms)

    def restart(self, number):
        self.running[number] = self._started(listen=Endpoint.parse(self.running[number].address))

    def close(self):
        for one in self.running:
            one.stop(0)


@pytest.fixture
def gateways():
    made = EmbeddedSettings(balance_period_ms=100)
    with EmbeddedTubeMQ(topics={TOPIC: (4, 1)}, brokers=3, settings=made) as server:
        running = Gateways(server)
        try:
            yield running
        finally:
            running.close()


@contextlib.contextmanager
def assigned(server):
    with client_of(server) as client, client.assigned_consumer(TOPIC) as consumer:
        for partition in consumer.share():
            consumer.connect(partition)
        yield consumer


@contextlib.contextmanager
def member(server):
    with client_of_members(server) as client, client.group_consumer(TOPIC) as consumer:
        assert consumer.wait_until_ready(30_000)
        yield consumer


class Reading:
    """What a consumer has read, and what it has confirmed."""

    def __init__(self):
        self.read = collections.Counter()
        self.confirmed = collections.Counter()

    def one(self, consumer, timeout_ms=500):
        batch = consumer.fetch(timeout_ms)
        if batch is None:
            return
        values = [record.value for record in batch]
        self.read.update(values)
        with contextlib.suppress(TubeMQError):
            consumer.confirm(batch)
            self.confirmed.update(values)

    def until(self, consumer, count):
        wait_until(lambda: self.one(consumer) or len(self.confirmed) >= count, seconds=60)

    def is_sound(self, count):
        assert set(self.confirmed) == set(numbered(count))
        assert not {value for value, times in self.confirmed.items() if times > 1}


@pytest.mark.parametrize(
    ("kind", "drain_ms"),
    [
        (assigned, 0),
        (member, 10_000),
        pytest.param(assigned, 10_000, marks=pytest.mark.nightly),
        pytest.param(member, 0, marks=pytest.mark.nightly),
    ],
)
def test_two_gateways_that_are_stopped_in_turn_lose_and_repeat_nothing(gateways, kind, drain_ms):
    reading = Reading()
    with kind(gateways.server) as consumer:
        assert isinstance(consumer, AssignedConsumer if kind is assigned else GroupConsumer)
        for turn in range(3):
            produce(gateways.server, numbered(60, 60 * turn))
            reading.until(consumer, 60 * turn + 30)
            used = gateways.used_by(consumer)
            gateways.kill(used, drain_ms)
            reading.until(consumer, 60 * (turn + 1))
            gateways.restart(used)
    reading.is_sound(180)


def test_a_loss_that_was_raised_takes_no_partition_that_is_connected_again(gateways):
    with client_of(gateways.server) as client, client.assigned_consumer(TOPIC) as consumer:
        where = next(iter(consumer.partitions()))
        with pytest.raises(DataLossError):
            consumer.connect(where, 40 * ROW)
        consumer.connect(where, 0)
        membership = consumer._core.membership
        before = membership._seen
        wait_until(lambda: membership._seen > before or membership._seen > 0)
        assert consumer.connected == (where,)


def test_a_loss_that_a_member_refuses_gives_the_partition_back_to_its_group(gateways):
    losses = []

    def refuse_the_first(loss):
        losses.append(loss)
        if len(losses) == 1:
            fail_on_loss(loss)

    values = [b"message %d" % number for number in range(40)]
    gateways.server.faults.corrupt(Method.GET_MESSAGE, values[7])
    produce(gateways.server, values)
    with (
        client_of_members(gateways.server) as client,
        client.group_consumer(TOPIC, on_loss=refuse_the_first) as consumer,
    ):
        assert consumer.wait_until_ready(30_000)
        wait_until(lambda: len(consumer.connected) == 12, seconds=20)
        with pytest.raises(DataLossError, match="CORRUPT"):
            consumer.run(lambda _: None)
        wait_until(lambda: losses[0].partition in consumer.connected, seconds=20)


def test_consumers_have_no_threads(gateways):
    with client_of(gateways.server) as client, contextlib.ExitStack() as opened:
        opened.enter_context(client.assigned_consumer(TOPIC))
        before = {thread.name for thread in threading.enumerate()}
        for _ in range(8):
            opened.enter_context(client.assigned_consumer(TOPIC))
        new = {thread.name for thread in threading.enumerate()} - before
    assert not {
        name for name in new if name.startswith("tubemq-") and "gateway" not in name and "serve" not in name
    }
