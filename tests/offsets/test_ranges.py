import pytest
from hypothesis import given, strategies as st

from tests.offsets import strategies as own
from tests.offsets.strategies import tp
from tubemq_spark.errors import DataLossError, OffsetFormatError, OptionError
from tubemq_spark.model import OffsetRange
from tubemq_spark.offsets.loss import Loss, LossRecord, LossRecorder, fail_on_loss
from tubemq_spark.offsets.offset_spec import Edge
from tubemq_spark.offsets.ranges import batch_ranges, ranges_between
from tubemq_spark.offsets.source_offset import SourceOffset, StartToken

ZERO, ONE, OTHER = tp("demo/1:0"), tp("demo/1:10000"), tp("orders/2:0")


@given(own.offset_maps, own.offset_maps, st.data())
def test_the_ranges_are_the_difference(known, next_offsets, data):
    first = {partition: data.draw(own.offsets) for partition in next_offsets.keys() - known.keys()}
    start, end = SourceOffset(known), SourceOffset(next_offsets, first)
    recorder = LossRecorder()
    ranges = ranges_between(start, end, recorder)
    assert ranges == ranges_between(start, end, LossRecorder())
    assert [found.partition for found in ranges] == sorted({found.partition for found in ranges})

    taken = {found.partition: found for found in ranges}
    lost = {record.partition: record for record in recorder.records}
    for partition in known.keys() | next_offsets.keys():
        begin = known.get(partition, first.get(partition))
        stop = next_offsets.get(partition)
        if stop is None:
            assert lost[partition].loss in (Loss.PARTITION_REMOVED, Loss.TOPIC_REMOVED)
            assert (lost[partition].start, lost[partition].end) == (begin, begin)
        elif stop < begin:
            assert lost[partition] == LossRecord(Loss.MOVED_BACK, partition, stop, begin)
        elif stop == begin:
            assert partition not in taken.keys() | lost.keys()
        else:
            assert taken[partition] == OffsetRange(partition, begin, stop)


@given(own.source_offsets())
def test_no_range_lies_between_an_offset_and_itself(offset):
    assert ranges_between(offset, offset, fail_on_loss) == []


@given(own.offset_maps)
def test_the_first_batch_begins_where_its_end_says(first):
    end = SourceOffset(
        {partition: offset // 56 * 28 for partition, offset in first.items()}, dict.fromkeys(first, 0)
    )
    ranges = ranges_between(StartToken(Edge.EARLIEST), end, fail_on_loss)
    assert {found.partition: (found.start, found.end) for found in ranges} == {
        partition: (0, offset) for partition, offset in end.next_offsets.items() if offset
    }


def test_removed_partitions_and_topics_are_told_apart():
    recorder = LossRecorder()
    start = SourceOffset({ZERO: 280, ONE: 28, OTHER: 0})
    assert ranges_between(start, SourceOffset({ZERO: 560}), recorder) == [OffsetRange(ZERO, 280, 560)]
    assert recorder.records == [
        LossRecord(Loss.PARTITION_REMOVED, ONE, 28, 28),
        LossRecord(Loss.TOPIC_REMOVED, OTHER, 0, 0),
    ]


@pytest.mark.parametrize("end", [SourceOffset({ZERO: 252}), SourceOffset({})])
def test_a_loss_in_a_replayed_batch_fails_it(end):
    with pytest.raises(DataLossError):
        ranges_between(SourceOffset({ZERO: 280}), end, fail_on_loss)


def test_a_new_partition_needs_a_begin():
    with pytest.raises(OffsetFormatError):
        ranges_between(SourceOffset({}), SourceOffset({ZERO: 28}), fail_on_loss)


def test_batch_ranges():
    assert batch_ranges({ONE: 28, ZERO: 0, OTHER: 56}, {ZERO: 280, OTHER: 56, ONE: 84}) == [
        OffsetRange(ZERO, 0, 280),
        OffsetRange(ONE, 28, 84),
    ]
    assert batch_ranges({}, {}) == []


def test_a_batch_that_ends_before_it_starts_is_refused():
    with pytest.raises(OptionError) as caught:
        batch_ranges({ZERO: 0, ONE: 280}, {ZERO: 28, ONE: 252})
    assert caught.value.condition == "TUBEMQ_START_AFTER_END"
    assert "demo/1:10000 would start at offset 280 and end before it, at 252" in str(caught.value)
