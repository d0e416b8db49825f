"""Reading a leased partition step by step, knowing at every step where it begins and where it ends.

A fetch tells where it began but not where it ended; only the position after a commit does. So each step
is a fetch and a commit. The next fetch is under way while the caller works on what came before. It is
sent after the commit's answer, not right behind the commit: a broker that carried them out in the other
order would commit the wrong fetch, and records would be lost.
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

    def __init__(self, lease: Lease, partition: TopicPartition) -> None:
        """Use ``seek`` before anything else."""
        self.position = 0
        self._lease = lease
        self._partition = partition
        self._ahead: Started[Fetched] | None = None

    def seek(self, offset: int) -> Position:
        """Lease the partition anew at an offset; the answer is where the broker really stands.

        Raises:
            TubeMQError: as ``Lease.take``.
        """
        self.forget_ahead()
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
        session, claim = self._lease.held
        started, self._ahead = self._ahead or session.start_fetch(claim), None
        fetched = started.result()
        if fetched.refusal is not None:
            return self._step_without_records(fetched, fetched.refusal, until)
        if fetched.header.current_offset != self.position:
            raise self._moved(fetched.header.current_offset, self.position)
        current = session.commit(claim).current
        return self._move(current, self.position + INDEX_ENTRY_BYTES * fetched.count, until, fetched)

    def forget_ahead(self) -> None:
        """Drop what is being fetched ahead."""
        if self._ahead is not None:
            self._ahead.forget()
            self._ahead = None

    def _step_without_records(self, fetched: Fetched, refusal: RpcError, until: int) -> Step:
        if refusal.code == ErrCode.SERVER_CONSUME_SPEED_LIMIT:
            pause_ms = max(_LEAST_PAUSE_MS, fetched.header.wait_ms)
            return Step(self.position, self.position, fetched, pause_ms)
        if refusal.code != ErrCode.NOT_FOUND:
            raise refusal
        # A broker that passed only other partitions' records in memory says "not found" and moves on.
        session, claim = self._lease.held
        current = session.commit(claim, consumed=False).current
        return self._move(current, self.position, until, fetched)

    def _move(self, current: int, least: int, until: int, fetched: Fetched) -> Step:
        if current < least:
            raise self._moved(current, least)
        step = Step(self.position, current, fetched)
        self.position = current
        if step.start < current < until:
            session, claim = self._lease.held
            self._ahead = session.start_fetch(claim)
        return step

    def _moved(self, actual: int, expected: int) -> RemoteProtocolError:
        return RemoteProtocolError(
            "TUBEMQ_POSITION_MOVED", partition=self._partition, actual=actual, expected=expected
        )
