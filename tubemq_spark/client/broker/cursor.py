"""Moving through a leased partition step by step, knowing of every step where it begins and where it ends.

A step is a *fetch*, whose answer says where it begins, and a *confirm*, which moves the group's position
behind the records and says where that is. Until a fetch is confirmed the broker serves its records again.
There are two ways to confirm:

- A **commit** answers with the position behind the last fetch, which is always exact.
- The **next fetch** can confirm the last one too (``lastPackConsumed``) and answers with its own beginning:
  one request per step, under way while the last answer is decoded. But the broker silently moves a fetch
  that stands before the log's beginning (retention), so it may name a later position than the one where the
  last fetch ended. Counting proves that it was not moved: ``end == start + 28 * records``. That only works
  where every record of the store belongs to the partition; in a shared store every step is committed.

A ``Cursor`` keeps the two acts apart: its user processes the records, then confirms. A ``ReadAhead`` joins
them, for readers that keep their position elsewhere: it confirms what has arrived.

Between two calls, the cursor's ``unconfirmed`` and the read-ahead's ``_ahead`` say where we are:

===========  =======  =======================================================================================
unconfirmed  ahead
===========  =======  =======================================================================================
no           no       nothing is under way: after ``seek``, or where a step reached its ``until``
no           yes      the fetch from ``position`` is under way; everything before it is confirmed
yes          no       the answer from ``position`` is here, and a commit will say where it ends
yes          yes      the answer from ``position`` is here, and the fetch under way confirms it
===========  =======  =======================================================================================

Invariants:

- At most one request per lease is under way: the server may carry out two in either order.
- Only the last answer can be confirmed, once, and only an answer with records. A fetch that confirms is never
  sent behind a refusal: the broker might hold records of which only the answer was lost.
- A read-ahead commits the first step after ``seek``, so that a broker which refuses every other fetch can be
  read all the same.
- Every answered position is compared with the expected one. Only ``seek`` and a step that is returned change
  ``position``; after an error nothing of the step counts, and its user must ``seek``.
"""

import dataclasses
from typing import Final

from tubemq_spark.client.broker.lease import LeaseHolder
from tubemq_spark.client.broker.session import Fetched, Position, Started
from tubemq_spark.errors import LocalProtocolError, RemoteProtocolError, RpcError
from tubemq_spark.model import INDEX_ENTRY_BYTES, TopicPartition
from tubemq_spark.protocol.errcodes import ErrCode

_LEAST_PAUSE_MS: Final = 100
_NOT_NOW: Final = frozenset({ErrCode.NOT_FOUND, ErrCode.SERVER_CONSUME_SPEED_LIMIT})
"""Refusals of fetches that are not errors."""


@dataclasses.dataclass(slots=True, eq=False)
class Step:
    """What one fetch brought: the partition's records with ``start <= offset < next``, in index bytes.

    Offsets in between may belong to records of other partitions of the store. Without records and with
    ``next == start`` there is nothing to read now.
    """

    start: int
    next: int
    fetched: Fetched
    pause_ms: int = 0
    """How long the broker asks to wait (flow control)."""

    @property
    def dense(self) -> bool:
        """Whether every offset in between is one of the records."""
        return self.next - self.start == INDEX_ENTRY_BYTES * self.fetched.count


