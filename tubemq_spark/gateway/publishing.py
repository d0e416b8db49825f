"""Messages to send: a window of batches for each client that publishes.

**States of a stream.** The client says ``begin``, and then sends batches without waiting for answers. A batch
is *taken* when there is room for its bytes and its topics are known: its messages are put into a pipeline, as
it accepts them. It is *under way* until each of its messages is stored or refused, and then it is *answered*,
once. The stream *rests* while none is under way. It ends when the client has ended its side and all is
answered.

**What a stream holds.** The memory of a batch, from before it is parsed until its answer is written. While
its session has no room for a message, or the pipeline has none for the batch before, it reads nothing. What
it reads counts as arriving, from before that until it has its room. So what comes at a time is bounded,
however many streams there are: one at rest ends when others wait to read, and its client opens another one
with its next batch. Connections to brokers belong to the pipelines, one for all streams of equal settings, so
a stream at rest holds none. A client that has gone gives back what it held within a second; one that does not
move does when others wait.

**Draining.** A stream at rest ends at once. Any other takes no more, tells so with its answers, and ends when
all that it took is answered. So what has no answer then was never taken: the client sends it elsewhere, and
nothing is stored twice.
"""

import asyncio
import contextlib
import functools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, TypeVar

from google.protobuf.message import Message

from tubemq_spark.client.producer.broker_pipeline import BrokerPipeline
from tubemq_spark.client.producer.futures import BatchOutcome
from tubemq_spark.client.producer.outgoing import OutgoingBatch
from tubemq_spark.errors import TubeMQError
from tubemq_spark.gateway.admission import Admission, Pressure, busy
from tubemq_spark.gateway.calls import Calls, ServedCall, parsed
from tubemq_spark.gateway.consuming import EndOfLogWaiters
from tubemq_spark.gateway.metrics import Metrics
from tubemq_spark.gateway.pipelines import (
    PipelineEntry,
    Pipelines,
    accepted_stretches,
    answer_of,
    read_batch,
    refusals_of,
    refused_rows,
)
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.net.fair_quota import SOONEST_MS, FairQuota, Owner
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, sends, service, values
from tubemq_spark.protocol.gateway.batches import INT32, MalformedMessageError

Result = TypeVar("Result")

_SHORT_BYTES: Final = 4 << 10
"""Up to this length, a message is measured in no time."""
_QUICK_BYTES: Final = 4 << 20
"""Up to this length, and so many rows, a batch is read, and its answer made, in a few milliseconds."""
_QUICK_ROWS: Final = 1 << 14
_MOST_UNANSWERED: Final = 1_024
"""So many batches of a stream may have no answer, however small they are."""
_AHEAD: Final = 4
"""A message is read when there is room for the longest, or for one of so many parts of a session's room."""
_REST_S: Final = 1.0
"""How long a stream at rest goes on reading while others wait to read."""
_GIVE_UP_S: Final = 2.0
"""How long an ended stream is waited for that gives up what it has sent, which takes half a second."""


