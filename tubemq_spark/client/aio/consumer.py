"""Consumers for coroutines. Each is another form of a consumer for threads.

The consumer inside keeps the session with the masters, the leases and the partitions, in the background.
Here its partitions are fetched, and its batches are confirmed, by the same engine
(``client/consumer/turns.py``), which is at home in the event loop here.
"""

import asyncio
import datetime
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Generic, Self, TypeVar

from tubemq_spark.client.aio.home import Changes, HomeLoop
from tubemq_spark.client.aio.turns import FetchingCoroutines
from tubemq_spark.client.aio.workers import Workers
from tubemq_spark.client.consumer.assigned.consumer import AssignedConsumer
from tubemq_spark.client.consumer.consumer import Consumer, ConsumerBase
from tubemq_spark.client.consumer.group.consumer import GroupConsumer
from tubemq_spark.client.consumer.state import ConsumerState, Life
from tubemq_spark.client.consumer.turns import Turns
from tubemq_spark.client.consumer.values import (
    Batch,
    Confirmed,
    ConsumedPosition,
    PartitionStatus,
)
from tubemq_spark.client.consumer_config import WITHOUT_LIMIT
from tubemq_spark.client.reader.records import Record
from tubemq_spark.client.subscription import Node
from tubemq_spark.errors import ConsumeError, TubeMQError
from tubemq_spark.model import TopicPartition
from tubemq_spark.offsets.offset_spec import Edge
from tubemq_spark.offsets.units import require_aligned
from tubemq_spark.protocol.errcodes import ErrCode

Inner = TypeVar("Inner", bound=Consumer)


