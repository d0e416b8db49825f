"""Reading a range in a thread that waits: the reader runs in the process's event loop, and may run ahead."""

import contextlib
from collections.abc import Generator

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.reader.range_reader import read_range, require_sound
from tubemq_spark.model import RangeRequest
from tubemq_spark.net import loop
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.retry import SLEEP, Wait
from tubemq_spark.offsets.loss import LossPolicy, LossRecord
from tubemq_spark.protocol.fetch_columns import FetchedBatch


def read_in_thread(
    config: ClientConfig,
    connections: Connections,
    request: RangeRequest,
    on_loss: LossPolicy,
    wait: Wait = SLEEP,
    *,
    ahead: int = 0,
    private: bool = False,
    tells_idle: bool = False,
) -> Generator[FetchedBatch, None, None]:
    """Yield the records of a range in offset order; closing it gives back the lease first.

    Args:
        config: the settings.
        connections: the connections, of the process's loop.
        request: the range.
        on_loss: what to do about records that are gone or damaged, called in this thread; when it returns,
            reading continues behind them.
        wait: its ``check`` is called several times per second; what it raises ends the reading.
        ahead: how many batches are read before they are asked for.
        private: see ``read_range``.
        tells_idle: whether an empty batch is yielded when none has come for a tenth of a second.

    Raises:
        OffsetFormatError: an offset is not a multiple of 28, or is negative.
        LocalProtocolError: the range ends before it starts.
        DataLossError: records are gone or damaged, and ``on_loss`` does not tolerate it.
        TubeMQError: as ``read_range``.
    """
    require_sound(request.range)
    items = loop.iterate(
        read_range(config, connections, request, private=private),
        ahead=ahead,
        wait=wait,
        idle=FetchedBatch.empty(request.range.partition, request.range.start) if tells_idle else None,
    )
    return batches_of(items, on_loss)


def batches_of(
    items: Generator[FetchedBatch | LossRecord, None, None], on_loss: LossPolicy
) -> Generator[FetchedBatch, None, None]:
    """Yield the batches among what a reader yields, and tell the losses; at the end the reader is closed."""
    with contextlib.closing(items):
        for item in items:
            if isinstance(item, LossRecord):
                on_loss(item)
            else:
                yield item
