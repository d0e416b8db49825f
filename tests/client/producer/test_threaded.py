"""The threaded producer over real sockets: each message is told of once, and nothing hangs or is left."""

import concurrent.futures
import contextlib
import itertools
import logging
import signal
import threading
import time

import pytest
from hypothesis import given, settings, strategies as st

from testkit.connections import opened_connections
from tests.client.producer.ways import WAYS, by
from tests.client.scripted_cluster import (
    HANG_UP,
    OVERFLOW,
    SILENT,
    STORE,
    Do,
    direct_producer,
    refuse,
    scripted_cluster,
    then_store,
)
from tests.waiting import wait_until
from tubemq_spark.client.producer.partitioner import PublishedTopic
from tubemq_spark.errors import OptionError, ProduceError, TubeMQConnectionError
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.payload import FLAG_ATTRIBUTES, decode_payload
from tubemq_spark.protocol.send_batch import MessageHeader, SendBatch

SECONDS = 20
"""What would wait forever ends here."""
LONG_MS = 600_000
TWO_BROKERS = "1:1:1,2:1:1#"
"""Each broker has one partition."""


only_direct = pytest.mark.parametrize("cluster", ["direct"], indirect=True)
"""What masters see of a producer, and of single brokers, a gateway keeps to itself; it chooses partitions,
and is asked for as long as a call may take."""


@pytest.fixture(params=WAYS)
def cluster(request):
    with scripted_cluster(2, demo=TWO_BROKERS) as made, by(request.param, made):
        yield made


class Told:
    """What callbacks were told, in their order."""

    def __init__(self):
        self.results = []
        self.errors = []
        self.threads = set()

    def __call__(self, result, error):
        self.threads.add(threading.current_thread().name)
        if error is None:
            self.results.append(result)
        else:
            assert result is None
            self.errors.append(error)


def value_at(cluster, result):
    """Return the message that a result is about."""
    broker = cluster.brokers[result.partition.broker_id - 1]
    assert result.partition == TopicPartition("demo", broker.broker_id, 0)
    return broker.stored["demo", 0][result.offset // 28]


def hold(broker):
    """Keep the answers of a broker back until the event is set that this returns."""
    released = threading.Event()
    broker.script = lambda *_: released.wait(SECONDS) and STORE
    return released


def callback_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("tubemq-callbacks-")]


def test_a_future_says_where_its_message_is(cluster):
    with cluster.producer() as producer:
        futures = {b"%d" % number: producer.send("demo", b"%d" % number) for number in range(300)}
        results = {value: future.result(SECONDS) for value, future in futures.items()}
    assert all(value_at(cluster, result) == value for value, result in results.items())
    assert {result.partition.broker_id for result in results.values()} == {1, 2}
    for result in results.values():
        assert result.topic == "demo"
        assert (result.message_id, result.append_time_ms) == (17, 1_704_164_645_678)
        assert (result.attempts, result.unanswered, result.may_be_repeated) == (1, 0, False)


def test_callbacks_are_called_in_a_thread_of_the_producer(cluster):
    told = Told()
    with cluster.producer() as producer:
        for number in range(300):
            producer.send("demo", b"%d" % number, callback=told)
        producer.flush()
        assert producer.unacknowledged == 0
        assert sorted(int(value_at(cluster, result)) for result in told.results) == list(range(300))
        assert told.errors == []
        assert len(told.threads) == 1
        assert told.threads <= {thread.name for thread in callback_threads()}
        assert sum(receipt.count for receipt in producer.receipts()) == 300
    wait_until(lambda: callback_threads() == [])  # those of gateways end when nothing comes for a second