class AsyncConsumer(ConsumerBase, Generic[Inner]):
    """A consumer of either kind; any number of coroutines of one event loop may use it."""

    def __init__(self, inner: Inner, workers: Workers, home: HomeLoop) -> None:
        """Take over a consumer that is not open; ``AsyncTubeMQClient`` makes consumers."""
        self._inner = inner
        self._state = state = inner.fetching.state
        self._workers = workers
        self._home = home
        self._coroutines = FetchingCoroutines(home, inner.fetching)
        turns = self._coroutines.turns
        self._changes = changes = Changes(home)
        # Not a method: the state is held by threads, and must not hold a consumer that its user has dropped.
        state.changed.listener = lambda: _tell_coroutines(state, turns, changes)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Batch]:
        """Yield batches as they come, until the consumer is closed; each is to be confirmed."""
        self._enter()
        while True:
            try:
                batch = await self.fetch()
            except ConsumeError as error:
                if error.code == ErrCode.CLIENT_SHUTDOWN:
                    return
                raise
            if batch is not None:
                yield batch

    # Life.

    async def open(self) -> Self:
        """Register at the master, and begin to keep what is held; when it is cancelled, the consumer closes.

        Raises:
            TubeMQError: as ``Consumer.open``.
        """
        self.check_process()
        self._home.enter()
        try:
            await self._workers.run(self._inner.open)
        except asyncio.CancelledError:
            self._workers.start(self._inner.close)
            raise
        return self

    async def close(self, timeout: float | None = None) -> bool:
        """Give everything up and leave the master; batches that are not confirmed count as ``rollback`` says.

        Coroutines that fetch get the error that the consumer is closed. Errors of servers are only logged. In
        a forked child it does nothing. When it is cancelled, closing goes on.

        Args:
            timeout: how many seconds to wait for servers at most; as ``Consumer.close``.

        Returns:
            Whether the consumer has closed.
        """
        if self.inherited or self._workers.closed:
            return True
        self._home.enter()
        return await self._workers.run(functools.partial(self._inner.close, timeout))

    # Partitions.

    async def wait_until_ready(self, timeout_ms: int) -> bool:
        """Wait until at least one partition is held, -1: for as long as that takes; return whether one is.

        Raises:
            ConsumeError: the consumer is not open.
        """
        self._enter()
        state = self._state

        def is_ready() -> bool:
            state.check_running()
            return bool(state.connected)

        try:
            async with asyncio.timeout(None if timeout_ms == WITHOUT_LIMIT else timeout_ms / 1000):
                await self._changes.until(is_ready)
        except TimeoutError:
            return False
        return True

    # Where it reads.

    async def seek(self, partition: TopicPartition, offset: int) -> ConsumedPosition:
        """Go on elsewhere in a partition that is held; as ``Consumer.seek``, also when it is cancelled.

        Raises:
            TubeMQError: as ``Consumer.seek``.
        """
        self._enter()
        require_aligned(offset, str(partition))
        return await self._coroutines.seek(partition, offset)

    async def seek_to_beginning(
        self, partitions: TopicPartition | Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, ConsumedPosition]:
        """Go on with the first messages that are kept; as ``Consumer.seek_to_beginning``.

        Raises:
            TubeMQError: as ``Consumer.seek_to_beginning``.
        """
        return await self._seek_all(dict.fromkeys(self.committed(partitions), Edge.EARLIEST))

    async def seek_to_end(
        self, partitions: TopicPartition | Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, ConsumedPosition]:
        """Go on behind the last messages; as ``Consumer.seek_to_end``.

        Raises:
            TubeMQError: as ``Consumer.seek_to_end``.
        """
        return await self._seek_all(dict.fromkeys(self.committed(partitions), Edge.LATEST))

    async def seek_to_time(
        self,
        time: datetime.datetime | int,
        partitions: TopicPartition | Iterable[TopicPartition] | None = None,
    ) -> dict[TopicPartition, ConsumedPosition]:
        """Go on with the messages of a time and later; as ``Consumer.seek_to_time``.

        Raises:
            TubeMQError: as ``Consumer.seek_to_time``.
        """
        self._enter()
        find = functools.partial(self._inner.offsets_of_time, time, partitions)
        return await self._seek_all(await self._workers.run(find))

    async def lag(
        self, partitions: TopicPartition | Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, int | None]:
        """Return how many messages follow the group's position in partitions; as ``Consumer.lag``.

        Raises:
            TubeMQError: as ``Consumer.lag``.
        """
        self._enter()
        return await self._workers.run(functools.partial(self._inner.lag, partitions))

    async def _seek_all(
        self, targets: Mapping[TopicPartition, int | Edge]
    ) -> dict[TopicPartition, ConsumedPosition]:
        self._enter()
        return {
            partition: await self._coroutines.seek(partition, target) for partition, target in targets.items()
        }

    # Messages.

    async def fetch(self, timeout_ms: int | None = None) -> Batch | None:
        """Return messages of the partition that has waited longest; None when there were none in time.

        Cancelling it loses nothing: what was being fetched for it goes to the next ``fetch``. So does what
        comes too late for ``timeout_ms``, which is kept in any case.

        Args:
            timeout_ms: how long to wait; 0: take only what has come already, while partitions are asked for
                more, -1: until there is something. By default ``ready_wait_ms``.

        Raises:
            TubeMQError: as ``Consumer.fetch``.
        """
        self._enter()
        self._state.check_fetch()
        if timeout_ms is None:
            timeout_ms = self.config.consumer.ready_wait_ms
        return await self._coroutines.fetch(None if timeout_ms == WITHOUT_LIMIT else timeout_ms / 1000)

    async def confirm(self, batch: Batch | str, *, consumed: bool = True) -> Confirmed:
        """Confirm a batch: the group's position moves behind it. Or roll it back, so that it comes again.

        Cancelling it only ends the wait: the broker is told all the same.

        Raises:
            TubeMQError: as ``Consumer.confirm``.
        """
        self._enter()
        context = batch.context if isinstance(batch, Batch) else batch
        return await self._coroutines.confirm(context, consumed=consumed)

    async def messages(self) -> AsyncIterator[Record]:
        """Yield messages one by one, until the consumer is closed.

        A batch is confirmed when the message behind its last one is asked for. All of it comes again
        after a stop or an exception in the middle of a batch: at once if the iterator is closed, as
        ``contextlib.aclosing`` does, and otherwise when Python finds that it is not used any more.

        It comes again, too, when it could not be confirmed, which is logged.

        Raises:
            TubeMQError: as ``fetch``.
            DataLossError: as ``confirm``.
        """
        async for batch in self:
            consumed = False
            try:
                for record in batch:
                    yield record
                consumed = True
            finally:
                await self._end(batch, consumed=consumed)

    async def run(self, handle: Callable[[Batch], Awaitable[object]]) -> None:
        """Call a coroutine function with each batch, until the consumer is closed, for example by it.

        The batch is confirmed when the coroutine returns, and rolled back when it raises or is cancelled; the
        exception is passed on. A batch that could not be confirmed comes again, as with ``Consumer.run``.
        Several coroutines may run at once: a partition's batches still come one after the other.

        Raises:
            TubeMQError: as ``fetch``.
            DataLossError: as ``confirm``.
        """
        async for batch in self:
            consumed = False
            try:
                await handle(batch)
                consumed = True
            finally:
                await self._end(batch, consumed=consumed)

    # Inside.

    async def _end(self, batch: Batch, *, consumed: bool) -> None:
        """Confirm a batch or roll it back for a loop, which goes on when that fails."""
        if self.closed:
            return
        try:
            await self.confirm(batch, consumed=consumed)
        except TubeMQError as error:
            self._pass_over(batch, error, consumed=consumed)

    def _enter(self) -> None:
        self.check_open()
        self._home.enter()


