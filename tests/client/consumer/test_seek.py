"""Moving a partition: batches that are out, requests under way, and the group's position."""

import contextlib
import datetime
import functools
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.client.assigned import (
    ROW,
    TOPIC,
    client_of,
    connected,
    consumer_of,
    numbered,
    partition,
    produce,
    take,
)
from tests.client.members import member
from tests.client.ways import WAYS, only_direct, served
from tests.waiting import wait_until
from tubemq_spark.client.reader.times import TimeOffsets
from tubemq_spark.errors import ConsumeError, DataLossError, OffsetFormatError, OptionError, TubeMQError
from tubemq_spark.net.loop import in_thread
from tubemq_spark.offsets.loss import LossRecorder
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.errcodes import ErrCode

HERE, ELSEWHERE = partition(1), partition(2)


server = served(brokers=2, ways=WAYS, max_entries=10)


def first(batch):
    return batch.records[0].value


def holding(consumer, *wanted):
    wait_until(lambda: set(wanted) <= set(consumer.connected), 20)


def test_messages_come_from_the_new_position_and_the_group_stands_there(server):
    with connected(server, 30) as consumer:
        take(consumer, 10)
        assert consumer.seek(HERE, 20 * ROW).offset == 20 * ROW
        assert consumer.committed() == {HERE: 20 * ROW}
        assert first(consumer.fetch()) == b"20"
    with consumer_of(server) as consumer:
        assert consumer.connect(HERE).offset == 20 * ROW
        consumer.seek(HERE, 5 * ROW)
        assert take(consumer, 25) == numbered(25, 5)


def test_a_batch_that_is_out_cannot_be_confirmed_any_more(server):
    with connected(server, 30) as consumer:
        batch = consumer.fetch()
        consumer.seek(HERE, 20 * ROW)
        for consumed in (True, False):
            with pytest.raises(ConsumeError, match="TUBEMQ_CONFIRM_SOUGHT") as refusal:
                consumer.confirm(batch, consumed=consumed)
            assert refusal.value.code == ErrCode.BAD_REQUEST
        assert consumer.committed(HERE) == {HERE: 20 * ROW}
        assert first(consumer.fetch()) == b"20", "it waits for no confirmation"


@pytest.mark.parametrize("what", ["batches", "messages"])
def test_loops_go_on_there_without_a_warning(server, what, caplog):
    produce(server, numbered(30), where=HERE)
    seen = []

    def look(value):
        seen.append(value)
        if value == b"0":
            consumer.seek(HERE, 25 * ROW)
        if value == b"29":
            consumer.stop()

    with connected(server) as consumer:
        if what == "batches":
            consumer.run(lambda batch: look(first(batch)) or look(batch.records[-1].value))
            assert seen == [b"0", b"9", b"25", b"29"]
        else:
            for record in consumer.messages():
                look(record.value)
            assert seen == [*numbered(10), *numbered(5, 25)]
    assert "comes again" not in caplog.text


def test_beginning_and_end(server):
    produce(server, numbered(30), where=HERE)
    produce(server, numbered(3), where=ELSEWHERE)
    with consumer_of(server) as consumer:
        for where in (HERE, ELSEWHERE):
            consumer.connect(where)
        moved = consumer.seek_to_end()
        assert {where: at.offset for where, at in moved.items()} == {HERE: 30 * ROW, ELSEWHERE: 3 * ROW}
        assert consumer.fetch(200) is None
        assert consumer.lag() == {HERE: 0, ELSEWHERE: 0}
        assert list(consumer.seek_to_beginning(ELSEWHERE)) == [ELSEWHERE]
        assert consumer.lag() == {HERE: 0, ELSEWHERE: 3}
        assert take(consumer, 3) == numbered(3)
        consumer.seek_to_beginning([HERE])
        assert take(consumer, 30) == numbered(30)


def test_a_time(server):
    now = datetime.datetime.now(datetime.UTC).replace(second=0, microsecond=0)
    times = [now - datetime.timedelta(minutes=30 - number) for number in range(30)]
    for value, at in zip(numbered(30), times, strict=True):
        produce(server, [value], where=HERE, message_time=at)
    with connected(server) as consumer:
        consumer.connect(ELSEWHERE)
        moved = consumer.seek_to_time(times[20])
        assert {where: at.offset for where, at in moved.items()} == {HERE: 20 * ROW, ELSEWHERE: 0}
        assert first(consumer.fetch()) == b"20"
        moved = consumer.seek_to_time(round(times[7].timestamp() * 1000), HERE)
        assert moved[HERE].offset == 7 * ROW
        moved = consumer.seek_to_time(now + datetime.timedelta(days=1), HERE)
        assert moved[HERE].offset == 30 * ROW
        for wrong in (datetime.datetime(2026, 1, 1), "yesterday", -1):  # noqa: DTZ001
            with pytest.raises(OptionError, match="a datetime with a time zone"):
                consumer.seek_to_time(wrong)


