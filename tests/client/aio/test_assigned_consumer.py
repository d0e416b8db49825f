"""The asynchronous assigned consumer on three brokers: whatever is cancelled or away, nothing is lost."""

import asyncio

import pytest

from testkit.children import forks, in_child
from tests.client.aio.consuming import (
    PARTITIONS,
    assigned,
    client_of,
    connected,
    leave_a_batch,
    take,
    threads,
)
from tests.client.assigned import ROW, TOPIC, numbered, partition, produce
from tests.client.ways import WAYS, only_direct, served, through_gateways_by_night
from tests.waiting import until
from tubemq_spark.client.consumer.values import PartitionState
from tubemq_spark.errors import ConsumeError, OffsetFormatError, RpcError
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.constants import Method

server = served(stores=4, ways=WAYS, max_entries=10)


async def connect_all(consumer):
    partitions = await consumer.share()
    await asyncio.gather(*(consumer.connect(one, 0) for one in partitions))
    return partitions


@through_gateways_by_night
async def test_fifty_coroutines_fetch_and_confirm_at_once(server):
    """Fifty wait for what twelve partitions hold, and take no thread for that."""
    produce(server, numbered(1_200))
    values = []
    async with assigned(server) as consumer:
        assert len(await connect_all(consumer)) == PARTITIONS

        async def read():
            while len(values) < 1_200:
                batch = await consumer.fetch(200)
                if batch is not None:
                    values.extend(record.value for record in batch)
                    await consumer.confirm(batch)

        before = len(threads("aio"))
        await asyncio.gather(*(read() for _ in range(50)))
        assert len(threads("aio")) == before
        assert not threads("steps")
    assert sorted(values, key=int) == numbered(1_200)


async def test_batches_by_iteration(server):
    async with connected(server, 40) as consumer:
        values = []
        async for batch in consumer:
            values += [record.value for record in batch]
            await consumer.confirm(batch)
            if len(values) == 40:
                await consumer.close()
    assert values == numbered(40)


async def test_a_handler_confirms_by_returning_and_rolls_back_by_raising(server):
    async with connected(server, 20) as consumer:
        handled = []

        async def handle(batch):
            handled.extend(record.value for record in batch)
            if len(handled) == 20:
                raise ZeroDivisionError
            if len(handled) == 30:
                await consumer.close()

        with pytest.raises(ZeroDivisionError):
            await consumer.run(handle)
        await consumer.run(handle)
    assert handled == numbered(20) + numbered(10, 10)


async def test_a_fetch_that_is_cancelled_at_any_moment_loses_nothing(server):
    produce(server, numbered(200))
    async with assigned(server) as consumer:
        await connect_all(consumer)
        values, turn = [], 0
        while len(values) < 200:
            fetch = asyncio.ensure_future(consumer.fetch())
            for _ in range(turn % 23):
                await asyncio.sleep(0)
            turn += 1
            fetch.cancel()
            try:
                batch = await fetch
            except asyncio.CancelledError:
                continue
            values += [record.value for record in batch]
            await consumer.confirm(batch)
    assert sorted(values, key=int) == numbered(200)


async def test_a_confirmation_that_is_cancelled_is_carried_out(server):
    async with connected(server, 5) as consumer:
        batch = await consumer.fetch()
        held = server.faults.hold(Method.COMMIT_OFFSET, times=1)
        confirm = asyncio.ensure_future(consumer.confirm(batch))
        await until(lambda: held.hits)
        confirm.cancel()
        with pytest.raises(asyncio.CancelledError):
            await confirm
        held.release()
        await until(lambda: consumer.positions()[partition(1)].offset == 5 * ROW)
        with pytest.raises(ConsumeError, match="TUBEMQ_CONFIRM_LATE"):
            await consumer.confirm(batch)


async def test_without_time_only_what_has_come_is_taken(server):
    produce(server, numbered(5), where=partition(1))
    async with assigned(server) as consumer:
        assert await consumer.fetch(0) is None
        await consumer.connect(partition(1), 0)
        await leave_a_batch(server, consumer)
        assert consumer.status()[partition(1)].state is PartitionState.FETCHING
        assert len(await consumer.fetch(0)) == 5
        assert consumer.status()[partition(1)].state is PartitionState.IN_USE


