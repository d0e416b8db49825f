"""What a reader asks, what its batches tell, and what happens when nothing moves.

A reader that stands still tries again for a while, and tells so once.
"""

import asyncio
import itertools
import logging
import pickle
import time

import pytest

from tests.client import model_broker as model
from tests.client.model_broker import TOKEN, Limits, ModelBroker, Store
from tests.client.ranges import (
    ROW,
    SMALL,
    STORE,
    batches,
    broker_of,
    config,
    partition,
    read,
    values,
    values_of,
)
from tubemq_spark.client.broker import cursor
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.reader import range_reader
from tubemq_spark.client.reader.range_reader import Patience, read_range
from tubemq_spark.client.reader.topic_reader import read_in_thread
from tubemq_spark.errors import (
    LocalProtocolError,
    OffsetFormatError,
    RpcError,
    TubeMQConnectionError,
    TubeMQTimeoutError,
)
from tubemq_spark.model import Endpoint, OffsetRange, RangeRequest, Route, TopicPartition
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.retry import Pace
from tubemq_spark.offsets.loss import fail_on_loss
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.pb import broker_pb2

pytestmark = pytest.mark.usefixtures("quick_retries")


def read_of_no_broker(start, end):
    request = RangeRequest(OffsetRange(partition(), start, end), Route(Endpoint("127.0.0.1", 1), TOKEN))
    settings = ClientConfig((request.route.endpoint,), "etl")
    return read_in_thread(read_range(settings, Connections(), request), request.range, fail_on_loss)


def test_an_empty_range_asks_no_broker():
    assert list(read_of_no_broker(280, 280)) == []


@pytest.mark.parametrize(
    ("start", "end", "error"),
    [
        (0, 27, OffsetFormatError),
        (29, 56, OffsetFormatError),
        (-28, 56, OffsetFormatError),
        (56, 28, LocalProtocolError),
    ],
)
def test_a_range_that_is_none_is_refused_at_once(start, end, error):
    with pytest.raises(error):
        read_of_no_broker(start, end)


def test_a_request_travels_to_a_task():
    work = RangeRequest(OffsetRange(partition(), 0, 28), Route(Endpoint("host", 8123), TOKEN))

    assert pickle.loads(pickle.dumps(work)) == work


@pytest.mark.parametrize(("own_store", "commits"), [(True, 2), (False, 6)])
def test_a_step_costs_one_request_where_counting_proves_its_end(own_store, commits):
    """Only the first step and the last one are committed; in a shared store every one is."""
    with broker_of(18, limits=Limits(memory_entries=3)) as broker:
        assert len(read(broker, 0, 18 * ROW, known={"own_store": own_store})) == 18

        assert broker.counts() == {
            Method.PARTITION_REGISTER: 2,
            Method.GET_MESSAGE: 6,
            Method.COMMIT_OFFSET: commits,
        }
        assert broker.leases() == []


def test_only_a_fetch_that_finds_something_proves_that_counting_does():
    """So it is committed, as the one before it that finds nothing, and the last one."""
    with broker_of(18, limits=Limits(memory_entries=3)) as broker:
        broker.fault_of_method[Method.GET_MESSAGE] = [model.refuse(404)]

        assert read(broker, 0, 18 * ROW, known={"own_store": True}) == values(0, 18)
        assert broker.counts()[Method.COMMIT_OFFSET] == 3


def test_a_reader_sees_what_is_in_memory_whatever_the_cluster_s_default():
    with broker_of() as broker:
        read(broker, 0, 280)

        method, exchange = broker.requests[0]
        assert method == Method.PARTITION_REGISTER
        assert exchange.parse(broker_pb2.RegisterRequestC2B).qryPriorityId == 303


def test_a_broker_that_comes_back_elsewhere_is_found():
    with broker_of() as gone:
        pass
    with broker_of() as broker:
        found = read(gone, 0, 280, locate=lambda _: broker.endpoint, fetch_timeout_ms=60_000)

        assert found == values(0, 10)


def test_the_users_group_is_never_touched():
    with broker_of() as broker:
        read(broker, 0, 280)

        assert {group for group, _, _ in broker.holdings} <= set(config(broker).reader_groups)


def test_the_next_fetch_is_under_way_while_a_batch_is_worked_on():
    with broker_of(9, limits=Limits(memory_entries=3)) as broker:
        reading = batches(broker, 0, 9 * ROW)
        next(reading)
        deadline = time.monotonic() + 5
        while broker.counts()[Method.GET_MESSAGE] < 2 and time.monotonic() < deadline:
            time.sleep(0.001)

        assert broker.counts()[Method.GET_MESSAGE] == 2
        assert broker.counts()[Method.COMMIT_OFFSET] == 1
        reading.close()