class Cursor:
    """A position in a partition, at the broker and here; every difference between the two is an error."""

    def __init__(self, holder: LeaseHolder, partition: TopicPartition) -> None:
        """Create a cursor that stands nowhere; call ``seek`` first."""
        self.position = 0
        """Where the next fetch begins, in index bytes."""
        self.unconfirmed: Fetched | None = None
        """The last answer, until it is confirmed."""
        self._holder = holder
        self._partition = partition

    async def seek(self, offset: int) -> Position:
        """Lease the partition again, at an offset; return where the broker really stands."""
        self.unconfirmed = None
        answer = await self._holder.acquire(offset)
        self.position = answer.current
        return answer

    def start_fetch(self, *, confirm: bool = False, own_limits: bool = False) -> Started[Fetched]:
        """Ask for the next records and return at once.

        One that confirms the last answer goes to ``confirm_by``, another one to ``receive``.
        """
        lease = self._holder.lease
        return lease.session.start_fetch(lease.claim, consumed=confirm, own_limits=own_limits)

    async def receive(self, started: Started[Fetched]) -> Fetched:
        """Wait for a fetch from our position."""
        fetched = await started
        if fetched.refusal is None:
            self._expect(fetched.header.current_offset, self.position)
        self.unconfirmed = fetched
        return fetched

    async def confirm(self) -> Step:
        """Confirm the last answer and move behind it."""
        fetched = self._to_confirm()
        if fetched.refusal is not None:
            return await self._step_without_records(fetched, fetched.refusal)
        lease = self._holder.lease
        commit = lease.session.start_commit(lease.claim, consumed=True)
        _decode(fetched)
        try:
            answer = await commit
        except RpcError as error:
            if error.code != ErrCode.FORBIDDEN:
                raise
            return await self._confirm_without_commit(fetched)
        return self._move(answer.current, fetched)

    async def confirm_by(self, next_fetch: Started[Fetched]) -> Step:
        """Wait for a fetch that confirms the last answer, and move behind that.

        Usually the new answer is ``unconfirmed`` then. It is dropped if it is uncertain where it begins.
        """
        fetched = self._to_confirm()
        _decode(fetched)
        following = await next_fetch
        if following.refusal is not None:
            return await self._step_before_refusal(fetched, following.refusal)
        end = following.header.current_offset
        if end != self.counted_end(fetched):
            return await self._step_to_doubtful_end(end, fetched)
        step = Step(self.position, end, fetched)
        self.position, self.unconfirmed = end, following
        return step

    def counted_end(self, fetched: Fetched) -> int:
        """Return where the records from our position end if no other offset lies between them."""
        return self.position + INDEX_ENTRY_BYTES * fetched.count

    def _to_confirm(self) -> Fetched:
        fetched, self.unconfirmed = self.unconfirmed, None
        if fetched is None:
            what = f"nothing of {self._partition} was fetched that could be confirmed"
            raise LocalProtocolError("TUBEMQ_PROTOCOL_MISUSE", what=what)
        return fetched

    async def _confirm_without_commit(self, fetched: Fetched) -> Step:
        """End a step of a closed topic, which can be fetched from but not committed."""
        following = await self.start_fetch(confirm=True)
        if following.refusal is not None and following.refusal.code not in _NOT_NOW:
            raise following.refusal
        end = await self._drop_in_flight()
        return await self._step_to_doubtful_end(end, fetched)

    async def _step_before_refusal(self, fetched: Fetched, refusal: RpcError) -> Step:
        """End a step whose next fetch confirmed it but brought nothing: a commit says where it ends.

        That commit drops what the refused fetch may have read.
        """
        if refusal.code not in _NOT_NOW:
            raise refusal
        end = await self._drop_in_flight()
        return await self._step_to_doubtful_end(end, fetched)

    async def _step_to_doubtful_end(self, end: int, fetched: Fetched) -> Step:
        """End a step at a position which the broker may have moved.

        When that lies behind the end of the records, the broker has passed over other entries, or the log's
        beginning has moved. Registering at the end of the records shows which: if the broker does not move
        that, it did not move the fetch either.
        """
        least = self.counted_end(fetched)
        if end <= least:
            return self._move(end, fetched)
        begins = await self._acquire(least)
        if begins == least:
            again = await self._acquire(end)
            self._expect(again, end)
            return self._move(end, fetched)
        if not fetched.count:
            raise self._moved(begins, least)
        # The next step stands before the log's beginning, and fails for it.
        return self._move(least, fetched)

    async def _step_without_records(self, fetched: Fetched, refusal: RpcError) -> Step:
        if refusal.code == ErrCode.SERVER_CONSUME_SPEED_LIMIT:
            pause_ms = max(_LEAST_PAUSE_MS, fetched.header.wait_ms)
            return Step(self.position, self.position, fetched, pause_ms)
        if refusal.code != ErrCode.NOT_FOUND:
            raise refusal
        # A broker that passed only other partitions' records in memory says "not found" and moves on.
        end = await self._drop_in_flight()
        return await self._step_to_doubtful_end(end, fetched)

    async def _drop_in_flight(self) -> int:
        """Drop what the broker has fetched for us but not confirmed; return where it stands."""
        lease = self._holder.lease
        try:
            answer = await lease.session.start_commit(lease.claim, consumed=False)
        except RpcError as error:
            if error.code != ErrCode.FORBIDDEN:
                raise
            answer = await lease.register(None)
        return answer.current

    async def _acquire(self, offset: int) -> int:
        """Lease the partition at an offset; return where the broker stands."""
        answer = await self._holder.acquire(offset)
        return answer.current

    def _move(self, end: int, fetched: Fetched) -> Step:
        """End a step whose end is known and behind which nothing is in flight at the broker."""
        if end < self.counted_end(fetched):
            raise self._moved(end, self.counted_end(fetched))
        step = Step(self.position, end, fetched)
        self.position = end
        return step

    def _expect(self, actual: int, expected: int) -> None:
        if actual != expected:
            raise self._moved(actual, expected)

    def _moved(self, actual: int, expected: int) -> RemoteProtocolError:
        return RemoteProtocolError(
            "TUBEMQ_POSITION_MOVED", partition=self._partition, actual=actual, expected=expected
        )