def test_a_message_that_comes_while_a_time_is_looked_for_is_read(server, monkeypatch):
    """No message before it has the time, so the search ends where the log ended when it began."""
    produce(server, numbered(3), where=HERE)
    begin = TimeOffsets.begin

    async def slow_begin(*arguments):
        offsets = await begin(*arguments)
        await in_thread(functools.partial(produce, server, [b"new"], where=HERE), "producing")
        return offsets

    monkeypatch.setattr(TimeOffsets, "begin", slow_begin)
    with connected(server) as consumer:
        later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
        assert consumer.seek_to_time(later)[HERE].offset == 3 * ROW
        assert first(consumer.fetch()) == b"new"


def test_messages_without_times_are_not_looked_for_by_time(server):
    with client_of(server, stamp_message_time=False) as client, client.producer() as producer:
        producer.send(TOPIC, b"untimed", partition=(1, 0))
    with connected(server) as consumer, pytest.raises(OptionError, match="TUBEMQ_NO_MESSAGE_TIME"):
        consumer.seek_to_time(0)


def test_what_is_not_held_is_refused(server):
    with consumer_of(server) as consumer:
        for call in (
            lambda: consumer.seek(HERE, 0),
            lambda: consumer.seek_to_beginning(HERE),
            lambda: consumer.seek_to_end([HERE]),
            lambda: consumer.seek_to_time(0, HERE),
            lambda: consumer.committed(HERE),
            lambda: consumer.lag(HERE),
        ):
            with pytest.raises(ConsumeError, match="TUBEMQ_NOT_HELD") as refusal:
                call()
            assert refusal.value.code == ErrCode.NOT_FOUND
        assert consumer.seek_to_end() == consumer.committed() == consumer.lag() == {}
        with pytest.raises(OptionError):
            consumer.seek_to_end([TOPIC])
        consumer.connect(HERE)
        with pytest.raises(OffsetFormatError):
            consumer.seek(HERE, 1)
    with pytest.raises(ConsumeError, match="TUBEMQ_CONSUMER_CLOSED"):
        consumer.seek(HERE, 0)


def test_an_offset_that_is_not_in_the_log_is_a_loss_and_moves_nothing(server):
    with connected(server, 30) as consumer:
        take(consumer, 10)
        batch = consumer.fetch()
        with pytest.raises(DataLossError, match="MOVED_BACK"):
            consumer.seek(HERE, 100 * ROW)
        assert consumer.committed() == {HERE: 10 * ROW}
        with pytest.raises(ConsumeError):
            consumer.confirm(batch)
        assert take(consumer, 20) == numbered(20, 10)


def test_a_loss_may_be_tolerated(server):
    produce(server, numbered(30), where=HERE)
    losses = LossRecorder()
    with connected(server, on_loss=losses) as consumer:
        assert consumer.seek(HERE, 100 * ROW).offset == 30 * ROW
        wait_until(lambda: losses.records, 20)


@only_direct
def test_a_time_out_that_on_loss_raises_is_not_one_of_the_broker(server):
    def on_loss(_):
        raise TimeoutError("of on_loss")

    with connected(server, on_loss=on_loss) as consumer, pytest.raises(TimeoutError, match="of on_loss"):
        consumer.seek(HERE, 100 * ROW)


@only_direct
@pytest.mark.parametrize("carried_out", [False, True])
def test_a_move_that_fails_leaves_the_partition_where_it_stood(server, carried_out):
    with connected(server, 30) as consumer:
        take(consumer, 10)
        consumer.fetch()
        server.faults.drop_connection(Method.PARTITION_REGISTER, carried_out=carried_out, times=1)
        with pytest.raises(TubeMQError):
            consumer.seek(HERE, 0)
        assert consumer.committed() == {HERE: 10 * ROW}
        assert take(consumer, 20) == numbered(20, 10)


@only_direct
def test_moves_that_follow_each_other_share_the_time_out_of_their_broker(server):
    with consumer_of(server, rpc_timeout_ms=2_000) as consumer, ThreadPoolExecutor(2) as threads:
        consumer.connect(HERE)
        server.faults.freeze_broker(HERE.broker_id)
        moves = [threads.submit(consumer.seek, HERE, 0) for _ in range(2)]
        errors = [str(move.exception()) for move in moves]
        server.faults.start_broker(HERE.broker_id)
    assert all("TUBEMQ_TIMEOUT" in error for error in errors)
    assert any("within 2000 ms while moving" in error for error in errors)


