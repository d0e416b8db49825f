"""Consumers that their users drop while they are open: they are collected, and leave."""

import asyncio
import contextlib
import gc
import re
import threading
import time
import warnings
import weakref

import pytest

from tests.client.assigned import TOPIC, partition
from tests.client.members import client_of, member, shares
from tests.client.ways import served
from tests.waiting import until, wait_until
from tubemq_spark.client.aio import AsyncTubeMQClient
from tubemq_spark.protocol.constants import Method

server = served(stores=4, balance_period_ms=100)


@pytest.fixture
def leaving(server):
    """How often a consumer has left the master."""
    return server.faults.delay(Method.CONSUMER_CLOSE, 0)


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("tubemq-reader")]


@contextlib.contextmanager
def warnings_of(kind):
    """Expect the warnings of a consumer and of its client; no thread and no connection is left then."""
    before = len(threads())

    def all_is_over():
        # Collecting stops all threads, and takes long in a process with many objects.
        time.sleep(0.1)
        gc.collect()
        return len(texts) == 2 and len(threads()) <= before

    texts = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, category, *_: texts.append(f"{category.__name__}: {message}")
        yield
        wait_until(all_is_over, seconds=30)
    assert re.match(f"ResourceWarning: {kind} .* was not closed", texts[0])
    assert re.match("ResourceWarning: connections to .* were not closed", texts[1])


def forget_member(server):
    client = client_of(server)
    consumer = client.group_consumer(TOPIC).open()
    assert consumer.wait_until_ready(10_000)
    return weakref.ref(consumer)


def forget_assigned(server):
    client = client_of(server)
    consumer = client.assigned_consumer(TOPIC).open()
    consumer.connect(partition())
    return weakref.ref(consumer)


def test_another_member_takes_over_from_one_that_was_forgotten_at_once(server, leaving):
    with warnings_of("group consumer"):
        assert forget_member(server)() is None
    assert leaving.hits == 1
    with member(server) as other:
        shares(other)


def test_another_consumer_connects_where_one_was_forgotten(server, leaving):
    with warnings_of("assigned consumer"):
        assert forget_assigned(server)() is None
    assert leaving.hits == 1
    with client_of(server) as client, client.assigned_consumer(TOPIC) as other:
        other.connect(partition())


async def test_an_asynchronous_consumer_that_was_forgotten_leaves(server, leaving):
    before = asyncio.all_tasks()
    async with AsyncTubeMQClient(client_of(server)) as client:
        consumer = await client.group_consumer(TOPIC).open()
        assert await consumer.wait_until_ready(10_000)
        await consumer.fetch(0)
        with pytest.warns(ResourceWarning, match="group consumer .* was not closed"):
            del consumer
        await until(lambda: leaving.hits == 1 and asyncio.all_tasks() <= before)


def test_a_consumer_that_was_closed_is_dropped_without_a_word(server, recwarn):
    with member(server) as consumer:
        shares(consumer)
    del consumer
    gc.collect()
    assert not [warning for warning in recwarn if warning.category is ResourceWarning]
