"""The calls of a consumer at a gateway that bring messages and end batches, and the users that wait.

A *call* waits at the gateway for messages of any partition; a task carries it out to its end, also when its
caller has left. What it brings is buffered (``partitions``) for the one that has waited longest. So a fetch
may be cancelled or interrupted at any moment: nothing is lost, and nothing comes later for it.

Invariants:

- For each that waits there is a buffered batch, or a call under way, if the gateway may have messages that
  are wanted. Without anyone who waits no call begins.
- The gateway is told with each call what is not wanted, and goes by the last one. When it was told of
  something that is wanted again, one more call begins.
- What was asked for before a partition was moved, or disconnected, may have been read before that, or behind
  it: it goes back to the gateway, and comes again.
- While no gateway is to be asked (``membership``), calls wait.
"""

import asyncio
import collections
import contextlib
import itertools
import logging
from collections.abc import Callable
from typing import Final

from tubemq_spark.client.consumer.cache import PATIENCE_S
from tubemq_spark.client.consumer.values import Batch, Confirmed, PartitionState
from tubemq_spark.client.reader.records import records_of
from tubemq_spark.client.remote.attempts import AwayError
from tubemq_spark.client.remote.membership import Membership
from tubemq_spark.client.remote.partitions import RemoteState
from tubemq_spark.client.tasks import OwnedTasks
from tubemq_spark.errors import RemoteProtocolError, TubeMQError
from tubemq_spark.model import TopicPartition
from tubemq_spark.net.retry import MOVED_REST_MS
from tubemq_spark.protocol.gateway import batches, gateway_pb2 as pb, values
from tubemq_spark.protocol.gateway.packed import MalformedMessageError

logger = logging.getLogger(__name__)

_WAIT_S: Final = 20.0
"""How long a gateway waits for messages, which is as long as it does at most."""


