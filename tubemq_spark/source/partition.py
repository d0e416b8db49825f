"""What is sent to a task: a small picklable value."""

import dataclasses
from collections.abc import Sequence

from pyspark.sql.datasource import InputPartition

from tubemq_spark.model import RangeRequest
from tubemq_spark.offsets.loss import LossRecord


@dataclasses.dataclass(init=False)
class OffsetRangePartition(InputPartition):
    """One task: which records to read, and from which broker."""

    requests: tuple[RangeRequest, ...]
    """The ranges to read; if there are several, they are small and of one broker."""
    lost: tuple[LossRecord, ...]
    """What was planned and can no longer be read, for the task to write to the ledger; else none."""

    def __init__(self, requests: Sequence[RangeRequest], lost: Sequence[LossRecord] = ()) -> None:
        parts = [*(request.range for request in requests), *lost]
        more = f" and {len(parts) - 1} more" if len(parts) > 1 else ""
        super().__init__(f"{parts[0]}{more}")
        self.requests = tuple(requests)
        self.lost = tuple(lost)


def requests_of(partition: InputPartition | None) -> tuple[RangeRequest, ...]:
    """Return what a task must read; nothing for the bare value that Spark sends if nothing was planned."""
    return partition.requests if isinstance(partition, OffsetRangePartition) else ()


def lost_of(partition: InputPartition | None) -> tuple[LossRecord, ...]:
    """Return what a task must write to the ledger before it reads."""
    return partition.lost if isinstance(partition, OffsetRangePartition) else ()
