"""A producer: messages go out ahead of their answers, and are stored at least once."""

import logging
import os
from collections.abc import Mapping
from threading import current_thread, get_ident
from types import TracebackType
from typing import Final, Self

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.forks import abandon_in_child
from tubemq_spark.client.master.producers import ProducerSession
from tubemq_spark.client.producer.destinations import Destinations
from tubemq_spark.client.producer.gathered import GatheredMessages, message_header
from tubemq_spark.client.producer.links import BrokerLinks
from tubemq_spark.client.producer.log import SendLog
from tubemq_spark.client.producer.outgoing import OutgoingBatch, outgoing_batch
from tubemq_spark.client.producer.partitioner import PublishedTopic
from tubemq_spark.client.producer.publishing import Publishing
from tubemq_spark.client.producer.runs import Destination, Run, runs
from tubemq_spark.client.producer.statistics import ProducerStatistics
from tubemq_spark.client.producer.window import SendWindow
from tubemq_spark.client.registry import process_registry
from tubemq_spark.errors import OptionError, ProduceError, TubeMQError
from tubemq_spark.model import TopicPartition
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.pipeline import Pipelines
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.net.retry import SLEEP, Sleep, Wait
from tubemq_spark.net.tls_pipeline import pipeline_maker
from tubemq_spark.protocol.send_batch import SendBatch
from tubemq_spark.receipts import Receipt, describe_message, summarise

__all__ = ["Producer", "Receipt"]

_NOBODY: Final = 0
"""The identity of no thread."""

logger = logging.getLogger(__name__)


