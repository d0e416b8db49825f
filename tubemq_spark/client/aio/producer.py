"""A producer for coroutines.

It is a ``Producer`` whose callers do not block: the same parts (``Sending``) check, place, send and retry
messages, in the same single thread per producer. Only waiting is different. There are three waits:

- For a master, where a topic is sent to for the first time or a partition is not listed: it is asked in a
  thread of the client's workers, and the pauses between two questions take none. Messages to the same place
  wait together; when none is left that waits, the question is dropped.
- For room, while too many messages are under way: coroutines stand in line, and the first one looks again
  whenever the producer's thread says that something has changed. There is a line for each broker, so that
  one whose share is full holds up no others.
- For outcomes: the producer's thread leaves them in the event loop, many at a time.

A message is *accepted* at one moment, in the event loop. A coroutine that is cancelled before that has sent
nothing; after that nothing calls the message back.
"""

import asyncio
import contextlib
import contextvars
import functools
import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Final, Self, Unpack, cast

from tubemq_spark.client.aio.home import Changes, HomeLoop
from tubemq_spark.client.aio.workers import Workers, look_at
from tubemq_spark.client.producer.gathered import MessageFields, OutgoingMessage
from tubemq_spark.client.producer.outcomes import SendResult, UnaskedFailures
from tubemq_spark.client.producer.placing import Place
from tubemq_spark.client.producer.sending import Sending, would_wait
from tubemq_spark.client.producer.statistics import ProducerStatistics
from tubemq_spark.errors import ProduceError, TubeMQError
from tubemq_spark.model import TopicPartition
from tubemq_spark.net.retry import PUBLISHABLE_TOPIC
from tubemq_spark.protocol.send_batch import SendBatch
from tubemq_spark.receipts import Receipt

_ROOM: Final[frozenset[int]] = frozenset()
"""The line of those that are first in theirs."""
_TURN: Final = 256
"""After so many messages of a batch, other coroutines have their turn."""
_NOT_ACCEPTED: Final = "The message was not accepted: it was not sent, and will not be."
_ACCEPTED: Final = "The message was accepted: it is sent all the same, and may be stored."


