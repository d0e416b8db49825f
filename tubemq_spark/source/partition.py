"""What travels to a task: a small picklable value, a task's whole world."""

import dataclasses

from pyspark.sql.datasource import InputPartition

from tubemq_spark.client.range_reader import RangeRequest


@dataclasses.dataclass(init=False)
class OffsetRangePartition(InputPartition):
    """One task's work: the records to read and the broker that has them."""

    request: RangeRequest

    def __init__(self, request: RangeRequest) -> None:
        super().__init__(str(request.range))
        self.request = request


def work_of(partition: InputPartition | None) -> RangeRequest | None:
    """Return what there is to read; None for the bare value Spark sends when nothing was planned."""
    return partition.request if isinstance(partition, OffsetRangePartition) else None
