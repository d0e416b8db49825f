"""A producer for coroutines.

It has the same parts as a ``Producer``: a queue, and a pipeline that places, sends and retries messages. They
move in the event loop of its user, without a thread. Only waiting for room is different: coroutines stand in
line, and the first one looks again when something has changed. There is a line for each broker whose share
is full, so that it holds up no others.

A message is *accepted* at one moment. A coroutine that is cancelled before that has sent nothing; after that
nothing calls the message back.
"""

import asyncio
import contextlib
import functools
import time
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Final, Self, Unpack

from tubemq_spark.client.names.guesses import answers_guesses, refuse_unknown_fields
from tubemq_spark.client.producer.futures import AsyncSendFuture, SharedByFutures
from tubemq_spark.client.producer.messages import MessageFields, PendingMessage
from tubemq_spark.client.producer.pipeline import Pipeline, RunUserCode
from tubemq_spark.client.producer.producer import ProducerBase
from tubemq_spark.client.producer.queue import SendQueue
from tubemq_spark.client.registry import process_registry
from tubemq_spark.client.tasks import UsersLoop
from tubemq_spark.errors import ProduceError, TubeMQError
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.send_batch import SendBatch

_ROOM: Final[frozenset[int]] = frozenset()
"""The line of those that are first in theirs."""
_TURN: Final = 256
"""After so many messages of a batch, other coroutines have their turn."""
_NOT_ACCEPTED: Final = "The message was not accepted: it was not sent, and will not be."


