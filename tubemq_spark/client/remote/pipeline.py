"""The way of a producer's messages through gateways, at least once and with the same errors as without.

Instead of masters, gateways are asked which topics and partitions there are; what is sent are batches to a
gateway, and not messages to brokers. Which partition a message goes to is the gateway's choice, unless the
caller names it.
"""

import asyncio
import dataclasses
import functools
import logging
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from tubemq_spark.client.metadata.topics import refuse_impossible_name
from tubemq_spark.client.producer.log import SendLog
from tubemq_spark.client.producer.outgoing import OutgoingBatch
from tubemq_spark.client.producer.partitioner import Place, PublishedTopic
from tubemq_spark.client.producer.pipeline import Obstacle, Pipeline, Question, SharedQuestions
from tubemq_spark.client.producer.statistics import BrokerCounts, ProducerStatistics
from tubemq_spark.client.remote.gateways import Gateways
from tubemq_spark.client.remote.publish_window import Piece, PublishWindow
from tubemq_spark.client.tasks import OwnedTasks
from tubemq_spark.errors import ProduceError, RemoteProtocolError, TubeMQConnectionError, TubeMQError
from tubemq_spark.model import TopicPartition
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.retry import PUBLISHABLE_TOPIC, Backoff
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, sends, values
from tubemq_spark.protocol.gateway.batches import INT32, INT64, MalformedMessageError, codes, unpack
from tubemq_spark.protocol.gateway.failures import from_proto
from tubemq_spark.protocol.send_batch import Int64s, SendBatch
from tubemq_spark.protocol.send_connection import Details
from tubemq_spark.receipts import Receipt, merged, summarise

_IS_A_GATEWAY_THERE: Final = "check that a gateway runs and can be reached"
_MAY_PASS: Final = frozenset({"TUBEMQ_TOPIC_UNPUBLISHABLE", "TUBEMQ_PARTITION_AWAY"})
_CLOSED: Final = "the producer was closed"

logger = logging.getLogger(__name__)


class _Topic(PublishedTopic):
    """A topic whose partitions gateways choose."""

    __slots__ = ()

    def __init__(self, name: str, max_message_bytes: int) -> None:
        self.name = name
        self.max_message_bytes = max_message_bytes
        self.custom = None


