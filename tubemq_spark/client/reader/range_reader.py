"""Reading exactly the records of one partition between two offsets, through any trouble on the way.

Any two readers of the same range return the same records in the same order: a task that is retried, or runs
twice at once, must not change a query's result.

=========  ==================================================================================================
state      meaning
=========  ==================================================================================================
unplaced   at the beginning, and after every error: the next thing to do is to seek to ``_position``
placed     the read-ahead stands at ``_position``, and the next thing to do is a step
done       ``_position == _end``
=========  ==================================================================================================

Invariants:

- All records before ``_position`` were returned, or reported as lost; none at or after it was. Nothing of a
  step that failed was returned, and every step begins where the last one ended. So resuming after any error
  means seeking to ``_position``.
- ``_position`` only moves forward, by an accepted step or over a loss. ``_end`` only moves back, over a loss.
- Nothing is skipped without a report, which comes before what lies behind the loss.
- A broker that is away is waited for, up to ``fetch_timeout_ms``, and so are reader groups that others use:
  the range is planned, and a query's result is only right with all of its records. A topic or a partition
  counts as removed only when the master says so too.
"""

import asyncio
import collections
import contextlib
import dataclasses
import functools
import logging
from collections.abc import AsyncGenerator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tubemq_spark.client.broker.cursor import Cursor, ReadAhead, Step
from tubemq_spark.client.broker.lease import ReaderGroupHolder
from tubemq_spark.client.broker.session import MEMORY_TOO
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.metadata.topics import (
    Locate,
    find_partition,
    place_of,
    tells_of_removal,
)
from tubemq_spark.errors import LocalProtocolError, RemoteProtocolError, TubeMQError, TubeMQTimeoutError
from tubemq_spark.model import (
    INDEX_ENTRY_BYTES,
    Endpoint,
    OffsetRange,
    RangeRequest,
    require_aligned,
    rows_between,
)
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.deadline import Clock, Deadline, monotonic
from tubemq_spark.net.retry import Backoff
from tubemq_spark.offsets.loss import Loss, LossRecord
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.fetch_columns import FetchedBatch

logger = logging.getLogger(__name__)

_LOCATE_EVERY: Final = 10
"""After so many pauses, which take about 7 s, the master is asked where the broker is, and a broker that has
nothing to read, where the log ends."""


async def read_range(
    config: ClientConfig,
    connections: Connections,
    request: RangeRequest,
    *,
    locate: Locate | None = None,
    private: bool = False,
) -> AsyncGenerator[FetchedBatch | LossRecord, None]:
    """Yield the records of a range in offset order, and what is lost of them; behind a loss, reading goes on.

    No broker is asked for an empty range.

    ``private``: over a connection of its own, which others do not wait behind.
    """
    if request.range.start == request.range.end:
        return
    types = config.message_types
    if types:
        # The broker passes over entries, as it does for those of other partitions.
        request = dataclasses.replace(request, own_store=False)
    async with contextlib.AsyncExitStack() as stack:
        own = None
        if private:
            own = await stack.enter_async_context(connections.private(config.connect_timeout_ms, config.tls))
        holder = await stack.enter_async_context(
            ReaderGroupHolder(
                config,
                connections,
                request.range.partition,
                request.route,
                query_priority=MEMORY_TOO,
                message_types=types,
                private=own,
            )
        )
        locate = locate or functools.partial(find_partition, config, connections)
        reader = _RangeReader(config, holder, request, locate)
        stack.callback(reader.close)
        async with contextlib.aclosing(reader.items()) as items:
            async for item in items:
                yield item


def require_sound(offsets: OffsetRange) -> None:
    """Raise ``LocalProtocolError`` if these cannot be the offsets of a range."""
    require_aligned(offsets.start, str(offsets.partition))
    require_aligned(offsets.end, str(offsets.partition))
    if offsets.start > offsets.end:
        raise LocalProtocolError("TUBEMQ_PROTOCOL_MISUSE", what=f"the range {offsets} ends before it starts")


