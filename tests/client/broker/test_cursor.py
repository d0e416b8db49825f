"""Steps through a partition, each with a known begin and end."""

import contextlib

import pytest

from tests.client import model_broker as model
from tests.client.model_broker import BROKER_ID, TOKEN, Limits
from tests.client.ranges import broker_and_connections
from tubemq_spark.client.broker.cursor import Cursor, ReadAhead
from tubemq_spark.client.broker.lease import Lease, ReaderGroupHolder
from tubemq_spark.client.broker.session import BrokerSession, Claim
from tubemq_spark.errors import LocalProtocolError, RemoteProtocolError
from tubemq_spark.model import Route, StoreId, TopicPartition
from tubemq_spark.protocol.constants import Method

PARTITION = TopicPartition("demo", BROKER_ID, 0)
END = 9 * 28
MOST = Limits(memory_entries=3)


@contextlib.asynccontextmanager
async def reading_ahead(count=9, partitions=1, *, own_store=False):
    """A reader that confirms what has arrived, under the reader groups."""
    async with (
        broker_and_connections(count, partitions, MOST) as (broker, connections, config),
        ReaderGroupHolder(config, connections, PARTITION, Route(broker.endpoint, TOKEN)) as holder,
    ):
        yield broker, ReadAhead(Cursor(holder, PARTITION), own_store=own_store)


class OneName:
    """Holds a partition under the user's group and always the same client id, as a group's consumer does."""

    def __init__(self, session):
        self.lease = Lease(session, Claim(PARTITION, "etl", "etl_me-1-2-3"))

    async def acquire(self, offset):
        return await self.lease.register(offset)


@contextlib.asynccontextmanager
async def processing(count=9, partitions=1):
    """A consumer that processes records, then confirms them."""
    async with broker_and_connections(count, partitions, MOST) as (broker, connections, config):
        holder = OneName(BrokerSession(await connections.get(broker.endpoint), config, TOKEN))
        yield broker, Cursor(holder, PARTITION)
        await holder.lease.release()
        assert broker.leases() == []


async def fetch(cursor):
    return await cursor.receive(cursor.start_fetch())


def span(step):
    return step.start, step.next


async def test_seeking_drops_what_was_fetched_ahead():
    async with reading_ahead() as (_, cursor):
        await cursor.seek(0)
        await cursor.step(END)
        await cursor.seek(140)

        assert span(await cursor.step(END)) == (140, 224)


@pytest.mark.parametrize(("until", "fetches"), [(84, 1), (85, 2), (END, 2)])
async def test_nothing_is_fetched_ahead_beyond_the_end(until, fetches):
    async with reading_ahead() as (broker, cursor):
        await cursor.seek(0)
        assert span(await cursor.step(until)) == (0, 84)
        await cursor.seek(0)

        assert broker.counts()[Method.GET_MESSAGE] == fetches


async def test_a_batch_from_elsewhere_is_an_error():
    async with reading_ahead() as (broker, cursor):
        await cursor.seek(0)
        broker.stores[StoreId("demo", BROKER_ID, 0)].first = 2
        with pytest.raises(RemoteProtocolError, match="position in demo/1:0 is 56, but 0 was expected"):
            await cursor.step(END)


async def test_a_commit_that_does_not_reach_the_records_is_an_error():
    async with reading_ahead() as (broker, cursor):
        await cursor.seek(0)
        broker.fault_of_method[Method.COMMIT_OFFSET] = [model.forget_in_flight]
        with pytest.raises(RemoteProtocolError, match="position in demo/1:0 is 0, but 84 was expected"):
            await cursor.step(END)


async def test_a_cursor_that_was_never_placed_is_a_bug():
    async with reading_ahead() as (_, cursor):
        with pytest.raises(LocalProtocolError, match="demo/1:0 is not leased"):
            await cursor.step(END)


def committed(broker):
    return broker.holdings["etl", "demo", 0].committed


def values_of(fetched):
    return [fetched.columns.message(row).value for row in range(len(fetched.columns))]


async def test_a_consumer_reads_to_the_end_with_two_requests_per_step():
    async with processing() as (broker, cursor):
        await cursor.seek(0)
        seen = []
        while (fetched := await fetch(cursor)).count:
            seen += values_of(fetched)
            await cursor.confirm()
        assert span(await cursor.confirm()) == (END, END)

        assert seen == [b"value %d" % number for number in range(9)]
        assert broker.counts() == {
            Method.PARTITION_REGISTER: 1,
            Method.GET_MESSAGE: 4,
            Method.COMMIT_OFFSET: 4,
        }


async def test_a_confirm_can_be_said_with_the_next_fetch():
    async with processing() as (broker, cursor):
        await cursor.seek(0)
        await fetch(cursor)
        assert span(await cursor.confirm_by(cursor.start_fetch(confirm=True))) == (0, 84)
        assert values_of(cursor.unconfirmed) == [b"value 3", b"value 4", b"value 5"]
        assert committed(broker) == 84

        assert span(await cursor.confirm()) == (84, 168)
        assert broker.counts()[Method.COMMIT_OFFSET] == 1


async def test_nothing_can_be_confirmed_twice_or_after_a_seek():
    async with processing() as (broker, cursor):
        await cursor.seek(0)
        await fetch(cursor)
        await cursor.confirm()
        with pytest.raises(LocalProtocolError, match="nothing of demo/1:0 was fetched"):
            await cursor.confirm()

        await fetch(cursor)
        await cursor.seek(28)
        with pytest.raises(LocalProtocolError, match="nothing of demo/1:0 was fetched"):
            await cursor.confirm()
        assert committed(broker) == 28
