"""Reading what a ``Selection`` selects, as coroutines, over which the clients of both kinds iterate.

A read is fixed when it begins: layout, bounds and the offsets of times are asked once. Then the partitions
are read one after the other. A thread that reads waits for batches, which the process's event loop reads and
may read ahead.
"""

import collections
import contextlib
import dataclasses
import itertools
from collections.abc import AsyncGenerator, Collection, Generator, Iterable, Iterator, Mapping
from typing import Final, TypeAlias, TypeVar

from tubemq_spark.client.metadata.questions import Questions
from tubemq_spark.client.reader.range_reader import require_sound
from tubemq_spark.client.reader.records import Record, records_of
from tubemq_spark.client.reader.selection import Selection
from tubemq_spark.client.reader.times import TimeOffsets
from tubemq_spark.errors import OptionError, TubeMQError
from tubemq_spark.model import (
    INDEX_ENTRY_BYTES,
    OffsetBounds,
    OffsetRange,
    RangeRequest,
    StoreId,
    TopicPartition,
    TopicsLayout,
)
from tubemq_spark.net import loop
from tubemq_spark.net.retry import SLEEP, Wait
from tubemq_spark.offsets.loss import LossPolicy, LossRecord
from tubemq_spark.protocol.fetch_columns import FetchedBatch

Items: TypeAlias = AsyncGenerator[Iterable[Record] | LossRecord, None]
"""Batches of records, and losses before what lies behind them."""

_LOOK_BACK: Final = 4
"""How many times as far is looked back, when most of a store's last messages are of other partitions."""


Fetches: TypeAlias = AsyncGenerator[tuple[FetchedBatch, int] | LossRecord, None]
"""Batches, each with how many of its first messages are left out, and losses."""


async def read_topics(questions: Questions, selection: Selection) -> Items:
    """Yield the records that are selected, one partition after the other and each in its order."""
    layout = await questions.layout(selection.topics)
    partitions = chosen_partitions(layout, selection)
    bounds = (await questions.bounds(layout, {partition.store_id for partition in partitions})).complete()
    spans = await _spans(questions, layout, bounds, partitions, selection)
    remaining = selection.limit
    for partition, span in spans.items():
        if span.earliest >= span.latest:
            continue
        request = range_request(questions, layout, OffsetRange(partition, *span))
        fetches = (
            _rows(questions, request)
            if selection.last is None
            else _last_rows(questions, request, bounds[partition.store_id].earliest, selection.last)
        )
        async with contextlib.aclosing(_records(questions, request, fetches, remaining)) as items:
            async for count, item in items:
                yield item
                remaining = None if remaining is None else remaining - count
        if remaining == 0:
            return


async def read_records(questions: Questions, request: RangeRequest) -> Items:
    """Yield the records of one range."""
    async with contextlib.aclosing(_records(questions, request, _rows(questions, request), None)) as items:
        async for _, item in items:
            yield item


def chosen_partitions(layout: TopicsLayout, selection: Selection) -> Collection[TopicPartition]:
    """Return the partitions that are read, in their order."""
    named = set[TopicPartition](selection.partitions or ())
    for place in selection.start, selection.end:
        if isinstance(place, Mapping):
            named.update(place)
    for partition in sorted(named):
        if partition not in layout.partitions:
            raise OptionError("TUBEMQ_PARTITION_NOT_LISTED", partition=partition)
    chosen = selection.partitions
    return [partition for partition in layout.partitions if chosen is None or partition in chosen]


def range_request(questions: Questions, layout: TopicsLayout, offsets: OffsetRange) -> RangeRequest:
    """Return the range to read of a layout's partition."""
    if offsets.partition not in layout.partitions:
        raise OptionError("TUBEMQ_PARTITION_NOT_LISTED", partition=offsets.partition)
    require_sound(offsets)
    alone = offsets.partition.store_id in layout.alone_in_store and not questions.config.message_types
    return layout.request(offsets, own_store=alone)


