"""Ranges, read by a thread and streamed to a client.

**States of a reading.** The thread reads and puts messages into ``_ready``; the event loop takes and writes
them.

- *reading*: the thread is at work, or waits because enough is ready, or because the budget has no room;
- *over*: the thread has ended, by itself or with an error; the loop writes what is ready, and then ends the
  call;
- *stopped*: the client has gone, or the gateway drains. The thread notices at its next wait, gives back what
  it holds at a broker, and ends. What is ready is dropped.

**Invariants.** What is in ``_ready``, and what is being written, has its bytes in the budget. ``_ready`` and
the marks are changed under ``_changed``; only the thread appends, only the loop takes.

A client that does not read for a while keeps what is ready for it, unless others wait for that room: then its
call ends as that of a gateway that is busy, and it may ask for the rest again.

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
from tubemq_spark.errors import GatewayError
from tubemq_spark.gateway.operate.metrics import Metrics
from tubemq_spark.gateway.session.budget import ByteBudget
from tubemq_spark.gateway.session.calls import Call, Calls
from tubemq_spark.gateway.session.upstream import Access
from tubemq_spark.gateway.session.workers import Workers
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import OffsetRange, RangeRequest
from tubemq_spark.offsets.loss import LossRecord
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, range_events, values

_AHEAD: Final = 4
"""How many messages of one range are read ahead of its client; a batch is about half a MiB."""
_SIGN_S: Final = 0.25
"""After how long a client is told that there is nothing yet."""
_LOOK_S: Final = 0.1
_SHORTLY_MS: Final = 1_000


class _StoppedError(Exception):
    """The reading was stopped."""


class _Reading:
    """One range on its way."""

    def __init__(self, owner: str, budget: ByteBudget, metrics: Metrics) -> None:
        """Begin in the event loop."""
        self._owner = owner
        self._budget = budget
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._changed = threading.Condition()
        self._ready: deque[tuple[bytes, int]] = deque()
        self._stopped = threading.Event()

    # In the thread.

    def read(self, access: Access, request: pb.ReadRangeRequest) -> None:
        """Read a range; its errors are those of the call."""
        with contextlib.suppress(_StoppedError):
            self.check()
            batches = access.cluster.read_range(_located(access, request), self._tell_loss, self)
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
        with self._changed:
            while len(self._ready) >= _AHEAD and not self._stopped.is_set():
                self._changed.wait(_LOOK_S)
        if not self._budget.take(self._owner, len(data), self._stopped.is_set):
            raise _StoppedError
        with self._changed:
            if self._stopped.is_set():
                self._budget.give(self._owner, len(data))
                raise _StoppedError
            self._ready.append((data, rows))
        self._loop.call_soon_threadsafe(self._news.set)

    def pause(self, seconds: float) -> None:
        """Wait that long, or until this is stopped."""
        self._stopped.wait(seconds)
        self.check()

    def check(self) -> None:
        """Return when the reading goes on.

        Raises:
            _StoppedError: it does not.
        """
        if self._stopped.is_set():
            raise _StoppedError

    # In the event loop.

    async def messages(self, thread: "asyncio.Future[None]") -> AsyncIterator[tuple[bytes, int] | None]:
        """Yield messages and their rows as they come until the thread ends; while there are none, None."""
        thread.add_done_callback(lambda _: self._news.set())
        while True:
            self._news.clear()
            over = thread.done()
            while (item := self._take()) is not None:
                try:
                    yield item
                finally:
                    self._budget.give(self._owner, len(item[0]))
            if over:
                return
            try:
                async with asyncio.timeout(_SIGN_S):
                    await self._news.wait()
            except TimeoutError:
                yield None

    def stop(self) -> None:
        """Read no further, and drop what is ready."""
        with self._changed:
            self._stopped.set()
            dropped = [self._ready.popleft() for _ in range(len(self._ready))]
            self._changed.notify_all()
        for data, _ in dropped:
            self._budget.give(self._owner, len(data))

    def _take(self) -> tuple[bytes, int] | None:
        with self._changed:
            if not self._ready:
                return None
            item = self._ready.popleft()
            self._changed.notify_all()
            return item


class Ranges:
    """Serves ``ReadRange``."""

    def __init__(
        self,
        settings: GatewaySettings,
        workers: Workers,
        budget: ByteBudget,
        metrics: Metrics,
        calls: Calls,
    ) -> None:
        """Read in the threads of ``workers``."""
        self._gateway = settings.name
        self._stall_s = settings.stall_ms / 1000
        self._workers = workers
        self._budget = budget
        self._metrics = metrics
        self._calls = calls

    async def read_range(self, request: pb.ReadRangeRequest, call: Call) -> None:
        """Stream the records of a range, and what is lost of them."""
        session = call.owner()
        reading = _Reading(session.client_id, self._budget, self._metrics)
        thread = asyncio.ensure_future(self._workers.run(lambda: reading.read(session.access, request)))
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
                await call.context.write(_WAITING)
                continue
            data, rows = message
            await self._send(call, data)
            call.rows += rows
            if rows:
                self._metrics.passed("read", rows, len(data))

    async def _send(self, call: Call, data: bytes) -> None:
        """Write a message to a client, which may take its time as long as no other reader waits for the room.

        Raises:
            GatewayError: another reader does.
        """
        writing = asyncio.ensure_future(call.context.write(data))
        try:
            while not (await asyncio.wait({writing}, timeout=self._stall_s))[0]:
                if self._budget.pressed:
                    raise GatewayError(
                        "TUBEMQ_GATEWAY_BUSY",
                        gateway=self._gateway,
                        what="its client does not read, and others wait for the room",
                        retry_after_ms=_SHORTLY_MS,
                    )
            await writing
        finally:
            writing.cancel()


_WAITING: Final = pb.ReadRangeResponse(waiting=pb.Waiting()).SerializeToString()


def _located(access: Access, request: pb.ReadRangeRequest) -> RangeRequest:
    partition = values.partition_from_proto(request.partition)
    span = OffsetRange(partition, request.start, request.end)
    layout = access.routes.find([partition])
    return layout.request(span, own_store=request.own_store)