class GatewayPipeline(Pipeline):
    """Accepts messages, and has its window send them to gateways."""

    full: frozenset[int] = frozenset()
    """No broker is waited for alone: gateways say nothing of single ones."""
    error: TubeMQError | None = None
    """The first error that concerns all messages."""

    def __init__(self, gateways: Gateways, name: str = "", *, per_message: bool, own: bool = False) -> None:
        """Call no gateway; may be called in any thread. With ``own``, close the gateways at the end.

        With ``per_message`` outcomes are told, and the window is bounded by messages, and not only by bytes.
        """
        # Gateways compute checksums.
        self.config = dataclasses.replace(gateways.config, checksums=False)
        self.log = SendLog(name or f"producer {gateways.session.client_id}")
        self.on_change = lambda: None
        self._gateways = gateways
        self._per_message = per_message
        self._own = own
        self._topics: dict[str, _Topic] = {}
        self._partitions: set[tuple[str, tuple[int, int] | None]] = set()
        """The partitions that there are, as far as that was asked for."""
        self._questions = SharedQuestions()
        self._room_lock = asyncio.Lock()
        """Callers of ``accept`` stand in line for it."""
        self._changed = asyncio.Event()
        """Set when a piece has ended, and at the end."""
        self._receipts: list[Receipt] = []
        self._counts: dict[int, BrokerCounts] = {}
        self._room_wait_s = 0.0
        self._tasks = OwnedTasks()
        """Those of the windows."""
        self._window = self._new_window()

    @property
    def client_id(self) -> str:
        """The name under which gateways know the producer."""
        return self._gateways.session.client_id

    @property
    def unacknowledged(self) -> int:
        """How many accepted messages have not ended."""
        return self._window.messages

    def place_now(self, topic: str, partition: tuple[int, int] | None) -> Place | None:
        """Return where messages go, as far as that is known; None: a gateway must be asked."""
        known = self._topics.get(topic)
        if known is None or (partition is not None and (topic, partition) not in self._partitions):
            return None
        return Place(known, None)

    async def place(self, topic: str, partition: tuple[int, int] | None) -> Place:
        """Return where they go; ask gateways if that is not known, for ``delivery_timeout_ms``."""
        self.refuse_if_ended()
        return await self._questions.ask(
            Question(topic, partition), functools.partial(self._ask_patiently, topic, partition)
        )

    async def place_once(self, topic: str, partition: tuple[int, int] | None) -> Place:
        """Return where they go as ``place`` does, but ask only once: a refusal may be over soon."""
        self.refuse_if_ended()
        answer = await self._check_topic(topic, partition)
        if not answer.partitions:
            waited_ms = self.config.delivery_timeout_ms
            raise ProduceError("TUBEMQ_TOPIC_UNPUBLISHABLE", topic=topic, waited_ms=waited_ms)
        known = self._topics[topic] = _Topic(topic, answer.max_message_bytes)
        self._partitions |= {(topic, (one.broker_id, one.partition_id)) for one in answer.partitions}
        if partition is not None:
            self._partitions.add((topic, partition))
        return Place(known, None)

    async def publishable(self, topic: str) -> tuple[TopicPartition, ...]:
        """Ask a gateway to which partitions a topic can be published now."""
        self.refuse_if_ended()
        answer = await self._check_topic(topic, None)
        return tuple(map(values.partition_from_proto, answer.partitions))

    async def accept_routed(self, batch: OutgoingBatch, first: int, stop: int) -> tuple[int, Obstacle | None]:
        """Accept messages up to the first that cannot be routed; return the row behind, and why, if so."""
        after, obstacle = self._sendable(batch, first, stop)
        if after > first:
            await self._send(batch, first, after)
        return after, obstacle

    async def flush(self) -> None:
        """Wait until every accepted message has an outcome."""
        while self.error is None and self._window.messages:
            await self._change()
        self.refuse_if_ended()

    def give_up(self, *batches: OutgoingBatch) -> None:
        """Fail those messages of some batches that are open."""
        for batch in batches:
            self._window.give_up(batch)

    def break_off(self, error: BaseException) -> None:
        """Fail for good, unless the pipeline has failed before."""
        self._end(error, cause=error)

    def receipts(self) -> list[Receipt]:
        """Return what each partition has acknowledged so far, in the partitions' order."""
        return self._receipts

    def statistics(self, room_wait_s: float = 0.0) -> ProducerStatistics:
        """Return what was sent and answered so far; ``room_wait_s`` adds to the wait for room.

        Brokers are those that gateways have told of, at the address of a gateway.
        """
        endpoint = self._gateways.addresses[self._gateways.current_index]
        brokers = [counts.snapshot(broker_id, endpoint) for broker_id, counts in sorted(self._counts.items())]
        return ProducerStatistics(tuple(brokers), room_wait_s + self._room_wait_s, self.log.elapsed_s)

    def begin(self, name: str = "") -> None:
        """Begin a piece of work under a name, with new counts; all messages have ended."""
        self.log.begin(name or f"producer {self.client_id}")
        self._receipts, self._counts, self._room_wait_s = [], {}, 0.0
        self._window.close()  # its stream has the old name
        self._window = self._new_window()

    async def close(self, room_wait_s: float = 0.0) -> None:
        """Close the stream, and its own gateways; what has not ended is told to be abandoned."""
        closed = ProduceError("TUBEMQ_PRODUCER_CLOSED", unacknowledged=self.unacknowledged)
        self._end(closed, cause=_CLOSED)
        await self._questions.close(self.error or closed)
        if receipts := self.receipts():
            self.log.summary(f"{summarise(receipts)}; {self.statistics(room_wait_s)}")
        await self._tasks.cancel()
        if self._own:
            await self._gateways.closing()

    def abandon(self, error: ProduceError) -> None:
        """Drop the stream without closing it for another process that shares it; fail for good."""
        self.error = error
        self._window.abandon()

    def _new_window(self) -> PublishWindow:
        return PublishWindow(
            self._gateways,
            self.log.sender,
            self._tasks,
            per_message=self._per_message,
            on_answer=self._answered,
            on_failure=self._failed,
            on_error=self._break_off_and_tell,
        )

    # What is accepted.

    def _sendable(self, batch: OutgoingBatch, first: int, stop: int) -> tuple[int, Obstacle | None]:
        """Return up to which row messages can be sent, and why the next cannot."""
        if batch.is_round_robin and not batch.refused:
            topic = self._topics.get(batch.topic(first))
            if topic is not None and batch.longest <= topic.max_message_bytes:
                return stop, None
        for row in range(first, stop):
            if (obstacle := self._obstacle(batch, row)) is not None:
                return row, obstacle
        return stop, None

    def _obstacle(self, batch: OutgoingBatch, row: int) -> Obstacle | None:
        if row in batch.refused:
            return batch.refused[row]
        name, partition = batch.topic(row), batch.partition(row)
        topic = self._topics.get(name)
        if topic is None:
            return Question(name, None)
        size = batch.size(row)
        if size > topic.max_message_bytes and (excess := topic.excess(batch.prefix(row), size)):
            return topic.too_long(excess, batch.describe(row, self.log.sender))
        if partition is not None and (name, partition) not in self._partitions:
            return Question(name, partition)
        return None

    async def _send(self, batch: OutgoingBatch, first: int, after: int) -> None:
        """Send messages that follow one another; wait while there is no room for them."""
        messages = batch.as_batch(first, after)
        loop = asyncio.get_running_loop()
        for begin, stop in sends.parts(messages, 0, len(messages)):
            start = begin
            while start < stop:
                async with self._room_lock:
                    began = loop.time()
                    part = messages.part(start, start + await self._room(messages, start, stop))
                    now = loop.time()
                    self._room_wait_s += now - began
                    due_at = now + self.config.delivery_timeout_ms / 1000 - batch.waited_s
                    self._window.add(Piece(part, batch, first + start, now, due_at))
                start += len(part)
        self.refuse_if_ended()

    async def _room(self, messages: SendBatch, start: int, stop: int) -> int:
        """Return how many messages may be sent now; wait until these are any."""
        window, ends = self._window, messages.values.offsets
        while True:
            self.refuse_if_ended()
            most = self.config.max_in_flight - window.messages if self._per_message else math.inf
            count = int(min(stop - start, most))
            size = int(ends[start + max(0, count)] - ends[start])
            if count > 0 and (not window.messages or window.bytes + size <= self.config.max_in_flight_bytes):
                return count
            await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    # What becomes of it.

    def _answered(self, piece: Piece, answer: pb.PublishStreamResponse) -> None:
        self._changed.set()
        try:
            self._count(answer, piece)
            if (outcomes := piece.outgoing.outcomes) is None:
                if answer.failures:
                    # A message that was accepted: no row of the caller's batch is to blame.
                    self._break_off_and_tell(from_proto(answer.failures[0].error))
                return
            for stored in _stored(answer.outcomes, piece):
                outcomes.stored(*stored)
            for failure in answer.failures:
                error = from_proto(failure.error)
                for row in np.frombuffer(failure.rows, INT32).tolist():
                    outcomes.failed(piece.rows[row], error)
        except (MalformedMessageError, IndexError) as error:
            raise RemoteProtocolError("TUBEMQ_GATEWAY_ANSWER", what=str(error)) from error

    def _failed(self, piece: Piece, cause: str) -> None:
        self._changed.set()
        if (outcomes := piece.outgoing.outcomes) is not None:
            for row in piece.rows:
                outcomes.failed(row, self._error_of(piece, row, cause))
            return
        during = f"sending as {self.log.sender}"
        if piece.unanswered:
            unanswered = len(piece.messages)
            self._break_off_and_tell(
                ProduceError("TUBEMQ_GATEWAY_LOST", during=during, cause=cause, unanswered=unanswered)
            )
        else:
            tried = self._gateways.tried
            self._break_off_and_tell(
                TubeMQConnectionError("TUBEMQ_GATEWAY_AWAY", during=during, tried=tried, cause=cause)
            )

    def _error_of(self, piece: Piece, row: int, cause: str) -> ProduceError:
        batch = piece.outgoing
        named = batch.partition(row)
        topic = batch.topic(row)
        return ProduceError(
            "TUBEMQ_SEND_FAILED.AMBIGUOUS" if piece.unanswered else "TUBEMQ_SEND_FAILED",
            partition=f"topic '{topic}'" if named is None else TopicPartition(topic, *named),
            message=batch.describe(row, self.log.sender),
            attempts=piece.attempts,
            unanswered=piece.unanswered,
            cause=cause,
            hint=_IS_A_GATEWAY_THERE,
        )

    def _count(self, answer: pb.PublishStreamResponse, piece: Piece) -> None:
        """Count what is stored of a piece."""
        latency_s = asyncio.get_running_loop().time() - piece.sent_at
        receipts = _receipts(answer, piece)
        self._receipts = merged([*self._receipts, *receipts])
        for receipt in receipts:
            counts = self._counts.setdefault(receipt.partition.broker_id, BrokerCounts())
            counts.sent(receipt.count, receipt.bytes, again=False)
            counts.retries += receipt.retried
            counts.acknowledged(receipt.count, receipt.bytes, latency_s)

    # The end.

    def _break_off_and_tell(self, error: Exception) -> None:
        if not isinstance(error, TubeMQError):
            logger.warning("%s ends with an error", self.log.sender, exc_info=error)
        self._end(error, cause=error)
        self.on_change()

    def _end(self, error: BaseException, cause: object) -> None:
        """Fail for good: all open messages have an unknown outcome."""
        if self.error is not None:
            return
        if not isinstance(error, TubeMQError):
            unacknowledged = self.unacknowledged
            error = ProduceError("TUBEMQ_PRODUCER_BROKEN", cause=repr(error), unacknowledged=unacknowledged)
        self.error = error
        for piece in self._window.close():
            for row in piece.rows:
                piece.outgoing.fail_abandoned(row, self.log.sender, cause)
        self._changed.set()

    # Questions.

    async def _ask_patiently(self, topic: str, partition: tuple[int, int] | None) -> Place:
        deadline = Deadline.after_ms(self.config.delivery_timeout_ms)
        backoff = Backoff(PUBLISHABLE_TOPIC)
        while True:
            try:
                return await self.place_once(topic, partition)
            except TubeMQError as error:
                may_pass = error.retriable or error.condition in _MAY_PASS
                pause_s = backoff.next_s(deadline) if may_pass else None
                if pause_s is None:
                    raise
            await asyncio.sleep(pause_s)

    async def _check_topic(self, topic: str, partition: tuple[int, int] | None) -> pb.CheckTopicResponse:
        """Ask a gateway for a topic, or for one of its partitions."""
        refuse_impossible_name(topic)
        request = pb.CheckTopicRequest(topic=topic)
        if partition is not None:
            request.partition.broker_id, request.partition.partition_id = partition
        during = f"asking for topic {topic}"
        return await self._gateways.calling("CheckTopic", request, pb.CheckTopicResponse, during)