def test_a_batch_is_told_of_message_by_message(cluster):
    told = Told()
    values = [b"%d" % number for number in range(300)]
    header = MessageHeader({"a": "b"}, "news", "202402291234")
    with cluster.producer() as producer:
        producer.send_batch(SendBatch.of("demo", values, header=header), callback=told)
        producer.flush()
        stored = [decode_payload(value_at(cluster, result), FLAG_ATTRIBUTES) for result in told.results]
        assert sorted(int(message.value) for message in stored) == list(range(300))
        carried = {"$msgType$": "news", "$msgTime$": "202402291234", "a": "b"}
        assert all(message.attributes == carried for message in stored)
        assert told.errors == []
        producer.send_batch(SendBatch.of("demo", [b"k"] * 50, keys=[b"one"] * 50))
        producer.flush()
    assert [broker.stored["demo", 0].count(b"k") for broker in cluster.brokers] in ([50, 0], [0, 50])


def test_the_messages_of_a_batch_before_a_refused_one_are_accepted(cluster):
    with cluster.producer() as producer:
        with pytest.raises(OptionError, match=r"\[TUBEMQ_BAD_MESSAGE\].*its value is empty") as caught:
            producer.send_batch(SendBatch.of("demo", [b"0", b"1", b"", b"3"]))
        assert caught.value.row == 2
        producer.flush()
        assert sorted(cluster.stored()) == [b"0", b"1"]
    with pytest.raises(ProduceError, match="TUBEMQ_PRODUCER_CLOSED"):
        producer.send_batch(SendBatch.of("demo", []))


def test_a_batch_has_as_many_keys_as_values():
    with pytest.raises(OptionError, match="its batch has 1 values and 2 keys"):
        SendBatch.of("demo", [b"x"], keys=[b"a", b"b"])


def test_messages_move_without_further_calls(cluster):
    with cluster.producer() as producer:
        producer.send("demo", b"alone")
        wait_until(lambda: cluster.stored() == [b"alone"])
        wait_until(lambda: producer.unacknowledged == 0)


def test_many_threads_share_a_producer(cluster):
    """The messages of a thread are in its order, and all are stored once."""
    told = Told()

    def work(worker):
        futures = []
        for number in range(300):
            value = b"%d %d" % (worker, number)
            place = (1 + worker % 2, 0)
            if number % 2:
                futures.append(producer.send("demo", value, partition=place))
            else:
                producer.send("demo", value, partition=place, callback=told)
        return [future.result(SECONDS) for future in futures]

    with (
        cluster.producer(max_in_flight=32) as producer,
        concurrent.futures.ThreadPoolExecutor(8) as pool,
    ):
        results = list(itertools.chain(*pool.map(work, range(8))))
        producer.flush()
    assert len(results) == len(told.results) == 8 * 150
    for broker in (1, 2):
        stored = [tuple(map(int, value.split())) for value in cluster.brokers[broker - 1].stored["demo", 0]]
        assert len(stored) == 4 * 300
        for worker in range(8):
            own = [number for who, number in stored if who == worker]
            assert own == (list(range(300)) if worker % 2 == broker - 1 else [])


def test_messages_linger_until_they_are_enough_or_flushed(cluster):
    with cluster.producer(linger_ms=LONG_MS) as producer, cluster.producer() as other:
        few = [producer.send("demo", b"x") for _ in range(3)]
        assert other.send("demo", b"at once").result(SECONDS)
        assert cluster.stored() == [b"at once"]
        producer.flush()
        assert all(future.done() for future in few)
        many = [producer.send("demo", b"x") for _ in range(64)]
        assert all(future.result(SECONDS) for future in many)
        long = producer.send("demo", b"x" * 200_000)
        assert long.result(SECONDS)


def test_only_bytes_that_still_wait_need_room(cluster):
    with cluster.producer(linger_ms=LONG_MS, max_in_flight_bytes=1_000) as producer:
        for _ in range(3):
            producer.send("demo", b"x" * 600)
            producer.flush()
        for _ in range(2):
            producer.send("demo", b"x" * 400, block=False)
        with pytest.raises(ProduceError, match="2 messages are under way"):
            producer.send("demo", b"x" * 400, block=False)
        producer.flush()


def test_a_message_waits_no_longer_than_it_lingers(cluster):
    with cluster.producer(linger_ms=50) as producer:
        assert producer.send("demo", b"x").result(SECONDS)
        assert [producer.send("demo", b"x").result(SECONDS).attempts for _ in range(3)] == [1, 1, 1]


