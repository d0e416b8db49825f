"""A sender of batches without a thread of its own: what the sink and the gateways send with."""

import contextlib
import functools
import logging
import os
import time
from collections.abc import Collection, Iterator
from threading import current_thread, get_ident
from types import TracebackType
from typing import Final, Self

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.forks import abandon_in_child
from tubemq_spark.client.master.producers import ProducerSession
from tubemq_spark.client.producer.destinations import Destinations
from tubemq_spark.client.producer.links import BrokerLinks
from tubemq_spark.client.producer.log import SendLog
from tubemq_spark.client.producer.outgoing import OutgoingBatch, outgoing_batch, refused_message
from tubemq_spark.client.producer.partitioner import PublishedTopic
from tubemq_spark.client.producer.probe import Probe
from tubemq_spark.client.producer.publishing import Publishing
from tubemq_spark.client.producer.runs import Destination, Run, runs
from tubemq_spark.client.producer.statistics import ProducerStatistics
from tubemq_spark.client.producer.window import SendWindow
from tubemq_spark.client.registry import process_registry
from tubemq_spark.errors import ProduceError, TubeMQError
from tubemq_spark.model import TopicPartition
from tubemq_spark.net import loop
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.pipeline import Pipelines
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.net.retry import SLEEP, Sleep, Wait
from tubemq_spark.net.tls_pipeline import pipeline_maker
from tubemq_spark.protocol.send_batch import MESSAGE_REFUSALS, TOPIC_REFUSALS, OnRefused, SendBatch
from tubemq_spark.receipts import Receipt, describe_message, summarise

_NO_THREAD: Final = 0
"""The identity of no thread."""

logger = logging.getLogger(__name__)