async def test_a_batch_that_no_fetch_took_is_left_to_others(server):
    async with connected(server, 5) as consumer:
        await leave_a_batch(server, consumer)
        consumer.pause([partition(1)])
        assert await consumer.fetch(50) is None
        consumer.resume()
        batch = await consumer.fetch()
        assert len(batch) == 5
        await consumer.confirm(batch, consumed=False)
        await leave_a_batch(server, consumer)
        assert await consumer.disconnect(partition(1))
        assert not await consumer.disconnect(partition(1))
        assert await consumer.fetch(0) is None
        async with assigned(server) as other:
            await other.connect(partition(1))
            assert await take(other, 5) == numbered(5)


async def test_pausing_and_resuming_wakes_a_waiting_fetch(server):
    produce(server, numbered(5), where=partition(1))
    async with assigned(server) as consumer:
        consumer.pause([partition(1)])
        await consumer.connect(partition(1), 0)
        fetch = asyncio.ensure_future(consumer.fetch(-1))
        await asyncio.sleep(0.02)
        assert not fetch.done()
        assert consumer.paused == {partition(1)}
        consumer.resume()
        assert len(await fetch) == 5


async def test_close_ends_every_wait(server):
    async with client_of(server) as client:
        consumer = await client.assigned_consumer(TOPIC).open()
        waiting = [asyncio.ensure_future(consumer.fetch(-1)) for _ in range(5)]
        ready = asyncio.ensure_future(consumer.wait_until_ready(60_000))
        iterating = asyncio.ensure_future(anext(aiter(consumer), "the end"))
        await asyncio.sleep(0.01)
        await consumer.close()
        for fetch in waiting:
            with pytest.raises(ConsumeError, match="TUBEMQ_CONSUMER_CLOSED"):
                await fetch
        with pytest.raises(ConsumeError, match="TUBEMQ_CONSUMER_CLOSED"):
            await ready
        assert await iterating == "the end"
        assert consumer.closed


async def test_close_waits_for_requests_that_are_under_way(server):
    produce(server, numbered(10), where=partition(1))
    async with client_of(server) as client:
        consumer = await client.assigned_consumer(TOPIC).open()
        await consumer.connect(partition(1), 0)
        batch = await consumer.fetch()
        held = server.faults.hold(Method.COMMIT_OFFSET, times=1)
        confirm = asyncio.ensure_future(consumer.confirm(batch))
        await until(lambda: held.hits)
        close = asyncio.ensure_future(consumer.close())
        await asyncio.sleep(0.02)
        held.release()
        assert (await confirm).offset == 10 * ROW
        await close


async def test_use_before_open_and_after_close_is_refused(server):
    async with client_of(server) as client:
        consumer = client.assigned_consumer(TOPIC)
        for state in ("not open yet", "closed"):
            for use in (
                consumer.fetch(),
                consumer.confirm("1:demo:0@1"),
                consumer.wait_until_ready(0),
                consumer.connect(partition()),
                consumer.disconnect(partition()),
                consumer.partitions(),
                consumer.share(),
                anext(aiter(consumer)),
                anext(consumer.messages()),
            ):
                with pytest.raises(ConsumeError, match=f"TUBEMQ_CONSUMER_CLOSED.*is {state}"):
                    await use
            with pytest.raises(ConsumeError, match="TUBEMQ_CONSUMER_CLOSED"):
                consumer.pause([])
            await consumer.close()
        with pytest.raises(ConsumeError, match="is closed"):
            await consumer.open()


async def test_an_opening_that_is_cancelled_leaves_nothing_and_may_be_tried_again(server):
    async with client_of(server) as client:
        held = server.faults.hold(Method.BALANCE_REGISTER, times=1)
        consumer = client.assigned_consumer(TOPIC)
        opening = asyncio.ensure_future(consumer.open())
        await until(lambda: held.hits)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        held.release()
        assert consumer.closed
        with pytest.raises(ConsumeError, match="is not open yet"):
            await consumer.fetch()
        async with consumer:
            await consumer.connect(partition(1))
            assert consumer.connected == (partition(1),)


async def test_refusals_are_raised(server):
    async with client_of(server) as client:
        with pytest.raises(RpcError, match="431"):
            await client.assigned_consumer("missing").open()
        async with client.assigned_consumer(TOPIC) as consumer:
            with pytest.raises(ConsumeError, match=r"TUBEMQ_CONNECT\.UNKNOWN"):
                await consumer.connect(TopicPartition(TOPIC, 9, 9))
            await consumer.connect(partition(1))
            async with client_of(server) as other, other.assigned_consumer(TOPIC) as second:
                with pytest.raises(RpcError, match="410"):
                    await second.connect(partition(1))
            assert set(await consumer.partitions()) == set((await client.layout(TOPIC)).partitions)
            assert consumer.registered_at is not None
            assert consumer.node is None


