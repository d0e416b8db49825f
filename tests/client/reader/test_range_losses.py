"""Records that are gone or damaged are never passed over in silence."""

import dataclasses

import pytest

from tests.client import model_broker as model
from tests.client.model_broker import Entry, Limits
from tests.client.ranges import ROW, SMALL, STORE, batches, broker_of, partition, read, values
from tubemq_spark.errors import DataLossError, TubeMQConnectionError, TubeMQTimeoutError
from tubemq_spark.offsets.loss import Loss, LossRecord, LossRecorder
from tubemq_spark.protocol.constants import Method

pytestmark = pytest.mark.usefixtures("quick_retries")


def lossy(broker, start, end, number=0, **more):
    recorder = LossRecorder()
    values = read(broker, start, end, number, on_loss=recorder, **more)
    return values, recorder.records


def loss(kind, start, end, number=0):
    return LossRecord(kind, partition(number), start, end)


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

        assert lossy(broker, 28, 14 * ROW, number=1) == ([], [loss(Loss.EXPIRED, 28, 20 * ROW, number=1)])


def test_a_range_beyond_the_logs_end_is_a_loss():
    with broker_of(10) as broker:
        with pytest.raises(DataLossError, match="its log now ends at 280") as caught:
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


BOTH_METHODS = pytest.mark.parametrize("method", [Method.PARTITION_REGISTER, Method.GET_MESSAGE])
FOR_EVER = 10_000


@BOTH_METHODS
def test_a_topic_that_is_gone_is_a_loss_of_what_was_left(method):
    with broker_of(9, limits=Limits(memory_entries=3)) as broker:
        broker.fault_of_method[method] = [model.refuse(403)] * FOR_EVER
        with pytest.raises(DataLossError) as caught:
            read(broker, 0, 9 * ROW, locate=lambda _: Loss.TOPIC_REMOVED)
        assert caught.value.condition == "TUBEMQ_DATA_LOSS.TOPIC_REMOVED"

    with broker_of(9, limits=Limits(memory_entries=3)) as broker:
        broker.fault_of_method[Method.GET_MESSAGE] = [model.nothing, model.refuse(403)]
        assert lossy(broker, 0, 9 * ROW, locate=lambda _: Loss.TOPIC_REMOVED) == (
            values(0, 3),
            [loss(Loss.TOPIC_REMOVED, 3 * ROW, 9 * ROW)],
        )


@BOTH_METHODS
def test_a_refusal_that_the_master_does_not_confirm_drops_nothing(method):
    """A broker answers 403 for all of its topics until its configuration is loaded."""
    with broker_of(9, limits=Limits(memory_entries=3)) as broker:
        broker.fault_of_method[method] = [model.nothing] + [model.refuse(403)] * 5
        assert lossy(broker, 0, 9 * ROW) == (values(0, 9), [])


def test_a_refusal_drops_nothing_while_no_master_answers():
    def no_master(_):
        raise TubeMQConnectionError("TUBEMQ_NO_MASTER", during="a test", tried="nobody")

    with broker_of(9) as broker:
        broker.fault_of_method[Method.GET_MESSAGE] = [model.refuse(403)] * 5
        assert lossy(broker, 0, 9 * ROW, locate=no_master) == (values(0, 9), [])


@BOTH_METHODS
def test_a_refusal_that_lasts_without_being_confirmed_is_named(method):
    with broker_of(9) as broker:
        broker.fault_of_method[method] = [model.refuse(403, "has been closed")] * FOR_EVER
        with pytest.raises(TubeMQTimeoutError, match=r"TUBEMQ_NO_PROGRESS.*has been closed"):
            lossy(broker, 0, 9 * ROW, fetch_timeout_ms=50)


@pytest.mark.parametrize("end", [5 * ROW, 12 * ROW])
@pytest.mark.parametrize("partitions", [1, 2], ids=["own store", "shared store"])
def test_a_closed_topic_is_read_to_its_end(partitions, end):
    """It can be fetched from until it is removed, but commits are refused."""
    own = {"own_store": partitions == 1}
    with broker_of(12, partitions, flushed=6, limits=SMALL) as broker:
        truth = broker.truth(partition(), ROW, end)
        broker.fault_of_method[Method.COMMIT_OFFSET] = [model.refuse(403, "has been closed")] * FOR_EVER
        assert lossy(broker, ROW, end, known=own) == (truth, [])


def test_records_of_a_closed_topic_that_expire_while_reading_are_a_loss():
    with broker_of(24, partitions=2, flushed=24, limits=Limits(file_entries=4, halving=False)) as broker:
        broker.fault_of_method[Method.COMMIT_OFFSET] = [model.refuse(403, "has been closed")] * FOR_EVER
        broker.fault_of_method[Method.GET_MESSAGE] = [model.nothing, expire(15)]
        found, losses = lossy(broker, 0, 24 * ROW)

        assert found == values(0, 4)[::2] + values(16, 24)[::2]
        assert losses == [loss(Loss.EXPIRED, 2 * ROW, 15 * ROW)]


