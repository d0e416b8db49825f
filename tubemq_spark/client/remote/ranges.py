"""Reading a range through gateways, with the same records, losses and errors as without.

**States of a reading.** What is left of the range is ``_left``; it shrinks with every batch and every loss,
and is what the next gateway is asked for when one is lost. So no record comes twice, and none is left out. A
loss that a gateway reports again, because the reading began again before it, is passed over.

A gateway goes on behind a loss. Whether the reading does is decided here, by the policy: when that raises,
the call is cancelled, and what came behind the loss was not looked at.
"""

import contextlib
import queue
import threading
from collections.abc import Generator
from concurrent.futures import Future
from typing import Any, Final

from tubemq_spark.client.reader.patience import Patience
from tubemq_spark.client.reader.range_reader import require_sound
from tubemq_spark.client.remote import wire
from tubemq_spark.client.remote.connections import AwayError, Gateways
from tubemq_spark.errors import RemoteProtocolError, TubeMQError
from tubemq_spark.model import OffsetRange, RangeRequest
from tubemq_spark.net.retry import CHECK_S, Interruptible, Wait
from tubemq_spark.offsets.loss import Loss, LossPolicy, LossRecord
from tubemq_spark.protocol.fetch_columns import FetchedBatch
from tubemq_spark.protocol.gateway import batches, gateway_pb2 as pb, range_events, values
from tubemq_spark.protocol.gateway.packed import MalformedMessageError

_OF_THE_END: Final = frozenset({Loss.TRUNCATED, Loss.TOPIC_REMOVED, Loss.PARTITION_REMOVED})
"""Losses of all that is left from an offset on."""
_AHEAD: Final = 2
"""How many batches a thread reads before they are asked for."""


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

    def read(self, batch: FetchedBatch) -> None:
        """Note records that were read.

        Raises:
            MalformedMessageError: they are not the next ones of what is left.
        """
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


def read_remote_range(
    gateways: Gateways, request: RangeRequest, on_loss: LossPolicy, wait: Wait
) -> Generator[FetchedBatch, None, None]:
    """Yield the records of a range; see ``Cluster.read_range``."""
    require_sound(request.range)
    return _read(gateways, request, on_loss, wait)


def read_remote_range_ahead(
    gateways: Gateways, request: RangeRequest, on_loss: LossPolicy, wait: Wait
) -> Generator[FetchedBatch, None, None]:
    """Yield the records of a range, which a thread reads a few batches ahead; see ``Cluster.read_range``.

    An empty batch is yielded when none has come for a tenth of a second. Closing it waits for the thread.
    """
    require_sound(request.range)
    return _taken(gateways, request, on_loss, wait)


class _StoppedError(Exception):
    """Ends the thread of a range that is not read any further."""


def _taken(
    gateways: Gateways, request: RangeRequest, on_loss: LossPolicy, wait: Wait
) -> Generator[FetchedBatch, None, None]:
    items: queue.Queue[FetchedBatch | LossRecord | None] = queue.Queue(_AHEAD)
    stop = Interruptible(_StoppedError)
    outcome: Future[None] = Future()

    def put(item: FetchedBatch | LossRecord | None) -> None:
        while True:
            stop.check()
            with contextlib.suppress(queue.Full):
                items.put(item, timeout=CHECK_S)
                return

    def read() -> None:
        try:
            with contextlib.closing(_read(gateways, request, put, stop)) as batches:
                for batch in batches:
                    put(batch)
            outcome.set_result(None)
        except BaseException as error:  # noqa: BLE001 (who takes the batches gets it)
            outcome.set_exception(error)
        with contextlib.suppress(_StoppedError):
            put(None)

    thread = threading.Thread(target=read, name=f"tubemq-read-{request.range.partition}", daemon=True)
    thread.start()
    try:
        while True:
            try:
                item = items.get(timeout=CHECK_S)
            except queue.Empty:
                wait.check()
                yield FetchedBatch.empty(request.range.partition, request.range.start)
                continue
            if item is None:
                outcome.result()
                return
            if isinstance(item, LossRecord):
                on_loss(item)
            else:
                yield item
    finally:
        stop.end()
        thread.join()


def _read(
    gateways: Gateways, request: RangeRequest, on_loss: LossPolicy, wait: Wait
) -> Generator[FetchedBatch, None, None]:
    rest = RestOfRange(request.range)
    patience = Patience(request.range, gateways.config.fetch_timeout_ms)
    attempts = gateways.attempts(None, None)
    while not rest.is_empty():
        gateway = gateways.current_index
        try:
            with contextlib.closing(_events(gateways, gateway, request, rest)) as events:
                for event in events:
                    wait.check()
                    batch = _take(event, rest, request, on_loss)
                    if batch is not None:
                        patience.progress()
                        attempts = gateways.attempts(None, None)
                        yield batch
                        patience.restart()
        except AwayError as error:
            pause_s = attempts.failed(gateway, error)
            if rest.is_empty():
                return
            if pause_s is None:  # all have other ideas of TLS
                raise attempts.error("reading", gateways.tried) from error
            what = f"the gateway {gateways.name(gateway)} is {'busy' if error.busy else 'away'} ({error})"
            wait.pause(patience.next_pause_s(what, rest.start, pause_s if error.busy else 0.0))
        except TubeMQError:
            wait.check()  # a client that closes ends its session, which a read under way may be told of first
            raise
        else:
            return


def _events(gateways: Gateways, gateway: int, request: RangeRequest, rest: RestOfRange) -> Generator[bytes]:
    """Yield what a gateway tells of what is left of a range, not parsed.

    Raises:
        AwayError: it is away.
        TubeMQError: that of the gateway, or of TubeMQ.
    """
    read_request = pb.ReadRangeRequest(
        partition=values.partition_to_proto(request.range.partition),
        start=rest.start,
        end=rest.end,
        own_store=request.own_store,
    )

    def begin() -> tuple[Any, bytes | None]:
        call = gateways.stream(gateway, "ReadRange", read_request, parsed=False)
        return call, gateways.next_of(call)

    call, first = gateways.in_session(gateway, begin)
    event: bytes | None = first
    try:
        while event is not None:
            yield event
            event = gateways.next_of(call)
    finally:
        # No harm when it is over; otherwise the gateway gives back what it holds at a broker.
        call.cancel()


def _take(data: bytes, rest: RestOfRange, request: RangeRequest, on_loss: LossPolicy) -> FetchedBatch | None:
    partition = request.range.partition
    try:
        event, bodies = range_events.parse(data)
        which = event.WhichOneof("event")
        if which == "batch":
            batch = batches.from_proto(event.batch, bodies, partition)
            rest.read(batch)
            return batch
        if which == "loss":
            loss = wire.loss_from_proto(event.loss, partition)
            if rest.lost(loss):
                on_loss(loss)
    except MalformedMessageError as error:
        raise RemoteProtocolError("TUBEMQ_GATEWAY_ANSWER", what=str(error)) from error
    return None