def test_a_refused_message_fails_alone(cluster):
    cluster.script(lambda message, _: refuse(400, "not that") if message.data == b"bad" else STORE)
    told = Told()
    with cluster.producer() as producer:
        bad = producer.send("demo", b"bad")
        producer.send("demo", b"bad", callback=told)
        good = [producer.send("demo", b"good") for _ in range(100)]
        assert all(future.result(SECONDS) for future in good)
        with pytest.raises(ProduceError, match="not that") as failed:
            bad.result(SECONDS)
        producer.flush()
        assert not failed.value.may_be_stored
        assert isinstance(bad.exception(SECONDS), ProduceError)
        assert [error.condition for error in told.errors] == ["TUBEMQ_SEND_FAILED"]
        assert producer.send("demo", b"later").result(SECONDS)


def test_nonsense_of_one_broker_harms_no_message_to_another(cluster):
    nonsense = Do(junk=b"HTTP/1.1 400 Bad Request\r\n\r\n")
    cluster.brokers[1].script = lambda *_: nonsense
    with cluster.producer(delivery_timeout_ms=LONG_MS) as producer:
        waiting = producer.send("demo", b"waits", partition=(2, 0))
        wait_until(lambda: len(cluster.brokers[1].requests) > 1)
        for _ in range(5):
            producer.send("demo", b"passes", partition=(1, 0)).result(SECONDS)
        cluster.brokers[1].script = then_store()
        assert waiting.result(SECONDS).partition.broker_id == 2


def test_flush_raises_a_failure_once_that_was_not_asked_about(cluster):
    cluster.script(lambda message, _: refuse(400, "not that") if message.data == b"bad" else STORE)
    with cluster.producer() as producer:
        producer.send("demo", b"bad")
        with pytest.raises(ProduceError, match="not that"):
            producer.flush()
        producer.flush()
        producer.send("demo", b"bad").exception(SECONDS)
        producer.send("demo", b"bad", callback=lambda *_: None)
        producer.send("demo", b"bad").add_done_callback(lambda _: None)
        producer.flush()
        assert producer.send("demo", b"good").result(SECONDS)


def test_closing_tells_the_log_of_failures_that_were_not_asked_about(cluster, caplog):
    cluster.script(lambda *_: refuse(400, "not that"))
    producer = cluster.producer()
    producer.send("demo", b"bad")
    wait_until(lambda: producer.failures == 1)
    assert producer.close() == 0
    assert "closed with 1 failed messages" in caplog.text


def test_a_key_that_cannot_be_one_harms_no_other_message(cluster):
    with cluster.producer() as producer:
        futures = [producer.send("demo", b"good", key="text") for _ in range(10)]
        with pytest.raises(OptionError, match="its key is of type int"):
            producer.send("demo", b"bad", key=7)
        assert all(future.result(SECONDS) for future in futures)


def test_what_choosing_a_partition_raises_belongs_to_its_message(cluster):
    with cluster.producer() as producer:
        producer.send("demo", b"first").result(SECONDS)
        choose = PublishedTopic.choose

        def fail_for_one(topic, key, value):
            if key == b"bad":
                raise ZeroDivisionError
            return choose(topic, key, value)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PublishedTopic, "choose", fail_for_one)
            values = b"a", b"bad", b"b", b"bad", b"c"
            futures = [producer.send("demo", value, key=value) for value in values]
            errors = [future.exception(SECONDS) for future in futures]
        assert [error is None for error in errors] == [True, False, True, False, True]
        assert "ZeroDivisionError" in str(errors[1])
    assert sorted(cluster.stored()) == [b"a", b"b", b"c", b"first"]


def test_flush_and_close_say_what_is_left(cluster):
    cluster.script(lambda *_: SILENT)
    producer = cluster.producer()
    for _ in range(3):
        producer.send("demo", b"x")
    with pytest.raises(ProduceError, match=r"TUBEMQ_FLUSH_TIMEOUT\] 3 messages have no outcome after 0.01 s"):
        producer.flush(0.01)
    assert producer.close(0.01) == 3


