"""Consumers through gateways that are lost in turn: only what was not confirmed comes again."""

import collections
import contextlib
import threading

import pytest

from tests.client.assigned import ROW, TOPIC, client_of, numbered, produce
from tests.client.members import client_of as client_of_members
from tests.cluster.gateways import Parts
from tests.waiting import wait_until
from tubemq_spark.client import AssignedConsumer, GroupConsumer
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.errors import DataLossError, TubeMQError
from tubemq_spark.offsets.loss import fail_on_loss
from tubemq_spark.protocol.constants import Method


@pytest.fixture
def gateways():
    """Two gateways before three brokers."""
    balanced = EmbeddedSettings(balance_period_ms=100)
    with (
        EmbeddedTubeMQ(topics={TOPIC: (4, 1)}, brokers=3, settings=balanced) as server,
        contextlib.closing(Parts(server, 2, poll_ms=20)) as parts,
    ):
        server.gateways = list(parts.running)
        yield parts


def used_by(consumer, gateways):
    membership = consumer._core.membership
    wait_until(lambda: membership.gateway is not None)
    return gateways.addresses.index(membership.gateways.addresses[membership.gateway])


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


@pytest.mark.parametrize(
    ("kind", "stop"),
    [
        (assigned, Parts.kill),
        (member, Parts.drain),
        pytest.param(assigned, Parts.drain, marks=pytest.mark.nightly),
        pytest.param(member, Parts.kill, marks=pytest.mark.nightly),
    ],
)
def test_two_gateways_that_are_stopped_in_turn_lose_and_repeat_nothing(gateways, kind, stop):
    confirmed = collections.Counter()

    def has_confirmed(count):
        if (batch := consumer.fetch(500)) is not None:
            with contextlib.suppress(TubeMQError):
                consumer.confirm(batch)
                confirmed.update(record.value for record in batch)
        return len(confirmed) >= count

    with kind(gateways.server) as consumer:
        assert isinstance(consumer, AssignedConsumer if kind is assigned else GroupConsumer)
        for turn in range(3):
            produce(gateways.server, numbered(60, 60 * turn))
            wait_until(lambda: has_confirmed(60 * turn + 30), seconds=60)  # noqa: B023 (called at once)
            used = used_by(consumer, gateways)
            stop(gateways, used)
            wait_until(lambda: has_confirmed(60 * (turn + 1)), seconds=60)  # noqa: B023
            gateways.restart(used)
    assert confirmed == dict.fromkeys(numbered(180), 1)


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
