"""Reading a leased partition step by step, knowing at every step where it begins and where it ends.

A fetch tells where it began but not where it ended, so a step needs one more answer. There are two:

- A **commit** confirms the last fetch and answers with the position behind it, which is always exact.
- The **next fetch** can confirm the last one too (``lastPackConsumed``) and answers with its own beginning:
  one request per step, under way while the last answer is decoded. But the broker silently moves a fetch
  that stands before the log's beginning (retention), so it may name a later position than the one where the
  last fetch ended. Counting proves that it was not moved: ``end == start + 28 * records``. That only works
  where every record of the store belongs to the partition; in a shared store every step is committed.

Between two calls of ``step``, ``_received`` and ``_ahead`` say where we are:

========  =======  ==========================================================================================
received  ahead
========  =======  ==========================================================================================
no        no       nothing is under way: after ``seek``, or where a step reached its ``until``
no        yes      the fetch from ``position`` is under way; everything before it is committed
yes       no       the answer from ``position`` is here, and a commit will tell where it ends
yes       yes      the answer from ``position`` is here, and the fetch under way confirms it
========  =======  ==========================================================================================

Invariants:

- At most one request per lease is under way: the server may carry out two in either order.
- Only an answer with records is confirmed. A fetch that confirms is never sent behind a refusal: the broker
  might hold records of which only the answer was lost.
- The first step after ``seek`` is committed, so that a broker which refuses every other fetch is read all the
  same.
- Every answered position is compared with what is expected. Only ``seek`` and a step that is returned change
  ``position``; after an error nothing of the step counts.
"""

import dataclasses
from typing import Final

from tubemq_spark.client.broker import Fetched, Position, Started
from tubemq_spark.client.lease import Lease
from tubemq_spark.errors import RemoteProtocolError, RpcError
from tubemq_spark.model import TopicPartition
from tubemq_spark.offsets.units import INDEX_ENTRY_BYTES
from tubemq_spark.protocol.errcodes import ErrCode

_LEAST_PAUSE_MS: Final = 100
_NOT_NOW: Final = frozenset({ErrCode.NOT_FOUND, ErrCode.SERVER_CONSUME_SPEED_LIMIT})
"""Refusals of fetches that are not errors."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What one fetch brought: the partition's records with ``start <= offset < next``, in index bytes.

    Offsets between may belong to records of other partitions of the store. No records and
    ``next == start``: there is nothing to read now.
    """

    start: int
    next: int
    fetched: Fetched
    pause_ms: int = 0
    """How long the broker asks to wait (flow control)."""

    @property
    def dense(self) -> bool:
        """Whether every offset between is one of the records."""
        return self.next - self.start == INDEX_ENTRY_BYTES * self.fetched.count


