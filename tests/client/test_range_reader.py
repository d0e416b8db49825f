"""Ranges are read exactly, against a broker that keeps offsets as the Java broker does."""

import gc
import itertools
import pickle
import time

import pytest
from hypothesis import given, settings, strategies as st

from tests.client import model_broker as model
from tests.client.model_broker import BROKER_ID, TOKEN, Entry, Limits, ModelBroker, Store
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.range_reader import RangeRequest, read_range
from tubemq_spark.errors import (
    DataLossError,
    LocalProtocolError,
    OffsetFormatError,
    RpcError,
    TubeMQTimeoutError,
)
from tubemq_spark.model import Endpoint, OffsetRange, StoreId, TopicPartition
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.offsets.loss import Loss, LossRecord, LossRecorder, fail_on_loss
from tubemq_spark.protocol.constants import Method, OpType
from tubemq_spark.protocol.pb import broker_pb2

TOPIC = "demo"
STORE = StoreId(TOPIC, BROKER_ID, 0)
ROW = 28


def partition(number=0):
    return TopicPartition(TOPIC, BROKER_ID, number)


def config(broker, **changes):
    settings = {"rpc_timeout_ms": 2_000, "fetch_timeout_ms": 5_000, "lease_wait_ms": 2_000, **changes}
    return ClientConfig((broker.endpoint,), "etl", **settings).validate()


def hurry(seconds):
    time.sleep(min(seconds, 0.001))


def request(broker, start, end, number=0, token=TOKEN):
    return RangeRequest(OffsetRange(partition(number), start, end), broker.endpoint, token)


def batches(broker, start, end, number=0, on_loss=fail_on_loss, token=TOKEN, **changes):
    with ChannelPool() as pool:
        yield from read_range(
            config(broker, **changes), pool, request(broker, start, end, number, token), on_loss, hurry
        )


def values_of(batch):
    return [batch.columns.message(row).value for row in range(len(batch.columns))]


def read(broker, start, end, number=0, **more):
    return [value for batch in batches(broker, start, end, number, **more) for value in values_of(batch)]


def broker_of(count=10, partitions=1, flushed=0, limits=None):
    """A broker with ``count`` records in turn over the partitions of one store."""
    store = Store()
    for number in range(count):
        store.append(number % partitions, [b"value %d" % number])
    store.flushed = flushed
    return ModelBroker({STORE: store}, partitions, limits)


SMALL = Limits(file_entries=4, memory_entries=3, segment_entries=5)


# --- the law -----------------------------------------------------------------------------------------

entries = st.lists(
    st.tuples(st.integers(0, 2), st.binary(max_size=40), st.sampled_from([True] * 9 + [False])), max_size=40
)
limits = st.builds(
    Limits,
    file_entries=st.integers(1, 9),
    memory_entries=st.integers(1, 9),
    first_bytes=st.integers(1, 500),
    later_bytes=st.integers(1, 500),
    segment_entries=st.integers(1, 12),
    halving=st.booleans(),
)
faults = st.dictionaries(st.integers(0, 60), st.sampled_from(list(model.QUICK_FAULTS.values())), max_size=6)
slow_faults = st.dictionaries(
    st.integers(0, 40), st.sampled_from(list(model.SLOW_FAULTS.values())), max_size=2
)


def law_holds(rows, partitions, flushed, most, places, faults, **changes):
    """Read every partition in pieces; each piece must bring exactly its records."""
    store = Store(flushed=min(flushed, len(rows)))
    for number, (index, value, readable) in enumerate(rows):
        store.entries.append(Entry(index % partitions, value, 1_000_003 * number % 999_983, readable))
    cuts = sorted({0, len(rows), *(place % (len(rows) + 1) for place in places)})
    with ModelBroker({STORE: store}, partitions, most) as broker:
        broker.faults = dict(faults)
        for number in range(partitions):
            for start, end in itertools.pairwise(cut * ROW for cut in cuts):
                expected = broker.truth(partition(number), start, end)
                assert read(broker, start, end, number, **changes) == expected
        assert not broker.leases() or faults