def test_rows_of_a_dense_batch_have_offsets():
    with broker_of(10, flushed=10, limits=SMALL) as broker:
        seen = {}
        for batch in batches(broker, 2 * ROW, 9 * ROW):
            assert batch.dense
            assert batch.partition == partition()
            for ordinal, value in zip(batch.columns.ordinals.tolist(), values_of(batch), strict=True):
                seen[batch.start + ROW * ordinal] = value

    assert seen == {number * ROW: b"value %d" % number for number in range(2, 9)}


def test_batches_follow_each_other_and_end_with_the_range():
    with broker_of(30, partitions=3, flushed=15, limits=SMALL) as broker:
        found = list(batches(broker, 2 * ROW, 25 * ROW, number=1))

    assert not any(batch.dense for batch in found if batch.next - batch.start > ROW)
    assert all(first.next <= second.start for first, second in itertools.pairwise(found))
    assert found[0].start >= 2 * ROW
    assert found[-1].next <= 25 * ROW


def test_a_batch_that_goes_beyond_the_end_is_cut_by_counting_when_it_is_dense():
    with broker_of(10) as broker:
        (batch,) = batches(broker, 28, 5 * ROW)

        assert values_of(batch) == [b"value 1", b"value 2", b"value 3", b"value 4"]
        assert (batch.start, batch.next, batch.dense) == (28, 140, True)
        assert broker.counts()[Method.PARTITION_REGISTER] == 2


def test_a_batch_that_goes_beyond_the_end_is_cut_by_reading_from_the_end_when_it_is_not():
    with broker_of(30, partitions=3) as broker:
        (batch,) = batches(broker, 28, 14 * ROW, number=1)

        assert values_of(batch) == [b"value 1", b"value 4", b"value 7", b"value 10", b"value 13"]
        assert (batch.start, batch.next, batch.dense) == (28, 14 * ROW, False)
        assert broker.leases() == []


def test_flow_control_is_obeyed(monkeypatch):
    time = Time()
    monkeypatch.setattr(asyncio, "sleep", time.sleep)
    with broker_of() as broker:
        broker.fault_of_method[Method.GET_MESSAGE] = [
            model.refuse(452, wait_ms=7_000),
            model.refuse(452, wait_ms=-1),
        ]
        assert len(read(broker, 0, 280, fetch_timeout_ms=1_000)) == 10

    assert time.sleeps == [7.0, cursor._LEAST_PAUSE_MS / 1000]


def test_a_broker_that_brings_nothing_is_given_up_after_a_while():
    with broker_of() as broker:
        broker.fault_of_method[Method.GET_MESSAGE] = [model.refuse(404)] * 10_000
        with pytest.raises(TubeMQTimeoutError) as caught:
            read(broker, 28, 280, fetch_timeout_ms=50)

    assert caught.value.condition == "TUBEMQ_NO_PROGRESS"
    assert caught.value.parameters == {
        "partition": "demo/1:0",
        "position": 28,
        "end": 280,
        "timeout_ms": 50,
        "trouble": "the broker has nothing to read there",
    }


@pytest.mark.parametrize("fault", [model.refuse(503), model.break_down, model.hang_up])
def test_a_trouble_that_does_not_pass_is_told(fault):
    with broker_of() as broker:
        broker.fault_of_method[Method.GET_MESSAGE] = [fault] * 10_000
        with pytest.raises(TubeMQTimeoutError, match="TUBEMQ_NO_PROGRESS") as caught:
            read(broker, 0, 280, fetch_timeout_ms=50)
        assert caught.value.__cause__ is not None
        assert caught.value.__cause__.condition in str(caught.value)


def test_a_broker_that_is_not_there_is_told():
    with broker_of() as broker:
        pass
    with pytest.raises(TubeMQTimeoutError, match="Cannot connect"):
        read(broker, 0, 280, fetch_timeout_ms=50)


@pytest.mark.parametrize("code", [400, 455, 999])
def test_a_refusal_that_cannot_pass_is_an_error_at_once(code):
    with broker_of() as broker:
        broker.fault_of_method[Method.GET_MESSAGE] = [model.refuse(code)]
        with pytest.raises(RpcError) as caught:
            read(broker, 0, 280)
        assert caught.value.code == code
        assert broker.leases() == []


