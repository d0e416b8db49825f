"""Frames that Spark writes to two Java brokers, read back by TubeMQ's own Java consumer.

The long form writes half a million rows of 100 B, and fifty thousand of 1 KiB.
"""

import collections
import itertools
import time

import numpy as np
import pytest

from integration_tests.real.java_client import Subscription
from integration_tests.rig.queries import write
from integration_tests.rig.runs import form
from integration_tests.rig.servers import server_of

pytestmark = [pytest.mark.timeout(900)]

TASKS = 4
SIZES = {100: form(short=20_000, long=500_000), 1024: form(short=4_000, long=50_000)}
"""How many rows there are of each size."""
PATIENCE_S = 600


def numbered(spark, count, size):
    """Return numbers as text of one length; every other row names a partition, one of each broker in turn."""
    return spark.range(0, count, numPartitions=TASKS).selectExpr(
        f"lpad(cast(id as string), {size}, '0') as value",
        "cast(if(id % 2 = 0, 1 + id div 2 % 2, null) as int) as brokerId",
        "if(id % 2 = 0, 0, null) as partition",
    )


def received(client, subscription, expected):
    """Yield the messages of a topic to its end, each partition's in their order."""
    deadline = time.monotonic() + PATIENCE_S
    count = 0
    with client.balance_consumer(subscription) as consumer:
        consumer.connect_all(offset=0)
        while count < expected or not consumer.partitions <= consumer.exhausted:
            assert time.monotonic() < deadline, f"{count} of {expected} rows"
            for message in consumer.take():
                count += 1
                yield message


@pytest.mark.parametrize("size", [100, pytest.param(1024, marks=pytest.mark.nightly)])
def test_the_java_consumer_gets_every_row_once_and_in_order(spark, real_brokers, java_client, size):
    count, topic = SIZES[size], f"frames_{size}"
    write(numbered(spark, count, size), server_of(real_brokers), topic=topic)

    copies = np.zeros(count, np.uint8)
    named = collections.defaultdict(list)
    for message in received(java_client, Subscription(real_brokers.master, topic, "java_frames"), count):
        assert len(message.body) == size
        number = int(message.body)
        copies[number] += 1
        if number % 2 == 0:
            assert (message.broker_id, message.partition_id) == (1 + number // 2 % 2, 0)
            named[message.broker_id, number * TASKS // count].append(number)

    assert not (copies == 0).any(), f"missing, such as {np.flatnonzero(copies == 0)[:3]}"
    assert not (copies > 1).any(), f"repeated, such as {np.flatnonzero(copies > 1)[:3]}"
    assert len(named) == 2 * TASKS
    for numbers in named.values():
        assert all(first < second for first, second in itertools.pairwise(numbers))