def test_closing_waits_as_long_as_it_is_told(cluster):
    producer = cluster.producer(linger_ms=LONG_MS)
    future = producer.send("demo", b"x")
    assert producer.close(SECONDS) == 0
    assert future.result(0)


def test_a_message_that_would_wait_is_refused_without_block(cluster):
    cluster.broker.script = lambda *_: SILENT
    producer = cluster.producer(max_in_flight=1)
    with pytest.raises(ProduceError, match="a master must be asked"):
        producer.send("demo", b"x", partition=(1, 0), block=False)
    producer.send("demo", b"x", partition=(1, 0))
    accepted = [True]

    def send_until_refused():
        for _ in range(4):
            producer.send("demo", b"x", partition=(1, 0), block=False)
            accepted.append(True)

    with pytest.raises(ProduceError, match="messages are under way"):
        send_until_refused()
    assert producer.close() == len(accepted)


@only_direct
def test_closing_abandons_what_is_not_acknowledged(cluster, caplog):
    cluster.script(lambda *_: SILENT)
    told = Told()
    producer = cluster.producer()
    sent = [producer.send("demo", b"x") for _ in range(5)]
    wait_until(lambda: sum(len(broker.requests) for broker in cluster.brokers) == 5)
    producer.send("demo", b"x", callback=told)
    producer.close()
    for future in sent:
        with pytest.raises(ProduceError, match="abandoned: the producer was closed; it may be stored"):
            future.result(0)
    assert len(told.errors) == 1
    assert "closed with 6 messages not acknowledged" in caplog.text
    for use in (producer.flush, lambda: producer.send("demo", b"x")):
        with pytest.raises(ProduceError, match="TUBEMQ_PRODUCER_CLOSED"):
            use()
    producer.close()
    assert cluster.master.producers == set()


def test_what_still_lingers_when_the_producer_is_closed_was_surely_not_sent(cluster):
    producer = cluster.producer(linger_ms=LONG_MS)
    future = producer.send("demo", b"x")
    producer.close()
    with pytest.raises(ProduceError, match="it was not sent") as abandoned:
        future.result(0)
    assert not abandoned.value.may_be_stored
    assert cluster.stored() == []


def test_closing_what_was_never_used_is_quiet(cluster, caplog):
    producer = cluster.producer()
    producer.flush()
    producer.close()
    producer.flush()
    assert caplog.records == []
    assert cluster.master.seen == []


@only_direct
def test_closing_after_a_flush_leaves_the_master(cluster):
    producer = cluster.producer()
    producer.send("demo", b"x")
    producer.flush()
    producer.close()
    producer.flush()
    assert cluster.master.seen[-1] is Method.PRODUCER_CLOSE


