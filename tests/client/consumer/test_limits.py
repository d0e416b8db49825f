"""How far ``messages`` confirms when it ends: by its limit, by itself, or by a ``break``."""

import asyncio
import contextlib

import pytest

from tests.client.aio.consuming import assigned as async_assigned, member as async_member
from tests.client.assigned import ROW, TOPIC, consumer_of, numbered, partition, produce
from tests.client.members import member
from tests.client.ways import WAYS, reached
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.errors import OptionError

COUNT, STEP = 20, 5


@pytest.fixture(params=WAYS)
def server(request):
    settings = EmbeddedSettings(max_entries=STEP, balance_period_ms=100)
    with (
        EmbeddedTubeMQ(topics={TOPIC: (1, 1)}, settings=settings) as running,
        reached(running, request.param),
    ):
        produce(running, numbered(COUNT), where=partition())
        yield running


@contextlib.contextmanager
def assigned(server):
    with consumer_of(server) as consumer:
        consumer.connect(partition())
        yield consumer


@contextlib.asynccontextmanager
async def awaited(server):
    async with async_assigned(server) as consumer:
        await consumer.connect(partition())
        yield consumer


def values(records):
    return [record.value for record in records]


async def taken(records):
    return [record.value async for record in records]


@pytest.mark.parametrize("opened", [assigned, member])
def test_a_limit_at_the_end_of_a_batch_confirms_it(server, opened):
    with opened(server) as consumer:
        assert values(consumer.messages(limit=2 * STEP)) == numbered(2 * STEP)
        assert consumer.committed() == {partition(): 2 * STEP * ROW}
    with opened(server) as consumer:
        assert values(consumer.messages(COUNT - 2 * STEP)) == numbered(COUNT - 2 * STEP, 2 * STEP)
        assert consumer.lag() == {partition(): 0}


def test_a_limit_inside_of_a_batch_confirms_what_was_taken_where_offsets_are_known(server):
    with assigned(server) as consumer:
        assert values(consumer.messages(STEP + 2)) == numbered(STEP + 2)
        assert consumer.committed() == {partition(): (STEP + 2) * ROW}
        assert values(consumer.messages(1)) == numbered(1, STEP + 2)
    with assigned(server) as consumer:
        assert values(consumer.messages(2)) == numbered(2, STEP + 3)


def test_without_offsets_the_rest_of_a_batch_comes_first_in_the_next_loop(server):
    with member(server) as consumer:
        assert values(consumer.messages(2)) == numbered(2)
        assert consumer.committed() == {partition(): 0}
        assert values(consumer.messages(1)) == numbered(1, 2)
        assert values(consumer.messages(STEP)) == numbered(STEP, 3)
        assert consumer.committed() == {partition(): STEP * ROW}
    with member(server) as consumer:
        assert values(consumer.messages(1)) == numbered(1, STEP)


def test_the_rest_of_a_batch_that_is_not_booked_any_more_is_not_handed_out(server):
    with member(server, confirm_timeout_ms=100, ready_wait_ms=3_000) as consumer:
        assert values(consumer.messages(2)) == numbered(2)
        while (batch := consumer.fetch()) is None:
            pass
        assert values(batch) == numbered(STEP)
        consumer.confirm(batch)
        assert values(consumer.messages(1)) == numbered(1, STEP)


def test_a_loop_that_ends_by_itself_has_confirmed_its_last_batch(server):
    with assigned(server) as consumer:
        read = []
        for record in consumer.messages():
            read.append(record.value)
            if len(read) == COUNT:
                consumer.stop()
        assert read == numbered(COUNT)
        assert consumer.committed() == {partition(): COUNT * ROW}


def test_a_break_leaves_the_last_batch_unconfirmed(server):
    with assigned(server) as consumer:
        for record in consumer.messages(limit=COUNT):
            if record.value == numbered(1, COUNT - 1)[0]:
                break
        assert consumer.committed() == {partition(): (COUNT - STEP) * ROW}


async def test_awaited_limits_confirm_in_the_same_way(server):
    async with awaited(server) as consumer:
        assert await taken(consumer.messages(limit=2 * STEP)) == numbered(2 * STEP)
        assert consumer.committed() == {partition(): 2 * STEP * ROW}
        assert await taken(consumer.messages(2)) == numbered(2, 2 * STEP)
        assert consumer.committed() == {partition(): (2 * STEP + 2) * ROW}


async def test_awaited_rests_of_batches_come_first(server):
    async with async_member(server) as consumer:
        assert await taken(consumer.messages(2)) == numbered(2)
        assert await taken(consumer.messages(STEP)) == numbered(STEP, 2)
        assert consumer.committed() == {partition(): STEP * ROW}


@pytest.mark.parametrize("limit", [0, -1, True, 1.0, "1"])
def test_what_is_no_limit_is_refused_at_once(server, limit):
    async def refused():
        async with awaited(server) as consumer:
            with pytest.raises(OptionError, match="limit"):
                consumer.messages(limit)

    with assigned(server) as consumer, pytest.raises(OptionError, match=r"TUBEMQ_BAD_SETTING.*limit"):
        consumer.messages(limit)
    asyncio.run(refused())
