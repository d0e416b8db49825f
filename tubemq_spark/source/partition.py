"""What is sent to a task: a small picklable value."""

import dataclasses
from collections.abc import Sequence

from pyspark.sql.datasource import InputPartition

from tubemq_spark.model import RangeRequest


@dataclasses.dataclass(init=False)
class OffsetRangePartition(InputPartition):
    """One task: which records to read, and from which broker."""

    requests: tuple[RangeRequest, ...]
    """At least one range; if there are several, they are small and of one broker."""

    def __init__(self, requests: Sequence[RangeRequest]) -> None:
        more = f" and {len(requests) - 1} more" if len(requests) > 1 else ""
        super().__init__(f"{requests[0].range}{more}")
        self.requests = tuple(requests)


def requests_of(partition: InputPartition | None) -> tuple[RangeRequest, ...]:
    """Return what a task must read; nothing for the bare value that Spark sends if nothing was planned."""
    return partition.requests if isinstance(partition, OffsetRangePartition) else ()
