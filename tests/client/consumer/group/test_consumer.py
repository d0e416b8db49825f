"""What members of a group do for their users, on three brokers: sharing, giving up, coming back."""

import concurrent.futures
import contextlib
import threading
import time

import pytest

from tests.client.assigned import TOPIC, in_loop, numbered, produce
from tests.client.members import PARTITIONS, client_of, member, refuse, shares
from tests.client.ways import WAYS, only_direct, served
from tests.waiting import wait_until
from tubemq_spark.client import BoundStart, ConsumePosition
from tubemq_spark.client.consumer.values import ConsumeStatus
from tubemq_spark.errors import OptionError, RpcError
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.constants import Method, OpType
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.messages import EventType, RebalanceEvent

ROW = 28


server = served(stores=4, ways=WAYS, balance_period_ms=100)


def drain(consumer, values, wanted, lock=None):
    """Fetch and confirm until all wanted values are there."""
    lock = lock or threading.Lock()
    deadline = time.monotonic() + 40
    while True:
        assert time.monotonic() < deadline, consumer.consume_status
        with lock:
            if wanted <= set(values):
                return
        batch = consumer.fetch(200)
        if batch is not None:
            with lock:
                values += [record.value for record in batch]
            consumer.confirm(batch)


def being_fetched(consumer):
    """Return the partitions that are booked and of which none has a batch; a gateway's are its own."""
    state = consumer._core.state
    return {one.partition for one in state.cache.being_fetched()} if hasattr(state, "cache") else set()


def all_of(consumer, count, start=0):
    values = []
    drain(consumer, values, set(numbered(count, start)))
    return sorted(values, key=int)


def test_a_single_member_gets_everything_once(server):
    produce(server, numbered(120))
    with member(server) as consumer:
        assert consumer.wait_until_ready(10_000)
        assert all_of(consumer, 120) == numbered(120)
        assert sum(where.offset for where in consumer.positions().values()) == 120 * ROW
        assert consumer.fetch(0) is None
    with member(server) as consumer:
        shares(consumer)
        assert {where.offset for where in consumer.positions().values()} != {0}
        assert sum(where.offset for where in consumer.positions().values()) == 120 * ROW
        assert consumer.fetch(100) is None


