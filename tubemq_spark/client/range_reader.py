"""Reading exactly the records of one partition between two offsets, whatever happens on the way.

Any two readers of the same range get the same records in the same order: a task that is tried again, or
tried twice at once, may not change a query's result. Nothing of a step that failed was handed out, and
every step begins where the last one ended, so going on means to register at that offset again.
"""

import dataclasses
import logging
import time
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.cursor import Cursor, Step
from tubemq_spark.client.lease import Lease
from tubemq_spark.errors import (
    LocalProtocolError,
    RemoteProtocolError,
    RpcError,
    TubeMQError,
    TubeMQTimeoutError,
)
from tubemq_spark.model import Endpoint, OffsetRange, TopicPartition
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.net.retry import Backoff, Wait
from tubemq_spark.offsets.loss import Loss, LossPolicy
from tubemq_spark.offsets.units import INDEX_ENTRY_BYTES, require_aligned
from tubemq_spark.protocol.columns import MessageColumns
from tubemq_spark.protocol.errcodes import ErrCode

logger = logging.getLogger(__name__)

_FIRST_PAUSE_MS: Final = 50
_LONGEST_PAUSE_MS: Final = 1_000
_NO_SUCH_PARTITION: Final = "Wrong partition value"
"""How a broker says that a topic has fewer partitions; the code is 500, as with any trouble inside."""