@settings(max_examples=150, deadline=None)
@given(entries, st.integers(1, 3), st.integers(0, 40), limits, st.lists(st.integers(0, 40), max_size=4))
def test_ranges_bring_exactly_their_records(rows, partitions, flushed, most, places):
    law_holds(rows, partitions, flushed, most, places, {})


@settings(max_examples=150, deadline=None)
@given(
    entries, st.integers(1, 3), st.integers(0, 40), limits, st.lists(st.integers(0, 40), max_size=3), faults
)
def test_whatever_goes_wrong_ranges_bring_exactly_their_records(
    rows, partitions, flushed, most, places, faults
):
    law_holds(rows, partitions, flushed, most, places, faults)


@settings(max_examples=25, deadline=None)
@given(
    entries,
    st.integers(1, 3),
    st.integers(0, 40),
    limits,
    st.lists(st.integers(0, 40), max_size=2),
    slow_faults,
)
def test_unanswered_and_late_requests_change_nothing(rows, partitions, flushed, most, places, faults):
    law_holds(rows, partitions, flushed, most, places, faults, rpc_timeout_ms=40)


QUICK = {name: (fault, 2_000) for name, fault in model.QUICK_FAULTS.items()}
SLOW = {name: (fault, 30) for name, fault in model.SLOW_FAULTS.items()}


@pytest.mark.parametrize("method", [Method.PARTITION_REGISTER, Method.GET_MESSAGE, Method.COMMIT_OFFSET])
@pytest.mark.parametrize(("fault", "rpc_timeout_ms"), [*QUICK.values(), *SLOW.values()], ids=[*QUICK, *SLOW])
def test_every_fault_at_every_request_of_a_kind(method, fault, rpc_timeout_ms):
    with broker_of(12, partitions=2, flushed=6, limits=SMALL) as broker:
        truth = broker.truth(partition(), 56, 280)
        for place in itertools.count():
            broker.fault_of_method[method] = [model.nothing] * place + [fault]
            assert read(broker, 56, 280, rpc_timeout_ms=rpc_timeout_ms) == truth
            if broker.fault_of_method[method]:
                break
        assert place > 1


# --- what is asked, and what is not ---------------------------------------------------------------------


def test_an_empty_range_asks_no_broker():
    nobody = RangeRequest(OffsetRange(partition(), 280, 280), Endpoint("127.0.0.1", 1), TOKEN)
    with ChannelPool() as pool:
        assert list(read_range(ClientConfig((nobody.endpoint,), "etl"), pool, nobody, fail_on_loss)) == []


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
    nobody = RangeRequest(OffsetRange(partition(), start, end), Endpoint("127.0.0.1", 1), TOKEN)
    with ChannelPool() as pool, pytest.raises(error):
        read_range(ClientConfig((nobody.endpoint,), "etl"), pool, nobody, fail_on_loss)


def test_a_request_travels_to_a_task():
    work = RangeRequest(OffsetRange(partition(), 0, 28), Endpoint("host", 8123), TOKEN)

    assert pickle.loads(pickle.dumps(work)) == work


def test_a_dense_range_costs_a_fetch_and_a_commit_a_batch():
    with broker_of(9, limits=Limits(memory_entries=3)) as broker:
        assert len(read(broker, 0, 9 * ROW)) == 9

        assert broker.counts() == {
            Method.PARTITION_REGISTER: 2,
            Method.GET_MESSAGE: 3,
            Method.COMMIT_OFFSET: 3,
        }
        assert broker.leases() == []


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


# --- what a batch tells ---------------------------------------------------------------------------------


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


# --- losses ---------------------------------------------------------------------------------------------


def lossy(broker, start, end, number=0, **more):
    recorder = LossRecorder()
    values = read(broker, start, end, number, on_loss=recorder, **more)
    return values, recorder.records


def loss(kind, start, end, number=0):
    return LossRecord(kind, partition(number), start, end)


def values(start, end):
    return [b"value %d" % number for number in range(start, end)]


def expire(first):
    def fault(broker, exchange):
        broker.stores[STORE].first = first
        return False

    return fault


