"""The entry to TubeMQ for coroutines: reads in their loop, and threads for what cannot but block."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Final, Self

from tubemq_spark.client.aio.admin import AsyncMasterAdmin
from tubemq_spark.client.aio.consumer import AsyncAssignedConsumer, AsyncGroupConsumer
from tubemq_spark.client.aio.producer import AsyncProducer
from tubemq_spark.client.aio.reading import Items, Reading
from tubemq_spark.client.consumer.assigned.core import AssignedCoreBase
from tubemq_spark.client.consumer.core import ConsumerCore
from tubemq_spark.client.consumer.user_code import UserCode, UserLoop
from tubemq_spark.client.producer.pipeline import Pipeline, RunUserCode
from tubemq_spark.client.reader.range_reader import require_sound
from tubemq_spark.client.reader.records import Record, records_of
from tubemq_spark.client.subscription import require_topic_names
from tubemq_spark.client.transport.client_base import ClientBase
from tubemq_spark.client.tubemq import TubeMQClient
from tubemq_spark.client.urls import UrlSettings
from tubemq_spark.errors import TubeMQConnectionError
from tubemq_spark.model import OffsetRange, RangeRequest, StoreBounds, TopicPartition, TopicsLayout
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.loop import in_thread
from tubemq_spark.offsets.loss import LossPolicy, LossRecord, fail_on_loss

_THREAD: Final = "tubemq-aio"


class AsyncTubeMQClient(ClientBase[AsyncProducer, AsyncGroupConsumer, AsyncAssignedConsumer]):
    """A client of one cluster for the coroutines of an event loop.

    Making one reaches no server. As a context manager it closes its producers, its consumers and its
    connections at the end.
    """

    def __init__(self, client: TubeMQClient) -> None:
        """Take over a client, with its settings; ``connect`` and ``from_url`` make one."""
        self._client = client
        self._connections = Connections()
        super().__init__(client.settings, client.transport.with_connections(self._connections))
        self._closed = False

    @classmethod
    def of_settings(cls, settings: UrlSettings) -> Self:
        """Return a client with these settings; not for users."""
        return cls(TubeMQClient.of_settings(settings))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close producers, consumers, readings and connections; what a producer has not sent is abandoned.

        Doing it twice is harmless. What needs a thread is refused after that. All is closed also when
        something cannot be: the first such error is raised.
        """
        if self._closed:
            return
        self._closed = True
        closing = [user.close() for user in list(self._open)]
        try:
            outcomes = await asyncio.gather(*closing, return_exceptions=True)
        finally:
            await self._connections.close()
            await in_thread(self._client.close, _THREAD)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def publishable(self, topic: str) -> tuple[TopicPartition, ...]:
        """Return the partitions to which a topic can be published now; as ``TubeMQClient.publishable``.

        Raises:
            ProduceError: the topic does not exist, or its name cannot be one.
            RpcError: the master refuses this client.
            TubeMQConnectionError: no master answered.
        """
        self._check_open()
        return await self.transport.publishable(topic)

    async def layout(self, *topics: str) -> TopicsLayout:
        """Return where the partitions of topics are.

        Raises:
            RpcError: a topic does not exist (431), or the group may not read it (450, 455).
            TubeMQConnectionError: no master answered.
        """
        self._check_open()
        require_topic_names(topics)
        return await self.transport.layout(topics)

    async def bounds(self, layout: TopicsLayout) -> StoreBounds:
        """Return where the stores of a layout begin and end now; brokers that are away are part of it."""
        self._check_open()
        return await self.transport.bounds(layout)

    def read(self, *topics: str, on_loss: LossPolicy = fail_on_loss) -> AsyncGenerator[Record, None]:
        """Yield all records that topics hold now, one partition after the other and each in its order.

        One batch is read ahead. To stop early, leave it inside
        ``async with contextlib.aclosing(client.read(...)) as records``: then leases are given back at once.

        Args:
            topics: the topics' names.
            on_loss: what to do about records that are gone or damaged; by default it is an error. It is
                called in the event loop.

        Raises:
            TubeMQError: as ``TubeMQClient.read``.
        """
        require_topic_names(topics)
        return self._reading(self._topic_items(topics), on_loss)

    def read_range(
        self, layout: TopicsLayout, offsets: OffsetRange, *, on_loss: LossPolicy = fail_on_loss
    ) -> AsyncGenerator[Record, None]:
        """Yield the records of one partition between two offsets, in index bytes; otherwise as ``read``.

        Raises:
            TubeMQError: as ``TubeMQClient.read_range``.
        """
        return self._reading(self._range_items(self._request(layout, offsets)), on_loss)

    def admin(self, web_address: str, *, token: str | None = None) -> AsyncMasterAdmin:
        """Return the administration of a cluster, whose calls are awaited; see ``MasterAdmin``.

        Raises:
            OptionError: the address is not one.
        """
        return AsyncMasterAdmin(self._client.admin(web_address, token=token), self._check_open)

    def _new_user_code(self) -> UserCode:
        return UserLoop()

    def _new_producer(self, make: Callable[[RunUserCode], Pipeline]) -> AsyncProducer:
        return AsyncProducer(make)

    def _new_group_consumer(self, core: ConsumerCore) -> AsyncGroupConsumer:
        return AsyncGroupConsumer(core, self._check_open)

    def _new_assigned_consumer(self, core: AssignedCoreBase) -> AsyncAssignedConsumer:
        return AsyncAssignedConsumer(core, self._check_open)

    def _check_open(self) -> None:
        if self._closed:
            raise TubeMQConnectionError("TUBEMQ_CLIENT_CLOSED")

    def _reading(self, items: Items, on_loss: LossPolicy) -> AsyncGenerator[Record, None]:
        reading = Reading(items, on_loss, closed=self._closed)
        self._open.add(reading)
        return reading.records()

    async def _topic_items(self, topics: Iterable[str]) -> Items:
        """Yield all records that topics hold now, one partition after the other and each in its order."""
        layout = await self.layout(*topics)
        bounds = (await self.bounds(layout)).complete()
        for partition in layout.partitions:
            request = self._request(layout, OffsetRange(partition, *bounds[partition.store_id]))
            async with contextlib.aclosing(self._range_items(request)) as items:
                async for item in items:
                    yield item

    async def _range_items(self, request: RangeRequest) -> Items:
        require_sound(request.range)
        async with contextlib.aclosing(self.transport.read_range(request)) as batches:
            async for batch in batches:
                if isinstance(batch, LossRecord):
                    yield batch
                else:
                    yield records_of(batch, exact_offsets=request.own_store)
