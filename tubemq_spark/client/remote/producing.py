"""A producer through gateways: the parts that are different from those of one that talks to brokers.

Callers, futures, callbacks and the thread are those of ``client/producer``. Instead of ``Placing`` there is
``RemotePlaces``, which asks gateways and not masters; instead of ``SendWindow`` there is ``RemoteWindow``,
which sends batches to a gateway and not messages to brokers. Which partition a message goes to is the
gateway's choice, unless the caller names it.
"""

import dataclasses
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master.producers import PublishRoutes
from tubemq_spark.client.metadata.topics import refuse_impossible_name
from tubemq_spark.client.producer.links import BrokerLinks
from tubemq_spark.client.producer.log import SendLog
from tubemq_spark.client.producer.loop import SendLoop
from tubemq_spark.client.producer.outgoing import OutgoingBatch
from tubemq_spark.client.producer.partitioner import Partitioner, PublishedTopic
from tubemq_spark.client.producer.placing import Place
from tubemq_spark.client.producer.runs import Destination, Run
from tubemq_spark.client.producer.sending import Sending
from tubemq_spark.client.producer.statistics import BrokerCounts, BrokerStatistics, ProducerStatistics
from tubemq_spark.client.remote.connections import Gateways
from tubemq_spark.client.remote.publish_window import Parcel, PublishWindow
from tubemq_spark.errors import ProduceError, RemoteProtocolError, TubeMQError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.retry import PUBLISHABLE_TOPIC, Backoff, Sleep, Wait
from tubemq_spark.net.waker import Waker
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, sends, values
from tubemq_spark.protocol.gateway.failures import from_proto
from tubemq_spark.protocol.gateway.packed import INT32, INT64, MalformedMessageError, codes, unpack
from tubemq_spark.protocol.send_answers import Details
from tubemq_spark.protocol.send_batch import Int64s, SendBatch
from tubemq_spark.receipts import Receipt, merged, summarise

_IS_A_GATEWAY_THERE: Final = "check that a gateway runs and can be reached"
_SOMEWHERE: Final = Endpoint("gateway", 1)
_MAY_PASS: Final = frozenset({"TUBEMQ_TOPIC_UNPUBLISHABLE", "TUBEMQ_PARTITION_AWAY"})


