"""A producer for coroutines.

It is a ``ThreadedProducer`` whose callers do not block: the same parts (``Sending``) check, place, send and
retry messages, in the same single thread per producer. Only waiting is different. There are three waits:

- For a master, where a topic is sent to for the first time or a partition is not listed: in a thread of the
  client's workers. Messages to the same place wait together, for one question.
- For room, while too many messages are under way: coroutines stand in line, and the first one looks again
  whenever the producer's thread says that something has changed.
- For outcomes: the producer's thread leaves them in the event loop, many at a time.

A message is *accepted* at one moment, in the event loop. A coroutine that is cancelled before that has sent
nothing; after that the message goes its way, whoever waits for it.
"""

import asyncio
import functools
import time
from collections.abc import Awaitable, Mapping
from types import TracebackType
from typing import Final, Self, TypeVar

from tubemq_spark.client.aio.home import Changes, HomeLoop
from tubemq_spark.client.aio.workers import Workers
from tubemq_spark.client.producer.loop import Accepted
from tubemq_spark.client.producer.outcomes import SendResult
from tubemq_spark.client.producer.sending import Checked, Place, Sending
from tubemq_spark.client.producer.statistics import ProducerStatistics
from tubemq_spark.errors import ProduceError, TubeMQError
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.send_batch import SendBatch
from tubemq_spark.receipts import Receipt

Outcome = TypeVar("Outcome")

_NOT_ACCEPTED: Final = "The message was not accepted: it was not sent, and will not be."
_ACCEPTED: Final = "The message was accepted: it is sent all the same, and may be stored."


