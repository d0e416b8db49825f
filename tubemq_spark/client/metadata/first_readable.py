"""The first record of a log that can still be read.

Retention removes the data of a log and its index in whole files, which hold different numbers of messages
(``BrokerConfig``: 1 GB of data, 786 432 index entries). So a log may begin with index entries whose data is
gone, and the broker moves on a reader that starts there. Starting behind them is not a loss, but where that
is must be known before a range is planned: a range that starts inside these entries looks like one whose
records were removed later.
"""

import asyncio
import dataclasses

from tubemq_spark.client.broker.cursor import Cursor, Step
from tubemq_spark.client.broker.reader_groups import ReaderGroupHolder
from tubemq_spark.client.broker.session import MEMORY_TOO
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.errors import TubeMQTimeoutError
from tubemq_spark.model import INDEX_ENTRY_BYTES, OffsetBounds, Route, TopicPartition
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.retry import Backoff


async def first_readable(
    config: ClientConfig,
    connections: Connections,
    partition: TopicPartition,
    route: Route,
    bounds: OffsetBounds,
) -> int:
    """Return the offset of the first record of a log that can be read, in index bytes.

    Args:
        config: the settings.
        connections: the connections.
        partition: the only partition of its store.
        route: its broker and a visit token.
        bounds: what the store's index holds.

    Returns:
        ``bounds.latest`` when no record before it can be read.

    Raises:
        TubeMQError: the broker does not answer, or refuses.
    """
    if bounds.earliest >= bounds.latest:
        return bounds.latest
    probing = dataclasses.replace(config, reader_groups=config.probe_groups)
    holder = ReaderGroupHolder(probing, connections, partition, route, query_priority=MEMORY_TOO)
    async with holder:
        return await _search(Cursor(holder, partition), partition, bounds, config.rpc_timeout_ms)


async def _search(cursor: Cursor, partition: TopicPartition, bounds: OffsetBounds, timeout_ms: int) -> int:
    deadline = Deadline.after_ms(timeout_ms, asyncio.get_running_loop().time)
    backoff = Backoff()
    await cursor.seek(bounds.earliest)
    while cursor.position < bounds.latest:
        await cursor.receive(cursor.start_fetch())
        step = await cursor.confirm()
        if step.fetched.count:
            return step.start if step.dense else await _behind_the_gap(cursor, step)
        if step.pause_ms:
            await asyncio.sleep(step.pause_ms / 1000)
            continue
        if step.next != step.start:
            continue
        pause_s = backoff.next_s(deadline)
        if pause_s is None:
            raise TubeMQTimeoutError(
                "TUBEMQ_NO_PROGRESS",
                partition=partition,
                position=step.start,
                end=bounds.latest,
                timeout_ms=timeout_ms,
                trouble="the broker has nothing to read there",
            )
        await asyncio.sleep(pause_s)
    return bounds.latest


async def _behind_the_gap(cursor: Cursor, step: Step) -> int:
    """Return where the records begin in a step that passed over entries without data.

    The answer to a fetch does not say where the gap is. If it is at the beginning, as it is after retention,
    the records fill the end of the step: then reading from there on returns the same record first. Otherwise
    there are records between gaps, which must not be passed over, and the step's own start is returned.
    """
    candidate = step.next - INDEX_ENTRY_BYTES * step.fetched.count
    await cursor.seek(candidate)
    await cursor.receive(cursor.start_fetch())
    again = await cursor.confirm()
    return candidate if again.start == candidate and _first(again) == _first(step) else step.start


def _first(step: Step) -> tuple[int, bytes] | None:
    """Return what identifies the first record of a step; None for a damaged one."""
    columns = step.fetched.columns
    if not len(columns) or columns.ordinals[0] != 0:
        return None
    return columns.identity(0)
