"""What takes messages to their outcomes: accepts batches, routes them, sends them, and settles each message.

A pipeline belongs to one event loop, in which all its coroutines run and all outcomes are told. What is said
to be for any thread only reads.

**States of a message.** *Offered* in the caller's batch; *accepted* when there was room for it and its place
was known, or *refused*, which ``on_refused`` is told at once; *ended* when a broker has stored it, or when it
has failed for good: its batch's ``outcomes`` is told that, once, within ``delivery_timeout_ms``.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, Protocol

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.producer.links import BrokerLink
from tubemq_spark.client.producer.log import SendLog
from tubemq_spark.client.producer.outgoing import OutgoingBatch
from tubemq_spark.client.producer.partitioner import Place, RunUserCode
from tubemq_spark.client.producer.statistics import ProducerStatistics
from tubemq_spark.errors import ProduceError, TubeMQError
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.send_batch import OnRefused
from tubemq_spark.receipts import Receipt

__all__ = ["Pipeline", "Place", "RunUserCode"]


class Question(NamedTuple):
    """What a server must be asked before a message can be routed."""

    topic: str
    partition: tuple[int, int] | None


Obstacle = Question | BrokerLink | TubeMQError
"""Why a message cannot be routed now: ask a server, its broker's share is full, or it is refused."""


class SharedQuestions:
    """What servers are asked now: who asks the same waits for the same answer.

    A question that no caller waits for any more is cancelled.
    """

    def __init__(self) -> None:
        self._tasks: dict[Question, asyncio.Task[Place]] = {}
        self._callers: dict[asyncio.Task[Place], int] = {}
        """How many wait for each; also those that end now."""
        self._error: TubeMQError | None = None

    async def ask(self, question: Question, begin: Callable[[], Coroutine[Any, Any, Place]]) -> Place:
        """Return the answer to a question, which is begun unless it is asked already."""
        task = self._tasks.get(question)
        if task is None or task.done():
            task = self._tasks[question] = asyncio.create_task(begin())
            self._callers[task] = 0
            task.add_done_callback(self._forget)
        self._callers[task] += 1
        try:
            await asyncio.wait((task,))
            if task.cancelled() and self._error is not None:
                raise self._error
            return task.result()
        finally:
            if not task.done():
                self._callers[task] -= 1
                if not self._callers[task]:
                    self._tasks.pop(question, None)
                    task.cancel()
            elif self._tasks.get(question) is task:
                del self._tasks[question]
            # Its error holds this frame.
            del task

    def _forget(self, task: "asyncio.Task[Place]") -> None:
        del self._callers[task]
        if not task.cancelled():
            task.exception()  # of one that its last caller has left

    async def close(self, error: TubeMQError) -> None:
        """Cancel all questions, and wait until they have ended; an error is the answer to them."""
        self._error = error
        for task in self._callers:
            task.cancel()
        await asyncio.gather(*self._callers, return_exceptions=True)


class Pipeline(Protocol):
    """The way of a producer's messages, directly to brokers or through gateways."""

    config: ClientConfig
    log: SendLog
    callers: int = 0
    """How many tasks are inside ``accept``."""

    @property
    def client_id(self) -> str:
        """The name under which servers know the producer; for any thread."""

    @property
    def error(self) -> TubeMQError | None:
        """The first error that concerns all messages: nothing is sent after it; for any thread."""

    @property
    def unacknowledged(self) -> int:
        """How many accepted messages have not ended; for any thread."""

    @property
    def full(self) -> frozenset[int]:
        """The ids of brokers whose shares are full: messages for them alone wait; for any thread."""

    on_change: Callable[[], object]
    """Called in the loop when ``full`` or ``error`` has changed; set by who owns the pipeline."""

    def place_now(self, topic: str, partition: tuple[int, int] | None) -> Place | None:
        """Return where messages go, as far as that is known; None: a server must be asked; for any thread."""

    async def place(self, topic: str, partition: tuple[int, int] | None) -> Place:
        """Return where they go; ask if that is not known, and wait up to ``delivery_timeout_ms``.

        Callers that ask for the same wait together; when none is left that waits, the question is dropped.
        """

    async def place_once(self, topic: str, partition: tuple[int, int] | None) -> Place:
        """Return where they go as ``place`` does, but ask only once: a refusal may be over soon."""

    async def publishable(self, topic: str) -> tuple[TopicPartition, ...]:
        """Ask to which partitions a topic can be published now."""

    async def accept(
        self,
        batch: OutgoingBatch,
        first: int,
        stop: int,
        on_refused: OnRefused | None = None,
        *,
        wait_for_share: bool = True,
    ) -> int:
        """Accept messages of a batch, in order, and return the row behind; wait for room and unknown topics.

        Calls of several tasks take turns. A message whose broker's share is full waits, and holds up those of
        its own call only; without ``wait_for_share`` this returns its row. What becomes of the messages is
        told to the batch's ``outcomes``; without it, the first that fails ends the pipeline. ``on_refused``
        takes the row of each message that cannot be sent, and why: it is in the batch's ``refused``, too
        long, or its topic or partition is not known in time. The others are sent. What it raises is raised
        here; without it the first refusal is raised, with its ``row``. Those before it are accepted.
        """
        refused: dict[Question, TubeMQError] = {}  # what is asked only once in a call
        row = first
        self._count_callers(1)
        try:
            while row < stop:
                row, obstacle = await self.accept_routed(batch, row, stop)
                if isinstance(obstacle, BrokerLink) and not wait_for_share:
                    break
                if obstacle is not None and (error := await self._overcome(obstacle, refused)) is not None:
                    error.row = row
                    if on_refused is None:
                        raise error
                    on_refused(row, error)
                    row += 1
        finally:
            self._count_callers(-1)
        return row

    def _count_callers(self, change: int) -> None:
        self.callers += change

    async def accept_routed(self, batch: OutgoingBatch, first: int, stop: int) -> tuple[int, Obstacle | None]:
        """Accept messages up to the first that cannot be routed; return the row behind, and why, if so."""

    async def _overcome(self, obstacle: Obstacle, refused: dict[Question, TubeMQError]) -> TubeMQError | None:
        """Wait until a message can be routed; return why it never can."""
        if not isinstance(obstacle, Question):
            return obstacle if isinstance(obstacle, TubeMQError) else None
        if obstacle not in refused:
            try:
                await self.place(*obstacle)
            except TubeMQError as error:
                if error is self.error:
                    raise
                refused[obstacle] = error
        return refused.get(obstacle)

    def refuse_if_ended(self) -> None:
        """Raise ``error``, if there is one."""
        if self.error is not None:
            raise self.error

    async def flush(self) -> None:
        """Wait until every accepted message has an outcome."""

    def give_up(self, *batches: OutgoingBatch) -> None:
        """Fail those messages of some batches that are open, within half a second."""

    def break_off(self, error: BaseException) -> None:
        """Fail for good, unless the pipeline has failed before; open messages are reported as abandoned."""

    def receipts(self) -> list[Receipt]:
        """Return what each partition has acknowledged so far, in the partitions' order; for any thread."""

    def statistics(self, room_wait_s: float = 0.0) -> ProducerStatistics:
        """Return the counts so far, for any thread; ``room_wait_s`` adds to the wait for room."""

    def begin(self, name: str = "") -> None:
        """Begin a piece of work under a name, with new counts; all messages have ended."""

    async def close(self, room_wait_s: float = 0.0) -> None:
        """Leave the servers and close the connections; open messages are reported as abandoned."""

    def abandon(self, error: ProduceError) -> None:
        """Drop every connection without closing it for another process that shares it; fail for good."""