class AsyncGroupConsumer(AsyncConsumer[GroupConsumer]):
    """Reads the partitions that the master gives it; coroutines of one event loop may share it.

    It differs from ``GroupConsumer`` only in what is awaited. As a context manager it opens and closes
    itself.
    """


class AsyncAssignedConsumer(AsyncConsumer[AssignedConsumer]):
    """Reads the partitions that its user connects it to; coroutines of one event loop may share it.

    It differs from ``AssignedConsumer`` only in what is awaited. As a context manager it opens and closes
    itself. ``connect`` and ``disconnect`` are carried out also when they are cancelled.
    """

    @property
    def node(self) -> Node | None:
        """Which of how many consumers of the group this one is, if that was given."""
        return self._inner.node

    @property
    def registered_at(self) -> float | None:
        """When a master last accepted this consumer, in seconds since 1970; None: not yet."""
        return self._inner.registered_at

    async def partitions(self) -> dict[TopicPartition, bool]:
        """Return all partitions of the topics, each with whether it can be read now.

        Raises:
            TubeMQError: as ``AssignedConsumer.partitions``.
        """
        self._enter()
        return await self._workers.run(self._inner.partitions)

    async def share(self) -> tuple[TopicPartition, ...]:
        """Return the partitions that belong to this consumer's node and can be read now; without a node, all.

        Raises:
            TubeMQError: as ``partitions``.
        """
        self._enter()
        return await self._workers.run(self._inner.share)

    async def connect(self, partition: TopicPartition, offset: int | None = None) -> ConsumedPosition:
        """Take a partition, at an offset or where the group stands; as ``AssignedConsumer.connect``.

        Raises:
            TubeMQError: as ``AssignedConsumer.connect``.
        """
        self._enter()
        return await self._workers.run(functools.partial(self._inner.connect, partition, offset))

    async def disconnect(self, partition: TopicPartition) -> bool:
        """Give a partition up, when its batch was confirmed or ``rebalance_wait_ms`` have passed.

        Returns:
            Whether it was connected.

        Raises:
            ConsumeError: the consumer is not open.
        """
        self._enter()
        return await self._workers.run(functools.partial(self._inner.disconnect, partition))

    def status(self) -> dict[TopicPartition, PartitionStatus]:
        """Return what is known about each partition; asks no server."""
        return self._inner.status()


def consumer_home(group: str) -> HomeLoop:
    """Return what will know the event loop of a consumer of a group; it must not hold the consumer."""
    return HomeLoop(lambda: ConsumeError("TUBEMQ_CONSUMER_LOOP", code=int(ErrCode.BAD_REQUEST), group=group))


def _tell_coroutines(state: ConsumerState, turns: Turns, changes: Changes) -> None:
    """Make coroutines see what a thread has changed.

    A consumer that its user forgot to close is closed when the process ends. If its event loop has ended
    before, nothing carries on with the rules that still hold partitions.
    """
    if state.life is Life.CLOSED:
        turns.abandon_orphans()
    turns.wake()
    changes.note()