class RemotePlaces:
    """Topics and partitions, as gateways know them; any thread may ask."""

    def __init__(
        self,
        gateways: Gateways,
        name: str = "",
        wait: Wait = Sleep(),  # noqa: B008 (it has no state)
        refuse_if_ended: Callable[[], None] = lambda: None,
        *,
        own: bool = False,
    ) -> None:
        """Call no gateway.

        Args:
            gateways: which are asked.
            name: how the producer calls itself in errors and in the log; by default its client id.
            wait: how a thread waits that asks again.
            refuse_if_ended: raises when the producer has ended.
            own: whether the gateways are closed with the producer.
        """
        self._gateways = gateways
        self._own = own
        self._config = config = gateways.config
        self._wait = wait
        self._refuse_if_ended = refuse_if_ended
        self.log = SendLog(name or f"producer {gateways.session.client_id}")
        self._links = BrokerLinks(config.rpc_timeout_ms)
        self._topics: dict[str, PublishedTopic] = {}
        self._named: dict[TopicPartition, Destination] = {}
        self._lock = threading.Lock()
        self._receipts: list[Receipt] = []
        self._counts: dict[int, BrokerCounts] = {}

    @property
    def client_id(self) -> str:
        """The name under which gateways know the producer."""
        return self._gateways.session.client_id

    def deadline(self) -> Deadline:
        """Return how long a message that comes now may wait before it is accepted."""
        return Deadline.after_ms(self._config.delivery_timeout_ms)

    def place_now(self, name: str, partition: tuple[int, int] | None) -> Place | None:
        """Return where messages to a topic, or one of its partitions, go; None: a gateway must be asked."""
        topic = self._topics.get(name)
        if topic is None:
            return None
        if partition is None:
            return Place(topic, None)
        named = self._named.get(TopicPartition(name, *partition))
        return None if named is None else Place(topic, named)

    def place(self, name: str, partition: tuple[int, int] | None) -> Place:
        """Return the same; ask gateways, again and again for ``delivery_timeout_ms``.

        Raises:
            ProduceError: the topic or the partition does not exist, or could not be published to in time; or
                the producer has ended since.
            TubeMQConnectionError: no gateway, or no master, answered in time.
        """
        deadline = self.deadline()
        backoff = Backoff(PUBLISHABLE_TOPIC, wait=self._wait)
        while True:
            try:
                return self.place_once(name, partition)
            except TubeMQError as error:
                may_pass = error.retriable or error.condition in _MAY_PASS
                if not may_pass or not backoff.wait(deadline):
                    raise
            self._refuse_if_ended()

    def place_once(self, name: str, partition: tuple[int, int] | None) -> Place:
        """As ``place``, but ask only once; what is refused may be otherwise soon."""
        answer = self._check(name, partition)
        if not answer.partitions:
            waited_ms = self._config.delivery_timeout_ms
            raise ProduceError("TUBEMQ_TOPIC_UNPUBLISHABLE", topic=name, waited_ms=waited_ms)
        with self._lock:
            topic = self._topics[name] = self._published(name, answer)
            for listed in answer.partitions:
                self._name(values.partition_from_proto(listed))
            named = None if partition is None else self._name(TopicPartition(name, *partition))
        return Place(topic, named)

    def topic(self, name: str) -> PublishedTopic:
        """Return a topic that was asked for."""
        return self._topics[name]

    def limit(self, name: str) -> float:
        """Return how long a payload for a topic may be that is surely taken; no limit for unknown topics."""
        topic = self._topics.get(name)
        return math.inf if topic is None else topic.max_message_bytes

    def publishable(self, topic: str) -> tuple[TopicPartition, ...]:
        """Ask a gateway to which partitions a topic can be published now, and wait for the answer.

        Raises:
            ProduceError: the topic does not exist, or its name cannot be one; or the producer has ended.
            TubeMQConnectionError: no gateway, or no master, answered in time.
        """
        self._refuse_if_ended()
        return tuple(map(values.partition_from_proto, self._check(topic, None).partitions))

    def receipts(self) -> list[Receipt]:
        """Return what each partition has acknowledged so far."""
        return self._receipts

    def statistics(self, room_wait_s: float) -> ProducerStatistics:
        """Return what was sent and answered so far; its senders waited so long for room.

        Brokers are those that gateways have told of, at the address of a gateway.
        """
        endpoint = Endpoint.parse(self._gateways.name(self._gateways.current_index))
        counted: list[BrokerStatistics] = [
            counts.snapshot(broker_id, endpoint) for broker_id, counts in sorted(self._counts.items())
        ]
        return ProducerStatistics(tuple(counted), room_wait_s, self.log.elapsed_s)

    def leave(self, room_wait_s: float) -> None:
        """Tell the log what was done, and close gateways that no other uses."""
        if receipts := self.receipts():
            self.log.summary(f"{summarise(receipts)}; {self.statistics(room_wait_s)}")
        if self._own:
            self._gateways.close()

    def count(self, answer: pb.PublishStreamResponse, parcel: Parcel, latency_s: float) -> None:
        """Count what is stored of a parcel."""
        receipts = receipts_of(answer, parcel)
        self._receipts = merged([*self._receipts, *receipts])
        for receipt in receipts:
            counts = self._counts.setdefault(receipt.partition.broker_id, BrokerCounts())
            counts.sent(receipt.count, receipt.bytes, again=False)
            counts.retries += receipt.retried
            counts.acknowledged(receipt.count, receipt.bytes, latency_s)

    def _check(self, topic: str, partition: tuple[int, int] | None) -> pb.CheckTopicResponse:
        refuse_impossible_name(topic)
        request = pb.CheckTopicRequest(topic=topic)
        if partition is not None:
            request.partition.broker_id, request.partition.partition_id = partition
        return self._gateways.call("CheckTopic", request, pb.CheckTopicResponse, f"asking for topic {topic}")

    def _published(self, name: str, answer: pb.CheckTopicResponse) -> PublishedTopic:
        routes = PublishRoutes(
            {values.partition_from_proto(listed): _SOMEWHERE for listed in answer.partitions},
            answer.max_message_bytes,
        )
        somewhere = Destination(TopicPartition(name, 0, 0), self._links.to(0, _SOMEWHERE), b"")
        return PublishedTopic(name, routes, Partitioner([somewhere], 0), self._links)

    def _name(self, partition: TopicPartition) -> Destination:
        destination = self._named.get(partition)
        if destination is None:
            link = self._links.to(0, _SOMEWHERE)
            destination = self._named[partition] = Destination(partition, link, b"")
        return destination