def _receipts(answer: pb.PublishStreamResponse, piece: Piece) -> list[Receipt]:
    """Return the receipts of a piece; all of one that was sent more than once counts as retried."""
    receipts = values.receipts_from_proto(answer.receipts)
    if piece.attempts < 2:
        return receipts
    return [
        dataclasses.replace(
            receipt,
            retried=receipt.count,
            unanswered=receipt.unanswered + receipt.count * piece.unanswered,
        )
        for receipt in receipts
    ]


_Stored = tuple[Sequence[int], Sequence[TopicPartition], Int64s, Details, int, int]


def _stored(message: pb.PublishStreamResponse.Outcomes, piece: Piece) -> Iterator[_Stored]:
    """Yield the messages that are stored, those together that were sent equally often."""
    count = len(piece.messages)
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
            (rows + piece.first).tolist(),
            [partitions[code] for code in places[rows].tolist()],
            offsets[rows].astype(np.int64),
            Details(np.maximum(ids[rows], 0), np.maximum(times[rows], 0)),
            int(history[0]) + piece.attempts - 1,
            int(history[1]) + piece.unanswered,
        )


def _column(data: bytes, kind: np.dtype[Any], count: int, what: str, usual: int) -> Int64s:
    """Return a column that is left out where all rows have the usual value."""
    return unpack(data, kind, count, what).astype(np.int64) if data else np.full(count, usual, np.int64)