def test_members_share_and_take_over(server):
    with member(server) as first:
        shares(first)
        with member(server) as second, member(server) as third:
            shares(first, second, third)
            produce(server, numbered(300))
            values, lock = [], threading.Lock()
            wanted = set(numbered(300))
            threads = [
                threading.Thread(target=drain, args=(consumer, values, wanted, lock))
                for consumer in (first, second, third)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(values, key=int) == numbered(300)
        shares(first)
        produce(server, numbered(60, 300))
        assert all_of(first, 60, 300) == numbered(60, 300)


def test_what_is_not_confirmed_comes_to_the_next_member(server):
    produce(server, numbered(20), where=TopicPartition(TOPIC, 2, 0))
    with member(server) as first:
        shares(first)
        batch = first.fetch()
        assert len(batch)
        assert first.consume_status is ConsumeStatus.READY
    with member(server) as second:
        assert all_of(second, 20) == numbered(20)


def test_a_batch_is_waited_for_before_its_partition_goes_to_another_member(server):
    produce(server, numbered(5), where=TopicPartition(TOPIC, 2, 0))
    with member(server, rebalance_wait_ms=10_000) as first:
        shares(first)
        batch = first.fetch()
        assert (batch.offset, batch.latest) == (0, 5 * ROW)
        second_values = []
        with member(server) as second:
            first.confirm(batch)
            shares(first, second)
            for consumer in (first, second):
                while (more := consumer.fetch(100)) is not None:
                    second_values += [record.value for record in more]
                    consumer.confirm(more)
    assert [record.value for record in batch] + second_values == numbered(5)


def test_a_function_that_fails_gets_its_batch_again(server):
    produce(server, numbered(1))
    with member(server) as consumer:
        with pytest.raises(ZeroDivisionError):
            consumer.run(lambda _: 1 / 0)
        assert all_of(consumer, 1) == numbered(1)


def test_paused_partitions_stay_and_are_not_read(server):
    quiet = TopicPartition(TOPIC, 3, 10_000)
    with member(server) as consumer:
        consumer.pause([quiet])
        shares(consumer)
        produce(server, numbered(4), where=quiet)
        assert consumer.fetch(300) is None
        assert consumer.paused == {quiet}
        consumer.resume()
        assert all_of(consumer, 4) == numbered(4)


def test_a_filter_is_checked_by_text(server):
    produce(server, numbered(10), message_type="odd")
    produce(server, numbered(10, 10), message_type="even")
    told = set()
    server.faults.delay(
        Method.PARTITION_REGISTER,
        0,
        only=lambda request: request.opType == OpType.REGISTER and told.add(tuple(request.filterCondStr)),
    )
    with member(server, message_types={TOPIC: ["even"]}) as consumer:
        assert all_of(consumer, 10, 10) == numbered(10, 10)
    assert told == {("even",)}, "brokers pass over what they can tell"


def test_a_bound_group_starts_at_its_offsets(server):
    where = TopicPartition(TOPIC, 1, 0)
    produce(server, numbered(10), where=where)
    start = BoundStart("backfill", 1, {where: 4 * ROW})
    with member(server, start=start) as consumer:
        assert all_of(consumer, 6, 4) == numbered(6, 4)


def test_new_messages_only(server):
    produce(server, numbered(10))
    with member(server, consume_position=ConsumePosition.LATEST) as consumer:
        shares(consumer)
        produce(server, numbered(10, 10))
        assert all_of(consumer, 10, 10) == numbered(10, 10)


def test_a_member_goes_on_after_a_broker_was_away(server):
    with member(server) as consumer:
        shares(consumer)
        server.faults.stop_broker(2)
        produce(server, numbered(20), where=TopicPartition(TOPIC, 1, 0))
        assert all_of(consumer, 20) == numbered(20)
        server.faults.start_broker(2)
        produce(server, numbered(20, 20), where=TopicPartition(TOPIC, 2, 0))
        assert all_of(consumer, 20, 20) == numbered(20, 20)


def test_a_member_goes_on_after_the_servers_forgot_it(server):
    produce(server, numbered(20))
    with member(server) as consumer:
        assert all_of(consumer, 20) == numbered(20)
        server.faults.forget_clients()
        produce(server, numbered(20, 20))
        assert all_of(consumer, 20, 20) == numbered(20, 20)


@pytest.mark.parametrize(
    ("method", "code"),
    [
        (Method.PARTITION_REGISTER, ErrCode.INTERNAL_SERVER_ERROR),
        (Method.PARTITION_REGISTER, ErrCode.PARTITION_OCCUPIED),
        (Method.GET_MESSAGE, ErrCode.INTERNAL_SERVER_ERROR),
        (Method.GET_MESSAGE, ErrCode.HB_NO_NODE),
        (Method.GET_MESSAGE, ErrCode.DUPLICATE_PARTITION),
        (Method.COMMIT_OFFSET, ErrCode.INTERNAL_SERVER_ERROR),
        (Method.CONSUMER_HEARTBEAT, ErrCode.HB_NO_NODE),
        (Method.CONSUMER_HEARTBEAT, ErrCode.INTERNAL_SERVER_ERROR),
    ],
)
def test_a_refused_request_loses_nothing(server, method, code):
    produce(server, numbered(60))
    rule = server.faults.answer(method, code, times=2)
    values = []

    def read(timeout_ms):
        batch = consumer.fetch(timeout_ms)
        if batch is not None:
            values.extend(record.value for record in batch)
            with contextlib.suppress(RpcError):
                consumer.confirm(batch)
        return batch

    with member(server) as consumer:
        while not set(numbered(60)) <= set(values):
            assert read(10_000) is not None, consumer.consume_status
        stuck = set(consumer.connected)

        def no_partition_is_being_fetched_for_ever():
            read(0)
            stuck.intersection_update(being_fetched(consumer))
            return not stuck

        wait_until(no_partition_is_being_fetched_for_ever, seconds=20)
    assert rule.hits == 2


def test_a_master_that_refuses_is_told_and_everything_is_given_back(server):
    with member(server) as consumer:
        shares(consumer)
        refuse(server)
        with pytest.raises(RpcError, match="450"):
            wait_until(lambda: consumer.fetch(10), seconds=10)
        wait_until(lambda: not consumer.connected)
        server.faults.clear()
        wait_until(lambda: len(consumer.connected) == PARTITIONS, seconds=20)


def test_a_fetch_that_waits_is_told_that_the_master_refuses(server):
    with member(server) as consumer, concurrent.futures.ThreadPoolExecutor(1) as threads:
        shares(consumer)
        waiting = threads.submit(consumer.fetch, -1)
        refuse(server)
        with pytest.raises(RpcError, match="450"):
            waiting.result(timeout=20)
        server.faults.clear()


@only_direct
def test_closing_waits_for_no_rebalance_longer_than_it_may(server, caplog):
    """One broker is frozen in the middle of the first rebalance, and what comes then is not begun."""
    server.faults.freeze_broker(1)
    with client_of(server, rpc_timeout_ms=60_000, shutdown_wait_ms=50) as client:
        consumer = client.group_consumer(TOPIC).open()
        wait_until(lambda: len(consumer.connected) == PARTITIONS * 2 // 3)
        infos = consumer._core.state.cache.infos()
        in_loop(consumer._core._rebalancing.put, RebalanceEvent(2, EventType.CONNECT, infos))
        registers = server.faults.delay(
            Method.PARTITION_REGISTER, 0, broker=2, only=lambda request: request.opType == OpType.REGISTER
        )
        consumer.close()
        assert "closes in the middle of a rebalance" in caplog.text
        server.faults.start_broker(1)
        assert consumer.connected == ()
        assert registers.hits == 0
    with member(server) as other:
        assert shares(other) == [set(other.connected)], "what came too late was given back"


@only_direct
def test_closing_waits_for_no_confirmation(server):
    """A member that gives a partition up waits for its batch, unless it is closed meanwhile."""
    with member(server, rebalance_wait_ms=600_000, shutdown_wait_ms=600_000) as first:
        wait_until(lambda: len(first.connected) == PARTITIONS)
        for number, where in enumerate(first.connected):
            produce(server, numbered(10, 10 * number), where=where)
        # Whatever is to be given up has a batch that is out.
        out = [first.fetch() for _ in first.connected]
        assert {batch.partition for batch in out} == set(first.connected)
        with member(server) as second:
            wait_until(lambda: first._core.state.cache._leaving, seconds=20)
            first.close()
            assert all_of(second, 120) == numbered(120)


def test_bad_input_is_refused_at_once(server):
    with client_of(server) as client:
        with pytest.raises(OptionError, match="topics"):
            client.group_consumer()
        with pytest.raises(OptionError, match="topics"):
            client.group_consumer([])
        with pytest.raises(RpcError, match="431"), client.group_consumer("nobody_has_it"):
            pass