def receipts_of(answer: pb.PublishStreamResponse, parcel: Parcel) -> list[Receipt]:
    """Return what is stored of a parcel; one that was sent more than once counts as that."""
    receipts = values.receipts_from_proto(answer.receipts)
    if parcel.attempts < 2:
        return receipts
    return [
        dataclasses.replace(
            receipt,
            retried=receipt.count,
            unanswered=receipt.unanswered + receipt.count * parcel.unanswered,
        )
        for receipt in receipts
    ]


class _LoopParcel(Parcel):
    """Messages of a batch of the send loop."""

    __slots__ = ("first", "outgoing", "sent_at")

    def __init__(self, batch: SendBatch, due_at: float, outgoing: OutgoingBatch, first: int) -> None:
        super().__init__(batch, due_at)
        self.outgoing = outgoing
        self.first = first
        """The first row."""
        self.sent_at = time.monotonic()


class RemoteWindow:
    """What is under way to gateways; belongs to the thread of a send loop, which takes it for a window."""

    full: frozenset[int] = frozenset()
    """No broker is waited for alone: the gateway says nothing of single ones."""

    def __init__(self, gateways: Gateways, places: RemotePlaces) -> None:
        """Call no gateway."""
        config = gateways.config
        self._delivery_s = config.delivery_timeout_ms / 1000
        self._most_messages = config.max_in_flight
        self._most_bytes = config.max_in_flight_bytes
        self._places = places
        self._sender = places.log.sender
        self._window = PublishWindow(gateways, self._sender, self._answered, self._failed, per_message=True)
        self.error: TubeMQError | None = None
        """The first error of all messages; nothing is sent after it."""

    def add_waker(self, waker: Waker) -> None:
        """End the waits of this window when a waker is woken."""
        self._window.add_waker(waker)

    def room(self, ends: Sequence[int], first: int = 0) -> int:
        """Return how many messages may be submitted now; while the window is full, wait for answers."""
        window = self._window
        while window.messages >= self._most_messages or (
            window.messages and window.bytes + ends[first + 1] - ends[first] > self._most_bytes
        ):
            window.wait(math.inf)
        return min(len(ends) - 1 - first, self._most_messages - window.messages)

    def submit(self, runs: Sequence[Run]) -> None:
        """Send messages, which follow one another in one batch."""
        outgoing = runs[0].batch
        first = min(run.rows[0] for run in runs)
        after = first + sum(len(run.rows) for run in runs)
        due_at = time.monotonic() + self._delivery_s - outgoing.waited_s
        batch = outgoing.as_batch(first, after)
        for start, stop in sends.parts(batch, 0, len(batch)):
            self._window.add(_LoopParcel(batch.part(start, stop), due_at, outgoing, first + start))
        self._window.work()

    def wait(self, at_most_s: float) -> None:
        """Wait for answers, or for a waker, and take what has come."""
        self._window.wait(at_most_s)

    def break_off(self, error: BaseException) -> None:
        """Fail for good, unless that is so already."""
        if self.error is None:
            unacknowledged = self._window.messages
            self.error = ProduceError(
                "TUBEMQ_PRODUCER_BROKEN", cause=repr(error), unacknowledged=unacknowledged
            )
        self.close()

    def abandon(self, error: ProduceError) -> None:
        """Drop what belongs to the parent process; fail for good."""
        self.error = error
        self._window.abandon()

    def close(self) -> None:
        """End the stream; what has no answer is forgotten."""
        self._window.close()

    def _answered(self, parcel: Parcel, answer: pb.PublishStreamResponse) -> None:
        parcel = _of_loop(parcel)
        self._places.count(answer, parcel, time.monotonic() - parcel.sent_at)
        outcomes = parcel.outgoing.outcomes
        if outcomes is None:
            return
        try:
            for rows, partitions, offsets, details, attempts, unanswered in _stored(answer.outcomes, parcel):
                outcomes.stored(rows, partitions, offsets, details, attempts, unanswered)
            for failure in answer.failures:
                error = from_proto(failure.error)
                for row in np.frombuffer(failure.rows, INT32).tolist():
                    outcomes.failed(parcel.first + row, error)
        except (MalformedMessageError, IndexError) as error:
            raise RemoteProtocolError("TUBEMQ_GATEWAY_ANSWER", what=str(error)) from error

    def _failed(self, parcel: Parcel, cause: str, _ambiguous: object) -> None:
        parcel = _of_loop(parcel)
        outcomes = parcel.outgoing.outcomes
        if outcomes is None:
            return
        for row in range(parcel.first, parcel.first + len(parcel.batch)):
            outcomes.failed(row, self._error_of(parcel, row, cause))

    def _error_of(self, parcel: _LoopParcel, row: int, cause: str) -> ProduceError:
        batch = parcel.outgoing
        named = batch.partition(row)
        topic = batch.topic(row)
        return ProduceError(
            "TUBEMQ_SEND_FAILED.AMBIGUOUS" if parcel.unanswered else "TUBEMQ_SEND_FAILED",
            partition=f"topic '{topic}'" if named is None else TopicPartition(topic, *named),
            message=batch.describe(row, self._sender),
            attempts=parcel.attempts,
            unanswered=parcel.unanswered,
            cause=cause,
            hint=_IS_A_GATEWAY_THERE,
        )


