"""Registering a partition at its broker for the first time."""

import asyncio
import contextlib

from tubemq_spark.client.broker.session import Position
from tubemq_spark.client.consumer.life import Life
from tubemq_spark.client.consumer.partition import ConsumerPartition
from tubemq_spark.client.consumer.state import ConsumerState, is_taken
from tubemq_spark.errors import TubeMQError
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.retry import REGISTER_MS
from tubemq_spark.protocol.constants import ReadStatus


async def register(
    state: ConsumerState,
    partition: ConsumerPartition,
    offset: int | None,
    read_status: ReadStatus,
    *,
    on_hold: bool = False,
) -> Position:
    """Register a new partition at its broker, and add it to what the consumer holds.

    After an error or a cancellation the broker is told, which may have carried the request out.
    """
    async with partition.lock:
        try:
            position = await _connect(state, partition, offset, read_status)
            state.add(partition, position, on_hold=on_hold)
        except BaseException:
            await state.release(partition)
            raise
    return position


async def _connect(
    state: ConsumerState, partition: ConsumerPartition, offset: int | None, read_status: ReadStatus
) -> Position:
    """Register a partition, with a second attempt after an error that may pass."""
    deadline = Deadline.after_ms(state.config.rpc_timeout_ms, asyncio.get_running_loop().time)
    try:
        return await partition.connect(offset, read_status)
    except TubeMQError as error:
        if not error.retriable or is_taken(error) or deadline.expired:
            raise
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(min(REGISTER_MS / 1000, deadline.remaining())):
            await state.changes.until(lambda: state.life is not Life.OPEN)
    state.check_open()
    return await partition.connect(offset, read_status)
