"""Writing losses to the ledger that the user asks for with ``lossLedger``.

A loss that is passed over is written down before reading goes on behind it:

- a task, before it hands on the first row behind the loss, and before it ends;
- the driver, before it returns the offset or the tasks that pass over the loss.

What cannot be written fails the task or the query, and the work is repeated: nothing is passed over without a
record. What is repeated writes the same again, which changes nothing (see ``offsets.ledger``).

What is lost of a planned range is written by the task of that range only, although the driver may see it
too, when it plans the range (expired) or its task (removed). The task knows the query and the micro-batch.
And of a repeated micro-batch, one attempt may see in the task what another one sees in the driver.
So a task gets what is lost with its ranges, as its ``Work``.
"""

import dataclasses
import datetime
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, NamedTuple

from tubemq_spark.model import OffsetRange, RangeRequest, StoreId, TopicPartition, rows_between
from tubemq_spark.offsets.ledger import SUFFIX, Origin, coalesced, file_of, micro_batch
from tubemq_spark.offsets.loss import Loss, LossPolicy, LossRecord, LossRecorder, fail_on_loss
from tubemq_spark.options import ReadOptions
from tubemq_spark.protocol.fetch_columns import FetchedBatch
from tubemq_spark.spark.edge import micro_batch_of_task

_REMOVALS: Final = frozenset({Loss.TOPIC_REMOVED, Loss.PARTITION_REMOVED})
_NOWHERE: Final[Mapping[TopicPartition, int]] = {}
_REMEMBERED_FILES: Final = 1_000


class Work(NamedTuple):
    """One task, with Spark and without it: which records to read, and from which broker. Picklable."""

    requests: tuple[RangeRequest, ...] = ()
    """The ranges to read; if there are several, they are small and of one broker."""
    lost: tuple[LossRecord, ...] = ()
    """What was planned and can no longer be read, for the task to write to the ledger; else none."""


def loss_policy(options: ReadOptions) -> LossPolicy:
    """Return what to do with a loss: fail, or log it and go on (``failOnDataLoss``)."""
    return fail_on_loss if options.fail_on_data_loss else LossRecorder()


def origin_of_task(options: ReadOptions) -> Origin:
    """Return the origin of what this task of a stream passes over; to be asked in the task's own thread."""
    query_id, batch_id = micro_batch_of_task() or (None, None)
    return micro_batch(options.cluster.client.group, query_id, batch_id)


class LossLedger:
    """The ledger as one process sees it; without ``lossLedger`` it does nothing."""

    def __init__(self, options: ReadOptions) -> None:
        self._files = None
        self._written: dict[str, None] = {}
        if options.loss_ledger is not None:
            # Arrow's file systems take a while to load, and most queries have no ledger.
            from tubemq_spark.files.text_files import TextFiles

            self._files = TextFiles(options.loss_ledger, "lossLedger", SUFFIX)

    @property
    def is_configured(self) -> bool:
        """Whether there is one."""
        return self._files is not None

    def prepare(self) -> None:
        """Make the folder, and see that it can be written to."""
        if self._files is not None:
            self._files.prepare()

    def write(self, losses: Collection[LossRecord], origin: Origin) -> None:
        """Write down some losses; what was written before costs nothing."""
        if self._files is None or not losses:
            return
        name, text = file_of(losses, origin, datetime.datetime.now(datetime.UTC))
        if name in self._written:
            return
        self._files.write(name, text)
        if len(self._written) >= _REMEMBERED_FILES:
            del self._written[next(iter(self._written))]
        self._written[name] = None


class LossesOfDriver:
    """The policy of one question to the driver, whose losses are written when the question is answered.

    Their origin is made only then: the driver is asked often, and losses are rare.
    """

    def __init__(
        self,
        policy: LossPolicy,
        ledger: LossLedger,
        origin: Callable[[], Origin],
    ) -> None:
        self._policy = policy
        self._ledger = ledger
        self._origin = origin
        self._losses: list[LossRecord] = []

    def __call__(self, record: LossRecord) -> None:
        """Apply the policy to a loss; keep it for the ledger unless a task will meet it."""
        self._policy(record)
        if self._ledger.is_configured and not (record.loss in _REMOVALS and record.start < record.end):
            self._losses.append(record)

    def write(
        self, alone: Collection[StoreId] = (), reached: Mapping[TopicPartition, int] = _NOWHERE
    ) -> None:
        """Write down what was passed over.

        Offsets tell how many records are lost in stores of one partition (``alone``). What expired behind
        where the stream stands (``reached``) is in a range that a task reads.
        """
        losses = [
            _counted(loss, alone)
            for loss in self._losses
            if not (loss.loss is Loss.EXPIRED and loss.partition in reached)
        ]
        if losses:
            self._ledger.write(losses, self._origin())
        self._losses.clear()


class LossesOfTask:
    """The policy of one task, for one range after the other."""

    def __init__(self, policy: LossPolicy, ledger: LossLedger, origin: Origin) -> None:
        self._policy = policy
        self._ledger = ledger
        self._origin = origin
        self._reached = self._end = 0
        """What is left of the range, in index bytes."""
        self._losses: list[LossRecord] = []

    def __call__(self, record: LossRecord) -> None:
        """Apply the policy to a loss; keep the part of it in the range for the ledger."""
        self._policy(record)
        if not self._ledger.is_configured:
            return
        # What is before that was read, and what is behind it belongs to the task of the next range.
        start, end = max(record.start, self._reached), min(record.end, self._end)
        if start < end:
            self._losses.append(dataclasses.replace(record, start=start, end=end))

    def recorded(self, batches: Iterator[FetchedBatch], range_: OffsetRange) -> Iterator[FetchedBatch]:
        """Pass on the batches of a range, each when the losses before it are written down."""
        self._reached, self._end = range_.start, range_.end
        for batch in batches:
            self._write()
            self._reached = max(self._reached, batch.next)
            yield batch
        self._write()

    def _write(self) -> None:
        if self._losses:
            self._ledger.write(coalesced(self._losses), self._origin)
            self._losses.clear()


def _counted(record: LossRecord, alone: Collection[StoreId]) -> LossRecord:
    """Return a loss with its rows, if the offsets tell them.

    They do not tell what a topic that is gone had beyond them, nor which records a log that went back had
    that were never read.
    """
    countable = record.loss is not Loss.MOVED_BACK and record.start < record.end
    if record.rows is not None or not countable or record.partition.store_id not in alone:
        return record
    return dataclasses.replace(record, rows=rows_between(record.start, record.end))
