"""Consumers for coroutines: the cores of consumers, in the event loop of their user."""

import datetime
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Self

from tubemq_spark.client.consumer.assigned.consumer import AssignedConsumerBase
from tubemq_spark.client.consumer.consumer import ConsumerBase
from tubemq_spark.client.consumer.core import ConsumerCore
from tubemq_spark.client.consumer.values import (
    Batch,
    Confirmed,
    ConsumedPosition,
    Part,
    checked_limit,
)
from tubemq_spark.client.names.guesses import answers_guesses
from tubemq_spark.client.reader.records import Record
from tubemq_spark.client.registry import process_registry
from tubemq_spark.errors import ConsumeError, TubeMQError
from tubemq_spark.model import TopicPartition
from tubemq_spark.offsets.offset_spec import Edge
from tubemq_spark.protocol.errcodes import ErrCode


@answers_guesses
class AsyncConsumer(ConsumerBase):
    """A consumer of either kind; any number of coroutines of one event loop may use it."""

    def __init__(self, core: ConsumerCore, check_client: Callable[[], None]) -> None:
        """Take over a core that is not open; ``AsyncTubeMQClient`` makes consumers.

        Args:
            core: what does the work.
            check_client: raises if the client is closed.
        """
        super().__init__(core)
        self._check_client = check_client

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
        """Register at the master, and begin to keep what is held; when it is cancelled, nothing is left.

        Raises:
            TubeMQError: as ``Consumer.open``.
        """
        self._core.check_process()
        self._check_client()
        core = self._core
        await core.open()
        self._close_when_forgotten()
        process_registry().enter(self, self._kind)  # its loop has ended when the process does
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
        if self._core.inherited:
            return True
        if self._finalizer is not None:
            self._finalizer.detach()
        process_registry().leave(self)
        return await self._core.close(timeout)

    # Partitions.

    async def wait_until_ready(self, timeout_ms: int) -> bool:
        """Wait until at least one partition is held, -1: for as long as that takes; return whether one is.

        Raises:
            ConsumeError: the consumer is not open.
        """
        self._enter()
        return await self._core.wait_until_ready(timeout_ms)

    # Where it reads.

    async def seek(self, partition: TopicPartition, offset: int) -> ConsumedPosition:
        """Go on elsewhere in a partition that is held; as ``Consumer.seek``, also when it is cancelled.

        Raises:
            TubeMQError: as ``Consumer.seek``.
        """
        self._enter()
        return await self._core.seek(partition, offset)

    async def seek_to_beginning(
        self, partitions: TopicPartition | Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, ConsumedPosition]:
        """Go on with the first messages that are kept; as ``Consumer.seek_to_beginning``.

        Raises:
            TubeMQError: as ``Consumer.seek_to_beginning``.
        """
        self._enter()
        return await self._core.seek_to_edge(Edge.EARLIEST, partitions)

    async def seek_to_end(
        self, partitions: TopicPartition | Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, ConsumedPosition]:
        """Go on behind the last messages; as ``Consumer.seek_to_end``.

        Raises:
            TubeMQError: as ``Consumer.seek_to_end``.
        """
        self._enter()
        return await self._core.seek_to_edge(Edge.LATEST, partitions)

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
        return await self._core.seek_to_time(time, partitions)

    async def lag(
        self, partitions: TopicPartition | Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, int | None]:
        """Return how many messages follow the group's position in partitions; as ``Consumer.lag``.

        Raises:
            TubeMQError: as ``Consumer.lag``.
        """
        self._enter()
        return await self._core.lag(partitions)

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
        return await self._core.fetch(timeout_ms)

    async def confirm(self, batch: Batch | str, *, consumed: bool = True) -> Confirmed:
        """Confirm a batch: the group's position moves behind it. Or roll it back, so that it comes again.

        Cancelling it only ends the wait: the broker is told all the same.

        Raises:
            TubeMQError: as ``Consumer.confirm``.
        """
        self._enter()
        context = batch.context if isinstance(batch, Batch) else batch
        return await self._core.confirm(context, consumed=consumed)

    def messages(self, limit: int | None = None) -> AsyncIterator[Record]:
        """Yield messages one by one, until the consumer is stopped or closed, or there were so many.

        A batch is confirmed when the message behind its last one is asked for, so also when the loop ends by
        itself. All of it comes again after a ``break`` or an exception in the middle of a batch: at once if
        the iterator is closed, as ``contextlib.aclosing`` does, and otherwise when Python finds that it is
        not used any more.

        It comes again, too, when it could not be confirmed, which is logged.

        Args:
            limit: after how many messages to end; as ``Consumer.messages``.

        Raises:
            OptionError: the limit is not a whole number from 1 on.
            TubeMQError: as ``fetch``.
            DataLossError: as ``confirm``.
        """
        return self._messages(checked_limit(limit))

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
                await self._end(Part.of(batch), consumed=consumed)

    # Inside.

    async def _messages(self, limit: int | None) -> AsyncIterator[Record]:
        batches, left = aiter(self), limit
        while left != 0:
            part = self._unfinished_part()
            if part is None:
                batch = await anext(batches, None)
                if batch is None:
                    return
                part = Part.of(batch)
            part = part.of_at_most(left)
            left = None if left is None else left - len(part)
            consumed = False
            try:
                for record in part.records:
                    yield record
                consumed = True
            finally:
                await self._end(part, consumed=consumed)

    async def _end(self, part: Part, *, consumed: bool) -> None:
        """Confirm a batch, or roll it back, for a loop, which goes on when that fails.

        Of a part of a batch the rest is kept for the next loop, unless offsets are known.
        """
        if self.closed:
            return
        try:
            if not consumed or not part.rest:
                await self.confirm(part.batch, consumed=consumed)
            elif part.end_offset is None:
                self._unfinished.append(part.following())
            else:
                await self.seek(part.batch.partition, part.end_offset)
        except TubeMQError as error:
            self._pass_over(part.batch, error, consumed=consumed)

    def _enter(self) -> None:
        self._core.check_process()
        self._core.enter()
        self._core.state.check_open()