def _of_loop(parcel: Parcel) -> _LoopParcel:
    if not isinstance(parcel, _LoopParcel):
        raise TypeError(parcel)
    return parcel


_Stored = tuple[Sequence[int], Sequence[TopicPartition], Int64s, Details, int, int]


def _stored(message: pb.PublishStreamResponse.Outcomes, parcel: _LoopParcel) -> Iterator[_Stored]:
    """Yield the messages that are stored, those together that were sent equally often.

    Raises:
        MalformedMessageError: the answer contradicts itself.
    """
    count = len(parcel.batch)
    partitions = [values.partition_from_proto(partition) for partition in message.partitions]
    places = codes(message.partition_codes, count, len(partitions), "partition_codes")
    offsets = unpack(message.offsets, INT64, count, "offsets")
    ids = _column(message.message_ids, INT64, count, "message_ids", 0)
    times = _column(message.append_times_ms, INT64, count, "append_times_ms", 0)
    attempts = _column(message.attempts, INT32, count, "attempts", 1)
    unanswered = _column(message.unanswered, INT32, count, "unanswered", 0)
    stored = places >= 0
    histories = np.stack((attempts, unanswered), axis=1)
    for history in np.unique(histories[stored], axis=0):
        rows = np.flatnonzero(stored & (histories == history).all(axis=1))
        yield (
            (rows + parcel.first).tolist(),
            [partitions[code] for code in places[rows].tolist()],
            offsets[rows].astype(np.int64),
            Details(np.maximum(ids[rows], 0), np.maximum(times[rows], 0)),
            int(history[0]) + parcel.attempts - 1,
            int(history[1]) + parcel.unanswered,
        )


def _column(data: bytes, kind: np.dtype[Any], count: int, what: str, usual: int) -> Int64s:
    """Return a column that is left out where all rows have the usual value."""
    return unpack(data, kind, count, what).astype(np.int64) if data else np.full(count, usual, np.int64)


def remote_sending(gateways: Gateways, name: str = "", *, own: bool = False) -> Sending:
    """Return the parts of a producer that sends through gateways; call none.

    Args:
        gateways: where messages go; their settings are those of the producer.
        name: how the producer calls itself in errors and in the log; by default its client id.
        own: whether the gateways are closed with the producer.
    """
    config: ClientConfig = gateways.config
    loop = SendLoop(config)
    places = RemotePlaces(gateways, name, Sleep(loop.wait), loop.refuse_if_ended, own=own)
    window = RemoteWindow(gateways, places)
    loop.own(places.log.sender, window, window.add_waker, places.leave)
    return Sending(config, loop, places)
