"""What a task of a read has to do: a small picklable value, the same with Spark and without it."""

from typing import NamedTuple

from tubemq_spark.model import RangeRequest
from tubemq_spark.offsets.loss import LossRecord


class Work(NamedTuple):
    """One task: which records to read, and from which broker."""

    requests: tuple[RangeRequest, ...] = ()
    """The ranges to read; if there are several, they are small and of one broker."""
    lost: tuple[LossRecord, ...] = ()
    """What was planned and can no longer be read, for the task to write to the ledger; else none."""
