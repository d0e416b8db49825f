"""Messages to send: a window of batches for each client that publishes.

**States of a stream.** The client says ``begin``, and then sends batches without waiting for answers. A batch
is *taken* when there is room for its bytes and its topics are known: its messages are put into a pipeline, as
it accepts them. It is *under way* until each of its messages is stored or refused, and then it is *answered*,
once. The stream *rests* while none is under way. It ends when the client has ended its side and all is
answered.

**What a stream holds.** The memory of a batch, from before it is parsed until its answer is written. While
its session has no room for a message, or the pipeline has none for the batch before, it reads nothing.
Connections to brokers belong to the pipelines, one for all streams of equal settings, so a stream at rest
holds none. A client that has gone gives back what it held within a second; one that does not move does when
others wait.

**Draining.** A stream at rest ends at once. Any other takes no more, tells so with its answers, and ends when
all that it took is answered. So what has no answer then was never taken: the client sends it elsewhere, and
nothing is stored twice.
"""

import asyncio
import contextlib
import dataclasses
import functools
import os
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final, TypeVar

import numpy as np
from google.protobuf.message import Message

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.forks import abandon_in_child
from tubemq_spark.client.producer.broker_pipeline import BrokerPipeline
from tubemq_spark.client.producer.outcome import BatchOutcome
from tubemq_spark.client.producer.outgoing import OutgoingBatch, outgoing_batch, refused_message
from tubemq_spark.errors import ProduceError, TubeMQError
from tubemq_spark.gateway.admission import Admission, Owner, Room, busy
from tubemq_spark.gateway.data.fetching import Arrivals
from tubemq_spark.gateway.metrics import Metrics
from tubemq_spark.gateway.session.calls import Call, Calls, parsed
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.loop import in_thread
from tubemq_spark.protocol.gateway import failures, gateway_pb2 as pb, limits, packed, sends, values
from tubemq_spark.protocol.gateway.packed import MalformedMessageError
from tubemq_spark.protocol.send_batch import SendBatch
from tubemq_spark.receipts import Receipt

Result = TypeVar("Result")

_MOST_ERRORS: Final = 1_000
"""How many different errors an answer has."""
_SHORT_BYTES: Final = 4 << 10
"""Up to this length, a message is measured in no time."""
_QUICK_BYTES: Final = 4 << 20
"""Up to this length, and so many rows, a batch is read, and its answer made, in a few milliseconds."""
_QUICK_ROWS: Final = 1 << 14
_MOST_UNANSWERED: Final = 1_024
"""So many batches of a stream may have no answer, however small they are."""
_AHEAD: Final = 4
"""A message is read when there is room for the longest, or for one of so many parts of a session's room."""
_IDLE_S: Final = 30.0
"""A pipeline that no stream uses is kept for so long, with its connections: longer than most pauses."""
_GIVE_UP_S: Final = 2.0
"""How long an ended stream is waited for that gives up what it has sent, which takes half a second."""


@dataclasses.dataclass(slots=True, eq=False)
class _Entry:
    """A pipeline, and who uses it."""

    pipeline: BrokerPipeline
    owner: Owner
    """For whom it was opened."""
    users: int = 0
    closing: asyncio.TimerHandle | None = None
    left: dict[BatchOutcome, OutgoingBatch] = dataclasses.field(default_factory=dict)
    """Batches to be given up, whose streams have ended, and what becomes of them."""

    def give_up_soon(self, batches: Mapping[BatchOutcome, OutgoingBatch]) -> None:
        """Give up batches, those of streams that end together at the same time."""
        if not self.left:
            asyncio.get_running_loop().call_soon(self._give_up)
        self.left.update(batches)

    def _give_up(self) -> None:
        batches, self.left = self.left, {}
        self.pipeline.give_up(*batches.values())
        closed = ProduceError("TUBEMQ_PRODUCER_CLOSED", unacknowledged=self.pipeline.unacknowledged)
        for outcome in batches:
            # The messages that the pipeline has not accepted.
            outcome.abandon(lambda _: closed)