class BatchSender:
    """Sends batches of messages to any number of topics; belongs to the thread that first uses it.

    **At least once.** ``send_batch`` accepts messages and returns; ``flush`` returns when brokers have stored
    all accepted messages. A message whose broker is full, stopped, unreachable or silent is sent again
    until ``delivery_timeout_ms`` have passed (without key or partition, to the next partition). When the
    answer to a message was lost, the message may be stored twice: TubeMQ cannot recognise a repetition.
    ``send_batch`` waits as long for a master, and for a topic none of whose partitions can be published to.

    **Order.** A partition holds this sender's messages in the order of sending, except that a message
    that had to be sent again may come after later ones. With ``keep_order`` that is not so for messages with
    a key or a named partition: a partition has one of them under way at a time.

    **First error wins.** When an accepted message cannot be stored, ``send_batch`` and ``flush`` raise that
    ``ProduceError`` from then on, and nothing more is sent. A message that is refused (too long, no such
    topic) was not accepted and does no harm to the others.

    **No thread of its own.** Messages move only inside ``send_batch`` and ``flush``. Another thread than the
    first is refused, and so is a forked child.

    As a context manager it flushes and closes; when the block fails, it closes at once.
    """

    kind = "batch sender"
    closes_at_exit = False

    def __init__(self, config: ClientConfig, pool: ChannelPool, wait: Wait = SLEEP, name: str = "") -> None:
        """Reach no server: the first batch registers this sender at the master.

        Args:
            config: how to reach TubeMQ; bounds of the window, time-outs.
            pool: channels to the masters; the sender makes its own connections to brokers.
            wait: passes the seconds until the master is asked again for a topic that is not there.
            name: how this sender calls itself in errors and in the log; by default its client id.
        """
        self._session = ProducerSession(config, pool.connections)
        self._wait = wait
        self._log = SendLog(name or f"producer {self._session.client_id}")
        self._links = links = BrokerLinks(
            config.rpc_timeout_ms, new_probe=functools.partial(Probe, config, self._session.client_id)
        )
        self._destinations = Destinations(
            self._session, links, config.partitioner, keep_order=config.keep_order
        )
        self._publishing = Publishing(
            config, pool, self._session, self._destinations, self._log, Sleep(self._wait_working)
        )
        pipelines = Pipelines(config.connect_timeout_ms, make=pipeline_maker(config.tls))
        self._window = SendWindow(config, self._destinations, links, pipelines, self._log)
        self._checksums = config.checksums
        self._accepted = 0
        self._unknown: dict[str | TopicPartition, TubeMQError] = {}
        """Topics and partitions of the present batch that do not exist, which is asked for once."""
        self._registered = False
        self._closed = False
        self._process = os.getpid()
        self._thread = _NO_THREAD
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
        """The name under which servers know this sender."""
        return self._session.client_id

    @property
    def retried(self) -> int:
        """How often a message was sent again; 0 means that nothing can be stored twice."""
        return self._window.retried

    @property
    def unacknowledged(self) -> int:
        """How many accepted messages no broker has acknowledged."""
        return self._window.unacknowledged

    def send_batch(self, batch: SendBatch, on_refused: OnRefused | None = None) -> None:
        """Accept the messages of a batch, in order; wait while as many are under way as the window holds.

        Args:
            batch: the messages.
            on_refused: takes the place in the batch of a message that cannot be sent, and why; the others are
                sent. It must not use this sender. None: the first refusal is raised, those before it are
                accepted.

        Raises:
            ProduceError: an earlier message could not be stored; or, without ``on_refused``, a message is too
                long, or its topic or partition does not exist.
            OptionError: without ``on_refused``, a value is empty or an attribute cannot be written.
            TubeMQError: a topic could not be published to in time, or no master answered. The error's ``row``
                is the place in the batch; the messages before it are accepted.
        """
        if self._closed or self._window.error is not None or self._thread != get_ident():
            self._enter()
        self._unknown.clear()
        outgoing, unwritable = outgoing_batch(batch, checksums=self._checksums)
        row = 0
        for stop in [*sorted(unwritable), len(outgoing)]:
            while row < stop:
                row = self._accept(outgoing, row, stop, on_refused)
            if stop < len(outgoing):
                message = describe_message(batch.first_row + stop, self._log.sender, outgoing.value(stop))
                _refuse(stop, refused_message(unwritable[stop], message), on_refused)
                row = stop + 1

    def flush(self) -> None:
        """Return when every accepted message is stored.

        Raises:
            ProduceError: one could not be stored, or the sender belongs to another thread.
        """
        if not self._closed or self.unacknowledged:
            self._enter()
        self._window.flush()

    def receipts(self) -> list[Receipt]:
        """Return what each partition has acknowledged so far; complete after ``flush``."""
        return self._destinations.receipts()

    def statistics(self) -> ProducerStatistics:
        """Return what was sent and answered so far, and how long that took, as values that do not change."""
        return ProducerStatistics(self._links.statistics(), self._window.room_wait_s, self._log.elapsed_s)

    def pause(self) -> None:
        """End a piece of work that was flushed; registration and connections stay for ``resume``.

        Receipts and counts begin again, as those of another sender would.
        """
        self._summarise()
        self._thread = _NO_THREAD
        self._accepted = 0
        self._window.forget_counts()
        self._destinations.forget_receipts()

    def resume(self, name: str = "") -> None:
        """Begin the next piece of work under a name; call ``pause`` before."""
        self._log.begin(name or f"producer {self._session.client_id}")
        self._window.resume()

    def abandon(self) -> None:
        """Drop the connections without closing them: in a forked child they belong to the parent."""
        self._closed = True
        self._window.abandon(ProduceError("TUBEMQ_PRODUCER_FORKED", owner=self._process, process=os.getpid()))

    def close(self) -> None:
        """Close the connections and leave the master; messages not acknowledged are abandoned.

        Call ``flush`` first, or use the sender as a context manager, to have them stored.
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
        loop.run(self._session.close())
        self._summarise()

    def _summarise(self) -> None:
        if self._accepted:
            self._log.summary(f"{summarise(self.receipts())}; {self.statistics()}")

    def _accept(self, batch: OutgoingBatch, first: int, stop: int, on_refused: OnRefused | None) -> int:
        """Accept as many messages before ``stop`` as there is room for; return the first that is left.

        Those before one that is refused are accepted, and those before one for which a master must be asked
        are sent before that.
        """
        after = min(stop, first + self._window.room(batch.ends, first))
        accepted: list[Run] = []
        refusal: TubeMQError | None = None
        try:
            self._route(batch, first, after, accepted)
        except TubeMQError as error:
            refusal = error
        finally:
            count = sum([len(run.rows) for run in accepted])
            if accepted and self._window.error is None:
                self._accepted += count
                self._window.submit(accepted)
        if refusal is None:
            return first + count
        _refuse(first + count, refusal, on_refused)
        return first + count + 1

    def _route(self, batch: OutgoingBatch, first: int, after: int, accepted: list[Run]) -> None:
        """Put messages into runs, those before one that has to wait, or raise why one is refused.

        Those before one that is refused are in ``accepted`` then. If the first has to wait for room at its
        broker, it has waited when this returns, and is to be tried again.
        """
        topic, deadline = self._topic(batch.topic(first))
        if batch.longest > topic.max_message_bytes or not batch.takes_turns or topic.custom is not None:
            destinations: list[Destination] = []
            try:
                for row in range(first, after):
                    destination = self._destination(batch, row)
                    if destination is None:
                        if row > first:
                            break
                        destination = self._asked(topic, batch.partition(row), deadline)
                    if self._is_full(destination, row == first):
                        break
                    destinations.append(destination)
            finally:
                accepted += runs(batch, first, destinations)
            return
        while first < after:
            destination, count = topic.choose_run(after - first)
            if self._is_full(destination, not accepted):
                break
            accepted.append(Run(batch, range(first, first + count), (destination,)))
            first += count

    def _is_full(self, destination: Destination, is_first: bool) -> bool:
        """Whether the share of a broker is full; the first message waits until it is not."""
        link = destination.link
        if link.full and is_first:
            self._window.make_room_at(link)
            return True
        return link.full

    def _asked(
        self, topic: PublishedTopic, named: tuple[int, int] | None, deadline: Deadline | None
    ) -> Destination:
        """Ask a master for a partition; ``deadline`` is what the message has left if its topic has waited."""
        if named is None:  # the topic was listed no longer for a moment
            return topic.choose(None, b"")
        with self._remembering(TopicPartition(topic.name, *named), {"TUBEMQ_PARTITION_UNKNOWN"}):
            return self._publishing.partition(topic, *named, deadline)

    def _destination(self, batch: OutgoingBatch, row: int) -> Destination | None:
        """Return where a message goes; None when a master must be asked for its topic or its partition."""
        topic = self._known(batch.topic(row))
        if topic is None:
            return None
        size = batch.size(row)
        if size > topic.max_message_bytes and (excess := topic.excess(batch.prefix(row), size)):
            raise topic.too_long(excess, batch.describe(row, self._log.sender))
        partition = batch.partition(row)
        if partition is None:
            return topic.choose(batch.key(row), b"" if topic.custom is None else batch.value(row))
        return self._destinations.named(topic, *partition)

    def _topic(self, name: str) -> tuple[PublishedTopic, Deadline | None]:
        """Return a topic that can be published to, and what its message may still wait for, if it waited."""
        if (topic := self._known(name)) is not None:
            return topic, None
        with self._remembering(name, TOPIC_REFUSALS):
            deadline = self._publishing.deadline()
            if not self._registered:
                self._publishing.open(deadline)
                self._registered = True
            return self._publishing.topic(name, deadline), deadline

    def _known(self, name: str) -> PublishedTopic | None:
        topic = self._destinations.topics.get(name)
        return topic if topic is not None and topic.routes.partitions else None

    @contextlib.contextmanager
    def _remembering(self, asked: str | TopicPartition, refusals: Collection[str]) -> Iterator[None]:
        """Ask a master whether something exists, but only once in a batch for what does not."""
        if asked in self._unknown:
            raise self._unknown[asked].with_traceback(None)
        try:
            yield
        except TubeMQError as error:
            if error.condition in refusals:
                self._unknown[asked] = error
            raise

    def _wait_working(self, seconds: float) -> None:
        """Wait, but serve the messages that are under way."""
        until = time.monotonic() + seconds
        while self.unacknowledged and (left := until - time.monotonic()) > 0:
            self._window.wait(left)
        self._wait.pause(max(0.0, until - time.monotonic()))

    def _enter(self) -> None:
        """Check that the sender is open, and that it is the first thread that used it which calls.

        Raises:
            ProduceError: it is another one; or the sender is broken, or closed.
        """
        if self._window.error is not None:
            raise self._window.error
        if self._closed:
            raise ProduceError("TUBEMQ_PRODUCER_CLOSED", unacknowledged=self.unacknowledged)
        if self._thread == _NO_THREAD:
            self._thread, self._thread_name = get_ident(), current_thread().name
        elif self._thread != get_ident():
            raise ProduceError(
                "TUBEMQ_PRODUCER_THREAD", owner=self._thread_name, caller=current_thread().name
            )


def _refuse(row: int, error: TubeMQError, on_refused: OnRefused | None) -> None:
    """Report that a message is refused; raise what concerns the others as well, or is not to be reported."""
    error.row = row
    if on_refused is None or error.condition not in MESSAGE_REFUSALS:
        raise error
    on_refused(row, error)