class _RangeReader:
    """The rules of one range: its two ends, losses, and transient errors."""

    def __init__(
        self, config: ClientConfig, holder: ReaderGroupHolder, request: RangeRequest, locate: Locate
    ) -> None:
        offsets = request.range
        self._holder = holder
        self._read_ahead = ReadAhead(Cursor(holder, offsets.partition), own_store=request.own_store)
        self._partition = offsets.partition
        self._position = offsets.start
        self._end = offsets.end
        self._losses: collections.deque[LossRecord] = collections.deque()
        """Those that are to be reported before what comes next."""
        self._locate = locate
        self._placed = False
        self._own_store = request.own_store
        self._types = frozenset(config.message_types)
        self._patience = Patience(offsets, config.fetch_timeout_ms, asyncio.get_running_loop().time)

    def close(self) -> None:
        self._read_ahead.forget()

    async def items(self) -> AsyncGenerator[FetchedBatch | LossRecord, None]:
        while self._position < self._end:
            fetched = None
            try:
                fetched = await self._advance()
            except TubeMQError as error:
                await self._recover(error)
            while self._losses:
                yield self._losses.popleft()
                # The caller's time does not count.
                self._patience.restart()
            if fetched is not None:
                yield fetched
                self._patience.restart()

    async def _advance(self) -> FetchedBatch | None:
        if not self._placed:
            await self._seek()
            return None
        step = await self._read_ahead.step(self._end)
        if step.next == step.start:
            await self._wait_for_records(step.pause_ms)
            return None
        fetched = await self._accept(step)
        self._position = min(step.next, self._end)
        self._patience.progress()
        return fetched

    async def _seek(self) -> None:
        """Go to the position and see what is left of the range."""
        answer = await self._read_ahead.seek(self._position)
        self._placed = True
        if answer.current > self._position:
            rows = self._rows_between(self._position, min(answer.current, self._end))
            self._report(Loss.EXPIRED, self._position, answer.current, rows)
            self._position = min(answer.current, self._end)
        log_end = answer.current if answer.current < self._position else answer.latest
        if log_end is not None and log_end < self._end:
            rows = self._rows_between(max(log_end, self._position), self._end)
            self._report(Loss.TRUNCATED, log_end, self._end, rows)
            self._end = max(log_end, self._position)

    async def _accept(self, step: Step) -> FetchedBatch | None:
        """Cut a step at the range's end and report what is damaged or missing."""
        columns, corrupt, count = step.fetched.columns, step.fetched.corrupt, step.fetched.count
        end = min(step.next, self._end)
        if step.next > end:
            count = await self._records_before_end(step)
            columns = columns.slice(0, int(np.searchsorted(columns.ordinals, count)))
            corrupt = corrupt[corrupt < count]
        # A step can be dense up to the range's end only: partitions that were added to the store later have
        # their records behind it.
        dense = end - step.start == INDEX_ENTRY_BYTES * count
        self._report_corrupt(step.start, end, corrupt, dense=dense)
        if self._own_store and not dense:
            # The broker passed over records without a word (MsgFileStore.getMessages).
            self._report(Loss.SKIPPED, step.start, end, rows_between(step.start, end) - count)
        if self._types:
            columns = columns.of_types(self._types)
        if not len(columns):
            return None
        behind = step.fetched.header.data_lag
        return FetchedBatch(self._partition, step.start, end, columns, dense, behind if behind >= 0 else None)

    async def _records_before_end(self, step: Step) -> int:
        """Count the records before the range's end of a step that crosses it.

        Damaged records directly behind the end cannot be distinguished and may be counted too, though never
        more than there are offsets.
        """
        offsets = (self._end - step.start) // INDEX_ENTRY_BYTES
        if step.dense:
            return offsets
        # Records of other partitions lie in between, so counting does not help: read again from the end on
        # and see which record comes first.
        self._placed = False
        answer = await self._read_ahead.seek(self._end)
        if answer.current != self._end:
            raise RemoteProtocolError(
                "TUBEMQ_POSITION_MOVED", partition=self._partition, actual=answer.current, expected=self._end
            )
        ordinals = _ordinals_by_record(step)
        behind = 0
        while self._read_ahead.position < step.next:
            probe = await self._read_ahead.step(step.next)
            for record, ordinal in _ordinals_by_record(probe).items():
                if record in ordinals:
                    return min(ordinals[record] - ordinal - behind, offsets)
            if probe.next > step.next:
                break
            behind += probe.fetched.count
            if probe.next == probe.start:
                await self._wait_for_records(probe.pause_ms)
        return min(step.fetched.count - behind, offsets)

    def _report_corrupt(self, start: int, end: int, corrupt: NDArray[np.int64], *, dense: bool) -> None:
        if not len(corrupt):
            return
        if not dense:
            self._report(Loss.CORRUPT, start, end, len(corrupt))
            return
        for ordinal in corrupt.tolist():
            offset = start + INDEX_ENTRY_BYTES * ordinal
            self._report(Loss.CORRUPT, offset, offset + INDEX_ENTRY_BYTES, 1)

    def _report(self, loss: Loss, start: int, end: int, rows: int | None) -> None:
        self._losses.append(LossRecord(loss, self._partition, start, end, rows))

    def _rows_between(self, start: int, end: int) -> int | None:
        """Return how many records were there; None where those of other partitions, or types, count too."""
        return rows_between(start, end) if self._own_store else None

    async def _recover(self, error: TubeMQError) -> None:
        """Prepare another attempt, or raise."""
        self._placed = False
        if tells_of_removal(error):
            gone = await place_of(self._locate, self._partition)
            if isinstance(gone, Loss):
                self._report(gone, self._position, self._end, self._rows_between(self._position, self._end))
                self._end = self._position
                return
        elif not _is_transient(error):
            raise error
        await asyncio.sleep(self._patience.next_pause_s(error, self._position))
        if self._patience.pauses % _LOCATE_EVERY == 0:
            await self._follow()

    async def _follow(self) -> None:
        """Go to the partition's broker if it has come back under another address."""
        endpoint = await place_of(self._locate, self._partition)
        if isinstance(endpoint, Endpoint) and endpoint != self._holder.endpoint:
            logger.info("%s is now at %s, no longer at %s", self._partition, endpoint, self._holder.endpoint)
            self._holder.endpoint = endpoint

    async def _wait_for_records(self, pause_ms: int) -> None:
        """Wait because the broker has nothing to read now, or because it says how long to wait."""
        if pause_ms:
            await asyncio.sleep(pause_ms / 1000)
            # Waiting on request is not a lack of progress.
            self._patience.restart()
        else:
            trouble = "the broker has nothing to read there"
            await asyncio.sleep(self._patience.next_pause_s(trouble, self._position))
            if self._patience.pauses % _LOCATE_EVERY == 0:
                # The broker may have restarted between two requests of a step, which took its lease again.
                self._placed = False