def test_another_event_loop_is_refused(server):
    client = client_of(server)
    consumer = client.assigned_consumer(TOPIC)

    async def go_on():
        for use in (
            consumer.fetch(),
            consumer.confirm("1:demo:0@1"),
            consumer.connect(partition()),
            consumer.wait_until_ready(1),
            consumer.close(),
        ):
            with pytest.raises(ConsumeError, match="TUBEMQ_CONSUMER_LOOP"):
                await use

    with asyncio.Runner() as runner:
        runner.run(consumer.open())
        asyncio.run(go_on())
        runner.run(client.close())
    assert consumer.closed


@forks
async def test_a_child_is_refused_and_leaves_the_consumer_alone(server):
    async with connected(server, 10) as consumer:

        async def use():
            for call in (consumer.fetch(), consumer.confirm("1:demo:0@1"), consumer.open()):
                with pytest.raises(ConsumeError, match="TUBEMQ_CONSUMER_FORKED"):
                    await call
            await consumer.close()

        def check():
            asyncio.events._set_running_loop(None)
            asyncio.run(use())

        in_child(check)
        assert await take(consumer, 10) == numbered(10)


async def test_a_client_closes_all_also_when_a_consumer_cannot_be_closed(server):
    """Another event loop's, for one."""
    client = client_of(server)
    first, second = client.assigned_consumer(TOPIC), client.assigned_consumer(TOPIC)
    await first.open()
    await second.open()
    error = ConsumeError("TUBEMQ_CONSUMER_LOOP", code=400, group="etl")

    async def fail():
        raise error

    first.close = fail
    with pytest.raises(ConsumeError) as raised:
        await client.close()
    assert raised.value is error
    assert second.closed
    await client.close()
    del first.close
    assert await first.close()


async def test_it_reads_on_elsewhere(server):
    produce(server, numbered(30), where=partition(1))
    async with assigned(server) as consumer:
        where = partition(1)
        await consumer.connect(where, 0)
        batch = await consumer.fetch()
        assert (await consumer.seek(where, 20 * ROW)).offset == 20 * ROW
        with pytest.raises(ConsumeError, match="TUBEMQ_CONFIRM_SOUGHT"):
            await consumer.confirm(batch)
        assert await take(consumer, 10) == numbered(10, 20)
        assert (await consumer.lag(), consumer.committed()) == ({where: 0}, {where: 30 * ROW})
        assert (await consumer.seek_to_beginning())[where].offset == 0
        assert await consumer.lag() == {where: 30}
        assert (await consumer.seek_to_end([where]))[where].offset == 30 * ROW
        assert (await consumer.seek_to_time(0))[where].offset == 0
        assert await take(consumer, 30) == numbered(30)
        with pytest.raises(ConsumeError, match="TUBEMQ_NOT_HELD"):
            await consumer.seek(partition(2), 0)
        with pytest.raises(OffsetFormatError):
            await consumer.seek(where, 1)


@only_direct
async def test_a_move_that_is_cancelled_is_carried_out(server):
    produce(server, numbered(30), where=partition(1))
    async with assigned(server) as consumer:
        where = partition(1)
        await consumer.connect(where, 0)
        with server.faults.hold(Method.PARTITION_REGISTER):
            moving = asyncio.create_task(consumer.seek(where, 20 * ROW))
            await asyncio.sleep(0.1)
            moving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await moving
            assert consumer.committed() == {where: 0}
        assert await take(consumer, 10) == numbered(10, 20)


@only_direct
async def test_a_connect_that_is_cancelled_is_given_back_by_closing(server):
    """The broker has carried it out, and its answer comes while the consumer and its client close."""
    held = server.faults.hold(Method.PARTITION_REGISTER, carried_out=True, times=1)
    async with assigned(server) as consumer:
        connecting = asyncio.create_task(consumer.connect(partition(1)))
        await until(lambda: held.hits)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        assert await consumer.close(0.05) is False
        held.release()
    async with assigned(server) as another:
        await another.connect(partition(1))
        assert another.connected == (partition(1),)