class PublishService:
    """Serves ``PublishStream`` and ``CheckTopic``."""

    def __init__(
        self,
        settings: GatewaySettings,
        pipelines: Pipelines,
        admission: Admission,
        metrics: Metrics,
        calls: Calls,
        waiters: EndOfLogWaiters,
    ) -> None:
        self.gateway = settings.name
        self.stall_s = settings.stall_ms / 1000
        self.most_bytes = settings.max_batch_bytes
        self.ahead_bytes = min(settings.max_message_bytes, settings.session_bytes // _AHEAD)
        self.pipelines = pipelines
        self.admission = admission
        self.metrics = metrics
        self.calls = calls
        self.waiters = waiters
        self._streams: set[_PublishStream] = set()
        self._measuring_lock = asyncio.Lock()

    async def publish_stream(self, _: object, call: ServedCall) -> None:
        """Take a client's batches, and answer each of them."""
        scarce = (self.admission.arriving,)
        async with self.arrival(call.who):
            what = "its client does not begin"
            request = await self.admission.moving(call.read(), call.who, what, scarce, _REST_S)
        if not isinstance(request, pb.PublishStreamRequest):
            return
        if not request.HasField("begin"):
            raise MalformedMessageError("the first request of a publish stream is not begin")
        stream = _PublishStream(self, call, request.begin)
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

    @contextlib.asynccontextmanager
    async def arrival(self, owner: Owner) -> AsyncIterator[None]:
        """Count a request as arriving, from before it is read until it has its room."""
        await self.admission.arriving.acquire(owner)
        try:
            yield
        finally:
            self.admission.arriving.give(owner)

    async def parsed_bytes(self, message: type[Message], data: bytes) -> int:
        """Return how much memory a message takes when it is parsed; other calls have a turn between two."""
        if len(data) <= _SHORT_BYTES:
            return service.parsed_bytes(message, data)
        async with self._measuring_lock:
            await asyncio.sleep(0)
            return service.parsed_bytes(message, data)

    async def work(self, function: Callable[[], Result], owner: Owner, rows: int, size: int = 0) -> Result:
        """Run a function of a batch, and return its result; long batches one by one, in a thread.

        A hundred thousand rows, or 32 MiB, take 20 to 100 ms.
        """
        if rows <= _QUICK_ROWS and size <= _QUICK_BYTES:
            return function()
        return await self.admission.long_batches.run_in_thread(function, owner)

    async def check_topic(self, request: pb.CheckTopicRequest, call: ServedCall) -> pb.CheckTopicResponse:
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
            self.pipelines.give_back(entry)


class _PublishStream:
    """One publish stream."""

    def __init__(
        self, publishing: PublishService, call: ServedCall, begin: pb.PublishStreamRequest.Begin
    ) -> None:
        self._publishing = publishing
        self._call = call
        self._who = call.who
        self._begin = begin
        self._config = call.owner().access.config
        self._room = publishing.admission.bytes
        self._entry: PipelineEntry | None = None
        self._number = 0
        """That of the last batch whose bytes have begun to come."""
        self._parts: list[bytes] = []
        """Those of a batch that have come."""
        self._size = 0
        """The length of the whole batch."""
        self._received: tuple[int, int, pb.MessageBatch] | None = None
        """The number, the size and the messages of a batch that has come, and is not under way."""
        self._holding = 0
        """The bytes that are held for a batch that is not under way."""
        self._reads = True
        """Whether there may be another request."""
        self._all_came = False
        """Whether the client has ended its side."""
        self._rest = _Rest(self, publishing.admission.arriving)
        self.unanswered = 0
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
                if reading.done() and (reading.exception() is not None or not self.unanswered):
                    reading.result()
                    if self._all_came:
                        return
                if not self.unanswered:
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
            self._publishing.pipelines.give_back(self._entry)
        self._give(self._holding + sum(memory for _, _, memory in self._answers))
        self._answers.clear()

    async def _read(self) -> None:
        """Take requests until the client has ended its side, or the gateway drains."""
        while self._reads:
            if not self._parts:
                await self._room.await_room(self._who, self._publishing.ahead_bytes)
                async with self._publishing.arrival(self._who):
                    await self._receive()
            else:
                # It has room for as much as comes. Those who wait to read may wait for that room.
                await self._receive()
            await self._send()

    async def _receive(self) -> None:
        """Take the next request; ``_received`` is set when a batch has come as a whole, and has its room."""
        data = await self._next()
        # What comes while it drains is not taken: the client hears of no answer and sends it elsewhere.
        self._reads = data is not None and not self._publishing.calls.draining
        if data is None or not self._reads:
            self._all_came = data is None
            return
        size, memory = len(data), await self._publishing.parsed_bytes(pb.PublishStreamRequest, data)
        request = parsed(self._call.method, data)
        which = request.WhichOneof("request")
        if which == "part":
            del data
            await self._take_part(request)
            return
        if which != "batch" or self._parts:
            raise MalformedMessageError(f"{which} is not what comes next in a publish stream")
        number = request.number
        self._check_next(number, size)
        if not self._room.take(self._who, memory):
            # Parsed it may take many times its bytes: it waits as it came.
            del request
            await self._room.acquire(self._who, memory)
            request = parsed(self._call.method, data)
        self._holding = memory
        self._received = number, size, request.batch

    async def _next(self) -> bytes | None:
        """Return the next request.

        A client that has begun a batch may not stand still while others wait for its room, and one that has
        begun none while others wait to read.
        """
        if not self._parts:
            read, what = self._call.context.read(), "its client sends nothing"
            return await self._publishing.admission.moving(read, self._who, what, (self._rest,), _REST_S)
        data = await self._moving(self._call.context.read(), "its client has sent a part of a batch")
        if data is None:
            raise MalformedMessageError(f"batch {self._number} of the stream has not all of its parts")
        return data

    async def _take_part(self, request: pb.PublishStreamRequest) -> None:
        size = request.part.size
        if not self._parts:
            self._check_next(request.number, size)
            # So it has room for any part that follows, however long.
            held = max(size, self._publishing.ahead_bytes)
            await self._room.acquire(self._who, held)
            self._holding, self._size = held, size
        self._parts.append(request.part.data)
        length = sum(map(len, self._parts))
        if request.number != self._number or size != self._size or not length or length > size:
            raise MalformedMessageError(f"the parts of batch {self._number} do not fit each other")
        if length == size:
            data, self._parts = b"".join(self._parts), []
            await self._hold(await self._publishing.parsed_bytes(pb.MessageBatch, data))
            self._received = request.number, size, sends.parsed(data)

    async def _hold(self, memory: int) -> None:
        """Hold so many bytes for the batch that has come."""
        more = memory - self._holding
        if more < 0:
            self._give(-more)
        # Those who have the room may be waiting for more themselves.
        elif not await self._room.acquire(self._who, more, self._publishing.stall_s):
            what = "the bytes that may wait in it are used up"
            raise busy(self._publishing.gateway, what, self._room.retry_after_ms)
        self._holding = memory

    def _check_next(self, number: int, size: int) -> None:
        """Refuse a batch that may not come next."""
        if number != self._number + 1:
            raise MalformedMessageError(f"batch {number} of a stream comes after {self._number}")
        if size > self._publishing.most_bytes:
            most = self._publishing.most_bytes
            raise MalformedMessageError(f"a batch has {size} bytes, and {most} is the most")
        self._number = number

    async def _send(self) -> None:
        """Put the batch that was received into the pipeline, as that accepts it."""
        if self._received is None:
            return
        # Nothing else has it: it is dropped when it was read.
        (number, size, message), self._received = self._received, None
        self._call.judge(message)
        pipeline, work = self._pipeline(), self._publishing.work
        sender = self._begin.name or pipeline.log.sender
        rows = len(message.topic_codes) // INT32.itemsize
        read = functools.partial(read_batch, message, sender, checksums=self._config.checksums)
        messages, batch, unwritable = await work(read, self._who, rows, size)
        del message, read
        refusals = await refusals_of(pipeline, messages)
        refused = await work(lambda: refused_rows(messages, refusals), self._who, rows) if refusals else {}
        refused |= unwritable
        # Its topics and partitions are known, or refused.
        batch.is_placed = True
        memory, self._holding = self._holding, 0
        outcome = BatchOutcome(rows, lambda outcome: self._ended(number, size, memory, outcome), refused)
        batch.outcomes = outcome
        self.unanswered += 1
        self._under_way[outcome] = batch
        self.given_up.clear()
        outcome.begin()
        try:
            for first, stop in accepted_stretches(rows, refused):
                await pipeline.accept(batch, first, stop, outcome.failed)
        except TubeMQError:
            if (ended := pipeline.error) is None:
                raise
            # It has told of what it had accepted.
            outcome.abandon(lambda _: ended)
        if self.unanswered >= _MOST_UNANSWERED:
            self._fewer.clear()
        await self._fewer.wait()

    def _pipeline(self) -> BrokerPipeline:
        """Return the pipeline of this stream; a new one after an error of the pipeline."""
        pipelines = self._publishing.pipelines
        if self._entry is not None and self._entry.pipeline.error is not None:
            entry, self._entry = self._entry, None
            pipelines.give_back(entry)
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
        self._publishing.waiters.arrived([receipt.partition for receipt in receipts])
        self._publishing.metrics.passed("published", rows, size)
        self._call.rows += rows
        if self._over:
            self._give(memory)
            return
        answer = functools.partial(answer_of, number, outcome, receipts, per_message=self._begin.per_message)
        self._answers.append((answer, len(batch), memory))
        self.changed.set()

    async def _write_answers(self) -> None:
        """Write the answers that there are."""
        while self._answers:
            make, rows, memory = self._answers[0]
            answer = await self._publishing.work(make, self._who, rows)
            answer.draining = self._publishing.calls.draining
            await self._write(answer)
            self._answers.popleft()
            self._give(memory)
            self.unanswered -= 1
            self._fewer.set()

    async def _write(self, answer: pb.PublishStreamResponse) -> None:
        await self._moving(self._call.context.write(answer), "its client does not read its answers")

    async def _moving(self, step: Awaitable[Result], what: str) -> Result:
        """Return the result of a step of the client, which may be slow unless others wait."""
        service = self._publishing
        return await service.admission.moving(step, self._who, what, (self._room,), service.stall_s)

    def _give(self, size: int) -> None:
        if size:
            self._room.give(self._who, size)


class _Rest(Pressure):
    """What a stream at rest holds: that it reads, which others may wait for, also those of its session."""

    retry_after_ms = SOONEST_MS
    """When its client may open another one: soon, since then others at rest give way."""

    def __init__(self, stream: _PublishStream, arriving: FairQuota) -> None:
        self._stream = stream
        self._arriving = arriving

    def pressed(self, owner: Owner) -> bool:  # noqa: ARG002 (its own session counts, too)
        """See ``Pressure``."""
        return not self._stream.unanswered and self._arriving.waiting > 0
