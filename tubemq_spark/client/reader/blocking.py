"""Reading a range in a thread that waits: the reader runs in the process's event loop, and may run ahead."""

import contextlib
from collections.abc import AsyncGenerator, Generator

from tubemq_spark.client.reader.range_reader import require_sound
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import OffsetRange
from tubemq_spark.net import loop
from tubemq_spark.net.retry import SLEEP, Wait
from tubemq_spark.offsets.loss import LossPolicy, LossRecord
from tubemq_spark.protocol.fetch_columns import FetchedBatch


def read_in_thread(
    items: AsyncGenerator[FetchedBatch | LossRecord, None],
    range_: OffsetRange,
    on_loss: LossPolicy,
    wait: Wait = SLEEP,
    *,
    ahead: int = 0,
    tells_idle: bool = False,
) -> Generator[FetchedBatch, None, None]:
    """Yield the records of a range in offset order; closing it closes the reader first.

    Args:
        items: what reads the range, as ``Questions.read_range``; it has not begun.
        range_: the range.
        on_loss: what to do about records that are gone or damaged, called in this thread; when it returns,
            reading continues behind them.
        wait: its ``check`` is called several times per second, and before each batch; what it raises ends
            the reading.
        ahead: how many batches are read before they are asked for.
        tells_idle: whether an empty batch is yielded when none has come for a tenth of a second.

    Raises:
        OffsetFormatError: an offset is not a multiple of 28, or is negative.
        LocalProtocolError: the range ends before it starts.
        DataLossError: records are gone or damaged, and ``on_loss`` does not tolerate it.
        TubeMQError: that of the reader.
    """
    require_sound(range_)
    idle = FetchedBatch.empty(range_.partition, range_.start) if tells_idle else None
    return _batches(loop.iterate(items, ahead=ahead, wait=wait, idle=idle), on_loss, wait)


def _batches(
    items: Generator[FetchedBatch | LossRecord, None, None], on_loss: LossPolicy, wait: Wait
) -> Generator[FetchedBatch, None, None]:
    with contextlib.closing(items):
        try:
            for item in items:
                if isinstance(item, LossRecord):
                    on_loss(item)
                else:
                    wait.check()
                    yield item
        except TubeMQError:
            wait.check()  # a client that closes ends its session, which a read may be told of first
            raise