def test_passing_over_records_of_other_partitions_is_progress(monkeypatch):
    """The broker refuses for a while before each step, and all together for longer than a reader waits."""
    time = Time()
    began = time.now
    monkeypatch.setattr(range_reader, "Patience", lambda *of: Patience(*of[:2], time.clock))
    monkeypatch.setattr(asyncio, "sleep", time.sleep)
    monkeypatch.setattr(Pace, "after_ms", lambda *_: 500)
    store = Store()
    store.append(0, values(0, 12))
    with ModelBroker({STORE: store}, 2, Limits(memory_entries=3)) as broker:
        broker.fault_of_method[Method.GET_MESSAGE] = [*[model.refuse(503)] * 6, model.nothing] * 4

        assert read(broker, 0, 12 * ROW, number=1, fetch_timeout_ms=3_000) == []

    assert time.now > began + 3


def test_the_callers_time_is_no_standstill(monkeypatch):
    time = Time()
    monkeypatch.setattr(range_reader, "Patience", lambda *of: Patience(*of[:2], time.clock))
    with broker_of(9, limits=Limits(memory_entries=3)) as broker:
        broker.fault_of_method[Method.GET_MESSAGE] = [model.nothing, model.refuse(503)]
        found = []
        for batch in batches(broker, 0, 9 * ROW, fetch_timeout_ms=5_000):
            found += values_of(batch)
            time.now += 6

        assert found == values(0, 9)


def test_the_time_of_a_loss_policy_is_no_standstill(monkeypatch):
    time = Time()
    monkeypatch.setattr(range_reader, "Patience", lambda *of: Patience(*of[:2], time.clock))
    with broker_of(9, flushed=9, limits=SMALL) as broker:
        broker.stores[STORE].first = 4
        broker.fault_of_method[Method.GET_MESSAGE] = [model.refuse(503)]

        def take_long(_):
            time.now += 6

        assert read(broker, 0, 9 * ROW, on_loss=take_long, fetch_timeout_ms=5_000) == values(4, 9)


def test_a_lease_lost_while_the_caller_worked_is_taken_again():
    with broker_of(12, flushed=12, limits=SMALL) as broker:
        found = []
        for batch in batches(broker, 0, 12 * ROW):
            found += values_of(batch)
            broker.time_out_leases()

        assert found == values(0, 12)


ASKED = OffsetRange(TopicPartition("demo", 3, 0), 0, 280)
AWAY = TubeMQConnectionError("TUBEMQ_CONNECT_FAILED", endpoint="broker:8123", cause="refused")


class Time:
    """Passes only while somebody waits."""

    def __init__(self):
        self.now = 1_000.0
        self.sleeps = []

    def clock(self):
        return self.now

    async def sleep(self, seconds):
        self.sleeps.append(seconds)
        self.now += seconds


@pytest.fixture
def clock():
    return Time()


@pytest.fixture
def patience(clock):
    return Patience(ASKED, 600_000, clock.clock)


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.INFO)
    return lambda: [(record.levelname, record.getMessage()) for record in caplog.records]


def stand_still(patience, clock, seconds):
    until = clock.now + seconds
    while clock.now < until:
        clock.now += patience.next_pause_s(AWAY, 112)


def test_an_outage_is_told_once_and_its_end_with_how_long_it_took(patience, clock, warnings):
    stand_still(patience, clock, 75)
    patience.progress()
    patience.progress()

    (away, back) = warnings()
    assert away[0] == back[0] == "WARNING"
    assert "demo/3:0 has stopped at offset 112" in away[1]
    assert "tubemq.fetchTimeoutMs" in away[1]
    assert "broker:8123" in away[1]
    assert "demo/3:0 resumed after 7" in back[1]


def test_a_short_interruption_is_not_told(patience, clock, warnings):
    for _ in range(5):
        stand_still(patience, clock, 2)
        patience.progress()

    assert warnings() == []


def test_the_second_outage_is_told_again(patience, clock, warnings):
    for _ in range(2):
        stand_still(patience, clock, 10)
        patience.progress()

    assert len(warnings()) == 4


def test_without_progress_the_time_is_up(patience, clock):
    began = clock.now
    with pytest.raises(TubeMQTimeoutError, match="600000 ms") as caught:
        stand_still(patience, clock, 700)

    assert caught.value.condition == "TUBEMQ_NO_PROGRESS"
    assert caught.value.__cause__ is AWAY
    assert 600 <= clock.now - began < 602


def test_progress_gives_all_the_time_again(patience, clock):
    for _ in range(3):
        stand_still(patience, clock, 500)
        patience.progress()