def test_records_that_expired_before_are_a_loss():
    with broker_of(10, flushed=10) as broker:
        broker.stores[STORE].first = 4
        with pytest.raises(DataLossError, match="retention") as caught:
            read(broker, 28, 280)
        assert caught.value.condition == "TUBEMQ_DATA_LOSS.EXPIRED"
        assert broker.leases() == []

        assert lossy(broker, 28, 280) == (values(4, 10), [loss(Loss.EXPIRED, 28, 112)])
        assert lossy(broker, 28, 84) == ([], [loss(Loss.EXPIRED, 28, 112)])
        assert lossy(broker, 112, 280) == (values(4, 10), [])


def test_records_that_expire_while_reading_are_a_loss():
    with broker_of(12, flushed=12, limits=SMALL) as broker:
        broker.fault_of_method[Method.GET_MESSAGE] = [model.nothing, model.nothing, expire(7)]
        found, losses = lossy(broker, 0, 12 * ROW)

        assert found == [*values(0, 4), *values(7, 12)]
        assert losses == [loss(Loss.EXPIRED, 4 * ROW, 7 * ROW)]


def test_records_that_expire_while_the_end_is_looked_for_are_a_loss():
    with broker_of(30, partitions=3, flushed=30, limits=Limits(halving=False)) as broker:
        broker.fault_of_method[Method.PARTITION_REGISTER] = [model.nothing, model.nothing, expire(20)]

        assert lossy(broker, 28, 14 * ROW, number=1) == (
            [],
            [loss(Loss.EXPIRED, 28, 20 * ROW, number=1)],
        )


def test_a_range_beyond_the_logs_end_is_a_loss():
    with broker_of(10) as broker:
        with pytest.raises(DataLossError, match="its log ends at 280") as caught:
            read(broker, 140, 336)
        assert caught.value.condition == "TUBEMQ_DATA_LOSS.TRUNCATED"

        assert lossy(broker, 140, 336) == (values(5, 10), [loss(Loss.TRUNCATED, 280, 336)])
        assert lossy(broker, 280, 336) == ([], [loss(Loss.TRUNCATED, 280, 336)])
        assert lossy(broker, 308, 336) == ([], [loss(Loss.TRUNCATED, 280, 336)])


def crash(broker, exchange):
    broker.crash()
    return True


def test_what_a_crash_takes_while_reading_is_a_loss():
    with broker_of(12, flushed=8, limits=SMALL) as broker:
        broker.fault_of_method[Method.GET_MESSAGE] = [model.nothing] * 3 + [crash]
        found, losses = lossy(broker, 0, 12 * ROW)

        assert found == values(0, 8)
        assert losses == [loss(Loss.TRUNCATED, 8 * ROW, 12 * ROW)]


def test_damaged_records_are_a_loss_of_one_offset_each_when_offsets_are_known():
    with broker_of(6) as broker:
        log = broker.stores[STORE].entries
        for number in (1, 4):
            log[number] = Entry(0, b"damaged", 77, sound=False)
        with pytest.raises(DataLossError, match="damaged"):
            read(broker, 0, 6 * ROW)

        assert lossy(broker, 0, 4 * ROW) == (
            [b"value 0", b"value 2", b"value 3"],
            [loss(Loss.CORRUPT, ROW, 2 * ROW)],
        )
        assert lossy(broker, ROW, 2 * ROW) == ([], [loss(Loss.CORRUPT, ROW, 2 * ROW)])
        ((batch,), records) = list_lossy(broker, 2 * ROW, 6 * ROW)
        assert batch.columns.ordinals.tolist() == [0, 1, 3]
        assert records == [loss(Loss.CORRUPT, 4 * ROW, 5 * ROW)]


def list_lossy(broker, start, end):
    recorder = LossRecorder()
    return list(batches(broker, start, end, on_loss=recorder)), recorder.records


def test_damaged_records_between_those_of_others_are_a_loss_of_the_whole_batch():
    with broker_of(12, partitions=2) as broker:
        broker.stores[STORE].entries[4] = Entry(0, b"damaged", 77, sound=False)

        assert lossy(broker, 0, 12 * ROW) == (
            [b"value 0", b"value 2", b"value 6", b"value 8", b"value 10"],
            [loss(Loss.CORRUPT, 0, 12 * ROW)],
        )
        assert lossy(broker, 0, 4 * ROW) == ([b"value 0", b"value 2"], [])
        assert lossy(broker, 0, 5 * ROW) == ([b"value 0", b"value 2"], [loss(Loss.CORRUPT, 0, 5 * ROW)])


