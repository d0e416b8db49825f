"""A producer for several threads, whose messages move in the event loop of the process."""

import asyncio
import atexit
import contextlib
import functools
import logging
import math
import time
import warnings
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Final, Self, Unpack

from tubemq_spark.client.config import BuiltInPartitioner
from tubemq_spark.client.names.guesses import AnsweringType, answers_guesses, refuse_unknown_fields
from tubemq_spark.client.producer.futures import SendFuture, SharedByFutures, Tell
from tubemq_spark.client.producer.messages import MessageFields
from tubemq_spark.client.producer.pipeline import Pipeline, RunUserCode
from tubemq_spark.client.producer.queue import SendQueue
from tubemq_spark.client.producer.statistics import ProducerStatistics
from tubemq_spark.client.registry import process_registry
from tubemq_spark.client.tasks import CallbackThread
from tubemq_spark.errors import LocalProtocolError, ProduceError, TubeMQError
from tubemq_spark.model import TopicPartition
from tubemq_spark.net import loop
from tubemq_spark.protocol.send_batch import SendBatch
from tubemq_spark.receipts import Receipt

logger = logging.getLogger(__name__)

_EXIT_S: Final = 5.0
"""How long the end of the process waits for a producer that was not closed."""


@answers_guesses
class ProducerBase(metaclass=AnsweringType):
    """What producers for threads and for coroutines show at once, from anywhere."""

    _queue: SendQueue

    @property
    def client_id(self) -> str:
        """The name under which servers know this producer."""
        return self._queue.pipeline.client_id

    @property
    def unacknowledged(self) -> int:
        """How many accepted messages are not acknowledged."""
        return self._queue.unacknowledged

    def receipts(self) -> list[Receipt]:
        """Return what each partition has acknowledged so far; complete after ``flush``."""
        return self._queue.pipeline.receipts()

    def statistics(self) -> ProducerStatistics:
        """Return what was sent and answered so far, and how long that took, as values that do not change.

        The time for which callers waited for room is added up over them.
        """
        return self._queue.pipeline.statistics(self._queue.room_wait_s)


