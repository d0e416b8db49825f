"""What producers are made of, for callers in threads and for coroutines.

A message is *checked*, which asks no server; then *placed*: its topic, and its partition if named, are
looked up, which may have to ask a master; then *accepted* by the send loop as soon as there is room. Only
asking and the want of room make a caller wait, and how it waits is its own affair: ``place`` and
``SendLoop.put`` wait in the calling thread; ``place_now``, and ``put`` if it is told so, never wait.
"""

import logging
import threading
import time
import weakref
from typing import Protocol, Unpack

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.producer.gathered import MessageFields, OutgoingMessage, checked_message
from tubemq_spark.client.producer.log import SendLog
from tubemq_spark.client.producer.loop import SendLoop
from tubemq_spark.client.producer.outcomes import Tell, UnaskedFailures
from tubemq_spark.client.producer.outgoing import refused_message
from tubemq_spark.client.producer.placing import Place, Placing
from tubemq_spark.client.producer.stamps import MinuteClock
from tubemq_spark.client.producer.statistics import ProducerStatistics
from tubemq_spark.client.registry import process_registry
from tubemq_spark.errors import OptionError, ProduceError, TubeMQError
from tubemq_spark.model import TopicPartition, excerpt
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.net.retry import Sleep
from tubemq_spark.receipts import Receipt

logger = logging.getLogger(__name__)


class Places(Protocol):
    """Where messages go, as one way to TubeMQ knows it; ``Placing`` knows it of masters."""

    @property
    def log(self) -> SendLog:
        """What the producer tells the log."""

    @property
    def client_id(self) -> str:
        """The name under which servers know the producer."""

    def deadline(self) -> Deadline:
        """Return how long a message that comes now may wait before it is accepted."""

    def place_now(self, name: str, partition: tuple[int, int] | None) -> Place | None:
        """See ``Placing``; never waits."""

    def place(self, name: str, partition: tuple[int, int] | None) -> Place:
        """See ``Placing``; waits."""

    def place_once(self, name: str, partition: tuple[int, int] | None) -> Place:
        """See ``Placing``; asks only once."""

    def publishable(self, topic: str) -> tuple[TopicPartition, ...]:
        """See ``Placing``; waits for one answer."""

    def receipts(self) -> list[Receipt]:
        """Return what each partition has acknowledged so far."""

    def statistics(self, room_wait_s: float) -> ProducerStatistics:
        """Return what was sent and answered so far; its senders waited so long for room."""


class Sending:
    """The parts of one producer, and the way of a message into its send loop.

    Any thread may call it.
    """

    closes_at_exit = False
    """The loop does that."""

    def __init__(self, config: ClientConfig, loop: SendLoop, places: Places) -> None:
        """Join the parts; reach no server.

        Args:
            config: what messages are stamped with.
            loop: moves the messages.
            places: says where they go.
        """
        # Nothing that the loop holds may hold this object: it is closed when its user forgets it.
        self.loop = loop
        self.places = places
        self._clock = MinuteClock(config.message_time_zone) if config.stamp_message_time else None
        self._asking = threading.Lock()
        """Held while a thread asks a master for those that do not wait."""
        self.unasked = UnaskedFailures()
        """The failed messages that ``flush`` raises."""
        self._finalizer = weakref.finalize(self, self.loop.drop)
        self._finalizer.atexit = False
        self.kind = "producer"
        process_registry().enter(self)

    @property
    def client_id(self) -> str:
        """The name under which servers know the producer."""
        return self.places.client_id

    def check(self, topic: str, value: bytes, **fields: Unpack[MessageFields]) -> OutgoingMessage:
        """Return a message if it can be sent, as far as that can be said without its topic.

        Raises:
            ProduceError: the producer has ended.
            OptionError: an argument has a wrong type, the value is empty, or an attribute cannot be written.
        """
        self.loop.refuse_if_ended()
        if self._clock is not None:
            fields.setdefault("message_time", self._clock.text())
        try:
            return checked_message(topic, value, **fields)
        except OptionError as error:
            raise refused_message(error, self._describe(value)) from error

    def complete(self, message: OutgoingMessage, place: Place, tell: Tell) -> None:
        """Add what the send loop needs to know of a message.

        Raises:
            ProduceError: the message is too long for its topic, or the user's partitioner returned something
                else than a partition.
        """
        topic, message.destination = place
        if message.size > topic.max_message_bytes and (excess := topic.excess(message.prefix, message.size)):
            raise topic.too_long(excess, self._describe(message.value))
        if message.partition is None and topic.custom is not None:
            message.destination = topic.choose(message.key, message.value)
        message.published, message.tell, message.accepted_at = topic, tell, time.monotonic()

    def refuse_and_ask(self, topic: str, partition: tuple[int, int] | None, cause: str) -> ProduceError:
        """Return why a message is refused whose sender does not wait, and begin to ask where such ones go.

        A producer asks one question at a time that way; for the others, the next refusal asks.
        """
        if self._asking.acquire(blocking=False):
            asking = threading.Thread(
                target=self._ask, args=(topic, partition), name=f"tubemq-place-{topic}", daemon=True
            )
            try:
                asking.start()
            except RuntimeError as error:  # no thread is left; the next refusal asks
                self._asking.release()
                cause = f"{cause}: {error}"
        return would_wait(topic, cause)

    def _ask(self, topic: str, partition: tuple[int, int] | None) -> None:
        """Ask a master once; who sends next finds the answer."""
        try:
            self.places.place_once(topic, partition)
        except TubeMQError as error:
            logger.info("%s cannot publish to %s now: %s", self.places.log.sender, topic, error)
        finally:
            self._asking.release()

    def cause_of_wait(self, message: OutgoingMessage) -> str:
        """Return why there is no room for a message."""
        full = self.loop.full_brokers(message)
        whose = f", the share of {', '.join(f'broker {id_}' for id_ in sorted(full))} is full" if full else ""
        return f"{self.loop.unacknowledged} messages are under way{whose}"

    def statistics(self) -> ProducerStatistics:
        """Return what was sent and answered so far, and how long that took."""
        return self.places.statistics(self.loop.room_wait_s)

    @property
    def inherited(self) -> bool:
        """Whether this process is a fork of the one that the producer belongs to."""
        return self.loop.inherited

    def close(self) -> None:
        """End the thread and leave the master, and wait for that."""
        self._finalizer.detach()
        process_registry().leave(self)
        self.loop.close()
        if count := len(self.unasked):
            logger.warning(
                "%s closed with %d failed messages of which its user has not asked",
                self.places.log.sender,
                count,
            )

    def _describe(self, value: object) -> str:
        shown = f" ({excerpt(value)})" if isinstance(value, bytes) else ""
        return f"a message of {self.places.log.sender}{shown}"


def would_wait(topic: str, cause: str) -> ProduceError:
    """Return why a message is refused whose sender does not wait."""
    return ProduceError("TUBEMQ_SEND_WOULD_WAIT", topic=topic, cause=cause)


def direct_sending(config: ClientConfig, pool: ChannelPool, name: str = "") -> Sending:
    """Return the parts of a producer that talks to masters and brokers; reach no server.

    Args:
        config: how to reach TubeMQ; bounds of the window, time-outs, ``linger_ms``.
        pool: channels to the masters; the producer makes its own connections to brokers.
        name: how the producer calls itself in errors and in the log; by default its client id.
    """
    loop = SendLoop(config)
    places = Placing(config, pool, name, Sleep(loop.wait), loop.refuse_if_ended, detailed=True)
    loop.own(places.log.sender, places.window, places.pipelines.add_waker, places.leave)
    return Sending(config, loop, places)
