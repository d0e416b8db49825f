"""A producer for several threads, with one of its own that keeps messages moving."""

import contextlib
from types import TracebackType
from typing import Self, Unpack

from tubemq_spark.client.producer.gathered import MessageFields
from tubemq_spark.client.producer.outcomes import SendFuture, Tell
from tubemq_spark.client.producer.sending import Sending, would_wait
from tubemq_spark.client.producer.statistics import ProducerStatistics
from tubemq_spark.errors import ProduceError, TubeMQError
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.send_batch import SendBatch
from tubemq_spark.receipts import Receipt


class Producer:
    """Sends messages to any number of topics; any number of threads may use it.

    ``send`` accepts a message and returns its future; a thread of the producer sends it, together with others
    that come within ``linger_ms``. Future and callback tell what becomes of the message: where it is stored
    (``SendResult``), or the error that it met.

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

    **Callbacks** run one after the other in the producer's thread, in which messages move: they must be
    short. They may call ``send``, which then never waits: not for room, and a topic that was not sent to
    before is refused until a master has answered. They must not wait for what only that thread can do:
    ``flush``, ``publishable`` and a future's ``result`` refuse. What they raise is logged.

    **A forked child** cannot use the producer of its parent; nothing is told of there.

    As a context manager it flushes until nothing is left and closes; when the block fails, it closes at once.
    """

    def __init__(self, sending: Sending) -> None:
        """Reach no server: the first message registers this producer and starts the thread.

        ``TubeMQClient.producer`` makes producers.
        """
        self.sending = sending
        """What this producer is made of, which the asynchronous form shares; not for users."""
        self._loop = self.sending.loop

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error_type is None:
                self.flush()  # also for messages that have failed by now
                while self.unacknowledged:  # callbacks may have sent
                    self.flush()
        finally:
            self.close()

    @property
    def client_id(self) -> str:
        """The name under which servers know this producer."""
        return self.sending.client_id

    @property
    def unacknowledged(self) -> int:
        """How many accepted messages no broker has acknowledged yet."""
        return self._loop.unacknowledged

    @property
    def failures(self) -> int:
        """How many messages have failed that ``flush`` would raise; see there."""
        return len(self.sending.unasked)

    def send(
        self,
        topic: str,
        value: bytes,
        *,
        callback: Tell | None = None,
        block: bool = True,
        **fields: Unpack[MessageFields],
    ) -> SendFuture:
        """Accept a message and return the future of its outcome.

        Waits while too many messages are under way, and for a topic that is not known yet.

        Args:
            topic: where it goes.
            value: the body, at least one byte.
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
        message = self.sending.check(topic, value, **fields)
        future = SendFuture(self.sending.unasked, callback, self._loop.in_thread)
        place = self.sending.places.place_now(topic, message.partition)
        if place is None:
            ask = self.sending.refuse_and_ask
            if not block:
                raise ask(topic, message.partition, "a master must be asked for its partitions")
            if self._loop.in_thread():
                raise ask(topic, message.partition, "a callback cannot ask a master for its partitions")
            place = self.sending.places.place(topic, message.partition)
        self.sending.complete(message, place, future.tell)
        if not self._loop.put(message, block=block):
            raise would_wait(topic, self.sending.cause_of_wait(message))
        return future

    def send_batch(self, batch: SendBatch, *, callback: Tell | None = None) -> list[SendFuture]:
        """Accept the messages of a batch, in order, and return their futures; otherwise as ``send``.

        The messages before one that is refused are accepted. Those of other threads may come between them.

        Raises:
            TubeMQError: as ``send``; ``row`` is the place of the message in the batch.
        """
        self._loop.refuse_if_ended()
        futures: list[SendFuture] = []
        for row in range(len(batch)):
            try:
                futures.append(self.send(**batch.message(row)._asdict(), callback=callback))
            except TubeMQError as error:
                error.row = row
                raise
        return futures

    def flush(self, timeout: float | None = None) -> None:
        """Return when every message that was accepted before has an outcome, and its callback has returned.

        Args:
            timeout: how many seconds to wait; None: until all have one, which takes ``delivery_timeout_ms``
                at most.

        Raises:
            ProduceError: a message failed since the last ``flush`` of which neither future nor callback was
                used; messages have no outcome in time, and the text says how many; the producer was closed
                with messages not acknowledged; or a callback calls this.
        """
        self._loop.flush(timeout)
        self.sending.unasked.raise_first()

    def publishable(self, topic: str) -> tuple[TopicPartition, ...]:
        """Ask the master to which partitions a topic can be published now; none while it cannot be.

        Raises:
            ProduceError: the topic does not exist, or its name cannot be one; the producer has ended; or a
                callback calls this.
            TubeMQConnectionError: no master answered in time.
        """
        if self._loop.in_thread():
            raise ProduceError("TUBEMQ_PRODUCER_IN_CALLBACK", method="publishable")
        return self.sending.places.publishable(topic)

    def receipts(self) -> list[Receipt]:
        """Return what each partition has acknowledged so far; complete after ``flush``."""
        return self.sending.places.receipts()

    def statistics(self) -> ProducerStatistics:
        """Return what was sent and answered so far, and how long that took, as values that do not change.

        The time for which threads waited for room is added up over them.
        """
        return self.sending.statistics()

    def close(self, timeout: float = 0.0) -> int:
        """End the thread and leave the master; messages not acknowledged are abandoned, and told of as that.

        Args:
            timeout: how many seconds to wait before that until all messages have an outcome.

        Returns:
            How many messages were abandoned.
        """
        if timeout > 0:
            with contextlib.suppress(ProduceError):
                self._loop.flush(timeout)
        self.sending.close()
        return self.unacknowledged