@answers_guesses
class AsyncProducer(ProducerBase):
    """Sends messages to any number of topics; any number of coroutines of one event loop may use it.

    ``await send(...)`` returns when the message is accepted, with the future of its outcome: where it is
    stored (``SendResult``), or the error that it met. Await that as well to wait for one message alone.

    **At least once**, **order** and **a message fails alone**: as ``Producer``.

    **Cancelling** ``send`` before the message was accepted means that it is not sent. After that nothing
    calls it back. A note on the ``CancelledError`` says which of both it was.

    As a context manager it flushes until nothing is left and closes; when the block fails, it closes at once.

        async with client.producer() as producer:
            future = await producer.send("clicks", b"home")
            result = await future
    """

    def __init__(self, make: Callable[[RunUserCode], Pipeline]) -> None:
        """Take over the pipeline that ``make`` returns; reach no server.

        ``AsyncTubeMQClient.producer`` makes producers.
        """
        # What moves messages must not hold this object: it is closed when its user forgets it.
        self._loop = UsersLoop(lambda: ProduceError("TUBEMQ_PRODUCER_LOOP"))
        call_soon = self._loop.call_soon
        self._queue = SendQueue(make(call_soon), call_soon, call_soon, lambda: False)
        self._finalizer = weakref.finalize(self, _drop, self._queue, self._loop)
        self._finalizer.atexit = False
        self._futures = SharedByFutures()
        self._for_send = self._queue, self._loop, self._futures
        """In one place, as those of ``Producer``."""
        self._lines: defaultdict[frozenset[int], asyncio.Lock] = defaultdict(asyncio.Lock)
        """Where coroutines stand in line: by the brokers that they wait for, then all together. A lock is
        held by the first of a line."""
        self._standing = 0
        """How many coroutines stand in lines."""
        # Its event loop has ended when the process does.
        process_registry().enter(self, "asynchronous producer")

    async def __aenter__(self) -> Self:
        self._enter()
        return self

    async def __aexit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        try:
            if error_type is None:
                await self.flush()  # also for messages that have failed by now
                while self.unacknowledged:  # others may have sent
                    await self.flush()
        finally:
            await self.close()

    async def send(
        self, topic: str, value: bytes | str, *, block: bool = True, **fields: Unpack[MessageFields]
    ) -> AsyncSendFuture:
        """Accept a message and return the future of its outcome.

        The arguments are those of ``Producer.send``. Cancelling the future only means that its outcome is not
        asked for.

        Raises:
            OptionError: an argument has a wrong type, the value is empty, or an attribute cannot be written.
            ProduceError: the producer has ended; or this message is too long, would have to wait, or its
                topic or partition does not exist, or could not be published to in time.
            TubeMQConnectionError: no master answered in time.
        """
        queue, loop, futures = self._for_send
        try:
            try:
                message = queue.check(topic, value, fields)
            except TypeError:
                refuse_unknown_fields(AsyncProducer.send, type(self), fields, MessageFields.__annotations__)
                raise
            loop.enter()
            place = queue.pipeline.place_now(topic, message.partition)
            if place is None:
                if not block:
                    raise queue.refuse_and_ask(message, "a master must be asked for its partitions")
                place = await queue.pipeline.place(topic, message.partition)
            future = AsyncSendFuture(futures)
            queue.complete(message, place, future)
            if (self._standing and not self._may_pass(message)) or not queue.put(message, block=False):
                if not block:
                    raise queue.would_wait(message)
                await self._put(message)
        except asyncio.CancelledError as error:
            error.add_note(_NOT_ACCEPTED)
            raise
        return future

    async def send_batch(self, batch: SendBatch) -> list[AsyncSendFuture]:
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
        """Wait until every message that was accepted before has an outcome, and its future has it.

        Args:
            timeout: how many seconds to wait; None: until all have one, which takes ``delivery_timeout_ms``
                at most.

        Raises:
            ProduceError: a message failed since the last ``flush`` whose future was not used; messages have
                no outcome in time, and the text says how many; the producer was closed with messages not
                acknowledged, or an error has ended it.
        """
        queue = self._queue
        if queue.inherited:
            queue.refuse_if_ended()
        self._loop.enter()
        target = queue.start_flush()
        try:
            async with asyncio.timeout(timeout):
                await queue.changes.until(functools.partial(queue.is_flushed, target))
        except TimeoutError:
            raise queue.flush_timeout(timeout) from None
        self._futures.raise_first_failure()

    async def publishable(self, topic: str) -> tuple[TopicPartition, ...]:
        """Ask the master to which partitions a topic can be published now; none while it cannot be.

        Raises:
            ProduceError: the topic does not exist, or its name cannot be one; or the producer has ended.
            TubeMQConnectionError: no master answered in time.
        """
        self._enter()
        return await self._queue.pipeline.publishable(topic)

    async def close(self, timeout: float = 0.0) -> int:
        """Leave the master, close the connections; messages not acknowledged are abandoned, and told that.

        Doing it twice is harmless, and in a forked child it does nothing.

        Args:
            timeout: how many seconds to wait before that until all messages have an outcome.

        Returns:
            How many messages were abandoned.
        """
        queue = self._queue
        if not queue.inherited and not queue.is_closed:
            self._loop.enter()
            if timeout > 0:
                with contextlib.suppress(ProduceError):
                    await self.flush(timeout)
            self._finalizer.detach()
            process_registry().leave(self)
            await queue.close()
            queue.warn_of_failures(len(self._futures.unasked))
        return self.unacknowledged

    def _enter(self) -> None:
        self._queue.refuse_if_ended()
        self._loop.enter()

    async def _put(self, message: PendingMessage) -> None:
        """Hand over a message as soon as there is room."""
        queue = self._queue

        def may_fit() -> bool:
            queue.refuse_if_ended()
            return not queue.full_brokers(message)

        began = time.monotonic()
        self._standing += 1
        try:
            brokers = self._line_of(message)
            if brokers or not await self._put_in_turn(message):
                async with self._lines[brokers or message.brokers()]:
                    while not await self._put_in_turn(message):
                        await queue.changes.until(may_fit)
        finally:
            self._standing -= 1
            queue.room_wait_s += time.monotonic() - began

    async def _put_in_turn(self, message: PendingMessage) -> bool:
        """Return whether a message was accepted; False: the share of its broker is full."""
        queue = self._queue
        accepted = False

        def looked() -> bool:
            nonlocal accepted
            accepted = queue.put(message, block=False)
            return accepted or bool(queue.full_brokers(message))

        async with self._lines[_ROOM]:
            await queue.changes.until(looked)
        return accepted

    def _may_pass(self, message: PendingMessage) -> bool:
        """Whether no other message stands before this one, of those that stand in lines."""
        lines = self._lines
        return not (lines[_ROOM].locked() or lines[self._line_of(message)].locked())

    def _line_of(self, message: PendingMessage) -> frozenset[int]:
        """Return the brokers that a message may have to wait for; none as long as none was ever full."""
        return message.brokers() if len(self._lines) > 1 or self._queue.full_brokers(message) else _ROOM


def _drop(queue: SendQueue, loop: UsersLoop) -> None:
    """Close what its user forgot to close, without waiting: the garbage collector calls this anywhere."""
    if not queue.inherited and queue.refuse_more():
        loop.call_soon_threadsafe(queue.begin_to_close)
        warnings.warn(f"{queue.name} was not closed", ResourceWarning, stacklevel=2)
