"""Ranges: a task reads one ahead of its client, and the call writes what is ready.

**States of a reading.**

- *in line*: as many ranges as there may be are read; the client is told that the gateway is alive;
- *reading*: the task reads, or waits because enough is ready, or because there is no room;
- *over*: the task has ended, by itself or with an error; the call writes what is ready, and then ends;
- *stopped*: the client has gone, or the gateway drains. The task is cancelled and gives back what it holds at
  a broker; then the call ends. What is ready is dropped.

**Invariants.** Before anything is fetched, the bytes that a batch of this range usually has are held in
admission; so are those of what is ready and of what is being written. A batch that has more than was held is
ready when it has room. At most ``_AHEAD`` batches are ready or being fetched.

A client that does not read for a while keeps its place and what is ready for it, unless others wait for a
place or for room: then its call ends as that of a gateway that is busy, and it may ask for the rest again.

A loss does not end the reading: the client is told, and cancels the call if it does not accept that. When
there was nothing to write for a moment, the client is told that the gateway is alive.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Final

from tubemq_spark.client.reader.range_reader import require_sound
from tubemq_spark.client.remote import wire
from tubemq_spark.gateway.admission import Admission
from tubemq_spark.gateway.calls import Calls, ServedCall
from tubemq_spark.gateway.metrics import Metrics
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.gateway.upstream import Access
from tubemq_spark.model import OffsetRange, RangeRequest
from tubemq_spark.net.fair_quota import FairQuota, Owner
from tubemq_spark.offsets.loss import LossRecord
from tubemq_spark.protocol.fetch_columns import FetchedBatch
from tubemq_spark.protocol.gateway import batches, gateway_pb2 as pb, values

_AHEAD: Final = 4
"""How many messages of one range are read ahead of its client."""
_USUAL_BYTES: Final = 512 << 10
"""How many bytes a batch has that a broker fills."""
_PARTS: Final = 16
"""A range begins with no more than one of so many parts of what its session may hold."""
_SIGN_S: Final = 0.25
"""After how long a client is told for the first time that nothing has come; then that doubles."""
_RAREST_SIGN_S: Final = 4.0
"""The longest time between two such signs: thousands of clients may stand in line."""

Items = AsyncGenerator[FetchedBatch | LossRecord, None]
Message = tuple[bytes, int]
"""What a client is sent, and how many rows it has."""


class _Reading:
    """One range on its way."""

    def __init__(self, owner: Owner, room: FairQuota, end: int, usual_bytes: int, metrics: Metrics) -> None:
        """Begin with nothing; the range has this end, and ``usual_bytes`` are held for its first batch."""
        self._owner = owner
        self._end = end
        self._room = room
        self._usual_bytes = usual_bytes
        self._metrics = metrics
        self._ready: asyncio.Queue[Message | None] = asyncio.Queue()
        self._ahead = asyncio.Semaphore(_AHEAD)

    async def read(self, items: Items) -> None:
        """Put what a reader yields into line to be written, and then the end; its errors are the call's."""
        async with contextlib.aclosing(items):
            while (message := await self._next(items)) is not None:
                self._ready.put_nowait(message)

    def end(self, task: "asyncio.Task[None]") -> None:
        """Note that nothing more comes; what its task has raised is told if the call comes to its end."""
        _ = task.cancelled() or task.exception()
        self._ready.put_nowait(None)

    async def messages(self) -> AsyncGenerator[Message | None, None]:
        """Yield messages as they come until the end; None when there was none for a moment."""
        sign_s = _SIGN_S
        while True:
            try:
                async with asyncio.timeout(sign_s):
                    message = await self._ready.get()
            except TimeoutError:
                sign_s = min(2 * sign_s, _RAREST_SIGN_S)
                yield None
                continue
            if message is None:
                return
            sign_s = _SIGN_S
            self._ahead.release()
            try:
                yield message
            finally:
                self._room.give(self._owner, len(message[0]))

    def drop(self) -> None:
        """Give back what is held for messages that are not written; the reading has ended."""
        while not self._ready.empty():
            if (message := self._ready.get_nowait()) is not None:
                self._room.give(self._owner, len(message[0]))

    async def _next(self, items: Items) -> Message | None:
        """Return the next message, whose bytes are held then; None at the end of the range."""
        await self._ahead.acquire()
        if held := self._usual_bytes:
            await self._room.acquire(self._owner, held)
        try:
            item = await anext(items, None)
            if item is None:
                return None
            message = self._message(item)
            size = len(message[0])
            if size > held:
                # Who waits for more than it has would keep others waiting that do the same.
                self._room.give(self._owner, held)
                held = 0
                await self._room.acquire(self._owner, size)
                held = size
            if isinstance(item, FetchedBatch):
                # At the end, nothing is fetched any more.
                self._usual_bytes = size if item.next < self._end else 0
            held -= size
            return message
        finally:
            if held:
                self._room.give(self._owner, held)

    def _message(self, item: FetchedBatch | LossRecord) -> Message:
        if isinstance(item, LossRecord):
            self._metrics.lost(item.loss.value)
            return pb.ReadRangeResponse(loss=wire.loss_to_proto(item)).SerializeToString(), 0
        if item.bytes_behind is not None:
            self._metrics.behind(item.bytes_behind)
        return batches.batch_to_bytes(item), len(item.columns)


class RangeService:
    """Serves ``ReadRange``."""

    def __init__(
        self,
        settings: GatewaySettings,
        admission: Admission,
        metrics: Metrics,
        calls: Calls,
    ) -> None:
        self._stall_s = settings.stall_ms / 1000
        self._usual_bytes = min(_USUAL_BYTES, settings.session_bytes // _PARTS)
        self._admission = admission
        self._metrics = metrics
        self._calls = calls

    async def read_range(self, request: pb.ReadRangeRequest, call: ServedCall) -> None:
        """Stream the records of a range, and what is lost of them."""
        access = call.owner().access
        reading = _Reading(call.who, self._admission.bytes, request.end, self._usual_bytes, self._metrics)
        task = asyncio.create_task(self._read(reading, access, request, call))
        task.add_done_callback(reading.end)
        try:
            await self._write(reading, call)
            await task
        finally:
            task.cancel()
            try:
                await asyncio.wait({task})
            finally:
                reading.drop()

    async def _read(
        self, reading: _Reading, access: Access, request: pb.ReadRangeRequest, call: ServedCall
    ) -> None:
        async with self._admission.reads.place(call.who, call.patience_s):
            await reading.read(access.transport.read_range(await _located(access, request)))

    async def _write(self, reading: _Reading, call: ServedCall) -> None:
        async with contextlib.aclosing(reading.messages()) as messages:
            async for message in messages:
                self._calls.refuse_when_draining()
                data, rows = message or (_WAITING, 0)
                await self._send(call, data)
                call.rows += rows
                if rows:
                    self._metrics.passed("read", rows, len(data))

    async def _send(self, call: ServedCall, data: bytes) -> None:
        """Write a message to a client, which may take its time unless others wait for what it holds."""
        scarce = self._admission.bytes, self._admission.reads.quota
        writing = call.context.write(data)
        await self._admission.moving(writing, call.who, "its client does not read", scarce, self._stall_s)


_WAITING: Final = pb.ReadRangeResponse(waiting=pb.Waiting()).SerializeToString()


async def _located(access: Access, request: pb.ReadRangeRequest) -> RangeRequest:
    partition = values.partition_from_proto(request.partition)
    span = OffsetRange(partition, request.start, request.end)
    require_sound(span)
    layout = await access.routes.find([partition])
    return layout.request(span, own_store=request.own_store)