async def _spans(
    questions: Questions,
    layout: TopicsLayout,
    bounds: Mapping[StoreId, OffsetBounds],
    partitions: Collection[TopicPartition],
    selection: Selection,
) -> dict[TopicPartition, OffsetBounds]:
    """Return from where to where each partition is read."""
    logs = {partition: bounds[partition.store_id] for partition in partitions}
    times = TimeOffsets(questions, layout, bounds, partitions)
    starts = {partition: log.earliest for partition, log in logs.items()}
    ends = {partition: log.latest for partition, log in logs.items()}
    if isinstance(selection.start, int):
        begins = await times.begin(selection.start, "start")
        starts = {place: ends[place] if begin is None else begin for place, begin in begins.items()}
    elif selection.start is not None:
        starts |= selection.start
    if isinstance(selection.end, int):
        ends = await times.end(selection.end, "end")
    elif selection.end is not None:
        ends |= {place: min(end, ends[place]) for place, end in selection.end.items()}
    spans = {place: OffsetBounds(starts[place], ends[place]) for place in logs}
    if isinstance(selection.start, Mapping):
        # A log that ends before the user's own offset has lost messages, of which the reader tells.
        behind = {place for place, start in selection.start.items() if start > logs[place].latest}
        spans |= {place: OffsetBounds(logs[place].latest, starts[place]) for place in behind}
    return spans


async def _rows(questions: Questions, request: RangeRequest) -> Fetches:
    async with contextlib.aclosing(questions.read_range(request)) as items:
        async for item in items:
            yield item if isinstance(item, LossRecord) else (item, 0)


async def _last_rows(questions: Questions, request: RangeRequest, earliest: int, count: int) -> Fetches:
    """Yield the last messages of a range; where others share its store, they may be far apart."""
    end, back = request.range.end, INDEX_ENTRY_BYTES * count
    while True:
        begin = max(earliest, end - back)
        part = dataclasses.replace(request, range=dataclasses.replace(request.range, start=begin))
        kept, total, losses = collections.deque[FetchedBatch](), 0, list[LossRecord]()
        async with contextlib.aclosing(questions.read_range(part)) as items:
            async for item in items:
                if isinstance(item, LossRecord):
                    losses.append(item)
                    continue
                kept.append(item)
                total += len(item.columns)
                while total - len(kept[0].columns) >= count:
                    total -= len(kept.popleft().columns)
        if total >= count or begin <= earliest:
            break
        back *= _LOOK_BACK
    for loss in losses:
        yield loss
    skip = max(0, total - count)
    for batch in kept:
        yield batch, skip
        skip = 0


async def _records(
    questions: Questions, request: RangeRequest, fetches: Fetches, limit: int | None
) -> AsyncGenerator[tuple[int, Iterable[Record] | LossRecord], None]:
    """Yield records and losses, with how many records these are, until the limit."""
    remaining, time_zone = limit, questions.config.message_time_zone
    async with contextlib.aclosing(fetches):
        async for item in fetches:
            if isinstance(item, LossRecord):
                yield 0, item
                continue
            batch, skip = item
            count = len(batch.columns) - skip
            if remaining is not None:
                count = min(remaining, count)
            records = records_of(batch, exact_offsets=request.own_store, time_zone=time_zone)
            yield count, itertools.islice(records, skip, skip + count)
            remaining = None if remaining is None else remaining - count
            if remaining == 0:
                return


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

    ``on_loss`` is called in this thread; when it returns, reading continues behind the loss.
    ``wait.check`` is called several times per second and before each batch, and what it raises ends the
    reading. With ``tells_idle`` an empty batch is yielded when none has come for a tenth of a second.
    """
    require_sound(range_)
    idle = FetchedBatch.empty(range_.partition, range_.start) if tells_idle else None
    return _without_losses(loop.iterate(items, ahead=ahead, wait=wait, idle=idle), on_loss, wait)


def records_in_thread(items: "Items", on_loss: LossPolicy, wait: Wait) -> "Iterator[Record]":
    """Yield records one by one; a batch is read when it is asked for."""
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
