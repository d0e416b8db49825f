"""Messages to send: a window of batches for each client that publishes.

**States of a stream.** The client says ``begin``, and then sends batches without waiting for answers. A batch
is *taken* when there is room for its bytes, its topics are known, and the sender has it; it is *under way*
until each of its messages is stored or refused, and then it is *answered*, once. The stream *rests* while
none is under way. It ends when the client has ended its side and all is answered.

**What a stream holds.** The memory of a batch, from before it is parsed until its answer is written. While
its session has no room for a message, it reads nothing. Threads and connections to brokers belong to the
senders, one for all streams of equal settings, so a stream at rest holds neither. A client that has gone
gives back what it held within a second; one that does not move does when others wait.

**Draining.** A stream at rest ends at once. Any other takes no more, tells so with its answers, and ends when
all that it took is answered. So what has no answer then was never taken: the client sends it elsewhere, and
nothing is stored twice.
"""

import asyncio
import contextlib
import dataclasses
import itertools
from collections import deque
from collections.abc import Awaitable, Iterable, Mapping
from typing import Final, TypeVar

import numpy as np
from google.protobuf.message import Message

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.producer.batch_outcome import BatchOutcome
from tubemq_spark.client.producer.shared import Delivery, Lane, Refusals, SharedSender
from tubemq_spark.errors import TubeMQError
from tubemq_spark.gateway.admission import Admission, Owner, busy
from tubemq_spark.gateway.data.fetching import Arrivals
from tubemq_spark.gateway.metrics import Metrics
from tubemq_spark.gateway.session.calls import Call, Calls, parsed
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import TopicPartition
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.net.retry import PUBLISHABLE_TOPIC
from tubemq_spark.protocol.gateway import failures, gateway_pb2 as pb, limits, packed, sends, values
from tubemq_spark.protocol.gateway.packed import MalformedMessageError
from tubemq_spark.protocol.send_batch import MESSAGE_REFUSALS
from tubemq_spark.receipts import Receipt

Result = TypeVar("Result")

_MOST_ERRORS: Final = 1_000
"""How many different errors an answer has."""
_SHORT_BYTES: Final = 4 << 10
"""Up to this length, a message is measured in no time."""
_MOST_UNANSWERED: Final = 1_024
"""So many batches of a stream may have no answer, however small they are."""
_AHEAD: Final = 4
"""A message is read when there is room for the longest, or for one of so many parts of a session's room."""
_IDLE_S: Final = 30.0
"""A sender without streams is kept for so long, with its connections: longer than most pauses of a client."""
_Answer = pb.PublishStreamResponse | Exception
"""The answer to a batch, or why there is none."""
_GIVE_UP_S: Final = 2.0
"""How long an ended stream is waited for that gives up what it has sent, which takes half a second."""
_MAY_PASS: Final = frozenset({"TUBEMQ_TOPIC_UNPUBLISHABLE", "TUBEMQ_PARTITION_AWAY"})


@dataclasses.dataclass(slots=True, eq=False)
class _Entry:
    """A sender, and who uses it."""

    sender: SharedSender
    owner: Owner
    """For whom it was opened."""
    users: int = 0
    closing: asyncio.TimerHandle | None = None