@pytest.mark.parametrize("end", range(1, 12))
def test_damaged_records_at_the_cut_count_like_others(end):
    with broker_of(12, partitions=2, limits=Limits(memory_entries=5)) as broker:
        for number in (2, 4, 6, 10):
            broker.stores[STORE].entries[number] = Entry(0, b"damaged", 77, sound=False)
        found, _ = lossy(broker, 0, end * ROW)

        assert found == broker.truth(partition(), 0, end * ROW)


@pytest.mark.parametrize("end", range(4, 20))
@pytest.mark.parametrize("damaged", [(6,), (6, 12), (6, 8)])
def test_damaged_records_in_several_batches_behind_the_cut_count_like_others(end, damaged):
    # The first fetch of a lease brings one record, so what one fetch brought before the end takes several
    # to be read again behind it.
    most = Limits(first_bytes=1, segment_entries=10, halving=False)
    with broker_of(20, partitions=2, flushed=20, limits=most) as broker:
        for number in damaged:
            broker.stores[STORE].entries[number] = Entry(0, b"damaged", 77, sound=False)
        found, losses = lossy(broker, 0, end * ROW)

        assert found == broker.truth(partition(), 0, end * ROW)
        assert bool(losses) == any(number < end for number in damaged)


@pytest.mark.parametrize("method", [Method.PARTITION_REGISTER, Method.GET_MESSAGE, Method.COMMIT_OFFSET])
def test_a_topic_that_is_gone_is_a_loss_of_what_was_left(method):
    with broker_of(9, limits=Limits(memory_entries=3)) as broker:
        broker.fault_of_method[method] = [model.refuse(403)]
        with pytest.raises(DataLossError) as caught:
            read(broker, 0, 9 * ROW)
        assert caught.value.condition == "TUBEMQ_DATA_LOSS.TOPIC_REMOVED"

    with broker_of(9, limits=Limits(memory_entries=3)) as broker:
        broker.fault_of_method[Method.GET_MESSAGE] = [model.nothing, model.refuse(403)]
        assert lossy(broker, 0, 9 * ROW) == (values(0, 3), [loss(Loss.TOPIC_REMOVED, 3 * ROW, 9 * ROW)])


def test_a_partition_that_is_gone_is_a_loss_and_leaves_no_lease():
    with broker_of(9) as broker:
        assert lossy(broker, 0, 9 * ROW, number=5) == (
            [],
            [loss(Loss.PARTITION_REMOVED, 0, 9 * ROW, number=5)],
        )
        assert broker.leases() == []


# --- leases ---------------------------------------------------------------------------------------------


def take_all_groups(broker, but=0):
    for group in config(broker).reader_groups[but:]:
        broker.holdings[group, TOPIC, 0].owner = "somebody else"


def test_a_reader_takes_the_one_group_that_is_free():
    with broker_of() as broker:
        take_all_groups(broker, but=1)

        assert len(read(broker, 0, 280)) == 10
        assert len(broker.leases()) == 15


def test_a_reader_waits_for_a_lease_that_times_out():
    with broker_of() as broker:
        take_all_groups(broker)
        broker.fault_of_method[Method.PARTITION_REGISTER] = [model.nothing] * 16 + [model.time_out_leases]

        assert len(read(broker, 0, 280)) == 10


def test_all_groups_taken_for_too_long_is_an_error_that_names_them():
    with broker_of() as broker:
        take_all_groups(broker)
        with pytest.raises(TubeMQTimeoutError, match="All 16 reader groups are taken for demo/1:0"):
            read(broker, 0, 280, lease_wait_ms=20)

        asked = [exchange.parse(broker_pb2.RegisterRequestC2B).opType for _, exchange in broker.requests]
        assert set(asked) == {OpType.REGISTER}


def test_readers_of_one_partition_do_not_disturb_each_other():
    with broker_of(40, partitions=2, flushed=20, limits=SMALL) as broker:
        truth = broker.truth(partition(), 0, 40 * ROW)
        readers = [batches(broker, 0, 40 * ROW) for _ in range(8)]
        seen = [[] for _ in readers]
        for rounds in itertools.zip_longest(*readers):
            for found, batch in zip(seen, rounds, strict=True):
                found.extend(values_of(batch) if batch is not None else [])

        assert seen == [truth] * 8


