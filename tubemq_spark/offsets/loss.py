"""Records that cannot be read any more: the kinds, and what is done about them.

Nothing is skipped silently. Whoever finds a gap hands it to the query's one ``LossPolicy``, which
raises (``failOnDataLoss=true``) or writes it down and lets reading go on.
"""

import dataclasses
import enum
import logging
from collections.abc import Callable
from typing import Final

from tubemq_spark.errors import DataLossError
from tubemq_spark.model import TopicPartition

logger = logging.getLogger(__name__)

_REMEMBERED_LOSSES: Final = 1_000
"""A stream that never catches up with retention loses records every trigger, for months."""


class Loss(enum.Enum):
    """Why records are missing; the value is the last segment of the error's condition.

    A loss always comes with the offsets ``[start, end)`` that the missing records have, had or would
    have, in index bytes.
    """

    EXPIRED = "EXPIRED"
    """Retention removed records before they were read: from what was asked to where the log begins now."""
    TRUNCATED = "TRUNCATED"
    """The log ends inside a range that was planned: from where it ends now to the end of the range."""
    CORRUPT = "CORRUPT"
    """Records have a wrong checksum or cannot be taken apart."""
    SKIPPED = "SKIPPED"
    """The broker passed over some of the records: their data expired before their index, or is damaged."""
    TOPIC_REMOVED = "TOPIC_REMOVED"
    """The topic is gone: from the next offset to what was planned (an empty range when nothing was)."""
    PARTITION_REMOVED = "PARTITION_REMOVED"
    """The partition is gone, its topic is not; the offsets are as for ``TOPIC_REMOVED``."""
    MOVED_BACK = "MOVED_BACK"
    """The log ends before an offset already reached: from where it ends now to that offset."""

    @property
    def condition(self) -> str:
        """The name of the error, a key of ``errors.CONDITIONS``."""
        return f"TUBEMQ_DATA_LOSS.{self.value}"


LossPolicy = Callable[[Loss, TopicPartition, int, int], None]
"""Called with the kind, the partition and the ``start`` and ``end`` of what is missing (see ``Loss``)."""


@dataclasses.dataclass(frozen=True, slots=True)
class LossRecord:
    """One loss: what is missing of which partition."""

    loss: Loss
    partition: TopicPartition
    start: int
    end: int

    def report(self, policy: LossPolicy) -> None:
        """Hand the loss to a policy."""
        policy(self.loss, self.partition, self.start, self.end)

    def __str__(self) -> str:
        return f"{self.loss.value} {self.partition} [{self.start}, {self.end})"


def fail_on_loss(loss: Loss, partition: TopicPartition, start: int, end: int) -> None:
    """Be the policy of ``failOnDataLoss=true``.

    Raises:
        DataLossError: always; its condition is ``loss.condition``.
    """
    raise DataLossError(loss.condition, partition=partition, start=start, end=end)


class LossRecorder:
    """The policy of ``failOnDataLoss=false``: warn, remember, go on.

    The same loss may be found several times on its way (when a trigger is planned, and again when
    its range is read); it is warned about once, as long as it is among the last that were found.
    """

    def __init__(self) -> None:
        self._records: dict[LossRecord, None] = {}

    @property
    def records(self) -> list[LossRecord]:
        """The last losses, each once, oldest first."""
        return list(self._records)

    def __call__(self, loss: Loss, partition: TopicPartition, start: int, end: int) -> None:
        """Log the loss as a warning and keep it in ``records``."""
        record = LossRecord(loss, partition, start, end)
        if record in self._records:
            return
        if len(self._records) >= _REMEMBERED_LOSSES:
            del self._records[next(iter(self._records))]
        self._records[record] = None
        logger.warning("data is lost and failOnDataLoss=false, so reading goes on: %s", record)
