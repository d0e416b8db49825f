"""Reading by coroutines: what comes, what is fetched ahead, and that nothing stays behind."""

import asyncio
import contextlib

import pytest

from tests.client.aio.consuming import client_of
from tests.client.assigned import ROW, TOPIC, numbered, partition, produce
from tests.client.ways import WAYS, only_direct, served
from tests.waiting import until
from tubemq_spark.client.aio.client import Reading
from tubemq_spark.errors import DataLossError, OptionError, RpcError, TubeMQConnectionError
from tubemq_spark.model import OffsetRange
from tubemq_spark.offsets.loss import LossRecorder, fail_on_loss
from tubemq_spark.protocol.constants import Method

server = served(stores=2, brokers=2, ways=WAYS, max_entries=10)


async def test_everything_comes_in_order(server):
    places = [partition(1), partition(1, 10_000), partition(2)]
    for place in places:
        produce(server, numbered(25), where=place)
    async with client_of(server) as client:
        records = [record async for record in client.read(TOPIC)]
        assert [record.partition for record in records] == [place for place in places for _ in range(25)]
        assert [record.value for record in records] == numbered(25) * 3
        layout = await client.layout(TOPIC)
        range_ = OffsetRange(partition(2), 5 * ROW, 15 * ROW)
        values = [record.value async for record in client.read_range(layout, range_)]
        assert values == numbered(10, 5)


async def test_errors_are_those_of_the_client_for_threads(server):
    produce(server, numbered(25), where=partition(1))
    async with client_of(server) as client:
        with pytest.raises(RpcError, match="431"):
            await anext(client.read("unknown"))
        layout = await client.layout(TOPIC)
        with pytest.raises(OptionError, match="TUBEMQ_PARTITION_NOT_LISTED"):
            client.read_range(layout, OffsetRange(partition(9), 0, ROW))
        server.faults.apply_retention(TOPIC)
        losses = LossRecorder()
        range_ = OffsetRange(partition(1), 0, 25 * ROW)
        with pytest.raises(DataLossError):
            await anext(client.read_range(layout, range_))
        assert [record async for record in client.read_range(layout, range_, on_loss=losses)] == []
        assert losses.records


class Source:
    """Batches of one record each, which count."""

    def __init__(self):
        self.made = 0
        self.is_closed = False
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def items(self):
        try:
            while True:
                await self.may_go_on.wait()
                self.made += 1
                yield [self.made]
        finally:
            self.is_closed = True


@contextlib.asynccontextmanager
async def reading():
    source = Source()
    reader = Reading(source.items(), fail_on_loss)
    try:
        yield source, reader, reader.records()
    finally:
        await reader.close()


async def test_one_batch_is_read_ahead_and_no_more():
    async with reading() as (source, _, records):
        assert source.made == 0, "nothing was asked for"
        assert await anext(records) == 1
        await until(lambda: source.made == 2)
        await asyncio.sleep(0.05)
        assert source.made == 2
        assert [await anext(records) for _ in range(3)] == [2, 3, 4]


async def test_the_loop_goes_on_while_a_broker_is_waited_for():
    async with reading() as (source, _, records):
        source.may_go_on.clear()
        following = asyncio.ensure_future(anext(records))
        await asyncio.sleep(0.05)
        assert not following.done()
        source.may_go_on.set()
        assert await following == 1


@pytest.mark.parametrize("how", ["closed", "cancelled", "client"])
async def test_who_stops_early_gives_everything_back(how):
    async with reading() as (source, one, records):
        assert await anext(records) == 1
        assert await anext(records) == 2
        await until(lambda: source.made == 3)
        source.may_go_on.clear()
        assert await anext(records) == 3
        if how == "closed":
            await records.aclose()
        elif how == "client":
            await one.close()
        else:
            following = asyncio.ensure_future(anext(records))
            await asyncio.sleep(0.05)
            following.cancel()
            with pytest.raises(asyncio.CancelledError):
                await following
        assert source.is_closed
        assert source.made == 3


@only_direct
async def test_a_client_that_closes_ends_its_readings(server):
    produce(server, numbered(50), where=partition(1))
    client = client_of(server)
    records = client.read(TOPIC)
    assert (await anext(records)).value == b"0"
    with server.faults.hold(Method.GET_MESSAGE):
        closing = asyncio.ensure_future(client.close())
        await asyncio.sleep(0.05)
    await closing
    with pytest.raises(TubeMQConnectionError, match="TUBEMQ_CLIENT_CLOSED"):
        [record async for record in records]


async def test_a_closed_client_reads_nothing(server):
    client = client_of(server)
    await client.close()
    with pytest.raises(TubeMQConnectionError, match="TUBEMQ_CLIENT_CLOSED"):
        await anext(client.read(TOPIC))
