"""Reading a range through gateways, with the same records, losses and errors as without.

**States of a reading.** What is left of the range is ``RestOfRange``; it shrinks with every batch and every
loss, and is what the next gateway is asked for when one is lost. So no record comes twice, and none is left
out. A loss that a gateway reports again, because the reading began again before it, is passed over.

A gateway goes on behind a loss. Whether the reading does is decided by its user: when it is closed, the call
is cancelled, and what came behind the loss was not looked at.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Final

from tubemq_spark.client.reader.range_reader import Patience
from tubemq_spark.client.remote import wire
from tubemq_spark.client.remote.attempts import AwayError
from tubemq_spark.client.remote.channels import Stream
from tubemq_spark.client.remote.gateways import Gateways
from tubemq_spark.errors import RemoteProtocolError
from tubemq_spark.model import OffsetRange, RangeRequest
from tubemq_spark.offsets.loss import Loss, LossRecord
from tubemq_spark.protocol.fetch_columns import FetchedBatch
from tubemq_spark.protocol.gateway import batches, gateway_pb2 as pb, values
from tubemq_spark.protocol.gateway.batches import MalformedMessageError

_OF_THE_END: Final = frozenset({Loss.TRUNCATED, Loss.TOPIC_REMOVED, Loss.PARTITION_REMOVED})
"""Losses of all that is left from an offset on."""
_SILENT_S: Final = 12.0
"""How long a gateway may say nothing, or half of ``fetch_timeout_ms`` if that is longer. One that is at work
says so every four seconds."""


class RestOfRange:
    """What is still to be read of a range, and which losses in it are known."""

    def __init__(self, range_: OffsetRange) -> None:
        self._partition = range_.partition
        self.start = range_.start
        self.end = range_.end
        self._losses: set[LossRecord] = set()

    def is_empty(self) -> bool:
        """Return whether nothing is left."""
        return self.start >= self.end

    def note_read(self, batch: FetchedBatch) -> None:
        """Note records that were read; raise if they are not of this range."""
        if not self.start <= batch.start <= batch.next <= self.end:
            raise MalformedMessageError(
                f"records [{batch.start}, {batch.next}) of {self._partition}, where "
                f"[{self.start}, {self.end}) is left to be read"
            )
        self.start = batch.next

    def lost(self, loss: LossRecord) -> bool:
        """Note a loss; return whether it is new."""
        new = loss not in self._losses
        self._losses.add(loss)
        if loss.loss is Loss.EXPIRED:
            self.start = max(self.start, min(loss.end, self.end))
        elif loss.loss in _OF_THE_END:
            self.end = max(self.start, min(loss.start, self.end))
        return new


async def read_remote_range(
    gateways: Gateways, request: RangeRequest
) -> AsyncGenerator[FetchedBatch | LossRecord, None]:
    """Yield the records of a range in offset order, and losses before what lies behind them."""
    rest = RestOfRange(request.range)
    patience = Patience(request.range, gateways.config.fetch_timeout_ms)
    attempts = gateways.attempts(None, None)
    while not rest.is_empty():
        gateway = gateways.current_index
        try:
            async with contextlib.aclosing(_events(gateways, gateway, request, rest)) as events:
                async for event in events:
                    item = _take(event, rest, request)
                    if isinstance(item, FetchedBatch):
                        patience.progress()
                        attempts = gateways.attempts(None, None)
                    if item is not None:
                        yield item
                        patience.restart()
        except AwayError as error:
            pause_s = attempts.failed(gateway, error)
            if rest.is_empty():
                return
            if pause_s is None:  # all have other ideas of TLS
                raise attempts.error("reading", gateways.tried) from error
            what = (
                f"the gateway {gateways.addresses[gateway]} is {'busy' if error.busy else 'away'} ({error})"
            )
            await asyncio.sleep(patience.next_pause_s(what, rest.start, pause_s if error.busy else 0.0))
        else:
            return


async def _events(
    gateways: Gateways, gateway: int, request: RangeRequest, rest: RestOfRange
) -> AsyncGenerator[bytes, None]:
    """Yield what a gateway tells of what is left of a range, not parsed."""
    read_request = pb.ReadRangeRequest(
        partition=values.partition_to_proto(request.range.partition),
        start=rest.start,
        end=rest.end,
        own_store=request.own_store,
    )

    silent_s = max(gateways.config.fetch_timeout_ms / 2000, _SILENT_S)
    # When it is closed early, the gateway gives back what it holds at a broker.
    async with contextlib.AsyncExitStack() as closing:

        async def begin() -> tuple[Stream, bytes | None]:
            opening = gateways.stream(gateway, "ReadRange", read_request, parsed=False)
            stream = await closing.enter_async_context(opening)
            return stream, await _next(stream, silent_s)

        stream, event = await gateways.in_session(gateway, begin)
        while event is not None:
            yield event
            event = await _next(stream, silent_s)


async def _next(stream: Stream, silent_s: float) -> bytes | None:
    """Return the next event; None at the end."""
    limit = asyncio.timeout(silent_s)
    try:
        async with limit:
            event: bytes | None = await stream.read()
    except TimeoutError:
        if not limit.expired():  # the gateway tells of one
            raise
        raise AwayError(f"it has said nothing for {silent_s:.0f} s") from None
    return event


def _take(data: bytes, rest: RestOfRange, request: RangeRequest) -> FetchedBatch | LossRecord | None:
    """Return the news in an event; None if there is none."""
    partition = request.range.partition
    try:
        event, bodies = batches.parse_event(data)
        which = event.WhichOneof("event")
        if which == "batch":
            batch = batches.from_proto(event.batch, bodies, partition)
            rest.note_read(batch)
            return batch
        if which == "loss":
            loss = wire.loss_from_proto(event.loss, partition)
            return loss if rest.lost(loss) else None
    except MalformedMessageError as error:
        raise RemoteProtocolError("TUBEMQ_GATEWAY_ANSWER", what=str(error)) from error
    return None
