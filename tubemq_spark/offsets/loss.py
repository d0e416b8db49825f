"""Records that can no longer be read: the kinds of loss, and what is done about them.

Nothing is skipped silently. Every gap is passed to the query's one ``LossPolicy``, which raises
(``failOnDataLoss=true``) or records the loss and lets reading continue.
"""

import dataclasses
import enum
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from tubemq_spark.errors import DataLossError
from tubemq_spark.model import TopicPartition
from tubemq_spark.offsets.marks import Mark

logger = logging.getLogger(__name__)

_REMEMBERED_LOSSES: Final = 1_000
"""A stream that never catches up with retention loses records every trigger, for months."""


class Loss(enum.Enum):
    """Why records are missing; the value is the last segment of the error's condition.

    A loss always comes with the offsets ``[start, end)`` that the missing records have, had or would have
    had, in index bytes.
    """

    EXPIRED = "EXPIRED"
    """Retention removed records before they were read: from what was asked to where the log begins now."""
    TRUNCATED = "TRUNCATED"
    """The log ends inside a range that was planned: from where it ends now to the end of the range."""
    CORRUPT = "CORRUPT"
    """Records have a wrong checksum or do not parse."""
    SKIPPED = "SKIPPED"
    """The broker passed over some of the records: their data expired before their index, or is damaged."""
    TOPIC_REMOVED = "TOPIC_REMOVED"
    """The topic is gone: from the next offset to what was planned (an empty range when nothing was)."""
    PARTITION_REMOVED = "PARTITION_REMOVED"
    """The partition is gone, its topic is not; the offsets are as for ``TOPIC_REMOVED``."""
    MOVED_BACK = "MOVED_BACK"
    """The log ends before an offset already reached: from where it ends now to that offset."""
    REPLACED = "REPLACED"
    """Another log has taken the log's place: from the next offset to what was planned of the log before (an
    empty range when nothing was)."""

    @property
    def condition(self) -> str:
        """The name of the error, a key of ``errors.CONDITIONS``."""
        return f"TUBEMQ_DATA_LOSS.{self.value}"


class Evidence(NamedTuple):
    """Two records that a store had at one offset, one after the other."""

    was: Mark
    """The record that the checkpoint has a mark of."""
    now: Mark
    """The record that is there now."""

    def __str__(self) -> str:
        store, offset = self.was.partition.store_id, self.was.offset
        return f"{store} had {self.was} at offset {offset}, and now has {self.now} there"


@dataclasses.dataclass(frozen=True, slots=True)
class LossRecord:
    """One loss: why records of a partition are missing, and their offsets ``[start, end)`` (see ``Loss``).

    Two records of a loss are equal even if only one of them counts its records.
    """

    loss: Loss
    partition: TopicPartition
    start: int
    end: int
    rows: int | None = dataclasses.field(default=None, compare=False)
    """How many records of the partition are missing; None where that is unknown."""
    evidence: "Evidence | None" = dataclasses.field(default=None, compare=False)
    """What shows that the log was replaced."""

    def __str__(self) -> str:
        text = f"{self.loss.value} {self.partition} [{self.start}, {self.end})"
        return text if self.evidence is None else f"{text}: {self.evidence}"


LossPolicy = Callable[[LossRecord], None]
"""What is done about a loss: it raises, or it returns and reading continues behind the loss."""


def fail_on_loss(record: LossRecord) -> None:
    """Raise: the policy of ``failOnDataLoss=true``."""
    raise data_loss(record)


def data_loss(record: LossRecord) -> DataLossError:
    """Return the error that says what is lost."""
    return DataLossError(
        record.loss.condition,
        partition=record.partition,
        start=record.start,
        end=record.end,
        evidence=record.evidence or "the checkpoint says so",
    )


class LossRecorder:
    """The policy of ``failOnDataLoss=false``: warn, remember, continue.

    The same loss may be found several times (when a trigger is planned, and again when its range is read).
    The user is warned once, as long as the loss is among the last that were found.
    """

    def __init__(self) -> None:
        self._records: dict[LossRecord, None] = {}

    @property
    def records(self) -> list[LossRecord]:
        """The last losses, each once, oldest first."""
        return list(self._records)

    def __call__(self, record: LossRecord) -> None:
        """Log a loss as a warning and keep it in ``records``."""
        if record in self._records:
            return
        if len(self._records) >= _REMEMBERED_LOSSES:
            del self._records[next(iter(self._records))]
        self._records[record] = None
        logger.warning("data is lost; reading continues because failOnDataLoss=false: %s", record)
