"""The asynchronous producer over real sockets: each message has one outcome, and no wait blocks the loop."""

import asyncio
import threading

import pytest

from testkit.children import forks, in_child
from tests.client.scripted_cluster import SILENT, STORE, refuse, scripted_cluster
from tests.waiting import until
from tubemq_spark.client import SendBatch, TubeMQClient, open_clients
from tubemq_spark.client.aio import AsyncTubeMQClient
from tubemq_spark.errors import ConsumeError, OptionError, ProduceError, TubeMQConnectionError

SECONDS = 30
"""What would wait for ever ends here."""
LONG_MS = 600_000
FULL = 3
"""With ``max_in_flight=1`` so many messages are accepted: one under way, one in the thread, and one waits."""


@pytest.fixture
def cluster():
    with scripted_cluster(2, demo="1:1:1,2:1:1#", other="1:1:1#") as made:
        yield made


def client_of(cluster, **settings):
    return AsyncTubeMQClient(TubeMQClient(cluster.config(**settings)))


class Gate:
    """Brokers that store nothing until they are let."""

    def __init__(self, cluster):
        self.opened = threading.Event()
        self.reached = threading.Event()
        for broker in cluster.brokers:
            broker.script = self._hold

    def _hold(self, message, number):
        self.reached.set()
        self.opened.wait(SECONDS)
        return STORE


async def stored(producer, topic, value, **fields):
    """Send a message and wait until it is stored."""
    return await (await producer.send(topic, value, **fields))


def threads(kind):
    return [thread for thread in threading.enumerate() if thread.name.startswith(f"tubemq-{kind}")]