@only_direct
def test_a_fetch_under_way_is_not_waited_for(server):
    with connected(server, 30) as consumer:
        with server.faults.hold(Method.GET_MESSAGE):
            assert consumer.fetch(0) is None
            assert consumer._core.state.cache.being_fetched()
        moving = threading.Thread(target=consumer.seek, args=(HERE, 20 * ROW), daemon=True)
        moving.start()
        moving.join(20)
        assert consumer.committed() == {HERE: 20 * ROW}
        assert take(consumer, 10) == numbered(10, 20)


def test_paused_partitions_are_moved_and_stay_paused(server):
    with connected(server, 30) as consumer:
        consumer.pause(HERE)
        consumer.seek(HERE, 20 * ROW)
        assert consumer.fetch(200) is None
        consumer.resume()
        assert first(consumer.fetch()) == b"20"


def test_a_confirmation_that_brokers_were_not_told_of_does_not_count(server):
    if getattr(server, "gateways", ()):
        pytest.skip("through gateways no confirmation is local")
    with connected(server, 30, confirm_locally=True) as consumer:
        consumer.confirm(consumer.fetch())
        assert consumer.committed() == {HERE: 0}
        consumer.seek(HERE, 5 * ROW)
        assert take(consumer, 25) == numbered(25, 5)


def test_lag_counts_what_was_not_confirmed(server):
    with connected(server, 25) as consumer:
        batch = consumer.fetch()
        assert consumer.lag() == {HERE: 25}
        consumer.confirm(batch)
        assert consumer.lag(HERE) == {HERE: 15}
        produce(server, numbered(5), where=HERE)
        assert consumer.lag() == {HERE: 20}, "its broker was asked"


@only_direct
def test_a_broker_that_is_away_has_no_lag(server):
    with connected(server, rpc_timeout_ms=500) as consumer:
        consumer.connect(ELSEWHERE)
        server.faults.stop_broker(1)
        assert consumer.lag() == {HERE: None, ELSEWHERE: 0}


def test_a_member_of_a_group_has_lag_and_positions(server):
    produce(server, numbered(30), where=HERE)
    with member(server) as consumer:
        holding(consumer, HERE, ELSEWHERE)
        assert consumer.lag() == {HERE: 30, ELSEWHERE: 0}
        assert consumer.committed() == {HERE: 0, ELSEWHERE: 0}


@only_direct
def test_a_member_of_a_group_moves_the_group(server):
    produce(server, numbered(30), where=HERE)
    with member(server) as consumer:
        holding(consumer, HERE, ELSEWHERE)
        batch = consumer.fetch()
        consumer.seek(HERE, 20 * ROW)
        with pytest.raises(ConsumeError, match="TUBEMQ_CONFIRM_SOUGHT"):
            consumer.confirm(batch)
        assert first(consumer.fetch()) == b"20"
        consumer.seek_to_beginning(HERE)
        assert first(consumer.fetch()) == b"0"
        assert consumer.seek_to_time(datetime.datetime.now(datetime.UTC), HERE)[HERE].offset in (0, 30 * ROW)
        consumer.seek(HERE, 15 * ROW)
    with member(server) as consumer:
        holding(consumer, HERE)
        assert consumer.committed(HERE) == {HERE: 15 * ROW}, "also for the member that comes next"


def test_a_member_of_a_group_is_not_moved_through_gateways(server):
    if not getattr(server, "gateways", ()):
        pytest.skip("it is moved")
    with member(server) as consumer:
        holding(consumer, HERE)
        for call in (lambda: consumer.seek(HERE, 0), consumer.seek_to_end):
            with pytest.raises(ConsumeError, match="TUBEMQ_SEEK_UNSUPPORTED"):
                call()


def test_threads_that_move_a_partition_while_others_read_it(server):
    """Each batch begins where a move, or a confirmation, has led."""
    produce(server, numbered(100), where=HERE)
    stop = time.monotonic() + 1.5
    with connected(server, not_found_wait_ms=0) as consumer:

        def move():
            for number in itertools.count():
                if time.monotonic() > stop:
                    return
                assert consumer.seek(HERE, number % 10 * 10 * ROW).offset == number % 10 * 10 * ROW

        moving = threading.Thread(target=move)
        moving.start()
        while moving.is_alive():
            batch = consumer.fetch(100)
            if batch is None:
                continue
            begin = batch.offset // ROW
            assert [record.value for record in batch] == numbered(10, begin)
            with contextlib.suppress(ConsumeError):
                consumer.confirm(batch)
        moving.join()
        consumer.seek(HERE, 90 * ROW)
        assert take(consumer, 10) == numbered(10, 90)


def test_a_part_of_a_batch_is_confirmed_by_a_move_behind_it(server):
    with connected(server, 30) as consumer:
        batch = consumer.fetch()
        consumer.seek(HERE, batch.records[3].offset + ROW)
    with connected(server) as consumer:
        assert take(consumer, 26) == numbered(26, 4)
