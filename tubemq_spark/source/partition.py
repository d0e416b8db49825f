"""What travels to a task: a small picklable value, a task's whole world."""

import dataclasses
from collections.abc import Sequence

from pyspark.sql.datasource import InputPartition

from tubemq_spark.model import RangeRequest


@dataclasses.dataclass(init=False)
class OffsetRangePartition(InputPartition):
    """One task's work: the records to read, and the broker that has them."""

    requests: tuple[RangeRequest, ...]
    """One range at least; several are small ones of one broker."""

    def __init__(self, requests: Sequence[RangeRequest]) -> None:
        more = f" and {len(requests) - 1} more" if len(requests) > 1 else ""
        super().__init__(f"{requests[0].range}{more}")
        self.requests = tuple(requests)


def work_of(partition: InputPartition | None) -> tuple[RangeRequest, ...]:
    """Return what there is to read; nothing for the bare value Spark sends when nothing was planned."""
    return partition.requests if isinstance(partition, OffsetRangePartition) else ()