class AsyncGroupConsumer(AsyncConsumer):
    """Reads the partitions that the master gives it; coroutines of one event loop may share it.

    It differs from ``GroupConsumer`` only in what is awaited. As a context manager it opens and closes
    itself.

        async with client.group_consumer("clicks") as consumer:
            while (batch := await consumer.fetch(timeout_ms=1000)) is not None:
                await consumer.confirm(batch)
    """

    _kind = "group consumer"


@answers_guesses
class AsyncAssignedConsumer(AssignedConsumerBase, AsyncConsumer):
    """Reads the partitions that its user connects it to; coroutines of one event loop may share it.

    It differs from ``AssignedConsumer`` only in what is awaited. As a context manager it opens and closes
    itself. ``connect`` and ``disconnect`` are carried out also when they are cancelled.

        async with client.assigned_consumer("clicks") as consumer:
            for partition in await consumer.share():
                await consumer.connect(partition)
    """

    async def partitions(self) -> dict[TopicPartition, bool]:
        """Return all partitions of the topics, each with whether it can be read now.

        Raises:
            TubeMQError: as ``AssignedConsumer.partitions``.
        """
        self._enter()
        return await self._core.partitions()

    async def share(self) -> tuple[TopicPartition, ...]:
        """Return the partitions that belong to this consumer's node and can be read now; without a node, all.

        Raises:
            TubeMQError: as ``partitions``.
        """
        self._enter()
        return await self._core.share()

    async def connect(self, partition: TopicPartition, offset: int | None = None) -> ConsumedPosition:
        """Take a partition, at an offset or where the group stands; as ``AssignedConsumer.connect``.

        Raises:
            TubeMQError: as ``AssignedConsumer.connect``.
        """
        self._enter()
        core = self._core
        return await core.carry_out(core.connect(partition, offset), f"connecting {partition}")

    async def disconnect(self, partition: TopicPartition) -> bool:
        """Give a partition up, when its batch was confirmed or ``rebalance_wait_ms`` have passed.

        Returns:
            Whether it was connected.

        Raises:
            ConsumeError: the consumer is not open.
        """
        self._enter()
        return await self._core.disconnect(partition)
