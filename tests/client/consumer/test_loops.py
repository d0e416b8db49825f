"""The loops of consumers, ``run`` and ``messages``, when a batch can be neither confirmed nor rolled back."""

import asyncio
import contextlib

import pytest

from tests.client.aio.consuming import assigned
from tests.client.assigned import ROW, TOPIC, consumer_of, numbered, partition, produce
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.errors import DataLossError
from tubemq_spark.protocol.constants import Method

COUNT, STEP = 20, 5
CONFIRM_LATE = (
    r"\[TUBEMQ_CONFIRM_LATE\] .* cannot be confirmed: it was confirmed before, or not in time, or its "
    r"partition was given up; its messages come again unless they were confirmed\."
)


@pytest.fixture
def server():
    settings = EmbeddedSettings(max_entries=STEP)
    with EmbeddedTubeMQ(topics={TOPIC: (1, 1)}, brokers=3, settings=settings) as running:
        produce(running, numbered(COUNT), where=partition())
        yield running


@pytest.fixture
def consumer(server):
    with consumer_of(server) as opened:
        opened.connect(partition(), 0)
        yield opened


def fail_once(server):
    """Make the second request of a batch's end fail; the broker has not carried it out."""
    return server.faults.drop_connection(Method.COMMIT_OFFSET, skip=1, times=1)


AGAIN = numbered(2 * STEP) + numbered(COUNT - STEP, STEP)
"""What is seen when the second batch is not confirmed."""


def test_a_function_gets_a_batch_again_that_could_not_be_confirmed(server, consumer, caplog):
    lost, values = fail_once(server), []

    def handle(batch):
        values.extend(record.value for record in batch)
        if values[-1] == numbered(COUNT)[-1]:
            consumer.confirm(batch)
            consumer.close()

    consumer.run(handle)
    assert lost.hits == 1
    assert values == AGAIN
    assert "comes again" in caplog.text


def test_messages_come_again_that_could_not_be_confirmed(server, consumer):
    fail_once(server)
    values = []
    for record in consumer.messages():
        values.append(record.value)
        if record.value == numbered(COUNT)[-1]:
            break
    assert values == AGAIN


async def test_a_coroutine_function_gets_a_batch_again_that_could_not_be_confirmed(server):
    async with assigned(server) as consumer:
        await consumer.connect(partition(), 0)
        fail_once(server)
        values = []

        async def handle(batch):
            values.extend(record.value for record in batch)
            if values[-1] == numbered(COUNT)[-1]:
                await consumer.close()

        await consumer.run(handle)
    assert values == AGAIN


async def test_awaited_messages_come_again_that_could_not_be_confirmed(server):
    async with assigned(server) as consumer:
        await consumer.connect(partition(), 0)
        fail_once(server)
        values = []
        async with contextlib.aclosing(consumer.messages()) as records:
            async for record in records:
                values.append(record.value)
                if record.value == numbered(COUNT)[-1]:
                    break
    assert values == AGAIN


@pytest.mark.parametrize("loop", [lambda one: one.run(lambda _: None), lambda one: list(one.messages())])
def test_a_loss_that_is_found_with_a_confirmation_ends_the_loop(consumer, monkeypatch, loop):
    def lose(*_, **__):
        raise DataLossError("TUBEMQ_PROTOCOL_MISUSE", what="a loss")

    monkeypatch.setattr(consumer, "confirm", lose)
    with pytest.raises(DataLossError):
        loop(consumer)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_what_ended_a_loop_is_told_also_when_the_batch_cannot_be_rolled_back(server, consumer, error):
    def handle(_):
        raise error

    lost = server.faults.drop_connection(Method.COMMIT_OFFSET, times=2)
    with pytest.raises(error):
        consumer.run(handle)
    records = consumer.messages()
    assert next(records).value == numbered(1)[0]
    with pytest.raises(error):
        records.throw(error())
    assert lost.hits == 2


async def test_a_task_that_is_cancelled_is_cancelled_also_when_the_batch_cannot_be_rolled_back(server):
    async with assigned(server) as consumer:
        await consumer.connect(partition(), 0)
        lost = server.faults.drop_connection(Method.COMMIT_OFFSET, times=3)
        began = asyncio.Event()

        async def handle(_):
            began.set()
            await asyncio.sleep(3_600)

        task = asyncio.create_task(consumer.run(handle))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

        async def handle_for_too_long(_):
            limit.reschedule(0)
            await asyncio.sleep(3_600)

        async def loop():
            async with contextlib.aclosing(consumer.messages()) as records:
                async for record in records:
                    assert record.value == numbered(1)[0]
                    await handle_for_too_long(record)

        for use in (lambda: consumer.run(handle_for_too_long), loop):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(None) as limit:
                    await use()
        assert lost.hits == 3


def test_no_batch_of_a_consumer_that_was_closed_confirms_one_of_the_next(server):
    with consumer_of(server) as first:
        first.connect(partition(), 0)
        old = first.fetch()
        first.confirm(old)
    with consumer_of(server) as second:
        second.connect(partition())
        new = second.fetch()
        assert new.context != old.context
        with pytest.raises(Exception, match=CONFIRM_LATE):
            second.confirm(old)
        assert second.confirm(new).offset == 2 * STEP * ROW
