"""The ranges that are read between two offsets."""

from collections.abc import Mapping

from tubemq_spark.errors import OptionError
from tubemq_spark.model import OffsetRange, TopicPartition
from tubemq_spark.offsets.audit import removals
from tubemq_spark.offsets.loss import Loss, LossPolicy, LossRecord
from tubemq_spark.offsets.source_offset import SourceOffset, StreamOffset, start_of


def ranges_between(start: StreamOffset, end: SourceOffset, on_loss: LossPolicy) -> list[OffsetRange]:
    """Return the ranges of a micro-batch, ordered by partition, without empty ones.

    A function of its arguments alone, so that the replay of a batch reads the same records. A partition of
    ``start`` that ``end`` lacks was removed; one that ``end`` puts before ``start`` moved back; and of some
    ``end`` says that their logs were replaced. All were reported when ``end`` was made, and are reported
    again here, since this may be the replay of a batch that another run of the query planned.
    """
    if start == end:
        return []
    for loss in removals(start.next_offsets, end.next_offsets.keys()):
        on_loss(loss)
    ranges = []
    for partition in sorted(end.next_offsets):
        begin, stop = start_of(partition, start, end), end.next_offsets[partition]
        if partition in end.replaced and partition in start.next_offsets:
            reached = start.next_offsets[partition]
            on_loss(LossRecord(Loss.REPLACED, partition, reached, reached))
        if stop < begin:
            on_loss(LossRecord(Loss.MOVED_BACK, partition, stop, begin))
        elif begin < stop:
            ranges.append(OffsetRange(partition, begin, stop))
    return ranges


def batch_ranges(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> list[OffsetRange]:
    """Return the ranges of a batch read, ordered by partition, without empty ones."""
    ranges = [OffsetRange(partition, starts[partition], ends[partition]) for partition in sorted(starts)]
    for backward in ranges:
        if backward.end < backward.start:
            raise OptionError(
                "TUBEMQ_START_AFTER_END",
                partition=backward.partition,
                start=backward.start,
                end=backward.end,
            )
    return [range_ for range_ in ranges if range_.start < range_.end]