class ReadAhead:
    """A cursor that confirms what has arrived, and fetches what comes next at the same time.

    Nothing else may move the cursor. If no other partition is in the store (``own_store``), steps cost
    one request.
    """

    def __init__(self, cursor: Cursor, *, own_store: bool) -> None:
        """Create a cursor that stands nowhere; call ``seek`` first."""
        self._cursor = cursor
        self._own_store = own_store
        self._counts = False
        """Whether records and offsets have agreed since ``seek``."""
        self._ahead: Started[Fetched] | None = None

    @property
    def position(self) -> int:
        """Where the next step begins, in index bytes."""
        return self._cursor.position

    async def seek(self, offset: int) -> Position:
        """Lease the partition again, at an offset; see ``Cursor.seek``."""
        self.forget()
        self._counts = False
        return await self._cursor.seek(offset)

    def forget(self) -> None:
        """Do not wait for what is being fetched."""
        if self._ahead is not None:
            self._ahead.forget()
            self._ahead = None

    async def step(self, until: int) -> Step:
        """Read what comes next and move behind it.

        After an error nothing of the step counts: ``seek`` to the position where it was to begin.

        The next step is fetched ahead when this one ends before ``until``.
        """
        if self._cursor.unconfirmed is None:
            await self._receive(until)
        confirming, self._ahead = self._ahead, None
        if confirming is None:
            step = await self._cursor.confirm()
        else:
            step = await self._cursor.confirm_by(confirming)
        following = self._cursor.unconfirmed
        if following is None:
            self._fetch_ahead(step, until)
        else:
            self._confirm_ahead(following, until)
        return step

    async def _receive(self, until: int) -> None:
        """Wait for the answer to the fetch from our position."""
        started, self._ahead = self._ahead or self._cursor.start_fetch(), None
        fetched = await self._cursor.receive(started)
        if fetched.refusal is None:
            self._confirm_ahead(fetched, until)

    def _confirm_ahead(self, fetched: Fetched, until: int) -> None:
        """Send the fetch that confirms an answer from our position, unless the answer is the last one."""
        if self._counts and fetched.count and self._cursor.counted_end(fetched) < until:
            self._ahead = self._cursor.start_fetch(confirm=True)

    def _fetch_ahead(self, step: Step, until: int) -> None:
        """Send the next fetch behind a step that was committed, unless the step is the last one."""
        if step.next > step.start:
            self._counts = self._own_store and step.dense
        if step.start < step.next < until:
            self._ahead = self._cursor.start_fetch()


def _decode(fetched: Fetched) -> None:
    """Decode now, while a request is under way; an answer that does not parse ends its step."""
    _ = fetched.columns