class Senders:
    """The senders of a gateway, one for equal settings; used in the event loop.

    A sender that no stream has used for a while is closed. One with an error of its own is closed when its
    last user leaves. ``publishes`` limits the number of senders: each has a thread while it sends.
    """

    def __init__(self, settings: GatewaySettings, pool: ChannelPool, admission: Admission) -> None:
        """Open no sender."""
        self._gateway = settings.name
        self._most = settings.most["max_in_flight"], settings.most["max_in_flight_bytes"]
        self._pool = pool
        self._admission = admission
        self._entries: dict[tuple[ClientConfig, bool], _Entry] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def take(self, config: ClientConfig, owner: Owner, *, detailed: bool) -> "_Entry":
        """Return the sender for some settings, to be given back.

        Raises:
            GatewayError: there are too many others.
        """
        key = config, detailed
        entry = self._entries.get(key)
        if entry is not None and entry.sender.error is not None:
            del self._entries[key]
            entry = None
        if entry is None:
            room = self._admission.publishes
            if not room.take(owner):
                self._close_idle()
                if not room.take(owner):
                    what = f"clients publish with {room.used} different settings"
                    raise busy(self._gateway, what, room.retry_after_ms)
            messages, size = self._most
            sender = SharedSender(
                config, self._pool, detailed=detailed, most_messages=messages, most_bytes=size
            )
            entry = self._entries[key] = _Entry(sender, owner)
        entry.users += 1
        if entry.closing is not None:
            entry.closing.cancel()
            entry.closing = None
        return entry

    def give(self, entry: "_Entry") -> None:
        """Give a sender back."""
        entry.users -= 1
        if entry.users:
            return
        if entry.sender.error is not None:
            self._close(entry)
        else:
            entry.closing = asyncio.get_running_loop().call_later(_IDLE_S, self._close, entry)

    async def close(self, patience_s: float) -> None:
        """Close all senders, and wait so long for that."""
        for entry in list(self._entries.values()):
            self._close(entry)
        if self._closing:
            await asyncio.wait(self._closing, timeout=patience_s)

    def _close_idle(self) -> None:
        for entry in list(self._entries.values()):
            if not entry.users:
                self._close(entry)

    def _close(self, entry: "_Entry") -> None:
        if entry.closing is not None:
            entry.closing.cancel()
        self._entries = {key: value for key, value in self._entries.items() if value is not entry}
        self._admission.publishes.give(entry.owner)
        task = asyncio.ensure_future(self._admission.endings.run(entry.sender.close))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class Publishing:
    """Serves ``PublishStream`` and ``CheckTopic``."""

    def __init__(
        self,
        settings: GatewaySettings,
        senders: Senders,
        admission: Admission,
        metrics: Metrics,
        calls: Calls,
        arrivals: Arrivals,
    ) -> None:
        self.gateway = settings.name
        self.stall_s = settings.stall_ms / 1000
        self.most_bytes = settings.max_batch_bytes
        self.ahead_bytes = min(settings.max_message_bytes, settings.session_bytes // _AHEAD)
        self.senders = senders
        self.admission = admission
        self.metrics = metrics
        self.calls = calls
        self.arrivals = arrivals
        self._streams: set[_Stream] = set()
        self._measuring = asyncio.Lock()

    async def publish_stream(self, _: object, call: Call) -> None:
        """Take a client's batches, and answer each of them."""
        request = await call.read()
        if not isinstance(request, pb.PublishStreamRequest):
            return
        if not request.HasField("begin"):
            raise MalformedMessageError("the first request of a publish stream is not begin")
        stream = _Stream(self, call, request.begin)
        self._streams.add(stream)
        try:
            await stream.serve()
        finally:
            self._streams.discard(stream)
            stream.end()
            if call.ended_by is not None:
                # After this the end of the session is answered, and nothing more may be stored then.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_GIVE_UP_S):
                        await stream.given_up.wait()

    def drain(self) -> None:
        """Take no more batches; the gateway is about to stop."""
        for stream in self._streams:
            stream.changed.set()

    async def parsed_bytes(self, message: type[Message], data: bytes) -> int:
        """Return how much memory a message takes when it is parsed; other calls have a turn between two.

        Raises:
            MalformedMessageError: it has more than it may, or the bytes are no message.
        """
        if len(data) <= _SHORT_BYTES:
            return limits.parsed_bytes(message, data)
        async with self._measuring:
            await asyncio.sleep(0)
            return limits.parsed_bytes(message, data)

    async def check_topic(self, request: pb.CheckTopicRequest, call: Call) -> pb.CheckTopicResponse:
        """Say whether a topic, or one of its partitions, can be published to; wait for that if asked to."""
        access = call.owner().access
        place = None
        if request.HasField("partition"):
            place = request.partition.broker_id, request.partition.partition_id
        entry = self.senders.take(access.config, call.who, detailed=False)
        try:
            places = entry.sender.places
            if request.publishable:
                refusal = await self.refusal_of(entry.sender, call, request.topic, place)
                if refusal is not None:
                    raise refusal
            elif place is not None:
                await self.admission.questions.run(lambda: places.place_once(request.topic, place), call.who)
            else:
                await self.admission.questions.run(lambda: places.publishable(request.topic), call.who)
            topic = places.session.routes(request.topic)
            return pb.CheckTopicResponse(
                max_message_bytes=topic.max_message_bytes,
                partitions=map(values.partition_to_proto, sorted(topic.partitions)),
            )
        finally:
            self.senders.give(entry)

    async def refusal_of(
        self, sender: SharedSender, call: Call, topic: str, partition: tuple[int, int] | None
    ) -> TubeMQError | None:
        """Ask masters where messages go, as long as it may help; return why they are refused, or None.

        A thread is taken for each question, and none for the pauses.
        """
        places = sender.places
        deadline = places.deadline()
        for attempt in itertools.count(1):
            if places.place_now(topic, partition) is not None:
                return None
            try:
                await self.admission.questions.run(lambda: places.place_once(topic, partition), call.who)
            except TubeMQError as error:
                may_pass = error.retriable or error.condition in _MAY_PASS
                if error.condition in MESSAGE_REFUSALS or deadline.expired or not may_pass:
                    return error
            else:
                return None
            await asyncio.sleep(min(PUBLISHABLE_TOPIC.after_ms(attempt) / 1000, deadline.remaining()))
        raise AssertionError


class _Stream:
    """One publish stream; all but ``_ended`` runs in the event loop."""

    def __init__(self, publishing: Publishing, call: Call, begin: pb.PublishStreamRequest.Begin) -> None:
        self._publishing = publishing
        self._call = call
        self._who = call.who
        self._begin = begin
        self._config = call.owner().access.config
        self._loop = asyncio.get_running_loop()
        self._room = publishing.admission.bytes
        self._entry: _Entry | None = None
        self._lane: Lane | None = None
        self._number = 0
        """That of the last batch whose bytes have begun to come."""
        self._parts: list[bytes] = []
        """Those of a batch that have come."""
        self._size = 0
        """The length of the whole batch."""
        self._holding = 0
        """The bytes that are held for a batch that is not under way."""
        self._all_came = False
        """Whether the client has ended its side."""
        self._unanswered = 0
        """How many batches were taken and have no answer that was written."""
        self._answers: deque[tuple[_Answer, int]] = deque()
        """Answers to be written, and the bytes to be given back then."""
        self._fewer = asyncio.Event()
        """Set while more batches may be taken."""
        self._fewer.set()
        self._under_way = 0
        """How many batches were taken and have not ended."""
        self.given_up = asyncio.Event()
        """Set while none is under way."""
        self.given_up.set()
        self._over = False
        self.changed = asyncio.Event()
        """Set when there is an answer, no more to read, or an end."""

    async def serve(self) -> None:
        """Take batches and write answers, until the client has ended its side and has all of them."""
        calls = self._publishing.calls
        await self._write(pb.PublishStreamResponse(draining=calls.draining))
        reading = asyncio.ensure_future(self._read())
        reading.add_done_callback(lambda _: self.changed.set())
        try:
            while True:
                self.changed.clear()
                await self._write_answers()
                if reading.done() and (reading.exception() is not None or not self._unanswered):
                    reading.result()
                    if self._all_came:
                        return
                if not self._unanswered:
                    calls.refuse_when_draining()
                if not self._answers:
                    await self.changed.wait()
        finally:
            reading.cancel()
            # It may have failed at the same moment as the call.
            await asyncio.wait({reading})
            if not reading.cancelled():
                reading.exception()

    def end(self) -> None:
        """Give up what is under way, and give back what is held."""
        self._over = True
        if self._lane is not None:
            self._lane.end()
        if self._entry is not None:
            self._publishing.senders.give(self._entry)
        self._give(self._holding + sum(size for _, size in self._answers))
        self._answers.clear()

    async def _read(self) -> None:
        while await self._take_next():
            pass

    async def _take_next(self) -> bool:
        """Take the next request; return whether there may be another one."""
        data = await self._next()
        if data is None:
            self._all_came = True
            return False
        if self._publishing.calls.draining:
            # It is not taken, so the client hears of no answer and sends it elsewhere.
            return False
        size, memory = len(data), await self._publishing.parsed_bytes(pb.PublishStreamRequest, data)
        request = parsed(self._call.method, data)
        which = request.WhichOneof("request")
        if which == "part":
            del data
            await self._take_part(request)
            return True
        if which != "batch" or self._parts:
            raise MalformedMessageError(f"{which} is not what comes next in a publish stream")
        number = request.number
        self._check_next(number, size)
        if not self._room.take(self._who, memory):
            # Parsed it may take many times its bytes: it waits as it came.
            del request
            await self._room.enter(self._who, memory)
            request = parsed(self._call.method, data)
        self._holding = memory
        del data
        await self._send(number, size, request.batch)
        return True

    async def _next(self) -> bytes | None:
        """Return the next request; a client that has begun a batch may not stand still while others wait.

        Nothing is read while the session has no room for a message.
        """
        if not self._parts:
            await self._room.look(self._who, self._publishing.ahead_bytes)
            return await self._call.read_bytes()
        data = await self._moving(self._call.read_bytes(), "its client has sent a part of a batch")
        if data is None:
            raise MalformedMessageError(f"batch {self._number} of the stream has not all of its parts")
        return data

    async def _take_part(self, request: pb.PublishStreamRequest) -> None:
        size = request.part.size
        if not self._parts:
            self._check_next(request.number, size)
            await self._room.enter(self._who, size)
            self._holding = self._size = size
        self._parts.append(request.part.data)
        length = sum(map(len, self._parts))
        if request.number != self._number or size != self._size or not length or length > size:
            raise MalformedMessageError(f"the parts of batch {self._number} do not fit each other")
        if length == size:
            data, self._parts = b"".join(self._parts), []
            await self._hold_more(await self._publishing.parsed_bytes(pb.MessageBatch, data) - size)
            message = sends.parsed(data)
            del data
            await self._send(request.number, size, message)

    async def _hold_more(self, amount: int) -> None:
        """Take more room for a batch that has some.

        Raises:
            GatewayError: there was none for a while: those who have it may be waiting for more themselves.
        """
        if not await self._room.enter(self._who, amount, self._publishing.stall_s):
            what = "the bytes that may wait in it are used up"
            raise busy(self._publishing.gateway, what, self._room.retry_after_ms)
        self._holding += amount

    def _check_next(self, number: int, size: int) -> None:
        """Return when a batch may come next.

        Raises:
            MalformedMessageError: it may not.
        """
        if number != self._number + 1:
            raise MalformedMessageError(f"batch {number} of a stream comes after {self._number}")
        if size > self._publishing.most_bytes:
            most = self._publishing.most_bytes
            raise MalformedMessageError(f"a batch has {size} bytes, and {most} is the most")
        self._number = number

    async def _send(self, number: int, size: int, message: pb.MessageBatch) -> None:
        self._call.judge(message)
        sender = self._sender()
        refusals = await self._refusals(sender, message)
        if self._lane is None:
            self._lane = sender.lane(self._begin.name)
        held, self._holding = self._holding, 0
        self._lane.put(
            lambda: sends.from_proto(message),
            refusals,
            lambda delivery: self._ended(number, size, held, delivery),
        )
        self._unanswered += 1
        self._under_way += 1
        self.given_up.clear()
        if self._unanswered >= _MOST_UNANSWERED:
            self._fewer.clear()
        await self._fewer.wait()

    def _sender(self) -> SharedSender:
        """Return what sends the batches of this stream; another one after an error of its own."""
        senders = self._publishing.senders
        if self._entry is not None and self._entry.sender.error is not None:
            senders.give(self._entry)
            self._entry = self._lane = None
        if self._entry is None:
            self._entry = senders.take(self._config, self._who, detailed=self._begin.per_message)
        return self._entry.sender

    async def _refusals(self, sender: SharedSender, message: pb.MessageBatch) -> Refusals:
        """Return which topics and partitions of a batch are refused; all others are known to the sender."""
        refusals: dict[str | TopicPartition, TubeMQError] = {}
        for topic in message.topics:
            refusal = await self._publishing.refusal_of(sender, self._call, topic, None)
            if refusal is not None:
                refusals[topic] = refusal
        if message.places:
            for topic, place in sends.named_places(message):
                if topic not in refusals:
                    refusal = await self._publishing.refusal_of(sender, self._call, topic, place)
                    if refusal is not None:
                        refusals[TopicPartition(topic, *place)] = refusal
        return refusals

    def _ended(self, number: int, size: int, held: int, delivery: Delivery) -> None:
        """Prepare the answer to a batch; in the sender's thread."""
        answer: _Answer
        receipts: list[Receipt] = []
        try:
            if delivery.outcome is None:
                answer = delivery.broken or AssertionError("a batch has neither messages nor an error")
            else:
                receipts = delivery.outcome.receipts()
                answer = _answer_of(number, delivery.outcome, per_message=self._begin.per_message)
                answer.receipts.extend(values.receipts_to_proto(receipts))
        except Exception as error:  # noqa: BLE001 (the stream waits for an answer, and ends with this one)
            answer = error
        partitions = [receipt.partition for receipt in receipts]
        rows = sum(receipt.count for receipt in receipts)
        # A loop that has ended takes no answers.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._answered, answer, size, held, partitions, rows)

    def _answered(
        self,
        answer: _Answer,
        size: int,
        held: int,
        partitions: list[TopicPartition],
        rows: int,
    ) -> None:
        """Put an answer in line to be written, and count what it tells."""
        self._publishing.arrivals.arrived(partitions)
        self._publishing.metrics.passed("published", rows, size)
        self._call.rows += rows
        self._under_way -= 1
        if not self._under_way:
            self.given_up.set()
        if self._over:
            self._give(held)
            return
        self._answers.append((answer, held))
        self.changed.set()

    async def _write_answers(self) -> None:
        """Write the answers that there are.

        Raises:
            Exception: a batch could not be read.
        """
        while self._answers:
            answer, _ = self._answers[0]
            if isinstance(answer, Exception):
                raise answer
            answer.draining = self._publishing.calls.draining
            await self._write(answer)
            self._give(self._answers.popleft()[1])
            self._unanswered -= 1
            self._fewer.set()

    async def _write(self, answer: pb.PublishStreamResponse) -> None:
        await self._moving(self._call.context.write(answer), "its client does not read its answers")

    async def _moving(self, step: Awaitable[Result], what: str) -> Result:
        """Return what a step of the client brings, which may take its time unless others wait.

        Raises:
            GatewayError: others do.
        """
        publishing = self._publishing
        return await publishing.admission.moving(step, self._who, what, (self._room,), publishing.stall_s)

    def _give(self, size: int) -> None:
        if size:
            self._room.give(self._who, size)


def _answer_of(number: int, outcome: BatchOutcome, *, per_message: bool) -> pb.PublishStreamResponse:
    """Return the answer to a batch without its receipts."""
    answer = pb.PublishStreamResponse(number=number)
    for error, rows in _grouped(outcome.errors):
        answer.failures.add(error=failures.to_proto(error), rows=packed.pack(np.array(rows), packed.INT32))
    if per_message:
        columns, outcomes = outcome.columns(), answer.outcomes
        outcomes.partitions.extend(map(values.partition_to_proto, columns.partitions))
        stored = columns.places >= 0
        outcomes.partition_codes = packed.pack(columns.places, packed.INT32)
        outcomes.offsets = packed.pack(np.where(stored, columns.offsets, 0), packed.INT64)
        for name, column in (("message_ids", columns.message_ids), ("append_times_ms", columns.append_times)):
            if column.any():
                setattr(
                    outcomes,
                    name,
                    packed.pack(np.where(stored & (column == 0), -1, column), packed.INT64),
                )
        if (columns.attempts > 1).any():
            outcomes.attempts = packed.pack(columns.attempts, packed.INT32)
        if columns.unanswered.any():
            outcomes.unanswered = packed.pack(columns.unanswered, packed.INT32)
    return answer


def _grouped(errors: Mapping[int, TubeMQError]) -> Iterable[tuple[TubeMQError, list[int]]]:
    """Return errors with the rows that they are about.

    Beyond the first ``_MOST_ERRORS`` of them, rows have the last error of the same condition: an answer must
    not be longer than its batch.
    """
    groups: dict[int, tuple[TubeMQError, list[int]]] = {}
    latest: dict[str, list[int]] = {}
    for row, error in sorted(errors.items()):
        group = groups.get(id(error))
        if group is None:
            if len(groups) >= _MOST_ERRORS and error.condition in latest:
                latest[error.condition].append(row)
                continue
            group = groups[id(error)] = (error, [])
        latest[error.condition] = group[1]
        group[1].append(row)
    return groups.values()
