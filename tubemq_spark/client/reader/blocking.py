"""Reading a range in a thread that waits: the reader runs in the process's event loop, and may run ahead."""

import contextlib
from collections.abc import AsyncGenerator, Generator, Iterator
from typing import TYPE_CHECKING, TypeVar

from tubemq_spark.client.reader.range_reader import require_sound
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import OffsetRange
from tubemq_spark.net import loop
from tubemq_spark.net.retry import SLEEP, Wait
from tubemq_spark.offsets.loss import LossPolicy, LossRecord
from tubemq_spark.protocol.fetch_columns import FetchedBatch

if TYPE_CHECKING:
    from tubemq_spark.client.reader.records import Record
    from tubemq_spark.client.reader.topic_reader import Items

Item = TypeVar("Item")


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
    return _without_losses(loop.iterate(items, ahead=ahead, wait=wait, idle=idle), on_loss, wait)


def records_in_thread(items: "Items", on_loss: LossPolicy, wait: Wait) -> "Iterator[Record]":
    """Yield records one by one; a batch is read when it is asked for.

    Raises:
        DataLossError: records are gone or damaged, and ``on_loss`` does not tolerate it.
        TubeMQError: what ``items`` raise.
    """
    with contextlib.closing(
        _without_losses(loop.iterate(items, ahead=0, wait=wait), on_loss, wait)
    ) as batches:
        for batch in batches:
            yield from batch


def _without_losses(
    items: Generator[Item | LossRecord, None, None], on_loss: LossPolicy, wait: Wait
) -> Generator[Item, None, None]:
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