def test_an_abandoned_reader_gives_its_lease_back_at_once():
    with broker_of(40, limits=SMALL) as broker:
        reading = batches(broker, 0, 40 * ROW)
        next(reading)
        assert len(broker.leases()) == 1

        reading.close()
        assert broker.leases() == []


def test_an_abandoned_reader_waits_for_no_fetch():
    with broker_of(40, limits=SMALL) as broker, ChannelPool() as pool:
        broker.fault_of_method[Method.GET_MESSAGE] = [model.nothing, model.swallow]
        reading = read_range(config(broker), pool, request(broker, 0, 40 * ROW), fail_on_loss, hurry)
        next(reading)
        reading.close()

        assert pool.get(broker.endpoint)._connection.in_flight == frozenset()


def test_a_reader_that_nobody_keeps_gives_its_lease_back():
    with broker_of(40, limits=SMALL) as broker:
        reading = batches(broker, 0, 40 * ROW)
        next(reading)
        del reading
        gc.collect()

        assert broker.leases() == []


def test_a_reader_that_was_never_asked_holds_nothing():
    with broker_of() as broker:
        batches(broker, 0, 280).close()

        assert broker.requests == []


def test_a_policy_that_raises_gives_the_lease_back():
    with broker_of(10) as broker:
        with pytest.raises(DataLossError):
            read(broker, 140, 336)

        assert broker.leases() == []


def test_an_old_visit_token_is_renewed_once():
    with broker_of() as broker:
        broker.valid_tokens = {TOKEN + 5}

        assert len(read(broker, 0, 280, token=TOKEN)) == 10
        assert broker.leases() == []


def test_a_token_that_stays_wrong_is_an_error():
    with broker_of() as broker:
        broker.fault_of_method[Method.PARTITION_REGISTER] = [model.refuse(415)] * 2
        with pytest.raises(RpcError) as caught:
            read(broker, 0, 280)
        assert caught.value.code == 415


# --- standing still ---------------------------------------------------------------------------------------


def test_flow_control_is_obeyed():
    waited = []
    with broker_of() as broker, ChannelPool() as pool:
        broker.fault_of_method[Method.GET_MESSAGE] = [
            model.refuse(452, wait_ms=7_000),
            model.refuse(452, wait_ms=-1),
        ]
        settings = config(broker, fetch_timeout_ms=1_000)
        found = list(read_range(settings, pool, request(broker, 0, 280), fail_on_loss, waited.append))

    assert sum(len(batch.columns) for batch in found) == 10
    assert waited == [7.0, 0.1]


def test_a_broker_that_brings_nothing_is_given_up_after_a_while():
    with broker_of() as broker:
        broker.fault_of_method[Method.GET_MESSAGE] = [model.refuse(404)] * 10_000
        with pytest.raises(TubeMQTimeoutError) as caught:
            read(broker, 28, 280, fetch_timeout_ms=50)

    assert caught.value.condition == "TUBEMQ_NO_PROGRESS"
    assert {
        name: caught.value.parameters[name] for name in ("partition", "position", "end", "timeout_ms")
    } == {
        "partition": "demo/1:0",
        "position": 28,
        "end": 280,
        "timeout_ms": 50,
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


def test_the_callers_time_is_no_standstill():
    with broker_of(9, limits=Limits(memory_entries=3)) as broker:
        broker.fault_of_method[Method.GET_MESSAGE] = [model.nothing, model.refuse(503)]
        found = []
        for batch in batches(broker, 0, 9 * ROW, fetch_timeout_ms=60):
            found += values_of(batch)
            time.sleep(0.08)

        assert found == values(0, 9)


def test_a_lease_lost_while_the_caller_worked_is_taken_again():
    with broker_of(12, flushed=12, limits=SMALL) as broker:
        found = []
        for batch in batches(broker, 0, 12 * ROW):
            found += values_of(batch)
            broker.time_out_leases()

        assert found == values(0, 12)