def _ordinals_by_record(step: Step) -> dict[tuple[int, bytes], int]:
    columns = step.fetched.columns
    return {columns.identity(row): int(columns.ordinals[row]) for row in range(len(columns))}


def _is_transient(error: TubeMQError) -> bool:
    """Tell whether registering again at the same position may help."""
    if error.condition == "TUBEMQ_NO_PROGRESS":
        return False
    if error.condition == "TUBEMQ_RPC":
        # 0: the broker failed in the middle of reading; 401: the lease was lost before a commit.
        return error.retriable or error.parameters["code"] in (0, ErrCode.UNAUTHORIZED)
    return error.retriable or isinstance(error, RemoteProtocolError)


_WARN_AFTER_S: Final = 3.0
"""A connection that is lost and made again, or a lease that is lost and made again, needs no warning."""


class Patience:
    """The pauses while reading one range: how long it may make no progress, and what its user sees of that.

    A reader that is stopped (by a broker that is away or frozen, a refusal, nothing to read) tries again
    until ``fetch_timeout_ms`` have passed without progress. The user sees one warning once that has lasted
    for a few seconds, and another one when reading resumes.
    """

    def __init__(self, reading: OffsetRange, timeout_ms: int, clock: Clock = monotonic) -> None:
        """Create the pauses, and start the clock."""
        self._range = reading
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._backoff = Backoff()
        self._warned = False
        self.restart()

    def restart(self) -> None:
        """Start the clock again: the broker is not to blame for the time until now.

        This is done for every fetch, so what only pauses need is made by them.
        """
        self.pauses = 0
        """How often the reader has waited since the last progress."""
        self._since = self._clock()

    def progress(self) -> None:
        """Note that something was read."""
        if self._warned:
            seconds = self._clock() - self._since
            logger.warning("reading %s resumed after %.0f s", self._range.partition, seconds)
            self._warned = False
        self.restart()

    def next_pause_s(self, trouble: TubeMQError | str, position: int, at_least_s: float = 0.0) -> float:
        """Return how long to wait before the next attempt, in seconds: a little longer each time."""
        self._warn(trouble, position)
        if self.pauses == 0:
            self._backoff.reset()
        pause_s = self._backoff.next_s(self._deadline)
        if pause_s is None:
            raise self._no_progress(trouble, position) from (
                trouble if isinstance(trouble, TubeMQError) else None
            )
        self.pauses += 1
        return min(pause_s + at_least_s, self._deadline.remaining())

    @property
    def _deadline(self) -> Deadline:
        return Deadline(self._since + self._timeout_ms / 1000, self._clock)

    def _warn(self, trouble: TubeMQError | str, position: int) -> None:
        if self._warned or self._clock() - self._since < _WARN_AFTER_S:
            logger.debug("reading %s waits at offset %d: %s", self._range.partition, position, trouble)
            return
        self._warned = True
        logger.warning(
            "reading %s has stopped at offset %d; retrying for up to %.0f s (tubemq.fetchTimeoutMs): %s",
            self._range.partition,
            position,
            self._deadline.remaining(),
            trouble,
        )

    def _no_progress(self, trouble: TubeMQError | str, position: int) -> TubeMQTimeoutError:
        return TubeMQTimeoutError(
            "TUBEMQ_NO_PROGRESS",
            partition=self._range.partition,
            position=position,
            end=self._range.end,
            timeout_ms=self._timeout_ms,
            trouble=trouble,
        )
