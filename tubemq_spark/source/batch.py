"""The batch source: ``spark.read.format("tubemq")`` reads a range of history."""

import uuid
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tubemq_spark.errors import OptionError
from tubemq_spark.model import OffsetBounds, StoreId, TopicPartition
from tubemq_spark.offsets.ledger import batch_read
from tubemq_spark.offsets.offset_spec import Edge, resolve, stores_started_at_earliest, timestamps
from tubemq_spark.offsets.ranges import batch_ranges
from tubemq_spark.options import ReadOptions
from tubemq_spark.source.loss_ledger import LossesOfDriver, LossLedger, loss_policy
from tubemq_spark.source.null_offset_warning import NullOffsetWarning
from tubemq_spark.source.planner import Planner
from tubemq_spark.source.schema import check_schema, message_columns
from tubemq_spark.source.snapshot import Snapshot
from tubemq_spark.source.task import run_task
from tubemq_spark.spark.edge import at_sparks_edge


@at_sparks_edge
class TubeMQReader(DataSourceReader):
    """Holds values only: Spark pickles it to every task.

    A frame is a snapshot: Spark asks for its partitions once, at the first action, and ``latest`` is
    where the topics end at that moment.
    """

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        check_schema(schema, message_columns(options.payload))
        self._schema = schema
        self._options = options
        self._origin = batch_read(options.cluster.client.group, uuid.uuid4().hex)

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks (driver)."""
        options, ledger = self._options, LossLedger(self._options)
        on_loss = LossesOfDriver(loss_policy(options), ledger, lambda: self._origin)
        ledger.prepare()
        types = options.cluster.client.message_types
        planner = Planner(options)
        snapshot = planner.complete_snapshot()
        partitions = snapshot.layout.partitions.keys()
        NullOffsetWarning(self._schema.names, filtered=bool(types)).check(snapshot.layout)
        starting = planner.with_offsets(options.starting, snapshot, edge="starting")
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
        return list(tasks)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a task's ranges (executor)."""
        return run_task(partition, self._options, self._schema, self._origin)


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
