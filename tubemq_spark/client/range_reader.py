"""Reading exactly the records of one partition between two offsets, whatever happens on the way.

Any two readers of the same range get the same records in the same order: a task that is tried again, or
tried twice at once, may not change a query's result. Nothing of a step that failed was handed out, and
every step begins where the last one ended, so resuming means registering at that offset again.

A broker that is away is waited for, up to ``fetch_timeout_ms``: the range is planned, and a query's result
is only right with all of its records. What is gone for good goes to the loss policy, after the master has
confirmed it.
"""

import functools
import logging
import time
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tubemq_spark.client.broker import MEMORY_TOO
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.cursor import Cursor, Step
from tubemq_spark.client.lease import Lease
from tubemq_spark.client.patience import Patience
from tubemq_spark.client.whereabouts import Locate, find_partition, what_is_gone, where_it_is
from tubemq_spark.errors import LocalProtocolError, RemoteProtocolError, RpcError, TubeMQError
from tubemq_spark.model import RangeRequest
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.net.retry import Wait
from tubemq_spark.offsets.loss import Loss, LossPolicy, LossRecord
from tubemq_spark.offsets.units import INDEX_ENTRY_BYTES, require_aligned
from tubemq_spark.protocol.columns import FetchedBatch, MessageColumns
from tubemq_spark.protocol.errcodes import ErrCode

logger = logging.getLogger(__name__)

_LOOK_EVERY: Final = 10
"""After so many pauses, which are about 7 s, the master is asked where the broker is."""
_NO_SUCH_PARTITION: Final = "Wrong partition value"
"""How a broker says that a topic has fewer partitions; the code is 500, as with any trouble inside."""


def read_range(
    config: ClientConfig,
    pool: ChannelPool,
    work: RangeRequest,
    on_loss: LossPolicy,
    wait: Wait = time.sleep,
    locate: Locate | None = None,
) -> Iterator[FetchedBatch]:
    """Yield the records of a range in offset order; an empty range asks no broker.

    Args:
        config: the settings.
        pool: the channels.
        work: the range.
        on_loss: what to do about records that are gone or damaged; when it returns, reading goes on
            behind them.
        wait: how to wait when there is nothing to do. What it raises ends the reading; it is also called,
            with 0 seconds, while a request is not answered.
        locate: how to find out where the partition is; by default the master is asked.

    Raises:
        OffsetFormatError: an offset is not a multiple of 28, or negative.
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
    locate = locate or functools.partial(find_partition, config, pool)
    return _read(config, pool, work, on_loss, wait, locate)


def _read(
    config: ClientConfig,
    pool: ChannelPool,
    work: RangeRequest,
    on_loss: LossPolicy,
    wait: Wait,
    locate: Locate,
) -> Iterator[FetchedBatch]:
    if work.range.start == work.range.end:
        return
    partition = work.range.partition
    with Lease(
        config,
        pool,
        partition,
        work.route.endpoint,
        work.route.visit_token,
        query_priority=MEMORY_TOO,
        wait=wait,
    ) as lease:
        reader = _RangeReader(config, lease, work, on_loss, wait, locate)
        try:
            yield from reader.batches()
        finally:
            reader.close()


class _RangeReader:
    """The rules of one range: its two ends, losses, and transient troubles."""

    def __init__(
        self,
        config: ClientConfig,
        lease: Lease,
        work: RangeRequest,
        on_loss: LossPolicy,
        wait: Wait,
        locate: Locate,
    ) -> None:
        asked = work.range
        self._lease = lease
        self._cursor = Cursor(lease, asked.partition, own_store=work.own_store)
        self._partition = asked.partition
        self._position = asked.start
        self._end = asked.end
        self._on_loss = on_loss
        self._wait = wait
        self._locate = locate
        self._in_place = False
        self._own_store = work.own_store
        self._patience = Patience(asked, config.fetch_timeout_ms, wait)

    def close(self) -> None:
        self._cursor.forget_ahead()

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
                self._patience.restart()

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
        self._patience.progress()
        return batch

    def _seek(self) -> None:
        """Go to the position and see what is left of the range."""
        found = self._cursor.seek(self._position)
        self._in_place = True
        if found.current > self._position:
            self._report(Loss.EXPIRED, self._position, found.current)
            self._position = min(found.current, self._end)
        log_end = found.current if found.current < self._position else found.latest
        if log_end is not None and log_end < self._end:
            self._report(Loss.TRUNCATED, log_end, self._end)
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
        if self._own_store and not step.dense:
            self._report(Loss.SKIPPED, step.start, min(step.next, self._end))

    def _report_corrupt(self, step: Step, corrupt: NDArray[np.int64]) -> None:
        if not len(corrupt):
            return
        if not step.dense:
            self._report(Loss.CORRUPT, step.start, min(step.next, self._end))
            return
        for ordinal in corrupt.tolist():
            offset = step.start + INDEX_ENTRY_BYTES * ordinal
            self._report(Loss.CORRUPT, offset, offset + INDEX_ENTRY_BYTES)

    def _report(self, loss: Loss, start: int, end: int) -> None:
        self._on_loss(LossRecord(loss, self._partition, start, end))

    def _recover(self, error: TubeMQError) -> None:
        """Make ready for another try, or raise."""
        self._in_place = False
        if _tells_of_removal(error):
            gone = what_is_gone(self._locate, self._partition, self._wait)
            if gone is not None:
                self._report(gone, self._position, self._end)
                self._end = self._position
                return
        elif not _is_transient(error):
            raise error
        self._patience.pause(error, self._position)
        if self._patience.pauses % _LOOK_EVERY == 0:
            self._follow()

    def _follow(self) -> None:
        """Go to the partition's broker if it has come back under another address."""
        endpoint = where_it_is(self._locate, self._partition)
        if endpoint is not None and endpoint != self._lease.endpoint:
            logger.info("%s is at %s now, not at %s", self._partition, endpoint, self._lease.endpoint)
            self._lease.endpoint = endpoint

    def _stand_still(self, pause_ms: int) -> None:
        """Wait because the broker has nothing now, or because it says so."""
        if pause_ms:
            self._wait(pause_ms / 1000)
            # Waiting as told does not count as standing still.
            self._patience.restart()
        else:
            self._patience.pause("the broker has nothing to read there", self._position)


def _places(columns: MessageColumns) -> dict[tuple[int, bytes], int]:
    """Return the place in its batch of every record, by what tells records apart."""
    return {
        (int(columns.message_ids[row]), columns.data[columns.value_start[row] : columns.value_end[row]]): int(
            columns.ordinals[row]
        )
        for row in range(len(columns))
    }


def _tells_of_removal(error: TubeMQError) -> bool:
    """Tell whether a broker says that it does not have the topic or the partition."""
    if not isinstance(error, RpcError):
        return False
    wrong_partition = error.code == ErrCode.INTERNAL_SERVER_ERROR and _NO_SUCH_PARTITION in str(error)
    return wrong_partition or error.code == ErrCode.FORBIDDEN


def _is_transient(error: TubeMQError) -> bool:
    """Tell whether registering again at the same position may help."""
    if error.condition in {"TUBEMQ_LEASES_TAKEN", "TUBEMQ_NO_PROGRESS"}:
        return False
    if error.condition == "TUBEMQ_RPC":
        # 0: the broker failed in the middle of reading; 401: the lease was lost before a commit.
        return error.retriable or error.parameters["code"] in (0, ErrCode.UNAUTHORIZED)
    return error.retriable or isinstance(error, RemoteProtocolError)
