"""What Spark sends to a task."""

import dataclasses
from collections.abc import Iterable, Sequence

from pyspark.sql.datasource import InputPartition

from tubemq_spark.model import RangeRequest
from tubemq_spark.offsets.loss import LossRecord
from tubemq_spark.source.work import Work


@dataclasses.dataclass(init=False)
class OffsetRangePartition(InputPartition):
    """The work of one task, see ``Work``."""

    requests: tuple[RangeRequest, ...]
    lost: tuple[LossRecord, ...]

    def __init__(self, requests: Sequence[RangeRequest], lost: Sequence[LossRecord] = ()) -> None:
        parts = [*(request.range for request in requests), *lost]
        more = f" and {len(parts) - 1} more" if len(parts) > 1 else ""
        super().__init__(f"{parts[0]}{more}")
        self.requests = tuple(requests)
        self.lost = tuple(lost)


def partitions_of(tasks: Iterable[Work]) -> list[InputPartition]:
    """Return what Spark sends to some tasks."""
    return [OffsetRangePartition(*task) for task in tasks]


def work_of(partition: InputPartition | None) -> Work:
    """Return what a task must do: nothing for the bare value that Spark sends if nothing was planned."""
    if isinstance(partition, OffsetRangePartition):
        return Work(partition.requests, partition.lost)
    return Work()
