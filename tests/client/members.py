"""Members of a group on an embedded server, as tests need them."""

import contextlib

from tests.client import assigned
from tests.client.assigned import TOPIC
from tests.waiting import wait_until
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.errcodes import ErrCode

PARTITIONS = 12
QUICK = {
    "rebalance_wait_ms": 300,
    "pause_after_misses_ms": 200,
    "layout_period_ms": 10_000,
    "heartbeat_period_ms": 100,
}
"""Where they differ from assigned consumers: members send heartbeats by themselves."""


def client_of(server, group="etl", **changes):
    return assigned.client_of(server, group, **{**QUICK, **changes})


@contextlib.contextmanager
def member(server, group="etl", **changes):
    asked = {name: changes.pop(name) for name in ("message_types", "start", "on_loss") if name in changes}
    with client_of(server, group, **changes) as client, client.group_consumer(TOPIC, **asked) as consumer:
        yield consumer


def shares(*members):
    """Wait until the members share all partitions evenly; return what each has."""

    def is_even():
        held = [set(consumer.connected) for consumer in members]
        sizes = {len(of_one) for of_one in held}
        return sum(map(len, held)) == PARTITIONS == len(set().union(*held)) and max(sizes) - min(sizes) <= 1

    wait_until(is_even, seconds=20)
    return [set(consumer.connected) for consumer in members]


def refuse(server):
    """Make the master forget a member, and refuse it from then on."""
    server.faults.answer(Method.CONSUMER_REGISTER, ErrCode.CONSUME_GROUP_FORBIDDEN)
    server.faults.answer(Method.CONSUMER_HEARTBEAT, ErrCode.HB_NO_NODE)
