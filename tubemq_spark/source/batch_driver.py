"""Planning a batch read on the driver: where it begins and ends, and what its tasks are."""

from collections.abc import Iterable, Mapping

from tubemq_spark.cluster.base import Cluster
from tubemq_spark.errors import OptionError
from tubemq_spark.model import OffsetBounds, StoreId, TopicPartition
from tubemq_spark.offsets.ledger import Origin
from tubemq_spark.offsets.loss import LossPolicy
from tubemq_spark.offsets.offset_spec import (
    Edge,
    begun_again,
    passed_marks,
    resolve,
    stores_started_at_earliest,
    timestamps,
)
from tubemq_spark.offsets.ranges import batch_ranges
from tubemq_spark.options import ReadOptions
from tubemq_spark.source.advice import NullOffsetWarning
from tubemq_spark.source.loss_ledger import LossesOfDriver, LossLedger, Work
from tubemq_spark.source.marks import Marks
from tubemq_spark.source.planner import Planner
from tubemq_spark.source.visibility import Snapshot


def plan_batch(
    options: ReadOptions,
    columns: Iterable[str],
    origin: Origin,
    policy: LossPolicy,
    cluster: Cluster | None = None,
) -> list[Work]:
    """Return the tasks of a frame, of which ``latest`` is where the topics end now."""
    ledger = LossLedger(options)
    on_loss = LossesOfDriver(policy, ledger, lambda: origin)
    ledger.prepare()
    types = options.cluster.client.message_types
    planner = Planner(options, cluster)
    snapshot = planner.complete_snapshot()
    partitions = snapshot.layout.partitions.keys()
    NullOffsetWarning(columns, filtered=bool(types)).check(snapshot.layout)
    marks = Marks(lambda: planner.of_all_types, options.cluster.client.rpc_timeout_ms)
    looked = marks.look(passed_marks(options.starting), snapshot.layout, patient=True)
    starting = planner.with_offsets(options.starting, snapshot, edge="starting")
    starting = begun_again(starting, looked.replaced, on_loss)
    ending = planner.with_offsets(options.ending or Edge.LATEST, snapshot, edge="ending")
    begins = stores_started_at_earliest(starting, partitions, snapshot.bounds)
    readable = planner.readable_bounds(snapshot, begins, patient=True)
    starts = resolve(
        starting, partitions, readable, option="startingOffsets", on_loss=on_loss, ends=snapshot.ends
    )
    ends = resolve(
        ending, partitions, snapshot.bounds, option="endingOffsets", on_loss=on_loss, ends=snapshot.ends
    )
    _refuse_invisible(ends, snapshot.ends)
    ranges = batch_ranges(_not_beyond(ends, starts, snapshot, readable, options), ends)
    tasks = planner.partitions(ranges, partitions, on_loss)
    on_loss.write(() if types else snapshot.layout.alone_in_store)
    return tasks


def _refuse_invisible(ends: Mapping[TopicPartition, int], visible: Mapping[StoreId, int]) -> None:
    """Refuse to end beyond what may be read: a frame that is read again must have the same rows."""
    for partition, end in sorted(ends.items()):
        if end > visible[partition.store_id]:
            raise OptionError(
                "TUBEMQ_OFFSET_NOT_FLUSHED",
                option="endingOffsets",
                partition=partition,
                offset=end,
                flushed=visible[partition.store_id],
            )


def _not_beyond(
    ends: Mapping[TopicPartition, int],
    starts: Mapping[TopicPartition, int],
    snapshot: Snapshot,
    readable: Mapping[StoreId, OffsetBounds],
    options: ReadOptions,
) -> dict[TopicPartition, int]:
    """Return the starts, but the end where nothing before the end can be read: an empty range, no mistake."""
    first = timestamps(options.starting, starts)
    last = timestamps(options.ending or Edge.LATEST, ends)

    def start_of(partition: TopicPartition) -> int:
        start, store = starts[partition], partition.store_id
        lifted = start == readable[store].earliest > snapshot.bounds[store].earliest
        invisible = start > snapshot.ends[store]
        # Where no record is of a time in the range, each end is as good as the other.
        no_record = partition in first and partition in last and first[partition].ms <= last[partition].ms
        return min(start, ends[partition]) if lifted or invisible or no_record else start

    return {partition: start_of(partition) for partition in starts}