@answers_guesses
class Producer(ProducerBase):
    """Sends messages to any number of topics; any number of threads may use it.

    ``send`` accepts a message and returns its future; the event loop of the process sends it, together with
    others that come within ``linger_ms``. Future and callback tell what becomes of the message: where it is
    stored (``SendResult``), or the error that it met.

    **At least once.** A message whose broker is full, stopped, unreachable or silent is sent again until
    ``delivery_timeout_ms`` have passed (without key or partition, to the next partition). When the answer to
    a message was lost, the message may be stored twice: TubeMQ cannot recognise a repetition.

    **Order.** A partition holds the messages of a thread in the order of its calls, except that a message
    that had to be sent again may come after later ones. With ``keep_order`` that is not so for messages with
    a key or a named partition: a partition has one of them under way at a time.

    **A message fails alone.** Its error is told by its future and its callback, and does no harm to others.
    ``flush`` raises it if neither was used. Only errors that concern all messages, such as a certificate
    that is not accepted, end the producer: ``send`` and ``flush`` raise them from then on, and what was not
    acknowledged is abandoned.

    **Callbacks** run one after the other in a thread of the producer, which is started for the first of them.
    One that takes long holds up the others, and no message. They may call ``send``, which then never waits:
    not for room, and a topic that was not sent to before is refused until a server has answered. They must
    not call ``flush``, which waits for callbacks. What they raise is logged.

    **A forked child** cannot use the producer of its parent; nothing is told of there.

    As a context manager it flushes until nothing is left and closes; when the block fails, it closes at once.

        with client.producer(linger_ms=5) as producer:
            future = producer.send("clicks", b"home", key=b"anna")
            print(future.result(timeout=10).partition)
            futures = producer.send_batch(SendBatch.of("clicks", [b"home", b"cart"]))
            producer.flush(timeout=60)
            print(producer.statistics(), producer.receipts(), producer.publishable("clicks"))
            producer.close(timeout=5)  # what the end of the block does, if it was not done
    """

    def __init__(self, make: Callable[[RunUserCode], Pipeline]) -> None:
        """Take over the pipeline that ``make`` returns; reach no server, and start no thread.

        ``TubeMQClient.producer`` makes producers.
        """
        self._core = _ProducerCore(make)
        # What moves messages must not hold this object: it is closed when its user forgets it.
        self._finalizer = weakref.finalize(self, self._core.drop)
        self._finalizer.atexit = False
        self._queue = self._core.queue
        self._callbacks = self._core.callbacks
        self._futures = self._core.futures
        self._for_send = self._queue, self._callbacks, self._futures
        """In one place: each attribute costs ``send`` time, since Python does not cache those of a class with
        ``__getattr__``."""
        process_registry().enter(self, "producer")  # this module closes it at the end

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        try:
            if error_type is None:
                self.flush()  # also for messages that have failed by now
                while self.unacknowledged:  # callbacks may have sent
                    self.flush()
        finally:
            self.close()

    @property
    def failures(self) -> int:
        """How many messages have failed that ``flush`` would raise; see there."""
        return len(self._futures.unasked)

    def send(
        self,
        topic: str,
        value: bytes | str,
        *,
        callback: Tell | None = None,
        block: bool = True,
        **fields: Unpack[MessageFields],
    ) -> SendFuture:
        """Accept a message and return the future of its outcome.

        Waits while too many messages are under way, and for a topic that is not known yet.

        Args:
            topic: where it goes.
            value: the body, at least one byte; a text is written as UTF-8.
            callback: is given the message's ``SendResult`` and None, or None and the error that it met.
            block: whether to wait; if not, a message that would have to is refused. A master is asked for
                its topic then, so that later messages pass.
            **fields: attributes, message type and time, key and partition: see ``MessageFields``.

        Raises:
            OptionError: an argument has a wrong type, the value is empty, or an attribute cannot be written.
            ProduceError: the producer has ended; or this message is too long, would have to wait, or its
                topic or partition does not exist, or could not be published to in time.
            TubeMQConnectionError: no master answered in time.
        """
        queue, callbacks, futures = self._for_send
        try:
            message = queue.check(topic, value, fields)
        except TypeError:
            refuse_unknown_fields(Producer.send, type(self), fields, MessageFields.__annotations__)
            raise
        place = queue.pipeline.place_now(topic, message.partition)
        if place is None:
            if not block:
                raise queue.refuse_and_ask(message, "a master must be asked for its partitions")
            if callbacks.is_current():
                raise queue.refuse_and_ask(message, "a callback cannot ask a master for its partitions")
            place = loop.run(queue.pipeline.place(topic, message.partition))
        if callback is not None:
            callbacks.start()
        future = SendFuture(futures, callback)
        queue.complete(message, place, future)
        if not queue.put(message, block=block):
            raise queue.would_wait(message)
        return future

    def send_batch(self, batch: SendBatch, *, callback: Tell | None = None) -> list[SendFuture]:
        """Accept the messages of a batch, in order, and return their futures; otherwise as ``send``.

        The messages before one that is refused are accepted. Those of other threads may come between them.

        Raises:
            TubeMQError: as ``send``; ``row`` is the place of the message in the batch.
        """
        self._queue.refuse_if_ended()
        futures: list[SendFuture] = []
        for row in range(len(batch)):
            try:
                futures.append(self.send(**batch.message(row)._asdict(), callback=callback))
            except TubeMQError as error:
                error.row = row
                raise
        return futures

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every message that was accepted before has an outcome, and its callback has returned.

        Args:
            timeout: how many seconds to wait; None: until all have one, which takes ``delivery_timeout_ms``
                at most.

        Raises:
            ProduceError: a message failed since the last ``flush`` of which neither future nor callback was
                used; messages have no outcome in time, and the text says how many; the producer was closed
                with messages not acknowledged; or a callback calls this.
        """
        self._flush(timeout)
        self._futures.raise_first_failure()

    def _flush(self, timeout: float | None) -> None:
        if self._callbacks.is_current():
            raise ProduceError("TUBEMQ_PRODUCER_IN_CALLBACK", method="flush")
        queue = self._queue
        until = math.inf if timeout is None else time.monotonic() + timeout
        target = queue.start_flush()
        if not queue.is_flushed(target):
            flushing = queue.changes.until(functools.partial(queue.is_flushed, target))
            if not loop.run(_in_time(flushing, timeout)):
                raise queue.flush_timeout(timeout)
        if not self._callbacks.flush(None if timeout is None else max(0.0, until - time.monotonic())):
            raise queue.flush_timeout(timeout)

    def publishable(self, topic: str) -> tuple[TopicPartition, ...]:
        """Ask the master to which partitions a topic can be published now; none while it cannot be.

        Raises:
            ProduceError: the topic does not exist, or its name cannot be one; or the producer has ended.
            TubeMQConnectionError: no master answered in time.
        """
        self._queue.refuse_if_ended()
        return loop.run(self._queue.pipeline.publishable(topic))

    def close(self, timeout: float = 0.0) -> int:
        """Leave the master, close the connections; messages not acknowledged are abandoned, and told that.

        Args:
            timeout: how many seconds to wait before that until all messages have an outcome.

        Returns:
            How many messages were abandoned.
        """
        if timeout > 0:
            with contextlib.suppress(ProduceError):
                self._flush(timeout)
        self._finalizer.detach()
        process_registry().leave(self)
        self._core.close()
        return self.unacknowledged


class _ProducerCore:
    """What a producer is made of; holds on while the producer is forgotten."""

    def __init__(self, make: Callable[[RunUserCode], Pipeline]) -> None:
        self.callbacks = CallbackThread()
        pipeline = make(self.callbacks.call_soon)
        self.callbacks.name = f"tubemq-callbacks-{pipeline.client_id}"
        in_callback = self.callbacks.is_current
        # A partitioner of the user is called where callbacks are, and messages may wait for that.
        is_custom = not isinstance(pipeline.config.partitioner, BuiltInPartitioner)
        self.futures = SharedByFutures(in_callback if is_custom else lambda: False, self.callbacks.start)
        self.queue = SendQueue(pipeline, loop.call_soon, self.callbacks.call_soon, in_callback)
        _all_cores.add(self)

    def close(self, seconds: float | None = None) -> None:
        """Close everything, and wait for that; a callback does not wait."""
        queue = self.queue
        if queue.inherited:
            return
        first = queue.refuse_more()
        if loop.has_begun():  # otherwise it was never used
            closing = loop.submit(self._close())
            if not self.callbacks.is_current():
                closing.result(seconds)
                self.callbacks.join(seconds)
        if first:
            queue.warn_of_failures(len(self.futures.unasked))

    async def _close(self) -> None:
        try:
            await self.queue.close()
        finally:
            self.callbacks.end()

    def drop(self) -> None:
        """Close what its user forgot to close, without waiting: the garbage collector calls this anywhere."""
        queue = self.queue
        if not queue.inherited and queue.refuse_more():
            with contextlib.suppress(LocalProtocolError):  # the process is about to exit
                loop.submit(self._close())
            warnings.warn(f"{queue.name} was not closed", ResourceWarning, stacklevel=2)


async def _in_time(work: Coroutine[Any, Any, None], timeout: float | None) -> bool:
    """Return whether some work has ended in time."""
    try:
        async with asyncio.timeout(timeout):
            await work
    except TimeoutError:
        return False
    return True


_all_cores: "weakref.WeakSet[_ProducerCore]" = weakref.WeakSet()


def _at_exit() -> None:
    for core in list(_all_cores):
        with contextlib.suppress(TimeoutError):
            core.close(_EXIT_S)


atexit.register(_at_exit)