async def test_many_coroutines_send_without_a_thread(cluster):
    async with client_of(cluster) as client, client.producer() as producer:
        values = [b"%d" % number for number in range(200)]
        results = await asyncio.gather(*(stored(producer, "demo", value) for value in values))
        for value, result in zip(values, results, strict=True):
            broker = cluster.brokers[result.partition.broker_id - 1]
            assert broker.stored["demo", 0][result.offset // 28] == value
            assert (result.attempts, result.message_id) == (1, 17)
        assert not threads("aio") + threads("callbacks"), "everything is done in the event loop"
        await producer.flush()  # a waiter hears of its message before it is counted
        assert producer.unacknowledged == 0
        assert sum(receipt.count for receipt in producer.receipts()) == 200
        assert producer.statistics().stored == 200


async def test_messages_of_one_coroutine_are_in_order(cluster):
    async with client_of(cluster, max_in_flight=3) as client, client.producer() as producer:
        futures = [await producer.send("demo", b"%d" % n, partition=(1, 0)) for n in range(100)]
        batch = SendBatch.of("demo", [b"%d" % n for n in range(100, 150)], keys=[b"k"] * 50)
        results = await asyncio.gather(*await producer.send_batch(batch))
        where = {result.partition.broker_id for result in results}
        assert results == sorted(results, key=lambda result: result.offset)
        assert [future.done() for future in futures] == [True] * 100
    first, second = (broker.stored["demo", 0] for broker in cluster.brokers)
    in_one = second if where == {2} else first[100:]
    assert (first[:100], in_one) == ([b"%d" % n for n in range(100)], [b"%d" % n for n in range(100, 150)])


async def test_a_long_batch_gives_other_coroutines_their_turns(cluster):
    async with client_of(cluster, max_in_flight=100_000) as client, client.producer() as producer:
        await stored(producer, "demo", b"first")
        sending = asyncio.ensure_future(producer.send_batch(SendBatch.of("demo", [b"x"] * 5_000)))
        turns = 0
        while not sending.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 15
        await asyncio.gather(*await sending)


async def test_coroutines_that_send_to_a_broker_whose_share_is_full_wait_alone_and_in_order(cluster):
    answering = threading.Event()
    cluster.brokers[1].script = lambda *_: answering.wait(SECONDS) and STORE
    settings = {
        "rpc_timeout_ms": LONG_MS,
        "delivery_timeout_ms": LONG_MS,
        "max_in_flight": 16,
        "max_in_flight_bytes": 52_000,
    }
    async with client_of(cluster, **settings) as client, client.producer() as producer:
        queue = producer._queue
        await stored(producer, "demo", b"first", partition=(1, 0))
        sending = [
            asyncio.ensure_future(stored(producer, "demo", b"%d" % number, partition=(2, 0)))
            for number in range(300)
        ]
        await until(lambda: queue._full == {2} and not queue._waiting)
        for _ in range(100):
            await stored(producer, "demo", b"z", partition=(1, 0))
            await stored(producer, "demo", b"z")
        assert not any(one.done() for one in sending)
        assert producer.unacknowledged < 200
        answering.set()
        await asyncio.gather(*sending)
    assert cluster.brokers[1].stored["demo", 0][:300] == [b"%d" % number for number in range(300)]


@pytest.mark.parametrize(
    ("arguments", "condition"),
    [
        (("demo", 7), "TUBEMQ_BAD_MESSAGE"),
        (("demo", b""), "TUBEMQ_BAD_MESSAGE"),
        (("demo", b"x" * (1 << 21)), "TUBEMQ_MESSAGE_TOO_LONG"),
        (("unknown", b"x"), "TUBEMQ_TOPIC_UNKNOWN"),
        (("", b"x"), "TUBEMQ_TOPIC_NAME"),
    ],
)
async def test_a_message_that_cannot_be_sent_is_refused_at_once(cluster, arguments, condition):
    async with client_of(cluster) as client, client.producer() as producer:
        with pytest.raises((OptionError, ProduceError)) as refused:
            await producer.send(*arguments)
        assert refused.value.condition == condition
        assert producer.unacknowledged == 0


async def test_the_messages_of_a_batch_before_a_refused_one_are_accepted(cluster):
    async with client_of(cluster) as client, client.producer() as producer:
        with pytest.raises(OptionError, match="its value is empty") as refused:
            await producer.send_batch(SendBatch.of("demo", [b"0", b"1", b"", b"3"]))
        assert refused.value.row == 2
        assert await producer.send_batch(SendBatch.of("demo", [])) == []
    assert sorted(cluster.stored()) == [b"0", b"1"]


async def test_flush_raises_a_failure_that_was_not_asked_about(cluster):
    cluster.brokers[1].script = lambda *_: refuse(400)
    async with client_of(cluster) as client, client.producer() as producer:
        future = await producer.send("demo", b"bad", partition=(2, 0))
        with pytest.raises(ProduceError, match="TUBEMQ_SEND_FAILED"):
            await producer.flush()
        assert isinstance(future.exception(), ProduceError)
        await producer.flush()
        assert await stored(producer, "demo", b"good", partition=(1, 0))


async def test_flush_and_close_say_what_is_left(cluster):
    gate = Gate(cluster)
    async with client_of(cluster) as client:
        producer = client.producer()
        future = await producer.send("demo", b"x")
        with pytest.raises(ProduceError, match=r"TUBEMQ_FLUSH_TIMEOUT\] 1 messages"):
            await producer.flush(0.01)
        assert await producer.close() == 1
        assert isinstance(future.exception(), ProduceError)
        gate.opened.set()


async def test_a_send_that_does_not_block_is_refused_when_there_is_no_room(cluster):
    async with client_of(cluster, max_in_flight=1) as client, client.producer() as producer:
        with pytest.raises(ProduceError, match="a master must be asked"):
            await producer.send("demo", b"x", block=False)
        await stored(producer, "demo", b"first")
        gate = Gate(cluster)
        sends = [asyncio.ensure_future(stored(producer, "demo", b"%d" % n)) for n in range(FULL + 1)]
        await until(lambda: producer.unacknowledged == FULL)
        with pytest.raises(ProduceError, match="TUBEMQ_SEND_WOULD_WAIT"):
            await producer.send("demo", b"x", block=False)
        gate.opened.set()
        await asyncio.gather(*sends)


async def test_waiting_for_room_blocks_no_other_coroutine(cluster):
    async with client_of(cluster, max_in_flight=1) as client, client.producer() as producer:
        await stored(producer, "demo", b"first")
        gate = Gate(cluster)
        sends = [asyncio.ensure_future(stored(producer, "demo", b"%d" % n)) for n in range(50)]
        await until(lambda: producer.unacknowledged == FULL)
        await asyncio.sleep(0.01)
        assert not any(send.done() for send in sends)
        assert producer.unacknowledged == FULL
        gate.opened.set()
        await asyncio.gather(*sends)
        assert producer.statistics().room_wait_s > 0
    assert len(cluster.stored()) == 51


async def test_a_send_that_is_cancelled_while_it_waits_for_room_is_not_sent(cluster):
    async with client_of(cluster, max_in_flight=1) as client, client.producer() as producer:
        await stored(producer, "demo", b"first")
        gate = Gate(cluster)
        kept = [asyncio.ensure_future(stored(producer, "demo", b"kept")) for _ in range(FULL)]
        await until(lambda: producer.unacknowledged == FULL)
        gone = [asyncio.ensure_future(stored(producer, "demo", b"gone")) for _ in range(3)]
        last = asyncio.ensure_future(stored(producer, "demo", b"last"))
        await asyncio.sleep(0.01)
        for send in gone:
            send.cancel()
        for send in gone:
            with pytest.raises(asyncio.CancelledError) as cancelled:
                await send
            assert "was not accepted" in cancelled.value.__notes__[0]
        gate.opened.set()
        await asyncio.gather(*kept, last)
    assert sorted(cluster.stored()) == [b"first", *[b"kept"] * FULL, b"last"]


async def test_a_send_that_is_cancelled_after_that_is_sent(cluster):
    async with client_of(cluster) as client, client.producer() as producer:
        await stored(producer, "demo", b"first")
        gate = Gate(cluster)
        sending = asyncio.ensure_future(stored(producer, "demo", b"second"))
        await until(gate.reached.is_set)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await sending
        assert "was accepted" in cancelled.value.__notes__[0]
        gate.opened.set()
        await producer.flush()
        assert sorted(cluster.stored()) == [b"first", b"second"]


async def test_a_cancelled_future_does_not_withdraw_its_message(cluster):
    async with client_of(cluster) as client, client.producer() as producer:
        await stored(producer, "demo", b"first")
        gate = Gate(cluster)
        future = await producer.send("demo", b"second")
        future.cancel()
        gate.opened.set()
    assert sorted(cluster.stored()) == [b"first", b"second"]


async def test_a_cancelled_batch_says_how_much_of_it_was_accepted(cluster):
    async with client_of(cluster, max_in_flight=1) as client, client.producer() as producer:
        await stored(producer, "demo", b"first")
        gate = Gate(cluster)
        sending = asyncio.ensure_future(producer.send_batch(SendBatch.of("demo", [b"x"] * 10)))
        await until(lambda: producer.unacknowledged == FULL)
        await asyncio.sleep(0.01)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await sending
        assert cancelled.value.__notes__[-1].startswith("3 of the batch's 10 messages were accepted")
        gate.opened.set()
    assert len(cluster.stored()) == 1 + FULL


async def test_coroutines_that_wait_for_the_same_topic_ask_once(cluster):
    answer, asked = threading.Event(), threading.Event()

    def hold():
        asked.set()
        answer.wait(SECONDS)

    async with client_of(cluster, rpc_timeout_ms=20_000) as client, client.producer() as producer:
        cluster.master.on_heartbeat = hold
        first, *others = (
            asyncio.ensure_future(stored(producer, "demo", b"%d" % number)) for number in range(30)
        )
        await until(asked.is_set)
        first.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await first
        assert "was not accepted" in cancelled.value.__notes__[0]
        cluster.master.on_heartbeat = lambda: None
        answer.set()
        await asyncio.gather(*others)
    assert sorted(map(int, cluster.stored())) == list(range(1, 30))


async def test_many_topics_without_partitions_hold_up_neither_others_nor_closing(cluster):
    """More than there are threads; half of the coroutines have stopped waiting."""
    topics = [f"slow_{number}" for number in range(20)]
    cluster.master.deployed.update(topics)
    async with client_of(cluster, delivery_timeout_ms=LONG_MS) as client:
        producer = client.producer()
        waiting = [asyncio.ensure_future(stored(producer, topic, b"x")) for topic in topics]
        await until(lambda: {topic for asked in cluster.master.asked_for for topic in asked} >= set(topics))
        for one in waiting[:10]:
            one.cancel()
        assert await asyncio.wait_for(stored(producer, "demo", b"x"), SECONDS)
        assert await asyncio.wait_for(stored(producer, "other", b"x"), SECONDS)
        cluster.master.topics["slow_11"] = "1:1:1#"
        assert await asyncio.wait_for(waiting[11], SECONDS)
        await asyncio.wait_for(producer.close(), SECONDS)
        outcomes = await asyncio.gather(waiting[10], *waiting[12:], return_exceptions=True)
        assert {error.condition for error in outcomes} == {"TUBEMQ_PRODUCER_CLOSED"}


async def test_close_ends_every_wait(cluster):
    async with client_of(cluster, max_in_flight=1) as client:
        producer = client.producer()
        await stored(producer, "demo", b"first")
        for broker in cluster.brokers:
            broker.script = lambda *_: SILENT
        sends = [asyncio.ensure_future(stored(producer, "demo", b"%d" % number)) for number in range(5)]
        await until(lambda: producer.unacknowledged == FULL)
        flush = asyncio.ensure_future(producer.flush())
        await asyncio.sleep(0.01)
        await producer.close()
        errors = await asyncio.gather(*sends, flush, return_exceptions=True)
        assert [error.condition for error in errors] == [
            *["TUBEMQ_MESSAGE_ABANDONED"] * FULL,
            *["TUBEMQ_PRODUCER_CLOSED"] * (5 + 1 - FULL),
        ]
        assert errors[0].may_be_stored


async def test_use_after_close_is_refused(cluster):
    async with client_of(cluster) as client:
        async with client.producer() as producer:
            await producer.send("demo", b"flushed by the end of the block")
        assert len(cluster.stored()) == 1
        await producer.close()
        batch = SendBatch.of("demo", [b"x"])
        for use in (
            producer.send("demo", b"x"),
            producer.send_batch(batch),
            producer.send_batch(SendBatch.of("demo", [])),
            producer.publishable("demo"),
            producer.__aenter__(),
        ):
            with pytest.raises(ProduceError, match="TUBEMQ_PRODUCER_CLOSED"):
                await use
        await producer.flush()


async def test_a_block_that_fails_closes_at_once(cluster):
    async with client_of(cluster) as client:
        producer = client.producer()
        await stored(producer, "demo", b"first")
        for broker in cluster.brokers:
            broker.script = lambda *_: SILENT
        future = await producer.send("demo", b"second")
        with pytest.raises(ZeroDivisionError):
            async with producer:
                raise ZeroDivisionError
        with pytest.raises(ProduceError, match="TUBEMQ_MESSAGE_ABANDONED"):
            await future


async def test_a_block_tells_of_a_message_that_failed_before_its_end(cluster):
    for broker in cluster.brokers:
        broker.script = lambda *_: refuse(400, "not that")
    async with client_of(cluster) as client:
        sent = []

        async def send_and_wait():
            async with client.producer() as producer:
                sent.append(await producer.send("demo", b"x"))
                await until(lambda: not producer.unacknowledged)

        with pytest.raises(ProduceError, match="not that"):
            await send_and_wait()
        assert isinstance(sent[0].exception(), ProduceError)


async def test_the_client_closes_its_producers(cluster):
    async with client_of(cluster) as client:
        producer = client.producer()
        await stored(producer, "demo", b"first")
        assert await client.publishable("demo") == await producer.publishable("demo")
        assert set((await client.layout("demo")).partitions) == set(await producer.publishable("demo"))
    with pytest.raises(ProduceError, match="TUBEMQ_PRODUCER_CLOSED"):
        await stored(producer, "demo", b"second")


async def test_a_closed_client_says_so(cluster):
    client = client_of(cluster)
    producer, consumer = client.producer(), client.group_consumer("demo")
    await client.close()
    for use in (client.publishable("demo"), client.layout("demo"), consumer.open()):
        with pytest.raises(TubeMQConnectionError, match="TUBEMQ_CLIENT_CLOSED"):
            await use
    with pytest.raises(ProduceError, match="TUBEMQ_PRODUCER_CLOSED"):
        await stored(producer, "demo", b"x")
    with pytest.raises(ConsumeError, match="is closed"):
        await consumer.fetch()
    for one in (producer, consumer, client):
        await one.close()


def test_another_event_loop_is_refused(cluster):
    client = client_of(cluster)
    producer = client.producer()

    async def begin():
        await stored(producer, "demo", b"first")

    async def go_on():
        for use in (
            stored(producer, "demo", b"x"),
            producer.send_batch(SendBatch.of("demo", [b"x"])),
            producer.flush(),
            producer.publishable("demo"),
            producer.close(),
        ):
            with pytest.raises(ProduceError, match="TUBEMQ_PRODUCER_LOOP"):
                await use

    with asyncio.Runner() as runner:
        runner.run(begin())
        asyncio.run(go_on())
        runner.run(client.close())
    assert cluster.stored() == [b"first"]


@forks
async def test_a_child_is_refused_and_leaves_the_producer_alone(cluster):
    async with client_of(cluster) as client, client.producer() as producer:
        await stored(producer, "demo", b"before", partition=(1, 0))

        async def use():
            for call in (
                stored(producer, "demo", b"in the child"),
                producer.flush(),
                producer.publishable("demo"),
            ):
                with pytest.raises(ProduceError, match="TUBEMQ_PRODUCER_FORKED"):
                    await call
            await producer.close()

        def check():
            asyncio.events._set_running_loop(None)
            asyncio.run(use())

        in_child(check)
        await stored(producer, "demo", b"after", partition=(1, 0))
    assert cluster.stored() == [b"before", b"after"]


@forks
async def test_a_child_may_make_a_producer_of_its_own(cluster):
    async with client_of(cluster) as client:
        assert await client.publishable("demo")

        async def use():
            async with client.producer() as producer:
                await stored(producer, "demo", b"in the child")

        def check():
            asyncio.events._set_running_loop(None)
            asyncio.run(use())

        in_child(check)
    assert cluster.stored() == [b"in the child"]


async def test_a_producer_that_is_forgotten_ends_by_itself(cluster):
    before = asyncio.all_tasks()
    async with client_of(cluster) as client:
        forgotten = [client.producer()]
        assert await stored(forgotten[0], "demo", b"x")
        assert "asynchronous producer" in {one.kind for one in open_clients()}
        with pytest.warns(ResourceWarning, match="was not closed"):
            forgotten.clear()
        assert "asynchronous producer" not in {one.kind for one in open_clients()}
        await until(lambda: asyncio.all_tasks() <= before)
