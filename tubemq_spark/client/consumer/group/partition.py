"""A partition of a member of a group: where it goes on when the group was moved.

**The way back to a partition** is to register where the group stands, not where this member stood: while its
lease was lost, another member may have read on.
"""

import asyncio
import logging
from typing import NamedTuple

from tubemq_spark.client.broker.cursor import Step
from tubemq_spark.client.broker.session import Fetched, Position
from tubemq_spark.client.consumer.partition import ConsumerPartition
from tubemq_spark.client.metadata.bounds import store_bounds
from tubemq_spark.errors import RemoteProtocolError
from tubemq_spark.offsets.loss import Loss, LossRecord
from tubemq_spark.offsets.offset_spec import Edge
from tubemq_spark.protocol.constants import ReadStatus

logger = logging.getLogger(__name__)


class _Move(NamedTuple):
    """That a partition goes on elsewhere than where this member stood, in index bytes."""

    expected: int
    actual: int
    had_lease: bool
    """Whether this member held the lease, so that no other one can have read on."""


class GroupPartition(ConsumerPartition):
    """A partition of a member of a group, which sets the group's position at a bound start and by ``seek``.

    A broker moves the position of a group by itself when it lies outside the log. The fetch that finds that
    begins elsewhere, though this member held the lease; when its answer is lost, registering again does. What
    the log holds tells a loss from the act of an administrator, who may move the group at any time, and from
    another member that has read on.
    """

    _move: _Move | None = None
    """What is to be told of, until it is known why."""
    _verdict: BaseException | None = None
    """What ``on_loss`` raised last."""
    _failed: BaseException | None = None
    """What the next fetch raises: ``on_loss`` has raised it, while none waited for messages."""

    async def connect(self, offset: int | None, read_status: ReadStatus) -> Position:
        """Register the partition for the first time; see ``ConsumerPartition.connect``.

        What ``on_loss`` raises about the offset, the next fetch raises, as it does with every loss.
        """
        try:
            return await super().connect(offset, read_status)
        except BaseException as error:
            if error is not self._verdict:
                raise
            self._failed = error
            return Position(self.position, None)

    async def seek(self, target: int | Edge, limit: asyncio.Timeout) -> Position:
        """Register the partition elsewhere; see ``ConsumerPartition.seek``."""
        answer = await super().seek(target, limit)
        self._move = None  # its user has said where it goes on
        return answer

    async def fetch(self, *, confirms: bool, own_limits: bool) -> Fetched | Step:
        """Fetch what comes next; see ``ConsumerPartition.fetch``."""
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed
        if self._move is None:
            try:
                return await super().fetch(confirms=confirms, own_limits=own_limits)
            except RemoteProtocolError as error:
                if error.condition != "TUBEMQ_POSITION_MOVED":
                    raise
                expected, actual = int(error.parameters["expected"]), int(error.parameters["actual"])
                self._move = _Move(expected, actual, had_lease=True)
        self.unplace()
        await self._tell_why_moved()
        return await super().fetch(confirms=False, own_limits=own_limits)

    async def _tell_why_moved(self) -> None:
        """Report a loss, or log that the group was moved."""
        if self._move is None:
            return
        expected, actual, had_lease = self._move
        reader, store = self._reader, self.partition.store_id
        asked = await store_bounds(
            reader.config, reader.connections, {store: self.endpoint}, reader.session.visit_token
        )
        span, failure = asked.by_store.get(store), asked.failures.get(store)
        if failure is not None and failure.retriable:
            raise failure
        self._move, self._cursor.position = None, actual
        # Where the broker refuses to say, a gap counts as a loss rather than as nothing.
        gone = (
            had_lease if span is None else span.earliest > expected and (had_lease or actual <= span.earliest)
        )
        if actual > expected and gone:
            end = actual if span is None else min(actual, span.earliest)
            await self._report(Loss.EXPIRED, expected, end, None)
        elif actual < expected and had_lease and (span is None or span.latest < expected):
            await self._report(Loss.MOVED_BACK, actual, expected, None)
        elif had_lease:
            logger.warning(
                "%s: the group was moved from offset %d to %d, by an administrator",
                self.partition,
                expected,
                actual,
            )

    async def _ask(self, loss: LossRecord) -> None:
        try:
            await super()._ask(loss)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._verdict = error
            raise

    async def _place(self) -> Position:
        before = self.position
        answer = await self._resume(ReadStatus.STORED_OR_EARLIEST)
        if answer.current != before:
            logger.info(
                "%s continues at offset %d, where the group stands, and not at %d",
                self.partition,
                answer.current,
                before,
            )
        if answer.current > before:
            self._move = _Move(before, answer.current, had_lease=False)
            await self._tell_why_moved()
        return answer
