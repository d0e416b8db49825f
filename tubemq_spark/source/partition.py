"""What travels to a task: a small picklable value, a task's whole world."""

import dataclasses

from pyspark.sql.datasource import InputPartition

from tubemq_spark.client.range_reader import RangeRequest


@dataclasses.dataclass(init=False)
class OffsetRangePartition(InputPartition):
    """One task's work: the records to read and the broker that has them."""

    request: RangeRequest
    own_store: bool
    """Whether the partition has its store for itself: only then can a row's offset be told."""

    def __init__(self, request: RangeRequest, *, own_store: bool) -> None:
        super().__init__(str(request.range))
        self.request = request
        self.own_store = own_store


def work_of(partition: InputPartition | None) -> OffsetRangePartition | None:
    """Return what there is to read; None for the bare value Spark sends when nothing was planned."""
    return partition if isinstance(partition, OffsetRangePartition) else None