class AsyncProducer:
    """Sends messages to any number of topics; any number of coroutines of one event loop may use it.

    ``send`` returns when a broker has stored the message. ``submit`` returns when the message is accepted,
    with an ``asyncio.Future`` of its outcome, so that one coroutine can have many messages under way.

    **At least once**, and **order**: as ``Producer``. A coroutine's messages are in the order of its calls.

    **A message fails alone**: its error is raised by ``send`` or told by its future. Errors that concern all
    messages, such as a broker that answers nonsense, end the producer; every call raises them from then on.

    **Cancelling** ``send`` or ``submit`` before the message was accepted means that it is not sent. After
    that nothing calls it back. A note on the ``CancelledError`` says which of both it was.

    As a context manager it flushes until nothing is left and closes; when the block fails, it closes at once.
    """

    def __init__(self, sending: Sending, workers: Workers) -> None:
        """Reach no server yet; ``AsyncTubeMQClient.producer`` makes producers."""
        self._sending = sending
        sending.kind = "asynchronous producer"
        self._workers = workers
        self._home = HomeLoop(lambda: ProduceError("TUBEMQ_PRODUCER_LOOP"))
        self._changes = Changes(self._home)
        sending.loop.on_change = self._changes.note
        self._line = asyncio.Lock()
        """Held by the coroutine whose message is accepted next."""
        self._questions: dict[tuple[str, tuple[int, int] | None], asyncio.Future[Place]] = {}

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
            while error_type is None and self.unacknowledged:  # more than once, as others may send
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
        self,
        topic: str,
        value: bytes,
        *,
        attributes: Mapping[str, str] | None = None,
        message_type: str | None = None,
        message_time: str | None = None,
        key: bytes | None = None,
        partition: tuple[int, int] | None = None,
    ) -> SendResult:
        """Send a message and return where it is stored; the arguments are those of ``ThreadedProducer.send``.

        Raises:
            ProduceError: it is not stored, as far as is known: ``may_be_stored`` says whether it may be. Or
                it was not accepted: the producer has ended, or its topic or partition does not exist.
            OptionError: the value is empty or an attribute cannot be written.
            TubeMQConnectionError: no master answered in time.
        """
        future = await self.submit(
            topic,
            value,
            attributes=attributes,
            message_type=message_type,
            message_time=message_time,
            key=key,
            partition=partition,
        )
        return await _outcome(future)

    async def submit(
        self,
        topic: str,
        value: bytes,
        *,
        attributes: Mapping[str, str] | None = None,
        message_type: str | None = None,
        message_time: str | None = None,
        key: bytes | None = None,
        partition: tuple[int, int] | None = None,
    ) -> "asyncio.Future[SendResult]":
        """Accept a message and return the future of its outcome; wait while too many are under way.

        Cancelling the future only means that nobody wants to know.

        Raises:
            TubeMQError: as ``send``, without what is met after the message was accepted.
        """
        try:
            message = self._check(topic, value, attributes, message_type, message_time, key, partition)
            future, accepted = self._prepare(message, await self._place(message))
            async with self._line:
                await self._put(accepted)
            return future
        except asyncio.CancelledError as error:
            error.add_note(_NOT_ACCEPTED)
            raise

    async def send_batch(self, batch: SendBatch) -> list[SendResult]:
        """Send the messages of a batch, and return where each is stored.

        Raises:
            TubeMQError: that of the first message that could not be stored, when all have an outcome; ``row``
                is its place in the batch. ``submit_batch`` tells of each message.
        """
        futures = await self.submit_batch(batch)
        if futures:
            await _outcome(asyncio.wait(futures))
        for row, future in enumerate(futures):
            if isinstance(error := future.exception(), TubeMQError):
                error.row = row
        return [future.result() for future in futures]

    async def submit_batch(self, batch: SendBatch) -> "list[asyncio.Future[SendResult]]":
        """Accept the messages of a batch, in order, and return the futures of their outcomes.

        None is accepted if one is refused. While this waits for room, those before are accepted already: when
        it is cancelled then, a note on the ``CancelledError`` says how many.

        Raises:
            TubeMQError: as ``submit``; ``row`` is the place of the message in the batch.
        """
        futures: list[asyncio.Future[SendResult]] = []
        prepared: list[Accepted] = []
        row = accepted = 0
        self._enter()
        try:
            for row in range(len(batch)):
                message = self._check(*batch.message(row))
                future, one = self._prepare(message, await self._place(message))
                futures.append(future)
                prepared.append(one)
            async with self._line:
                for one in prepared:
                    row = accepted
                    await self._put(one)
                    accepted += 1
        except BaseException as error:
            for future in futures:
                future.cancel()
            if isinstance(error, TubeMQError):
                error.row = row
            elif isinstance(error, asyncio.CancelledError):
                error.add_note(
                    f"{accepted} of the batch's {len(batch)} messages were accepted, and are sent."
                )
            raise
        return futures

    async def flush(self) -> None:
        """Return when every message that was accepted before has an outcome, and its future has it.

        Raises:
            ProduceError: the producer was closed with messages not acknowledged, or an error has ended it.
        """
        loop = self._sending.loop
        if loop.inherited:
            loop.refuse_if_ended()
        self._home.enter()
        target = loop.start_flush()
        await self._changes.until(lambda: loop.is_flushed(target))

    async def publishable(self, topic: str) -> tuple[TopicPartition, ...]:
        """Ask the master to which partitions a topic can be published now; none while it cannot be.

        Raises:
            ProduceError: the topic does not exist, or its name cannot be one; or the producer has ended.
            TubeMQConnectionError: no master answered in time.
        """
        self._enter()
        return await self._workers.run(functools.partial(self._sending.publishable, topic))

    def receipts(self) -> list[Receipt]:
        """Return what each partition has acknowledged so far; complete after ``flush``."""
        return self._sending.receipts()

    def statistics(self) -> ProducerStatistics:
        """Return what was sent and answered so far, and how long that took, as values that do not change.

        The time for which coroutines waited for room is added up over them.
        """
        return self._sending.statistics()

    async def close(self) -> None:
        """End the thread and leave the master; messages not acknowledged are abandoned, and told of as that.

        Call ``flush`` first, or use the producer as a context manager, to have them stored. Doing it twice is
        harmless, and in a forked child it does nothing.
        """
        if not self._sending.inherited and not self._workers.closed:
            self._home.enter()
            await self._workers.run(self._sending.close)

    def _enter(self) -> asyncio.AbstractEventLoop:
        self._sending.loop.refuse_if_ended()
        return self._home.enter()

    def _check(
        self,
        topic: str,
        value: bytes,
        attributes: Mapping[str, str] | None,
        message_type: str | None,
        message_time: str | None,
        key: bytes | None,
        partition: tuple[int, int] | None,
    ) -> Checked:
        message = self._sending.check(topic, value, attributes, message_type, message_time, key, partition)
        self._home.enter()
        return message

    async def _place(self, message: Checked) -> Place:
        """Find out where a message goes; ask a master at most once for all that wait for the same."""
        if (place := self._sending.place_now(message)) is not None:
            return place
        wanted = message.topic, message.partition
        question = self._questions.get(wanted)
        if question is None:
            question = self._workers.start(functools.partial(self._sending.place, *wanted))
            self._questions[wanted] = question
            question.add_done_callback(lambda _: self._questions.pop(wanted))
        return await asyncio.shield(question)

    def _prepare(self, message: Checked, place: Place) -> "tuple[asyncio.Future[SendResult], Accepted]":
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        return future, self._sending.accepted(message, place, functools.partial(_tell, self._home, future))

    async def _put(self, message: Accepted) -> None:
        """Hand a message to the producer's thread as soon as there is room; hold the line's lock."""
        loop = self._sending.loop
        if loop.offer(message):
            return
        began = time.monotonic()
        try:
            await self._changes.until(lambda: loop.offer(message))
        finally:
            loop.add_room_wait(time.monotonic() - began)


async def _outcome(waiting: Awaitable[Outcome]) -> Outcome:
    try:
        return await waiting
    except asyncio.CancelledError as error:
        error.add_note(_ACCEPTED)
        raise


def _tell(
    home: HomeLoop,
    future: "asyncio.Future[SendResult]",
    result: SendResult | None,
    error: TubeMQError | None,
) -> None:
    """Leave a message's outcome in the event loop; called by the producer's thread."""
    home.post(functools.partial(_settle, future, result, error))


def _settle(
    future: "asyncio.Future[SendResult]", result: SendResult | None, error: TubeMQError | None
) -> None:
    if future.done():
        return  # cancelled: nobody wants to know
    if result is not None:
        future.set_result(result)
    elif error is not None:
        future.set_exception(error)