class Cursor:
    """A position in a partition, at the broker and here; every difference between the two is an error."""

    def __init__(self, lease: Lease, partition: TopicPartition, *, own_store: bool = False) -> None:
        """Use ``seek`` before anything else.

        Args:
            lease: how to hold the partition.
            partition: the partition.
            own_store: whether no other partition is in its store. Steps cost one request then.
        """
        self.position = 0
        self._lease = lease
        self._partition = partition
        self._own_store = own_store
        self._counts = False
        """Whether records and offsets have agreed since ``seek``."""
        self._received: Fetched | None = None
        self._ahead: Started[Fetched] | None = None

    def seek(self, offset: int) -> Position:
        """Lease the partition anew at an offset; the answer is where the broker really stands.

        Raises:
            TubeMQError: as ``Lease.take``.
        """
        self.forget_ahead()
        self._counts = False
        position = self._lease.take(offset)
        self.position = position.current
        return position

    def step(self, until: int) -> Step:
        """Read what comes next and move behind it.

        After an error nothing of the step counts: ``seek`` to the position where it was to begin.

        Args:
            until: the next step is fetched ahead when this one ends before that offset.

        Raises:
            RpcError: the broker refused.
            RemoteProtocolError: the answer does not fit our position, or does not parse.
            TubeMQConnectionError: the connection was lost.
            TubeMQTimeoutError: no answer came.
        """
        fetched = self._received or self._receive(until)
        self._received = None
        if fetched.refusal is not None:
            return self._step_without_records(fetched, fetched.refusal, until)
        started, self._ahead = self._ahead, None
        if started is None:
            return self._step_by_commit(fetched, until)
        return self._step_by_next_fetch(fetched, started, until)

    def forget_ahead(self) -> None:
        """Drop what was fetched ahead or is being fetched."""
        self._received = None
        if self._ahead is not None:
            self._ahead.forget()
            self._ahead = None

    def _receive(self, until: int) -> Fetched:
        """Wait for the answer to the fetch from our position."""
        session, claim = self._lease.held
        started, self._ahead = self._ahead or session.start_fetch(claim), None
        fetched = started.result()
        if fetched.refusal is None:
            self._expect(fetched.header.current_offset, self.position)
            self._confirm_ahead(fetched, until)
        return fetched

    def _confirm_ahead(self, fetched: Fetched, until: int) -> None:
        """Send the fetch that confirms an answer from our position, unless the answer is the last one."""
        if self._counts and fetched.count and self._counted_end(fetched) < until:
            session, claim = self._lease.held
            self._ahead = session.start_fetch(claim, consumed=True)

    def _step_by_commit(self, fetched: Fetched, until: int) -> Step:
        session, claim = self._lease.held
        commit = session.start_commit(claim, consumed=True)
        _decode(fetched)
        try:
            return self._move(commit.result().current, fetched, until)
        except RpcError as error:
            if error.code != ErrCode.FORBIDDEN:
                raise
        return self._step_without_commit(fetched, until)

    def _step_without_commit(self, fetched: Fetched, until: int) -> Step:
        """End a step of a closed topic, which can be fetched from but not committed."""
        session, claim = self._lease.held
        following = session.start_fetch(claim, consumed=True).result()
        if following.refusal is not None and following.refusal.code not in _NOT_NOW:
            raise following.refusal
        return self._step_told(self._drop_in_flight(), fetched, until)

    def _step_by_next_fetch(self, fetched: Fetched, started: Started[Fetched], until: int) -> Step:
        _decode(fetched)
        following = started.result()
        if following.refusal is not None:
            return self._step_before_refusal(fetched, following.refusal, until)
        end = following.header.current_offset
        if end != self._counted_end(fetched):
            return self._step_told(end, fetched, until)
        step = Step(self.position, end, fetched)
        self.position, self._received = end, following
        self._confirm_ahead(following, until)
        return step

    def _step_before_refusal(self, fetched: Fetched, refusal: RpcError, until: int) -> Step:
        """End a step whose next fetch brought nothing: it has confirmed all the same, and a commit tells.

        That commit drops what the refused fetch may have read.
        """
        if refusal.code not in _NOT_NOW:
            raise refusal
        return self._step_told(self._drop_in_flight(), fetched, until)

    def _step_told(self, told: int, fetched: Fetched, until: int) -> Step:
        """End a step at a position which the broker may have moved.

        When it stands further on than the records reach, it has passed over other entries, or the log's
        beginning has moved. A register right behind the records tells: where it is not moved, neither was
        the fetch.
        """
        least = self._counted_end(fetched)
        if told <= least:
            return self._move(told, fetched, until)
        begins = self._lease.take(least).current
        if begins == least:
            self._expect(self._lease.take(told).current, told)
            return self._move(told, fetched, until)
        if not fetched.count:
            raise self._moved(begins, least)
        # The next step stands behind what is gone, and fails for it.
        return self._move(least, fetched, until)

    def _step_without_records(self, fetched: Fetched, refusal: RpcError, until: int) -> Step:
        if refusal.code == ErrCode.SERVER_CONSUME_SPEED_LIMIT:
            pause_ms = max(_LEAST_PAUSE_MS, fetched.header.wait_ms)
            return Step(self.position, self.position, fetched, pause_ms)
        if refusal.code != ErrCode.NOT_FOUND:
            raise refusal
        # A broker that passed only other partitions' records in memory says "not found" and moves on.
        return self._step_told(self._drop_in_flight(), fetched, until)

    def _drop_in_flight(self) -> int:
        """Drop what the broker has fetched for us but not confirmed; return where it stands."""
        session, claim = self._lease.held
        try:
            return session.commit(claim, consumed=False).current
        except RpcError as error:
            if error.code != ErrCode.FORBIDDEN:
                raise
        return self._lease.renew().current

    def _move(self, end: int, fetched: Fetched, until: int) -> Step:
        """End a step whose end is known and behind which nothing is in flight at the broker."""
        if end < self._counted_end(fetched):
            raise self._moved(end, self._counted_end(fetched))
        step = Step(self.position, end, fetched)
        if end > step.start:
            self._counts = self._own_store and step.dense
        self.position = end
        if step.start < end < until:
            session, claim = self._lease.held
            self._ahead = session.start_fetch(claim)
        return step

    def _counted_end(self, fetched: Fetched) -> int:
        """Return where the records from our position end if no other offset lies between them."""
        return self.position + INDEX_ENTRY_BYTES * fetched.count

    def _expect(self, actual: int, expected: int) -> None:
        if actual != expected:
            raise self._moved(actual, expected)

    def _moved(self, actual: int, expected: int) -> RemoteProtocolError:
        return RemoteProtocolError(
            "TUBEMQ_POSITION_MOVED", partition=self._partition, actual=actual, expected=expected
        )


def _decode(fetched: Fetched) -> None:
    """Decode now, while a request is under way; an answer that does not parse ends its step."""
    _ = fetched.columns