@dataclasses.dataclass(frozen=True, slots=True)
class RangeRequest:
    """What to read and where; small and picklable, because it travels to a task."""

    range: OffsetRange
    endpoint: Endpoint
    """The partition's broker."""
    visit_token: int
    """Proof that a master knew us when the range was planned."""
    own_store: bool = False
    """Whether no other partition is in the store: every offset of the range is then one of its records,
    and one that the broker passes over is missing."""
    from_earliest: bool = False
    """Whether the range starts where the log begins. Index and data expire apart, so a log may begin with
    entries whose records are gone: then it begins behind them, and nothing that was there is missing."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class FetchedBatch:
    """Some records of a range: those of the partition with ``start <= offset < next``, in index bytes."""

    partition: TopicPartition
    start: int
    next: int
    columns: MessageColumns
    dense: bool
    """Whether row ``i`` has the offset ``start + 28 * columns.ordinals[i]``; else rows have none."""


def read_range(
    config: ClientConfig, pool: ChannelPool, work: RangeRequest, on_loss: LossPolicy, wait: Wait = time.sleep
) -> Iterator[FetchedBatch]:
    """Yield the records of a range in offset order; an empty range asks no broker.

    Args:
        config: the settings.
        pool: the channels.
        work: the range.
        on_loss: what to do about records that are gone or damaged; when it returns, reading goes on
            behind them.
        wait: how to wait when there is nothing to do.

    Raises:
        OffsetFormatError: an offset is no multiple of 28, or negative.
        LocalProtocolError: the range ends before it starts.
        DataLossError: records are gone or damaged, and ``on_loss`` does not tolerate it.
        TubeMQTimeoutError: reading stood still for ``fetch_timeout_ms``, or all reader groups are taken.
        RpcError: the broker refuses for good.
    """
    asked = work.range
    require_aligned(asked.start, str(asked.partition))
    require_aligned(asked.end, str(asked.partition))
    if asked.start > asked.end:
        raise LocalProtocolError("TUBEMQ_PROTOCOL_MISUSE", what=f"the range {asked} ends before it starts")
    return _read(config, pool, work, on_loss, wait)


def _read(
    config: ClientConfig, pool: ChannelPool, work: RangeRequest, on_loss: LossPolicy, wait: Wait
) -> Iterator[FetchedBatch]:
    if work.range.start == work.range.end:
        return
    partition = work.range.partition
    with Lease(config, pool, partition, work.endpoint, work.visit_token, wait=wait) as lease:
        cursor = Cursor(lease, partition)
        try:
            yield from _RangeReader(config, cursor, work, on_loss, wait).batches()
        finally:
            cursor.forget_ahead()


class _RangeReader:
    """The rules of one range: its two ends, losses, and troubles that pass."""

    def __init__(
        self, config: ClientConfig, cursor: Cursor, work: RangeRequest, on_loss: LossPolicy, wait: Wait
    ) -> None:
        asked = work.range
        self._timeout_ms = config.fetch_timeout_ms
        self._cursor = cursor
        self._partition = asked.partition
        self._position = asked.start
        self._end = asked.end
        self._on_loss = on_loss
        self._wait = wait
        self._in_place = False
        self._own_store = work.own_store
        self._before_begin = work.from_earliest
        self._restart_clock()

    def batches(self) -> Iterator[FetchedBatch]:
        while self._position < self._end:
            try:
                batch = self._advance()
            except TubeMQError as error:
                self._recover(error)
                continue
            if batch is not None:
                yield batch
                # The caller's time does not count.
                self._restart_clock()

    def _advance(self) -> FetchedBatch | None:
        if not self._in_place:
            self._seek()
            return None
        step = self._cursor.step(self._end)
        if step.next == step.start:
            self._stand_still(step.pause_ms)
            return None
        batch = self._accept(step)
        self._position = min(step.next, self._end)
        self._restart_clock()
        return batch

    def _seek(self) -> None:
        """Go to the position and see what is left of the range."""
        found = self._cursor.seek(self._position)
        self._in_place = True
        if found.current > self._position:
            self._on_loss(Loss.EXPIRED, self._partition, self._position, found.current)
            self._position = min(found.current, self._end)
        log_end = found.current if found.current < self._position else found.latest
        if log_end is not None and log_end < self._end:
            self._on_loss(Loss.TRUNCATED, self._partition, log_end, self._end)
            self._end = max(log_end, self._position)

    def _accept(self, step: Step) -> FetchedBatch | None:
        """Cut a step at the range's end and report damaged records."""
        columns, corrupt = step.fetched.columns, step.fetched.corrupt
        if step.next > self._end:
            kept = self._records_before_end(step)
            columns = columns.slice(0, int(np.searchsorted(columns.ordinals, kept)))
            corrupt = corrupt[corrupt < kept]
        self._report_corrupt(step, corrupt)
        self._report_skipped(step)
        if not len(columns):
            return None
        return FetchedBatch(self._partition, step.start, min(step.next, self._end), columns, step.dense)

    def _records_before_end(self, step: Step) -> int:
        """Count the records of a step, which goes beyond the end, that lie before the end.

        Damaged records right behind the end, which nothing tells apart, may be counted with them.
        """
        if step.dense:
            return (self._end - step.start) // INDEX_ENTRY_BYTES
        # Records of other partitions lie between, so counting does not help: read again from the end
        # on and look which record comes first.
        self._in_place = False
        found = self._cursor.seek(self._end)
        if found.current != self._end:
            raise RemoteProtocolError(
                "TUBEMQ_POSITION_MOVED", partition=self._partition, actual=found.current, expected=self._end
            )
        places = _places(step.fetched.columns)
        behind = 0
        while self._cursor.position < step.next:
            probe = self._cursor.step(step.next)
            for record, ordinal in _places(probe.fetched.columns).items():
                if record in places:
                    return places[record] - ordinal - behind
            if probe.next > step.next:
                break
            behind += probe.fetched.count
            if probe.next == probe.start:
                self._stand_still(probe.pause_ms)
        return step.fetched.count - behind

    def _report_skipped(self, step: Step) -> None:
        """Report records that the broker passed over without a word (MsgFileStore.getMessages)."""
        if self._own_store and not step.dense and not self._before_begin:
            self._on_loss(Loss.SKIPPED, self._partition, step.start, min(step.next, self._end))
        if step.fetched.count:
            self._before_begin = False

    def _report_corrupt(self, step: Step, corrupt: NDArray[np.int64]) -> None:
        if not len(corrupt):
            return
        if not step.dense:
            self._on_loss(Loss.CORRUPT, self._partition, step.start, min(step.next, self._end))
            return
        for ordinal in corrupt.tolist():
            offset = step.start + INDEX_ENTRY_BYTES * ordinal
            self._on_loss(Loss.CORRUPT, self._partition, offset, offset + INDEX_ENTRY_BYTES)

    def _recover(self, error: TubeMQError) -> None:
        """Make ready for another try, or raise."""
        gone = _what_is_gone(error)
        if gone is not None:
            self._on_loss(gone, self._partition, self._position, self._end)
            self._end = self._position
            return
        if not _passes(error):
            raise error
        logger.info("reading %s goes on at %d: %s", self._partition, self._position, error)
        self._in_place = False
        if not self._backoff.wait(self._deadline):
            raise self._no_progress(str(error)) from error

    def _stand_still(self, pause_ms: int) -> None:
        """Wait because the broker has nothing now, or because it says so."""
        if pause_ms:
            self._wait(pause_ms / 1000)
            # To wait as told is no standstill.
            self._restart_clock()
        elif not self._backoff.wait(self._deadline):
            raise self._no_progress("the broker has nothing to read there")

    def _restart_clock(self) -> None:
        self._deadline = Deadline.after_ms(self._timeout_ms)
        self._backoff = Backoff(_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS, wait=self._wait)

    def _no_progress(self, trouble: str) -> TubeMQTimeoutError:
        return TubeMQTimeoutError(
            "TUBEMQ_NO_PROGRESS",
            partition=self._partition,
            position=self._position,
            end=self._end,
            timeout_ms=self._timeout_ms,
            trouble=trouble,
        )


def _places(columns: MessageColumns) -> dict[tuple[int, bytes], int]:
    """Return the place in its batch of every record, by what tells records apart."""
    return {
        (int(columns.message_ids[row]), columns.data[columns.value_start[row] : columns.value_end[row]]): int(
            columns.ordinals[row]
        )
        for row in range(len(columns))
    }


def _what_is_gone(error: TubeMQError) -> Loss | None:
    if not isinstance(error, RpcError):
        return None
    if error.code == ErrCode.FORBIDDEN:
        return Loss.TOPIC_REMOVED
    if error.code == ErrCode.INTERNAL_SERVER_ERROR and _NO_SUCH_PARTITION in str(error):
        return Loss.PARTITION_REMOVED
    return None


def _passes(error: TubeMQError) -> bool:
    """Tell whether registering again at the same position may help."""
    if error.condition in {"TUBEMQ_LEASES_TAKEN", "TUBEMQ_NO_PROGRESS"}:
        return False
    if error.condition == "TUBEMQ_RPC":
        # 0: the broker failed in the middle of reading; 401: the lease was lost before a commit.
        return error.retriable or error.parameters["code"] in (0, ErrCode.UNAUTHORIZED)
    return error.retriable or isinstance(error, RemoteProtocolError)