def test_records_of_a_shared_store_that_all_expire_while_reading_are_a_loss():
    """The broker moves behind them and says only that it has found nothing."""
    with broker_of(24, partitions=2, flushed=24, limits=Limits(file_entries=4, halving=False)) as broker:
        broker.fault_of_method[Method.GET_MESSAGE] = [model.nothing, expire(24)]
        found, losses = lossy(broker, 0, 24 * ROW)

        assert found == values(0, 4)[::2]
        assert losses == [loss(Loss.EXPIRED, 4 * ROW, 24 * ROW)]


def test_a_partition_that_is_gone_is_a_loss_and_leaves_no_lease():
    with broker_of(9) as broker:
        assert lossy(broker, 0, 9 * ROW, number=5, locate=lambda _: Loss.PARTITION_REMOVED) == (
            [],
            [loss(Loss.PARTITION_REMOVED, 0, 9 * ROW, number=5)],
        )
        assert broker.leases() == []


def test_records_that_expire_between_confirming_and_fetching_are_a_loss():
    """The next fetch confirms the last one; the broker moves it behind what has expired without a word."""
    with broker_of(20, flushed=20, limits=Limits(file_entries=4, halving=False)) as broker:
        broker.fault_of_method[Method.GET_MESSAGE] = [model.nothing, model.nothing, expire(14)]
        found, losses = lossy(broker, 0, 20 * ROW, known=OWN)

        assert found == [*values(0, 8), *values(14, 20)]
        assert losses == [loss(Loss.EXPIRED, 8 * ROW, 14 * ROW)]
        assert broker.fault_of_method[Method.GET_MESSAGE] == []


OWN = {"own_store": True}


def broker_that_cannot_read(*numbers, count=12):
    broker = broker_of(count, flushed=count, limits=SMALL)
    for number in numbers:
        entries = broker.stores[STORE].entries
        entries[number] = dataclasses.replace(entries[number], readable=False)
    return broker


def test_records_that_the_broker_passes_over_are_a_loss():
    """Index and data expire apart, so a broker may have entries whose records are gone; it says nothing."""
    with broker_that_cannot_read(6) as broker:
        with pytest.raises(DataLossError, match="passed over") as caught:
            read(broker, 28, 12 * ROW, known=OWN)
        assert caught.value.condition == "TUBEMQ_DATA_LOSS.SKIPPED"

        found, losses = lossy(broker, 28, 12 * ROW, known=OWN)
        assert found == [*values(1, 6), *values(7, 12)]
        assert [loss.loss for loss in losses] == [Loss.SKIPPED]
        assert losses[0].start <= 6 * ROW < losses[0].end


def test_partitions_that_were_added_behind_a_range_hide_no_gap_in_it():
    with broker_that_cannot_read(6) as broker:
        broker.stores[STORE].append(1, [b"of another partition"])
        broker.stores[STORE].append(0, [b"value 13"])
        found, losses = lossy(broker, 0, 12 * ROW, known=OWN)
        assert found == [*values(0, 6), *values(7, 12)]
        assert [(one.loss, one.rows) for one in losses] == [(Loss.SKIPPED, 1)]


def test_records_of_other_partitions_are_none_that_are_missing():
    with broker_of(12, partitions=3, flushed=12, limits=SMALL) as broker:
        assert lossy(broker, 0, 12 * ROW) == (values(0, 12)[::3], [])


@pytest.mark.parametrize(("known", "rows"), [(OWN, (3, 4)), ({}, (None, None))], ids=["own", "shared"])
def test_lost_records_are_counted_where_offsets_tell_them(known, rows):
    with broker_of(10, flushed=10) as broker:
        broker.stores[STORE].first = 4
        _, losses = lossy(broker, ROW, 14 * ROW, known=known)

        assert losses == [loss(Loss.EXPIRED, ROW, 4 * ROW), loss(Loss.TRUNCATED, 10 * ROW, 14 * ROW)]
        assert tuple(one.rows for one in losses) == rows


def test_only_the_asked_records_are_counted():
    with broker_of(10, flushed=10) as broker:
        broker.stores[STORE].first = 4
        for start, end, lost in ((1, 3, 2), (12, 14, 2), (8, 14, 4)):
            _, (found,) = lossy(broker, start * ROW, end * ROW, known=OWN)
            assert found.rows == lost


def test_damaged_records_are_always_counted():
    with broker_of(12, partitions=2) as broker:
        for number in (4, 6, 5):
            broker.stores[STORE].entries[number] = Entry(number % 2, b"damaged", 77, sound=False)
        _, (found,) = lossy(broker, 0, 12 * ROW)
        assert found.rows == 2


@pytest.mark.parametrize("end", range(7, 13))
def test_records_that_the_broker_passes_over_are_counted_without_those_it_gives(end):
    with broker_that_cannot_read(2, 5, 6) as broker:
        _, losses = lossy(broker, 0, end * ROW, known=OWN)
        assert {one.loss for one in losses} == {Loss.SKIPPED}
        assert sum(one.rows for one in losses) == 3


def test_records_of_a_removed_topic_are_counted():
    with broker_of(9, limits=Limits(memory_entries=3)) as broker:
        broker.fault_of_method[Method.GET_MESSAGE] = [model.nothing, model.refuse(403)]
        _, (found,) = lossy(broker, 0, 9 * ROW, known=OWN, locate=lambda _: Loss.TOPIC_REMOVED)
        assert found.rows == (found.end - found.start) // ROW