class Pipelines:
    """The pipelines of a gateway, one for equal settings, in its event loop.

    One that no stream has used for a while is closed. One with an error of its own is closed when its last
    user leaves. ``publishes`` limits their number.
    """

    def __init__(self, settings: GatewaySettings, room: Room) -> None:
        """Open none; ``room`` is for as many as there may be."""
        self._gateway = settings.name
        self._most = settings.most["max_in_flight"], settings.most["max_in_flight_bytes"]
        self._connections = Connections(settings.client_config().connect_timeout_ms)
        self._room = room
        self._entries: dict[tuple[ClientConfig, bool], _Entry] = {}
        self._closing: set[asyncio.Task[None]] = set()
        abandon_in_child(self)

    @property
    def connections(self) -> int:
        """How many connections to masters they share."""
        return len(self._connections.shared())

    @property
    def closing(self) -> int:
        """How many are being closed."""
        return len(self._closing)

    def take(self, config: ClientConfig, owner: Owner, *, detailed: bool) -> _Entry:
        """Return the pipeline for some settings, to be given back."""
        key = config, detailed
        entry = self._entries.get(key)
        if entry is not None and entry.pipeline.error is not None:
            del self._entries[key]
            entry = None
        if entry is None:
            if not self._room.take(owner):
                for idle in [other for other in self._entries.values() if not other.users]:
                    self._close(idle)
                if not self._room.take(owner):
                    what = f"clients publish with {self._room.used} different settings"
                    raise busy(self._gateway, what, self._room.retry_after_ms)
            pipeline = BrokerPipeline(
                config,
                self._connections,
                detailed=detailed,
                run_user_code=lambda call: call(),  # clients have none here
                most=self._most,
            )
            entry = self._entries[key] = _Entry(pipeline, owner)
        entry.users += 1
        if entry.closing is not None:
            entry.closing.cancel()
            entry.closing = None
        return entry

    def give(self, entry: _Entry) -> None:
        """Give a pipeline back."""
        entry.users -= 1
        if entry.users:
            return
        if entry.pipeline.error is not None:
            self._close(entry)
        else:
            entry.closing = asyncio.get_running_loop().call_later(_IDLE_S, self._close, entry)

    async def close(self, patience_s: float) -> None:
        """Close all pipelines, and wait so long for that."""
        for entry in list(self._entries.values()):
            self._close(entry)
        if self._closing:
            _, late = await asyncio.wait(self._closing, timeout=patience_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self._connections.close()

    def abandon(self) -> None:
        """Drop connections to brokers without closing them: in a forked child they belong to the parent."""
        error = ProduceError("TUBEMQ_PRODUCER_FORKED", owner=os.getppid(), process=os.getpid())
        for entry in self._entries.values():
            entry.pipeline.abandon(error)

    def _close(self, entry: _Entry) -> None:
        if entry.closing is not None:
            entry.closing.cancel()
        self._entries = {key: value for key, value in self._entries.items() if value is not entry}
        self._room.give(entry.owner)
        task = asyncio.create_task(entry.pipeline.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class Publishing:
    """Serves ``PublishStream`` and ``CheckTopic``."""

    def __init__(
        self,
        settings: GatewaySettings,
        pipelines: Pipelines,
        admission: Admission,
        metrics: Metrics,
        calls: Calls,
        arrivals: Arrivals,
    ) -> None:
        self.gateway = settings.name
        self.stall_s = settings.stall_ms / 1000
        self.most_bytes = settings.max_batch_bytes
        self.ahead_bytes = min(settings.max_message_bytes, settings.session_bytes // _AHEAD)
        self.pipelines = pipelines
        self.admission = admission
        self.metrics = metrics
        self.calls = calls
        self.arrivals = arrivals
        self._streams: set[_Stream] = set()
        self._measuring_lock = asyncio.Lock()
        self._thread_lock = asyncio.Lock()

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
        """Return how much memory a message takes when it is parsed; other calls have a turn between two."""
        if len(data) <= _SHORT_BYTES:
            return limits.parsed_bytes(message, data)
        async with self._measuring_lock:
            await asyncio.sleep(0)
            return limits.parsed_bytes(message, data)

    async def work(self, function: Callable[[], Result], rows: int, size: int = 0) -> Result:
        """Return what a function makes of a batch; of long ones in a thread, one after the other."""
        if rows <= _QUICK_ROWS and size <= _QUICK_BYTES:
            return function()
        async with self._thread_lock:
            return await in_thread(function, "tubemq-gateway-batch")

    async def check_topic(self, request: pb.CheckTopicRequest, call: Call) -> pb.CheckTopicResponse:
        """Say whether a topic, or one of its partitions, can be published to; wait for that if asked to."""
        topic, place = request.topic, None
        if request.HasField("partition"):
            place = request.partition.broker_id, request.partition.partition_id
        entry = self.pipelines.take(call.owner().access.config, call.who, detailed=False)
        try:
            pipeline = entry.pipeline
            if request.publishable:
                await pipeline.place(topic, place)
            elif place is not None:
                await pipeline.place_once(topic, place)
            else:
                await pipeline.publishable(topic)
            routes = pipeline.routes(topic)
            return pb.CheckTopicResponse(
                max_message_bytes=routes.max_message_bytes,
                partitions=map(values.partition_to_proto, sorted(routes.partitions)),
            )
        finally:
            self.pipelines.give(entry)


class _Stream:
    """One publish stream."""

    def __init__(self, publishing: Publishing, call: Call, begin: pb.PublishStreamRequest.Begin) -> None:
        self._publishing = publishing
        self._call = call
        self._who = call.who
        self._begin = begin
        self._config = call.owner().access.config
        self._room = publishing.admission.bytes
        self._entry: _Entry | None = None
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
        self._answers: deque[tuple[Callable[[], pb.PublishStreamResponse], int, int]] = deque()
        """What makes answers to be written, how many rows each is about, and the bytes it gives back."""
        self._fewer = asyncio.Event()
        """Set while more batches may be taken."""
        self._fewer.set()
        self._under_way: dict[BatchOutcome, OutgoingBatch] = {}
        """The batches that were taken and have not ended."""
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
        if self._entry is not None:
            if self._under_way:
                self._entry.give_up_soon(self._under_way)
            self._publishing.pipelines.give(self._entry)
        self._give(self._holding + sum(memory for _, _, memory in self._answers))
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
            more = await self._publishing.parsed_bytes(pb.MessageBatch, data) - size
            # Those who have the room may be waiting for more themselves.
            if not await self._room.enter(self._who, more, self._publishing.stall_s):
                what = "the bytes that may wait in it are used up"
                raise busy(self._publishing.gateway, what, self._room.retry_after_ms)
            self._holding += more
            message = sends.parsed(data)
            del data
            await self._send(request.number, size, message)

    def _check_next(self, number: int, size: int) -> None:
        """Refuse a batch that may not come next."""
        if number != self._number + 1:
            raise MalformedMessageError(f"batch {number} of a stream comes after {self._number}")
        if size > self._publishing.most_bytes:
            most = self._publishing.most_bytes
            raise MalformedMessageError(f"a batch has {size} bytes, and {most} is the most")
        self._number = number

    async def _send(self, number: int, size: int, message: pb.MessageBatch) -> None:
        self._call.judge(message)
        pipeline, work = self._pipeline(), self._publishing.work
        sender = self._begin.name or pipeline.log.sender
        rows = len(message.topic_codes) // packed.INT32.itemsize
        read = functools.partial(_read, message, sender, checksums=self._config.checksums)
        messages, batch, unwritable = await work(read, rows, size)
        del message, read
        refusals = await _refusals(pipeline, messages)
        refused = await work(lambda: _refused_rows(messages, refusals), rows) if refusals else {}
        refused |= unwritable
        # Its topics and partitions are known, or refused.
        batch.is_placed = True
        memory, self._holding = self._holding, 0
        outcome = BatchOutcome(rows, lambda outcome: self._ended(number, size, memory, outcome), refused)
        batch.outcomes = outcome
        self._unanswered += 1
        self._under_way[outcome] = batch
        self.given_up.clear()
        outcome.begin()
        try:
            for first, stop in _stretches(rows, refused):
                await pipeline.accept(batch, first, stop, outcome.failed)
        except TubeMQError:
            if (ended := pipeline.error) is None:
                raise
            # It has told of what it had accepted.
            outcome.abandon(lambda _: ended)
        if self._unanswered >= _MOST_UNANSWERED:
            self._fewer.clear()
        await self._fewer.wait()

    def _pipeline(self) -> BrokerPipeline:
        """Return what sends the batches of this stream; another one after an error of its own."""
        pipelines = self._publishing.pipelines
        if self._entry is not None and self._entry.pipeline.error is not None:
            entry, self._entry = self._entry, None
            pipelines.give(entry)
        if self._entry is None:
            self._entry = pipelines.take(self._config, self._who, detailed=self._begin.per_message)
        return self._entry.pipeline

    def _ended(self, number: int, size: int, memory: int, outcome: BatchOutcome) -> None:
        """Put the answer to a batch in line to be written, and count what it tells."""
        batch = self._under_way.pop(outcome)
        if not self._under_way:
            self.given_up.set()
        receipts = outcome.receipts(batch)
        rows = sum(receipt.count for receipt in receipts)
        self._publishing.arrivals.arrived([receipt.partition for receipt in receipts])
        self._publishing.metrics.passed("published", rows, size)
        self._call.rows += rows
        if self._over:
            self._give(memory)
            return
        answer = functools.partial(_answer, number, outcome, receipts, per_message=self._begin.per_message)
        self._answers.append((answer, len(batch), memory))
        self.changed.set()

    async def _write_answers(self) -> None:
        """Write the answers that there are."""
        while self._answers:
            make, rows, memory = self._answers[0]
            answer = await self._publishing.work(make, rows)
            answer.draining = self._publishing.calls.draining
            await self._write(answer)
            self._answers.popleft()
            self._give(memory)
            self._unanswered -= 1
            self._fewer.set()

    async def _write(self, answer: pb.PublishStreamResponse) -> None:
        await self._moving(self._call.context.write(answer), "its client does not read its answers")

    async def _moving(self, step: Awaitable[Result], what: str) -> Result:
        """Return what a step of the client brings; it may take its time unless others wait."""
        publishing = self._publishing
        return await publishing.admission.moving(step, self._who, what, (self._room,), publishing.stall_s)

    def _give(self, size: int) -> None:
        if size:
            self._room.give(self._who, size)


def _read(
    message: pb.MessageBatch, sender: str, *, checksums: bool
) -> tuple[SendBatch, OutgoingBatch, dict[int, TubeMQError]]:
    """Return the messages of a batch, how they are written, and why some cannot be, by their rows."""
    messages = sends.from_proto(message)
    batch, unwritable = outgoing_batch(messages, checksums=checksums)
    batch.sender = sender
    refused = {row: refused_message(error, batch.describe(row, sender)) for row, error in unwritable.items()}
    return messages, batch, dict(refused)


async def _refusals(
    pipeline: BrokerPipeline, messages: SendBatch
) -> dict[tuple[int, int | None], TubeMQError]:
    """Ask where messages go, as long as it may help; return why not, by codes of topics and partitions."""
    topics, partitions = messages.topics, messages.partitions
    refusals: dict[tuple[int, int | None], TubeMQError] = {}
    for topic, name in enumerate(topics.values):
        if (error := await _refusal(pipeline, name, None)) is not None:
            refusals[topic, None] = error
    if partitions is not None:
        count = len(partitions.values)
        for pair in np.unique(topics.codes * count + partitions.codes).tolist():
            topic, place = divmod(pair, count)
            named = partitions.values[place]
            if named is None or (topic, None) in refusals:
                continue
            if (error := await _refusal(pipeline, topics.values[topic], named)) is not None:
                refusals[topic, place] = error
    return refusals


async def _refusal(
    pipeline: BrokerPipeline, topic: str, partition: tuple[int, int] | None
) -> TubeMQError | None:
    if pipeline.place_now(topic, partition) is None:
        try:
            await pipeline.place(topic, partition)
        except TubeMQError as error:
            return error
    return None


def _refused_rows(
    messages: SendBatch, refusals: Mapping[tuple[int, int | None], TubeMQError]
) -> dict[int, TubeMQError]:
    """Return why messages are refused, by their rows."""
    refused: dict[int, TubeMQError] = {}
    for (topic, place), error in refusals.items():
        rows = messages.topics.codes == topic
        if place is not None and messages.partitions is not None:
            rows &= messages.partitions.codes == place
        refused |= dict.fromkeys(np.flatnonzero(rows).tolist(), error)
    return refused


def _stretches(count: int, refused: Collection[int]) -> list[list[int]]:
    """Return where rows begin and end that follow one another and are not refused."""
    accepted = np.zeros(count + 2, np.int8)
    accepted[1:-1] = 1
    accepted[np.fromiter(refused, np.int64, len(refused)) + 1] = 0
    borders: list[list[int]] = np.flatnonzero(np.diff(accepted)).reshape(-1, 2).tolist()
    return borders


def _answer(
    number: int, outcome: BatchOutcome, receipts: Iterable[Receipt], *, per_message: bool
) -> pb.PublishStreamResponse:
    """Return the answer to a batch."""
    answer = pb.PublishStreamResponse(number=number, receipts=values.receipts_to_proto(receipts))
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
                told = np.where(stored & (column == 0), -1, column)
                setattr(outcomes, name, packed.pack(told, packed.INT64))
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