class AsyncProducer:
    """Sends messages to any number of topics; any number of coroutines of one event loop may use it.

    ``await send(...)`` returns when the message is accepted, with the future of its outcome: where it is
    stored (``SendResult``), or the error that it met. Await that as well to wait for one message alone.

    **At least once**, **order** and **a message fails alone**: as ``Producer``.

    **Cancelling** ``send`` before the message was accepted means that it is not sent. After that nothing
    calls it back. A note on the ``CancelledError`` says which of both it was.

    As a context manager it flushes until nothing is left and closes; when the block fails, it closes at once.
    """

    def __init__(self, sending: Sending, workers: Workers) -> None:
        """Reach no server; ``AsyncTubeMQClient.producer`` makes producers."""
        self._sending = sending
        sending.kind = "asynchronous producer"
        self._workers = workers
        self._home = HomeLoop(lambda: ProduceError("TUBEMQ_PRODUCER_LOOP"))
        self._changes = Changes(self._home)
        sending.loop.on_change = self._changes.note
        self._lines: defaultdict[frozenset[int], asyncio.Lock] = defaultdict(asyncio.Lock)
        """Where coroutines stand in line: by the brokers that their messages may go to, then all together. A
        lock is held by the first of a line."""
        self._standing = 0
        """How many coroutines stand in lines."""
        self._questions: dict[tuple[str, tuple[int, int] | None], _Question] = {}
        """What masters are asked, by topic and partition; those are dropped that none waits for."""

    async def __aenter__(self) -> Self:
        self._enter()
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error_type is None:
                await self.flush()  # also for messages that have failed by now
                while self.unacknowledged:  # others may have sent
                    await self.flush()
        finally:
            await self.close()

    @property
    def client_id(self) -> str:
        """The name under which servers know this producer."""
        return self._sending.client_id

    @property
    def unacknowledged(self) -> int:
        """How many accepted messages no broker has acknowledged yet."""
        return self._sending.loop.unacknowledged

    async def send(
        self, topic: str, value: bytes, *, block: bool = True, **fields: Unpack[MessageFields]
    ) -> "AsyncSendFuture":
        """Accept a message and return the future of its outcome.

        The arguments are those of ``Producer.send``. Cancelling the future only means that its outcome is not
        asked for.

        Raises:
            OptionError: an argument has a wrong type, the value is empty, or an attribute cannot be written.
            ProduceError: the producer has ended; or this message is too long, would have to wait, or its
                topic or partition does not exist, or could not be published to in time.
            TubeMQConnectionError: no master answered in time.
        """
        sending = self._sending
        try:
            message = sending.check(topic, value, **fields)
            self._home.enter()
            place = sending.places.place_now(topic, message.partition)
            if place is None:
                if not block:
                    cause = "a master must be asked for its partitions"
                    raise sending.refuse_and_ask(topic, message.partition, cause)
                place = await self._place(topic, message.partition)
            future = AsyncSendFuture(sending.unasked)
            sending.complete(message, place, functools.partial(_tell, self._home, future))
            if block:
                await self._put(message)
            elif not self._may_pass(message) or not sending.loop.put(message, block=False):
                raise would_wait(topic, sending.cause_of_wait(message))
        except asyncio.CancelledError as error:
            error.add_note(_NOT_ACCEPTED)
            raise
        return future

    async def send_batch(self, batch: SendBatch) -> "list[AsyncSendFuture]":
        """Accept the messages of a batch, in order, and return their futures; otherwise as ``send``.

        The messages before one that is refused are accepted. When this is cancelled, a note on the
        ``CancelledError`` says how many were accepted.

        Raises:
            TubeMQError: as ``send``; ``row`` is the place of the message in the batch.
        """
        self._enter()
        futures: list[AsyncSendFuture] = []
        try:
            for row in range(len(batch)):
                if row % _TURN == _TURN - 1:
                    await asyncio.sleep(0)
                futures.append(await self.send(**batch.message(row)._asdict()))
        except TubeMQError as error:
            error.row = len(futures)
            raise
        except asyncio.CancelledError as error:
            error.add_note(
                f"{len(futures)} of the batch's {len(batch)} messages were accepted, and are sent."
            )
            raise
        return futures

    async def flush(self, timeout: float | None = None) -> None:
        """Return when every message that was accepted before has an outcome, and its future has it.

        Args:
            timeout: how many seconds to wait; None: until all have one, which takes ``delivery_timeout_ms``
                at most.

        Raises:
            ProduceError: a message failed since the last ``flush`` whose future was not used; messages have
                no outcome in time, and the text says how many; the producer was closed with messages not
                acknowledged, or an error has ended it.
        """
        loop = self._sending.loop
        if loop.inherited:
            loop.refuse_if_ended()
        self._home.enter()
        target = loop.start_flush()
        try:
            async with asyncio.timeout(timeout):
                await self._changes.until(lambda: loop.is_flushed(target))
        except TimeoutError:
            raise loop.flush_timeout(timeout) from None
        await asyncio.sleep(0)  # for outcomes that are on their way from the thread
        self._sending.unasked.raise_first()

    async def publishable(self, topic: str) -> tuple[TopicPartition, ...]:
        """Ask the master to which partitions a topic can be published now; none while it cannot be.

        Raises:
            ProduceError: the topic does not exist, or its name cannot be one; or the producer has ended.
            TubeMQConnectionError: no master answered in time.
        """
        self._enter()
        return await self._workers.run(functools.partial(self._sending.places.publishable, topic))

    def receipts(self) -> list[Receipt]:
        """Return what each partition has acknowledged so far; complete after ``flush``."""
        return self._sending.places.receipts()

    def statistics(self) -> ProducerStatistics:
        """Return what was sent and answered so far, and how long that took, as values that do not change.

        The time for which coroutines waited for room is added up over them.
        """
        return self._sending.statistics()

    async def close(self, timeout: float = 0.0) -> int:
        """End the thread and leave the master; messages not acknowledged are abandoned, and told of as that.

        Doing it twice is harmless, and in a forked child it does nothing.

        Args:
            timeout: how many seconds to wait before that until all messages have an outcome.

        Returns:
            How many messages were abandoned.
        """
        if not self._sending.inherited and not self._workers.closed:
            self._home.enter()
            if timeout > 0:
                with contextlib.suppress(ProduceError):
                    await self.flush(timeout)
            await self._workers.end(self._sending.close)
        return self.unacknowledged

    def _enter(self) -> asyncio.AbstractEventLoop:
        self._sending.loop.refuse_if_ended()
        return self._home.enter()

    async def _place(self, topic: str, partition: tuple[int, int] | None) -> Place:
        """Ask a master where a message goes, at most once for all that wait for the same."""
        about = topic, partition
        question = self._questions.get(about)
        if question is None:
            question = self._questions[about] = _Question(self._ask(topic, partition))
        question.waiting += 1
        try:
            return await asyncio.shield(question.task)
        finally:
            question.waiting -= 1
            if not question.waiting:
                question.task.cancel()
                if self._questions.get(about) is question:
                    del self._questions[about]

    async def _ask(self, topic: str, partition: tuple[int, int] | None) -> Place:
        """Ask again and again while it may help; no thread is taken for the pauses."""
        deadline = self._sending.places.deadline()
        for attempt in itertools.count(1):
            try:
                return await self._workers.run(
                    functools.partial(self._sending.places.place_once, topic, partition)
                )
            except TubeMQError as error:
                may_pass = error.retriable or error.condition == "TUBEMQ_TOPIC_UNPUBLISHABLE"
                if deadline.expired or not may_pass:
                    raise
            pause_s = min(PUBLISHABLE_TOPIC.after_ms(attempt) / 1000, deadline.remaining())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._changes.until(self._ended)
        raise AssertionError

    def _ended(self) -> bool:
        self._sending.loop.refuse_if_ended()
        return False

    async def _put(self, message: OutgoingMessage) -> None:
        """Hand a message to the producer's thread as soon as there is room."""
        loop = self._sending.loop
        if self._may_pass(message) and loop.put(message, block=False):
            return

        def may_fit() -> bool:
            loop.refuse_if_ended()
            return not loop.full_brokers(message)

        began = time.monotonic()
        self._standing += 1
        try:
            async with self._lines[message.brokers()]:
                while not await self._put_in_turn(message):
                    await self._changes.until(may_fit)
        finally:
            self._standing -= 1
            loop.add_room_wait(time.monotonic() - began)

    async def _put_in_turn(self, message: OutgoingMessage) -> bool:
        """Return whether a message was accepted; False: the share of its broker is full."""
        loop = self._sending.loop
        accepted = False

        def looked() -> bool:
            nonlocal accepted
            accepted = loop.put(message, block=False)
            return accepted or bool(loop.full_brokers(message))

        async with self._lines[_ROOM]:
            await self._changes.until(looked)
        return accepted

    def _may_pass(self, message: OutgoingMessage) -> bool:
        """Whether no other message stands before this one."""
        lines = self._lines
        return not self._standing or not (lines[_ROOM].locked() or lines[message.brokers()].locked())


