"""Ranges, read by a thread and streamed to a client.

**States of a reading.** The thread reads and puts messages into ``_ready``; the event loop takes and writes
them.

- *in line*: there is no thread for it now; the client is told that the gateway is alive;
- *reading*: the thread is at work, or waits because enough is ready, or because there is no room;
- *over*: the thread has ended, by itself or with an error; the loop writes what is ready, and then ends the
  call;
- *stopped*: the client has gone, or the gateway drains. The thread notices at its next wait, gives back what
  it holds at a broker, and ends. What is ready is dropped.

**Invariants.** What is in ``_ready``, what is being written and what waits to be ready has its bytes in
admission, or stands in line for them. ``_ready`` and ``_over`` are changed under ``_changed``; only the
thread appends, only the loop takes.

A client that does not read for a while keeps its thread and what is ready for it, unless others wait for a
thread or for room: then its call ends as that of a gateway that is busy, and it may ask for the rest again.

A loss does not end the reading: the client is told, and cancels the call if it does not accept that. When
there was nothing to write for a moment, the client is told that the gateway is alive.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

from tubemq_spark.client.remote import wire
from tubemq_spark.gateway.admission import Admission, Owner, Room, Stop, StoppedError
from tubemq_spark.gateway.metrics import Metrics
from tubemq_spark.gateway.session.calls import Call, Calls
from tubemq_spark.gateway.session.upstream import Access
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import OffsetRange, RangeRequest
from tubemq_spark.offsets.loss import LossRecord
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, range_events, values

_AHEAD: Final = 4
"""How many messages of one range are read ahead of its client; a batch is about half a MiB."""
_SIGN_S: Final = 0.25
"""After how long a client is told for the first time that nothing has come; then that doubles."""
_RAREST_SIGN_S: Final = 4.0
"""The longest time between two such signs: thousands of clients may stand in line."""


class _Reading:
    """One range on its way."""

    def __init__(self, who: Owner, room: Room, metrics: Metrics) -> None:
        """Begin in the event loop."""
        self._who = who
        self._room = room
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._changed = threading.Condition()
        self._ready: deque[tuple[bytes, int]] = deque()
        self._over = False
        self._stop = Stop()

    # In the thread.

    def read(self, access: Access, request: pb.ReadRangeRequest) -> None:
        """Read a range; its errors are those of the call."""
        with contextlib.suppress(StoppedError):
            self._stop.check()
            batches = access.cluster.read_range(_located(access, request), self._tell_loss, self._stop)
            # Closing gives back what the range holds at a broker.
            with contextlib.closing(batches):
                for batch in batches:
                    if batch.bytes_behind is not None:
                        self._metrics.behind(batch.bytes_behind)
                    self._put(range_events.batch_to_bytes(batch), len(batch.columns))

    def _tell_loss(self, loss: LossRecord) -> None:
        self._metrics.lost(loss.loss.value)
        self._put(pb.ReadRangeResponse(loss=wire.loss_to_proto(loss)).SerializeToString(), 0)

    def _put(self, data: bytes, rows: int) -> None:
        ask = self._room.ask(self._who, len(data), self._look)
        with self._changed:
            self._changed.wait_for(lambda: self._over or (ask.granted and len(self._ready) < _AHEAD))
            if not self._over:
                self._ready.append((data, rows))
                self._loop.call_soon_threadsafe(self._news.set)
                return
        if self._room.withdraw(ask):
            self._room.give(self._who, len(data))
        raise StoppedError

    def _look(self) -> None:
        with self._changed:
            self._changed.notify()

    # In the event loop.

    async def messages(self, thread: "asyncio.Future[None]") -> AsyncIterator[tuple[bytes, int] | None]:
        """Yield messages and their rows as they come until the thread ends; while there are none, None."""
        thread.add_done_callback(lambda _: self._news.set())
        sign_s = _SIGN_S
        while True:
            self._news.clear()
            over = thread.done()
            while (item := self._take()) is not None:
                sign_s = _SIGN_S
                try:
                    yield item
                finally:
                    self._room.give(self._who, len(item[0]))
            if over:
                return
            try:
                async with asyncio.timeout(sign_s):
                    await self._news.wait()
            except TimeoutError:
                sign_s = min(2 * sign_s, _RAREST_SIGN_S)
                yield None

    def stop(self) -> None:
        """Read no further, and drop what is ready."""
        self._stop.set()
        with self._changed:
            self._over = True
            dropped = sum(len(data) for data, _ in self._ready)
            self._ready.clear()
            self._changed.notify()
        if dropped:
            self._room.give(self._who, dropped)

    def _take(self) -> tuple[bytes, int] | None:
        with self._changed:
            if not self._ready:
                return None
            item = self._ready.popleft()
            self._changed.notify()
            return item


class Ranges:
    """Serves ``ReadRange``."""

    def __init__(
        self,
        settings: GatewaySettings,
        admission: Admission,
        metrics: Metrics,
        calls: Calls,
    ) -> None:
        self._stall_s = settings.stall_ms / 1000
        self._admission = admission
        self._threads = admission.reads
        self._room = admission.bytes
        self._metrics = metrics
        self._calls = calls

    async def read_range(self, request: pb.ReadRangeRequest, call: Call) -> None:
        """Stream the records of a range, and what is lost of them."""
        session = call.owner()
        reading = _Reading(call.who, self._room, self._metrics)
        work = self._threads.run(lambda: reading.read(session.access, request), call.who, call.patience_s)
        thread = asyncio.ensure_future(work)
        thread.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        try:
            await self._write(reading, thread, call)
            await thread
        finally:
            reading.stop()
            thread.cancel()

    async def _write(self, reading: _Reading, thread: "asyncio.Future[None]", call: Call) -> None:
        async for message in reading.messages(thread):
            self._calls.refuse_when_draining()
            if message is None:
                await self._send(call, _WAITING)
                continue
            data, rows = message
            await self._send(call, data)
            call.rows += rows
            if rows:
                self._metrics.passed("read", rows, len(data))

    async def _send(self, call: Call, data: bytes) -> None:
        """Write a message to a client, which may take its time unless others wait for what it holds.

        Raises:
            GatewayError: others do.
        """
        rooms = self._room, self._threads.room
        writing = call.context.write(data)
        await self._admission.moving(writing, call.who, "its client does not read", rooms, self._stall_s)


_WAITING: Final = pb.ReadRangeResponse(waiting=pb.Waiting()).SerializeToString()


def _located(access: Access, request: pb.ReadRangeRequest) -> RangeRequest:
    partition = values.partition_from_proto(request.partition)
    span = OffsetRange(partition, request.start, request.end)
    layout = access.routes.find([partition])
    return layout.request(span, own_store=request.own_store)
