"""Members of a group on two Java brokers: where a group begins, and how a member moves it.

``test_group_over_time`` shows that ours and a Java consumer share partitions, and lose nothing.
"""

import contextlib
import dataclasses

import pytest

from integration_tests.real.processes import wait_until
from integration_tests.rig.messages import client_config
from tubemq_spark.client import BoundStart, ConsumePosition, ConsumerConfig, TubeMQClient
from tubemq_spark.errors import ConsumeError

pytestmark = pytest.mark.timeout(600)

TOPIC = "grouped"
PARTITIONS = 12
SECONDS = 180
FIRST = ConsumerConfig(consume_position=ConsumePosition.FIRST)


def send_to_all(producer, topic, numbers):
    """Send one number after the other to one partition after the other."""
    places = [(one.broker_id, one.partition_id) for one in producer.publishable(topic)]
    return [producer.send(topic, b"%d" % number, partition=places[number % PARTITIONS]) for number in numbers]


@pytest.mark.nightly
def test_a_bound_group_begins_at_the_offsets_that_its_members_name(real_brokers):
    """Two members name the third message of each partition; no member reads what was sent before."""
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