def test_a_block_that_fails_closes_at_once(cluster):
    cluster.script(lambda *_: SILENT)
    futures = []

    def fail_after_sending():
        with cluster.producer() as producer:
            futures.append(producer.send("demo", b"x"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_after_sending()
    with pytest.raises(ProduceError, match="TUBEMQ_MESSAGE_ABANDONED"):
        futures[0].result(0)


def test_a_block_tells_of_a_message_that_failed_before_its_end(cluster):
    cluster.script(lambda *_: refuse(400, "not that"))

    def send_and_wait():
        with cluster.producer() as producer:
            producer.send("demo", b"x")
            wait_until(lambda: producer.failures)

    with pytest.raises(ProduceError, match="not that"):
        send_and_wait()


def test_a_callback_that_raises_is_logged_and_harms_no_message(cluster, caplog):
    def fail(result, error):
        raise RuntimeError("of a user")

    with cluster.producer() as producer:
        producer.send("demo", b"x", callback=fail)
        assert producer.send("demo", b"y").result(SECONDS)
        producer.flush()
    (line,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert str(line.exc_info[1]) == "of a user"


def test_callbacks_may_send_again_when_there_is_no_room(cluster):
    """Each message sends two until there were many."""
    told = []

    def go_on(result, error):
        told.append(result)
        for _ in range(2):
            if len(told) < 100:
                producer.send("demo", b"x", callback=go_on)

    with cluster.producer(max_in_flight=1) as producer:
        producer.send("demo", b"x", callback=go_on)
    assert None not in told
    assert len(cluster.stored()) == len(told) >= 100


def test_a_callback_can_close(cluster):
    with cluster.producer() as producer:
        producer.send("demo", b"x", callback=lambda *_: producer.close())
        wait_until(lambda: callback_threads() == [])
        with pytest.raises(ProduceError, match="TUBEMQ_PRODUCER_CLOSED"):
            producer.send("demo", b"x")


def test_who_waits_for_room_is_released_by_an_answer(cluster):
    released = hold(cluster.broker)
    with (
        cluster.producer(max_in_flight=2) as producer,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        sending = pool.submit(lambda: [producer.send("demo", b"x", partition=(1, 0)) for _ in range(20)])
        wait_until(lambda: producer.unacknowledged >= 4)
        assert not concurrent.futures.wait([sending], 0.2).done
        released.set()
        sending.result(SECONDS)
    assert len(cluster.stored()) == 20


def test_who_waits_for_room_is_released_when_the_producer_is_closed(cluster):
    cluster.broker.script = lambda *_: SILENT
    producer = cluster.producer(max_in_flight=2)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        sending = pool.submit(lambda: [producer.send("demo", b"x", partition=(1, 0)) for _ in range(20)])
        wait_until(lambda: producer.unacknowledged >= 4)
        flushing = pool.submit(producer.flush)
        wait_until(lambda: producer._queue.changes._waiting)  # it waits, and so does the sender
        producer.close()
        for future in (sending, flushing):
            with pytest.raises(ProduceError, match="TUBEMQ_PRODUCER_CLOSED"):
                future.result(SECONDS)


def test_an_interrupt_while_waiting_for_room_leaves_the_producer_as_it_was(cluster):
    released = hold(cluster.broker)
    accepted = []

    def send_forever():
        for number in itertools.count():
            producer.send("demo", b"%d" % number, partition=(1, 0))
            accepted.append(b"%d" % number)

    with cluster.producer(max_in_flight=2) as producer:
        main = threading.get_ident()

        def interrupt_when_full():
            wait_until(lambda: producer.unacknowledged >= 4, SECONDS)
            signal.pthread_kill(main, signal.SIGINT)

        interrupt = threading.Thread(target=interrupt_when_full)
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            send_forever()
        interrupt.join()
        released.set()
        producer.flush()
        assert cluster.stored() == accepted
        assert producer.send("demo", b"after").result(SECONDS)


def test_a_flush_waits_for_what_came_before_it_only(cluster):
    released = hold(cluster.broker)
    cluster.brokers[1].script = lambda *_: SILENT
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        producer = cluster.producer()
        early = producer.send("demo", b"early", partition=(1, 0))
        wait_until(lambda: cluster.broker.requests)
        flushing = pool.submit(producer.flush)
        wait_until(lambda: producer._queue.changes._waiting)
        late = producer.send("demo", b"late", partition=(2, 0))
        wait_until(lambda: cluster.brokers[1].requests)
        released.set()
        flushing.result(SECONDS)
        assert early.done()
        assert not late.done()
        producer.close()


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
def test_a_message_that_cannot_be_sent_is_refused_at_once(cluster, arguments, condition):
    with cluster.producer() as producer:
        with pytest.raises((OptionError, ProduceError)) as refused:
            producer.send(*arguments)
        assert refused.value.condition == condition
        assert producer.unacknowledged == 0
        assert producer.send("demo", b"x").result(SECONDS)


def test_a_callback_waits_neither_for_a_topic_nor_for_callbacks(cluster):
    """A topic may be waited for very long. What becomes of another message it may wait for."""
    cluster.master.deployed.add("later")
    refused = []

    def ask(_result, _error):
        other = producer.send("demo", b"x")
        for call in (
            lambda: producer.send("later", b"x"),
            lambda: producer.publishable("demo"),
            producer.flush,
            other.result,
            other.exception,
        ):
            try:
                call()
            except ProduceError as error:
                refused.append(error.condition)

    with cluster.producer(delivery_timeout_ms=LONG_MS) as producer:
        producer.send("demo", b"x", callback=ask)
        producer.flush()
        producer.send("demo", b"y").result(SECONDS)
    assert refused == ["TUBEMQ_SEND_WOULD_WAIT", "TUBEMQ_PRODUCER_IN_CALLBACK"]


@pytest.mark.parametrize("partition", [None, (2, 0)])
def test_a_producer_that_never_blocks_is_able_to_send_soon(cluster, partition):
    def sends():
        with contextlib.suppress(ProduceError):
            sent.append(producer.send("demo", b"x", partition=partition, block=False))
        return sent

    sent = []
    with cluster.producer() as producer:
        wait_until(sends, SECONDS)
        assert sent[0].result(SECONDS)


def test_a_callback_that_sends_to_another_topic_is_able_to_soon(cluster):
    cluster.master.topics["other"] = "1:1:1#"
    sent = []

    def forward(_result, _error):
        with contextlib.suppress(ProduceError):
            sent.append(producer.send("other", b"x"))

    def forwards():
        producer.send("demo", b"x", callback=forward).result(SECONDS)
        producer.flush()
        return sent

    with cluster.producer() as producer:
        wait_until(forwards, SECONDS)
        assert sent[0].result(SECONDS)


SMALL = {"max_in_flight": 16, "max_in_flight_bytes": 52_000, "rpc_timeout_ms": LONG_MS}
"""With these, the share of one of two brokers is a hundred messages."""


@only_direct
def test_who_sends_to_a_broker_whose_share_is_full_waits_alone(cluster):
    answering = hold(cluster.brokers[1])
    with (
        cluster.producer(delivery_timeout_ms=LONG_MS, **SMALL) as producer,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        producer.send("demo", b"x", partition=(1, 0)).result(SECONDS)
        accepted = []

        def send_until_refused():
            while True:
                accepted.append(producer.send("demo", b"x", partition=(2, 0), block=False))

        def is_full():
            """The queue may be full before the share: then its task takes what waits."""
            with pytest.raises(ProduceError, match="TUBEMQ_SEND_WOULD_WAIT") as refused:
                send_until_refused()
            return "broker 2 is full" in str(refused.value)

        wait_until(is_full, SECONDS)
        assert 100 <= len(accepted) < 200
        waiting = pool.submit(producer.send, "demo", b"y", partition=(2, 0))
        for _ in range(200):
            producer.send("demo", b"z", partition=(1, 0)).result(SECONDS)
            producer.send("demo", b"z").result(SECONDS)
        assert not waiting.done()
        answering.set()
        waiting.result(SECONDS).result(SECONDS)
        assert all(future.result(SECONDS) for future in accepted)


def test_a_partition_is_in_order_whatever_its_broker_refuses(cluster):
    cluster.script(lambda _, number: OVERFLOW if number % 7 in (2, 3) else STORE)
    with cluster.producer(keep_order=True) as producer:
        for number in range(100):
            producer.send("demo", b"%d" % number, key=b"%d" % (number % 9))
    for broker in cluster.brokers:
        numbers = [int(value) for value in broker.stored["demo", 0]]
        assert numbers == sorted(numbers)
    assert len(cluster.stored()) == 100


def test_a_partition_that_does_not_exist_is_refused_at_once(cluster):
    with cluster.producer() as producer:
        with pytest.raises(ProduceError, match="TUBEMQ_PARTITION_UNKNOWN"):
            producer.send("demo", b"x", partition=(1, 7))
        assert producer.send("demo", b"x", partition=(2, 0)).result(SECONDS).partition.broker_id == 2


def test_partitions_that_can_be_published_to_are_told(cluster):
    with cluster.producer() as producer:
        assert producer.publishable("demo") == (TopicPartition("demo", 1, 0), TopicPartition("demo", 2, 0))


def test_a_topic_that_is_waited_for_does_not_delay_others(cluster):
    cluster.master.deployed.add("later")
    with (
        cluster.producer(delivery_timeout_ms=LONG_MS) as producer,
        concurrent.futures.ThreadPoolExecutor(3) as pool,
    ):
        waiting = [pool.submit(producer.send, "later", b"late") for _ in range(3)]
        wait_until(lambda: any("later" in topics for topics in cluster.master.asked_for))
        assert producer.send("demo", b"now").result(SECONDS)
        cluster.master.topics["later"] = TWO_BROKERS
        assert all(future.result(SECONDS).result(SECONDS).topic == "later" for future in waiting)


@only_direct
def test_who_waits_for_a_topic_is_released_when_the_producer_is_closed(cluster):
    cluster.master.deployed.add("later")
    producer = cluster.producer(delivery_timeout_ms=LONG_MS)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(producer.send, "later", b"late")
        wait_until(lambda: any("later" in topics for topics in cluster.master.asked_for))
        producer.close()
        with pytest.raises(ProduceError, match="TUBEMQ_PRODUCER_CLOSED"):
            waiting.result(SECONDS)
    wait_until(lambda: cluster.master.producers == set())


@only_direct
def test_who_waits_for_a_master_is_released_when_the_producer_is_closed(cluster):
    cluster.master.server.close()
    producer = cluster.producer(delivery_timeout_ms=LONG_MS)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(producer.send, "demo", b"x")
        assert not concurrent.futures.wait([waiting], 0.2).done
        producer.close()
        with pytest.raises((ProduceError, TubeMQConnectionError)):
            waiting.result(SECONDS)


@only_direct
def test_a_producer_that_is_closed_while_it_registers_asks_for_nothing_more(cluster):
    register = cluster.master.answers[Method.PRODUCER_REGISTER]
    producer = cluster.producer()
    closing = threading.Thread(target=producer.close)

    def close_meanwhile(request):
        closing.start()
        wait_until(lambda: producer._queue.pipeline.error, SECONDS)
        return register(request)

    cluster.master.answers[Method.PRODUCER_REGISTER] = close_meanwhile
    with pytest.raises(ProduceError, match="TUBEMQ_PRODUCER_CLOSED"):
        producer.send("demo", b"x")
    closing.join()
    assert cluster.master.asked_for == []
    assert cluster.master.producers == set()


@only_direct
def test_a_topic_that_several_threads_ask_for_in_vain_is_asked_for_no_more(cluster):
    with (
        cluster.producer(heartbeat_period_ms=20) as producer,
        concurrent.futures.ThreadPoolExecutor(4) as pool,
    ):
        refused = [pool.submit(producer.send, "unknown", b"x") for _ in range(4)]
        for future in refused:
            with pytest.raises(ProduceError, match="TUBEMQ_TOPIC_UNKNOWN"):
                future.result(SECONDS)
        seen = len(cluster.master.asked_for)
        wait_until(lambda: len(cluster.master.asked_for) > seen + 2)
        assert cluster.master.asked_for[-1] == []


@only_direct
def test_a_connection_that_ends_while_nothing_is_sent_is_made_again_without_a_word(cluster, caplog):
    with cluster.producer() as producer:
        assert producer.send("demo", b"x", partition=(1, 0)).result(SECONDS)
        cluster.broker.server.drop_connections()
        wait_until(lambda: producer._queue.pipeline._window._owners == {})
        assert producer.send("demo", b"y", partition=(1, 0)).result(SECONDS).attempts == 1
    assert caplog.records == []


def test_the_time_that_a_message_waits_for_others_counts(cluster):
    """The first message is never answered, so the second has waited when its turn comes."""
    cluster.broker.script = lambda *_: SILENT
    with cluster.producer(
        max_in_flight=1, delivery_timeout_ms=2_000, rpc_timeout_ms=60_000, linger_ms=0
    ) as producer:
        futures = [producer.send("demo", b"x", partition=(1, 0)) for _ in range(2)]
        ended_at = []
        for future in futures:
            with pytest.raises(ProduceError, match="TUBEMQ_SEND_FAILED"):
                future.result(SECONDS)
            ended_at.append(time.monotonic())
        assert ended_at[1] - ended_at[0] < 1.5, "the second had two seconds of its own"


@only_direct
def test_a_producer_that_is_forgotten_ends_by_itself(cluster):
    with opened_connections() as connections:
        producer = direct_producer(cluster.config(), connections)
        assert producer.send("demo", b"x").result(SECONDS)
        forgotten = [producer]
        del producer
        with pytest.warns(ResourceWarning, match="was not closed"):
            forgotten.clear()
        wait_until(lambda: callback_threads() == [])
        wait_until(lambda: cluster.master.producers == set())


class Caller:
    """Sends from one thread, and hears what becomes of its messages."""

    def __init__(self, number, producer, calls):
        self.told = {}
        self._number = number
        self._producer = producer
        self._calls = calls

    def work(self):
        for number, call in enumerate(self._calls):
            value = b"%d %d" % (self._number, number)
            if call == "flush":
                self._producer.flush()
                continue
            outcomes = self.told[value] = []
            if call == "send":
                self._producer.send("demo", value, callback=lambda *both, told=outcomes: told.append(both))
            else:
                future = self._producer.send("demo", value)
                future.add_done_callback(lambda future, told=outcomes: told.append(outcome_of(future)))


def outcome_of(future):
    error = future.exception(0)
    return (None, error) if error else (future.result(0), None)


DEEDS = [STORE, OVERFLOW, HANG_UP, refuse(400), refuse(503), refuse(500)]


@settings(deadline=None, max_examples=12)
@given(
    deeds=st.lists(st.sampled_from(DEEDS), max_size=25),
    calls=st.lists(st.sampled_from(["submit", "send", "flush"]), min_size=1, max_size=40),
    max_in_flight=st.sampled_from([1, 3, 512]),
    linger_ms=st.sampled_from([0, 2]),
    flushes=st.booleans(),
)
def test_whatever_brokers_do_each_message_is_told_of_once_and_truly(
    deeds, calls, max_in_flight, linger_ms, flushes
):
    with scripted_cluster(2, demo=TWO_BROKERS) as cluster:
        cluster.script(lambda _, number: deeds[number] if number < len(deeds) else STORE)
        producer = cluster.producer(max_in_flight=max_in_flight, linger_ms=linger_ms)
        callers = [Caller(number, producer, calls) for number in range(3)]
        with concurrent.futures.ThreadPoolExecutor(len(callers)) as pool:
            list(pool.map(Caller.work, callers))
        if flushes:
            producer.flush()
        producer.close()
        stored = cluster.stored()
        for value, told in itertools.chain(*(caller.told.items() for caller in callers)):
            ((result, error),) = told
            if error is None:
                assert value_at(cluster, result) == value
                assert result.may_be_repeated or stored.count(value) == 1
            else:
                assert error.may_be_stored or value not in stored
                assert error.condition.startswith("TUBEMQ_SEND_FAILED") or not flushes


@only_direct
def test_what_it_did_is_counted_and_told_at_its_end(cluster, caplog):
    caplog.set_level(logging.INFO, "tubemq_spark.client.producer.log")
    cluster.brokers[0].script = lambda _, number: OVERFLOW if number < 5 else STORE
    with cluster.producer(max_in_flight=8) as producer:
        for _ in range(200):
            producer.send("demo", b"x")
        producer.flush()
        seen = producer.statistics()
        assert producer.statistics().brokers == seen.brokers
    assert seen.stored == seen.latency.count == 200
    assert {one.broker_id: one.stored for one in seen.brokers} == {
        broker.broker_id: len(broker.stored["demo", 0]) for broker in cluster.brokers
    }
    assert seen.answers == {200: 200, 419: 5}
    assert seen.retries == 5
    assert seen.room_wait_s > 0
    told = [record.getMessage() for record in caplog.records if "205 requests" in record.getMessage()]
    assert len(told) == 1
    assert "; 205 requests, 5 of them retries; waited " in told[0]