class _Question:
    """A question to masters, and how many coroutines wait for its answer."""

    def __init__(self, asking: Coroutine[Any, Any, Place]) -> None:
        self.waiting = 0
        self.task = asyncio.ensure_future(asking)
        self.task.add_done_callback(look_at)


class AsyncSendFuture(asyncio.Future[SendResult]):
    """Where a message is stored, once a broker has said so; belongs to the event loop that runs."""

    def __init__(self, unasked: UnaskedFailures) -> None:
        super().__init__()
        self._unasked = unasked
        self._asked = False

    def tell(self, result: SendResult | None, error: TubeMQError | None) -> None:
        """End with one of both, in the event loop."""
        if self.done():
            return  # cancelled
        if error is None:
            self.set_result(cast("SendResult", result))
            return
        if not self._asked:
            self._unasked.add(self, error)
        self.set_exception(error)

    def result(self) -> SendResult:
        """Return where the message is stored, or raise the error that it met."""
        self._ask()
        return super().result()

    def exception(self) -> BaseException | None:
        """Return the error that the message met, or None."""
        self._ask()
        return super().exception()

    def add_done_callback(
        self, fn: Callable[[Self], object], /, *, context: contextvars.Context | None = None
    ) -> None:
        """Call a function when the outcome is known, as futures do; awaiting does this, too."""
        self._ask()
        super().add_done_callback(fn, context=context)

    def __await__(self) -> Generator[Any, None, SendResult]:
        """Wait for the outcome."""
        self._ask()
        try:
            return (yield from super().__await__())
        except asyncio.CancelledError as error:
            error.add_note(_ACCEPTED)
            raise

    def _ask(self) -> None:
        self._asked = True
        self._unasked.discard(self)


def _tell(
    home: HomeLoop, future: AsyncSendFuture, result: SendResult | None, error: TubeMQError | None
) -> None:
    """Leave the outcome of a message in the event loop; called by the producer's thread."""
    home.post(functools.partial(future.tell, result, error))
