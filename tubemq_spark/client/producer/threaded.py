"""A producer for several threads, with one of its own that keeps messages moving."""

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.producer.outcomes import SendFuture, SendResult, Tell
from tubemq_spark.client.producer.sending import Sending
from tubemq_spark.client.producer.statistics import ProducerStatistics
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import TopicPartition
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.protocol.send_batch import SendBatch
from tubemq_spark.receipts import Receipt

__all__ = ["SendResult", "ThreadedProducer"]


class ThreadedProducer:
    """Sends messages to any number of topics; any number of threads may use it.

    ``send`` and ``submit`` accept a message and return; a thread of the producer sends it, together with
    others that come within ``linger_ms``. What becomes of a message is told by a callback (``send``) or by a
    future (``submit``): where it is stored (``SendResult``), or the error that it met.

    **At least once**, and **order**: as ``Producer``. A thread's messages are in the order of its calls.

    **A message fails alone** when its outcome is asked for. When nobody asks, its error is the producer's, as
    with ``Producer``: ``send`` and ``flush`` raise it from then on, and what was not acknowledged is
    abandoned. So do errors that concern all messages, such as a broker that answers nonsense.

    **Callbacks** run one after the other in the producer's thread, in which messages move: they must be
    short. They may call ``send`` and ``submit``, which then never wait for room. They must not wait for what
    only that thread can do: ``flush`` refuses, and a future's ``result`` would never return. What they raise
    is logged.

    **A forked child** cannot use the producer of its parent; nothing is told of there.

    As a context manager it flushes until nothing is left and closes; when the block fails, it closes at once.
    """

    def __init__(self, config: ClientConfig, pool: ChannelPool, name: str = "") -> None:
        """Reach no server yet: the first message registers this producer at the master and starts the thread.

        Args:
            config: how to reach TubeMQ; bounds of the window, time-outs, ``linger_ms``.
            pool: channels to the masters; the producer makes its own connections to brokers.
            name: how this producer calls itself in errors and in the log; by default its client id.
        """
        self.sending = Sending(config, pool, name)
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
            while error_type is None and self.unacknowledged:  # more than once, as callbacks may send
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

    def send(
        self,
        topic: str,
        value: bytes,
        *,
        attributes: Mapping[str, str] | None = None,
        message_type: str | None = None,
        message_time: str | None = None,
        key: bytes | None = None,
        partition: tuple[int, int] | None = None,
        callback: Tell | None = None,
    ) -> None:
        """Accept a message; wait while too many are under way, or for a topic that is not known yet.

        Args:
            topic: where it goes.
            value: the body, at least one byte.
            attributes: the user's pairs.
            message_type: filter item by which consumers may select, without blanks around it.
            message_time: yyyyMMddHHmm.
            key: messages of equal keys go to the same partition, as long as the topic keeps its
                partitions; the key itself is not stored.
            partition: broker id and partition id; by default the key decides, and without a key the
                partitions take turns.
            callback: is given the message's ``SendResult`` and None, or None and the error that it met. None:
                nobody asks, and an error is the producer's.

        Raises:
            ProduceError: an earlier message could not be stored, of which nobody asked; the producer is
                closed; or this message is too long, or its topic or partition does not exist, or could not be
                published to in time.
            OptionError: the value is empty or an attribute cannot be written.
            TubeMQConnectionError: no master answered in time.
        """
        self._accept(topic, value, attributes, message_type, message_time, key, partition, callback)

    def submit(
        self,
        topic: str,
        value: bytes,
        *,
        attributes: Mapping[str, str] | None = None,
        message_type: str | None = None,
        message_time: str | None = None,
        key: bytes | None = None,
        partition: tuple[int, int] | None = None,
    ) -> SendFuture:
        """Accept a message and return the future of its outcome; otherwise as ``send``.

        Raises:
            TubeMQError: as ``send``; such a message was not accepted.
        """
        future = SendFuture()
        self._accept(topic, value, attributes, message_type, message_time, key, partition, future.tell)
        return future

    def send_batch(self, batch: SendBatch, *, callback: Tell | None = None) -> None:
        """Accept the messages of a batch, in order; otherwise as ``send``, with a callback for each message.

        The messages before one that is refused are accepted. Those of other threads may come between them.

        Raises:
            TubeMQError: as ``send``; ``row`` is the place of the message in the batch.
        """
        self._loop.refuse_if_ended()
        for row in range(len(batch)):
            try:
                self._accept(*batch.message(row), tell=callback)
            except TubeMQError as error:
                error.row = row
                raise

    def flush(self) -> None:
        """Return when every message that was accepted before has an outcome, and its callback has returned.

        A message whose failure was told to somebody does not make it raise.

        Raises:
            ProduceError: a message of which nobody asked could not be stored; the producer was closed with
                messages not acknowledged; or a callback calls this.
        """
        self._loop.flush()

    def publishable(self, topic: str) -> tuple[TopicPartition, ...]:
        """Ask the master to which partitions a topic can be published now; none while it cannot be.

        Raises:
            ProduceError: the topic does not exist, or its name cannot be one; or the producer has ended.
            TubeMQConnectionError: no master answered in time.
        """
        return self.sending.publishable(topic)

    def receipts(self) -> list[Receipt]:
        """Return what each partition has acknowledged so far; complete after ``flush``."""
        return self.sending.receipts()

    def statistics(self) -> ProducerStatistics:
        """Return what was sent and answered so far, and how long that took, as values that do not change.

        The time for which threads waited for room is added up over them.
        """
        return self.sending.statistics()

    def close(self) -> None:
        """End the thread and leave the master; messages not acknowledged are abandoned, and told of as that.

        Call ``flush`` first, or use the producer as a context manager, to have them stored.
        """
        self.sending.close()

    def _accept(
        self,
        topic: str,
        value: bytes,
        attributes: Mapping[str, str] | None,
        message_type: str | None,
        message_time: str | None,
        key: bytes | None,
        partition: tuple[int, int] | None,
        tell: Tell | None,
    ) -> None:
        sending = self.sending
        message = sending.check(topic, value, attributes, message_type, message_time, key, partition)
        place = sending.place_now(message) or sending.place(topic, partition)
        self._loop.put(sending.accepted(message, place, tell))