class Producer:
    """Sends messages to any number of topics; belongs to the thread that first uses it.

    **At least once.** ``send`` accepts a message and returns; ``flush`` returns when brokers have stored
    all accepted messages. A message whose broker is full, stopped, unreachable or silent is sent again
    until ``delivery_timeout_ms`` have passed (without key or partition, to the next partition). When the
    answer to a message was lost, the message may be stored twice: TubeMQ cannot recognise a repetition.
    ``send`` waits as long for a master, and for a topic none of whose partitions can be published to now.

    **Order.** A partition holds this producer's messages in the order of sending, except that a message
    that had to be sent again may come after later ones.

    **First error wins.** When an accepted message cannot be stored, ``send`` and ``flush`` raise that
    ``ProduceError`` from then on, and nothing more is sent. A message that ``send`` refuses (too long, no
    such topic) was not accepted and does no harm to the others.

    **No thread of its own.** Messages move only inside ``send`` and ``flush``; whoever sends seldom calls
    ``flush`` after each message. Another thread than the first is refused: see ``ThreadedProducer``. A forked
    child is refused as well.

    As a context manager it flushes and closes; when the block fails, it closes at once.
    """

    kind = "producer"
    closes_at_exit = False

    def __init__(self, config: ClientConfig, pool: ChannelPool, wait: Wait = SLEEP, name: str = "") -> None:
        """Reach no server yet: the first ``send`` registers this producer at the master.

        Args:
            config: how to reach TubeMQ; bounds of the window, time-outs.
            pool: channels to the masters; the producer makes its own connections to brokers.
            wait: passes the seconds until the master is asked again for a topic that is not there yet.
            name: how this producer calls itself in errors and in the log; by default its client id.
        """
        self._session = ProducerSession(config, pool, wait)
        self._wait = wait
        self._log = SendLog(name or f"producer {self._session.client_id}")
        self._links = links = BrokerLinks(config.rpc_timeout_ms)
        self._destinations = Destinations(self._session, links, config.partitioner)
        self._publishing = Publishing(
            config, pool, self._session, self._destinations, self._log, Sleep(self._wait_working)
        )
        pipelines = Pipelines(config.connect_timeout_ms, make=pipeline_maker(config.tls))
        self._window = SendWindow(config, self._destinations, links, pipelines, self._log)
        self._checksums = config.checksums
        self._gathered = GatheredMessages(checksums=self._checksums)
        self._accepted = 0
        self._registered = False
        self._closed = False
        self._process = os.getpid()
        self._thread = _NOBODY
        self._thread_name = ""
        abandon_in_child(self)
        process_registry().enter(self)

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
                self.flush()
        finally:
            self.close()

    @property
    def client_id(self) -> str:
        """The name under which servers know this producer."""
        return self._session.client_id

    @property
    def retried(self) -> int:
        """How often a message was sent again; 0 means that nothing can be stored twice."""
        return self._window.retried

    @property
    def unacknowledged(self) -> int:
        """How many accepted messages no broker has acknowledged yet."""
        return len(self._gathered) + self._window.unacknowledged

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
    ) -> None:
        """Accept a message; wait while as many are under way as the window holds.

        Args:
            topic: where it goes.
            value: the body, at least one byte.
            attributes: the user's pairs.
            message_type: filter item by which consumers may select, without blanks around it.
            message_time: yyyyMMddHHmm.
            key: messages of equal keys go to the same partition, as long as the topic keeps its
                partitions; the key itself is not stored.
            partition: broker id and partition id; by default the key decides, and without a key the
                partitions take turns of up to 32 messages.

        Raises:
            ProduceError: an earlier message could not be stored; or this one is too long, or its topic
                or partition does not exist, or could not be published to in time.
            OptionError: the value is empty or an attribute cannot be written.
            TubeMQConnectionError: no master answered in time.
        """
        if self._closed or self._window.error is not None or self._thread != get_ident():
            self._enter()
        number = self._accepted + 1
        if not isinstance(value, bytes):
            raise OptionError(
                "TUBEMQ_BAD_MESSAGE",
                what=f"its value is of type {type(value).__name__}, not bytes (message {number})",
            )
        try:
            header, prefix = message_header(value, attributes, message_type, message_time)
        except OptionError as error:
            raise self._unwritable(error, number, value) from error
        published, deadline = self._topic(topic)
        size = len(prefix) + len(value)
        if size > published.max_message_bytes and (excess := published.excess(prefix, size)):
            raise self._too_long(topic, excess, describe_message(number, self._log.sender, value))
        destination = (
            published.choose(key, value)
            if partition is None
            else self._publishing.partition(published, *partition, deadline)
        )
        self._accepted = number
        if (
            self._gathered.add(number, destination, value, prefix, header, key, partition)
            or self._window.idle
        ):
            self._submit_gathered()

    def send_batch(self, batch: SendBatch) -> None:
        """Accept the messages of a batch, in order; wait while as many are under way as the window holds.

        The messages before one that is refused are accepted.

        Raises:
            TubeMQError: as ``send``; the error names the message, and ``row`` is its place in the batch.
        """
        if self._closed or self._window.error is not None or self._thread != get_ident():
            self._enter()
        self._submit_gathered()
        writable, error = outgoing_batch(batch, checksums=self._checksums)
        row = 0
        while row < len(writable):
            row = self._accept(writable, row)
        if error is not None:
            refusal = self._unwritable(error, batch.first_row + row, batch.message(row).value)
            refusal.row = row
            raise refusal from error

    def flush(self) -> None:
        """Return when every accepted message is stored.

        Raises:
            ProduceError: one could not be stored, or the producer belongs to another thread.
        """
        if not self._closed or self.unacknowledged:
            self._enter()
        self._submit_gathered()
        self._window.flush()

    def publishable(self, topic: str) -> tuple[TopicPartition, ...]:
        """Ask the master to which partitions a topic can be published now; none while it cannot be.

        Raises:
            ProduceError: the topic does not exist, or its name cannot be one; or an accepted message could
                not be stored.
            TubeMQConnectionError: no master answered in time.
        """
        self._enter()
        deadline = self._publishing.deadline()
        self._register(deadline)
        return self._publishing.publishable(topic, deadline)

    def receipts(self) -> list[Receipt]:
        """Return what each partition has acknowledged so far; complete after ``flush``."""
        return self._destinations.receipts()

    def statistics(self) -> ProducerStatistics:
        """Return what was sent and answered so far, and how long that took, as values that do not change."""
        return ProducerStatistics(self._links.statistics(), self._window.room_wait_s, self._log.elapsed_s)

    def pause(self) -> None:
        """End a piece of work that was flushed; registration and connections stay for ``resume``.

        Receipts and counts begin anew, as those of another producer would.
        """
        self._summarise()
        self._thread = _NOBODY
        self._accepted = 0
        self._window.forget_counts()
        self._destinations.forget_receipts()

    def resume(self, name: str = "") -> None:
        """Begin the next piece of work under a name; call ``pause`` before.

        Raises:
            ProduceError: a broker has sent nonsense in the meantime.
        """
        self._log.begin(name or f"producer {self._session.client_id}")
        self._window.resume()

    def abandon(self) -> None:
        """Drop the connections without closing them: in a forked child they belong to the parent."""
        self._closed = True
        self._window.abandon(ProduceError("TUBEMQ_PRODUCER_FORKED", owner=self._process, process=os.getpid()))

    def close(self) -> None:
        """Close the connections and leave the master; messages not acknowledged are abandoned.

        Call ``flush`` first, or use the producer as a context manager, to have them stored.
        """
        if self._closed:
            return
        self._closed = True
        process_registry().leave(self)
        if self.unacknowledged and self._window.error is None:
            logger.warning(
                "producer %s closed with %d messages not acknowledged; some of them may be stored",
                self._session.client_id,
                self.unacknowledged,
            )
        self._window.close()
        self._session.close()
        self._summarise()

    def _summarise(self) -> None:
        if self._accepted:
            self._log.summary(f"{summarise(self.receipts())}; {self.statistics()}")

    def _accept(self, batch: OutgoingBatch, first: int) -> int:
        """Accept as many messages as there is room for; return the first that is left.

        Those before one that is refused are accepted.
        """
        after = first + self._window.room(batch.ends, first)
        accepted: list[Run] = []
        try:
            self._route(batch, first, after, accepted)
        except TubeMQError as error:
            error.row = first + sum([len(run.rows) for run in accepted])
            raise
        finally:
            if accepted and self._window.error is None:
                self._accepted += sum([len(run.rows) for run in accepted])
                self._window.submit(accepted)
        return after

    def _route(self, batch: OutgoingBatch, first: int, after: int, accepted: list[Run]) -> None:
        """Put messages into runs; those before one that is refused are in ``accepted`` when it raises."""
        topic, _ = self._topic(batch.topic(first))
        if batch.longest > topic.max_message_bytes or not batch.takes_turns or topic.custom is not None:
            destinations: list[Destination] = []
            try:
                for row in range(first, after):
                    destinations.append(self._destination(batch, row))  # noqa: PERF401 (kept when one is refused)
            finally:
                accepted += runs(batch, first, destinations)
            return
        while first < after:
            destination, count = topic.choose_run(after - first)
            accepted.append(Run(batch, range(first, first + count), (destination,)))
            first += count

    def _destination(self, batch: OutgoingBatch, row: int) -> Destination:
        topic, deadline = self._topic(batch.topic(row))
        size = batch.size(row)
        if size > topic.max_message_bytes and (excess := topic.excess(batch.prefix(row), size)):
            raise self._too_long(topic.name, excess, batch.describe(row, self._log.sender))
        partition = batch.partition(row)
        return (
            topic.choose(batch.key(row), b"" if topic.custom is None else batch.value(row))
            if partition is None
            else self._publishing.partition(topic, *partition, deadline)
        )

    def _submit_gathered(self) -> None:
        """Hand the messages to the window that were sent one by one since the last time."""
        if not self._gathered:
            return
        gathered, self._gathered = self._gathered, GatheredMessages(checksums=self._checksums)
        first = 0
        try:
            batch, destinations = gathered.batch()
            while first < len(batch):
                after = first + self._window.room(batch.ends, first)
                self._window.submit(runs(batch, first, destinations[first:after]))
                first = after
        except BaseException as error:
            # Also an interrupt: they were accepted, so flush must not return as if they were stored.
            self._window.break_off(error, len(gathered) - first)
            raise

    def _topic(self, name: str) -> tuple[PublishedTopic, Deadline | None]:
        """Return a topic that can be published to, and what its message may still wait for, if it waited."""
        known = self._destinations.topics.get(name)
        if known is not None and known.routes.partitions:
            return known, None
        deadline = self._publishing.deadline()
        self._register(deadline)
        return self._publishing.topic(name, deadline), deadline

    def _register(self, deadline: Deadline) -> None:
        if not self._registered:
            self._publishing.open(deadline)
            self._registered = True

    def _too_long(self, topic: str, excess: tuple[int, int], message: str) -> ProduceError:
        size, limit = excess
        return ProduceError("TUBEMQ_MESSAGE_TOO_LONG", topic=topic, size=size, limit=limit, message=message)

    def _unwritable(self, error: OptionError, number: int, value: bytes) -> OptionError:
        message = describe_message(number, self._log.sender, value)
        return OptionError("TUBEMQ_BAD_MESSAGE", what=f"{error.parameters['what']} ({message})")

    def _wait_working(self, seconds: float) -> None:
        """Wait, but serve the messages that are under way."""
        self._submit_gathered()
        self._window.work()
        self._wait.pause(seconds)

    def _enter(self) -> None:
        """Let a thread in: the first one that comes, and no other.

        Raises:
            ProduceError: it is another one; or the producer is broken, or closed.
        """
        if self._window.error is not None:
            raise self._window.error
        if self._closed:
            raise ProduceError("TUBEMQ_PRODUCER_CLOSED", unacknowledged=self.unacknowledged)
        if self._thread == _NOBODY:
            self._thread, self._thread_name = get_ident(), current_thread().name
        elif self._thread != get_ident():
            raise ProduceError(
                "TUBEMQ_PRODUCER_THREAD", owner=self._thread_name, caller=current_thread().name
            )