class RemoteFetching:
    """Fetches and ends batches for one consumer; ``on_failure`` hears why a call for messages was refused."""

    def __init__(
        self,
        state: RemoteState,
        membership: Membership,
        tasks: OwnedTasks,
        on_failure: Callable[[TubeMQError], object],
    ) -> None:
        self.ending = 0
        """How many batches are being confirmed or rolled back."""
        self._state = state
        self._membership = membership
        self._tasks = tasks
        self._on_failure = on_failure
        self._numbers = itertools.count(1)
        """Of waiters and calls."""
        self._waiters: dict[int, None] = {}
        """In the order in which they came."""
        self._calls: set[asyncio.Task[None]] = set()
        self._ended = 0
        """How many calls have ended."""
        self._told: frozenset[TopicPartition] = frozenset()
        """What the gateway knows not to be wanted."""
        self._moved: dict[TopicPartition, int] = {}
        """A number between those of the calls before the last move of a partition, or the last disconnection,
        and behind it."""
        self._errors: collections.deque[BaseException] = collections.deque()
        """Of calls and callbacks; each is raised by one fetch."""
        state.tell = self._tell
        state.changes.listener = self._begin_calls

    # Those that wait.

    async def fetch(self, timeout_s: float | None, *, patient: bool) -> Batch | None:
        """Return the next batch; None: there was none in time."""
        ended, until, waiter = self._ended, self._state.changes.until, next(self._numbers)
        self._waiters[waiter] = None
        try:
            self._begin_calls()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await until(lambda: self._is_served(waiter))
            if patient and timeout_s is not None and timeout_s < PATIENCE_S:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PATIENCE_S - timeout_s):
                        await until(lambda: self._is_served(waiter) or not self._comes_soon(ended))
            if not self._is_served(waiter):
                return None
            if self._errors:
                raise self._errors.popleft()
            return self._state.hand_out()
        finally:
            del self._waiters[waiter]
            if self._outcomes():
                self._state.changes.note()  # another one may take it

    def _outcomes(self) -> int:
        return len(self._errors) + len(self._state.ready())

    def _is_served(self, waiter: int) -> bool:
        """Return whether there is something for each that has waited longer, and for this one."""
        self._state.check_fetch()
        return waiter in itertools.islice(self._waiters, self._outcomes())

    def _comes_soon(self, ended: int) -> bool:
        """Return whether a call may bring something, and not each partition had one since so many ended."""
        state = self._state
        is_idle = any(state.state_of(partition) is PartitionState.IDLE for partition in state.connected)
        return state.asking > 0 and is_idle and self._ended - ended < len(state.connected)

    def _tell(self, error: BaseException) -> None:
        self._errors.append(error)
        self._state.changes.note()

    # Calls for messages.

    def _begin_calls(self) -> None:
        """Begin as many calls as are missing; called with every change."""
        state = self._state
        if not self._waiters or state.stopped or not state.expects_messages():
            return
        missing = len(self._waiters) - self._outcomes() - len(self._calls)
        if missing <= 0 and state.asking == len(self._calls) > 0 and not self._told <= state.unwanted:
            missing = 1
        for _ in range(missing):
            call = self._tasks.start(self._call(), f"fetch of {state.client_id}")
            self._calls.add(call)
            call.add_done_callback(self._end_call)

    def _end_call(self, call: "asyncio.Task[None]") -> None:
        self._calls.discard(call)
        self._ended += 1
        if not call.cancelled() and (error := call.exception()) is not None:
            self._errors.append(error)
        self._state.changes.note()

    async def _call(self) -> None:
        """Wait for messages at the gateway, and buffer what comes."""
        membership = self._membership
        try:
            await membership.rested()
            stay, number = await membership.joined_in_time(), next(self._numbers)
            answer = await self._ask(stay)
        except AwayError as error:
            logger.debug("%s waits: %s", self._state.client_id, error)
            return
        except TubeMQError as error:
            self._on_failure(error)
            raise
        if answer.draining:
            membership.note_draining()
        if answer.batch:
            self._take(answer, number, stay)
        elif answer.reason != pb.FetchResponse.REASON_AT_ENDS:
            # It knows of other partitions than this consumer, which the next heartbeat will mend.
            await asyncio.sleep(MOVED_REST_MS / 1000)

    async def _ask(self, stay: int) -> pb.FetchResponse:
        self._told = self._state.unwanted
        paused = map(values.partition_to_proto, sorted(self._told))
        request = pb.FetchRequest(wait_ms=round(1000 * _WAIT_S), paused=paused)
        self._state.asking += 1
        try:
            return await self._membership.ask("Fetch", request, pb.FetchResponse, stay, more_s=_WAIT_S)
        finally:
            self._state.asking -= 1

    def _take(self, answer: pb.FetchResponse, number: int, stay: int) -> None:
        partition = values.partition_from_proto(answer.partition)
        if number < self._moved.get(partition, 0):
            rolling_back = self._commit(answer.batch, stay, consumed=False)
            self._tasks.start(rolling_back, f"rolling {answer.batch} back")  # or else it comes again later
            return
        try:
            columns = batches.from_proto(answer.records, answer.records.data, partition)
        except MalformedMessageError as error:
            raise RemoteProtocolError("TUBEMQ_GATEWAY_ANSWER", what=str(error)) from error
        batch = Batch(
            partition,
            columns.start,
            answer.latest if answer.HasField("latest") else None,
            tuple(
                records_of(
                    columns, exact_offsets=columns.dense, time_zone=self._state.config.message_time_zone
                )
            ),
            self._state.endpoint_of(partition) or self._membership.endpoint,
            answer.batch,
            bytes_behind=columns.bytes_behind,
            slow=answer.slow,
        )
        self._state.buffer(batch)
        if partition not in self._state.connected:
            self._membership.hasten()

    def note_move(self, partition: TopicPartition) -> None:
        """Take back what was asked for by now, if it is of a partition that is moved or given up."""
        self._moved[partition] = next(self._numbers)

    # Ending batches.

    async def end_batch(self, context: str, *, consumed: bool) -> Confirmed:
        """Confirm a batch or roll it back; see ``Consumer.confirm``."""
        partition = self._state.begin_to_end(context)
        offset, latest = None, self._state.connected[partition].position.latest
        try:
            answer = await self._commit(context, self._membership.stay, consumed=consumed)
            offset = answer.offset if answer.HasField("offset") else None
            latest = answer.latest if answer.HasField("latest") else latest
        except AwayError as error:
            during = f"confirming a batch of {partition}, which comes again unless that was done"
            raise self._membership.away_error(during, error) from error
        finally:
            self._state.end_batch(partition, context, offset, latest)
        return Confirmed(partition, context, offset, latest)

    async def _commit(self, context: str, stay: int, *, consumed: bool) -> pb.CommitResponse:
        request = pb.CommitRequest(batch=context, roll_back=not consumed)
        self.ending += 1
        try:
            return await self._membership.ask("Commit", request, pb.CommitResponse, stay)
        finally:
            self.ending -= 1
            self._state.changes.note()
