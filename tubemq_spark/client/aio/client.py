"""The entry to TubeMQ for coroutines: reads in their loop, and threads for what cannot but block."""

import asyncio
import contextlib
import weakref
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Final, Self

from tubemq_spark.client.aio.admin import AsyncMasterAdmin
from tubemq_spark.client.aio.consumer import AsyncAssignedConsumer, AsyncGroupConsumer
from tubemq_spark.client.aio.producer import AsyncProducer
from tubemq_spark.client.aio.reading import Items, Reading
from tubemq_spark.client.config import DEFAULT_DELIVERY_TIMEOUT_MS, DEFAULT_GROUP, usual_web_servers
from tubemq_spark.client.consumer.callbacks import OnChange
from tubemq_spark.client.consumer.user_code import UserLoop
from tubemq_spark.client.consumer_config import ConsumerConfig
from tubemq_spark.client.metadata.bounds import store_bounds
from tubemq_spark.client.metadata.layout import topics_layout
from tubemq_spark.client.metadata.topics import publishable
from tubemq_spark.client.partitioners import BuiltInPartitioner, CustomPartitioner
from tubemq_spark.client.reader.range_reader import read_range, require_sound
from tubemq_spark.client.reader.records import Record, records_of
from tubemq_spark.client.subscription import BoundStart, require_topic_names
from tubemq_spark.client.tubemq import TubeMQClient
from tubemq_spark.errors import TubeMQConnectionError
from tubemq_spark.model import OffsetRange, RangeRequest, StoreBounds, TopicPartition, TopicsLayout
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.loop import in_thread
from tubemq_spark.net.tls import TlsConfig
from tubemq_spark.offsets.loss import LossPolicy, LossRecord, fail_on_loss

_THREAD: Final = "tubemq-aio"


class AsyncTubeMQClient:
    """A client of one cluster for the coroutines of an event loop.

    Making one reaches no server. As a context manager it closes its producers, its consumers and its
    connections at the end.
    """

    def __init__(self, client: TubeMQClient) -> None:
        """Take over a client, with its settings; ``connect`` and ``from_url`` make one."""
        self._client = client
        self._connections = Connections()
        self._closed = False
        self._open: weakref.WeakSet[AsyncProducer | AsyncGroupConsumer | AsyncAssignedConsumer | Reading] = (
            weakref.WeakSet()
        )

    @classmethod
    def connect(
        cls,
        masters: str | Iterable[str],
        *,
        group: str = DEFAULT_GROUP,
        username: str | None = None,
        password: str | None = None,
        tls: TlsConfig | None = None,
        delivery_timeout_ms: int = DEFAULT_DELIVERY_TIMEOUT_MS,
    ) -> Self:
        """Return a client of a cluster; the arguments are those of ``TubeMQClient.connect``.

        Raises:
            OptionError: an address, a setting or a file of ``tls`` cannot be used.
        """
        client = TubeMQClient.connect(
            masters,
            group=group,
            username=username,
            password=password,
            tls=tls,
            delivery_timeout_ms=delivery_timeout_ms,
        )
        return cls(client)

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Return a client of a cluster with the settings in a URL, as ``TubeMQClient.from_url``.

        Raises:
            OptionError: the URL cannot be read, a key is not known or given twice, or a setting makes no
                sense.
        """
        return cls(TubeMQClient.from_url(url))

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

    def producer(
        self,
        name: str = "",
        *,
        linger_ms: int | None = None,
        delivery_timeout_ms: int | None = None,
        retry_ambiguous: bool | None = None,
        keep_order: bool | None = None,
        partitioner: str | BuiltInPartitioner | CustomPartitioner | None = None,
        stamp_message_time: bool | None = None,
        message_time_zone: str | None = None,
    ) -> AsyncProducer:
        """Return a new producer; the arguments are those of ``TubeMQClient.producer``.

        Raises:
            OptionError: a setting cannot be used.
        """
        config = self._client.changed_config(
            linger_ms=linger_ms,
            delivery_timeout_ms=delivery_timeout_ms,
            retry_ambiguous=retry_ambiguous,
            keep_order=keep_order,
            partitioner=partitioner,
            stamp_message_time=stamp_message_time,
            message_time_zone=message_time_zone,
        )
        connections = self._connections
        producer = AsyncProducer(
            lambda run_user_code: self._client.producer_pipeline(config, name, connections, run_user_code)
        )
        self._open.add(producer)
        return producer

    def group_consumer(
        self,
        topics: str | Iterable[str] | None = None,
        *,
        message_types: Mapping[str, Iterable[str]] | None = None,
        start: BoundStart | None = None,
        on_loss: LossPolicy = fail_on_loss,
        on_assigned: OnChange | None = None,
        on_revoked: OnChange | None = None,
        settings: ConsumerConfig | None = None,
    ) -> AsyncGroupConsumer:
        """Return a new member of the client's group; open and close it with an ``async with`` block.

        The arguments are those of ``TubeMQClient.group_consumer``. ``on_loss``, ``on_assigned`` and
        ``on_revoked`` are called in the event loop, and they may be coroutine functions.

        Raises:
            OptionError: a topic, a filter, a number or a setting cannot be used.
            OffsetFormatError: an offset of ``start`` is not one.
        """
        core = self._client.group_core(
            self._connections,
            UserLoop(),
            topics,
            message_types=message_types,
            start=start,
            on_loss=on_loss,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            settings=settings,
        )
        consumer = AsyncGroupConsumer(core, self._check_open)
        self._open.add(consumer)
        return consumer

    def assigned_consumer(
        self,
        topics: str | Iterable[str] | None = None,
        *,
        message_types: Mapping[str, Iterable[str]] | None = None,
        source_count: int | None = None,
        node_id: int | None = None,
        on_loss: LossPolicy = fail_on_loss,
        follow_resets: bool = False,
        settings: ConsumerConfig | None = None,
    ) -> AsyncAssignedConsumer:
        """Return a new consumer of partitions that you name; open and close it with an ``async with`` block.

        The arguments are those of ``TubeMQClient.assigned_consumer``. ``on_loss`` is called in the event
        loop, and it may be a coroutine function.

        Raises:
            OptionError: a topic, a filter, a number or a setting cannot be used.
        """
        core = self._client.assigned_core(
            self._connections,
            UserLoop(),
            topics,
            message_types=message_types,
            source_count=source_count,
            node_id=node_id,
            on_loss=on_loss,
            follow_resets=follow_resets,
            settings=settings,
        )
        consumer = AsyncAssignedConsumer(core, self._check_open)
        self._open.add(consumer)
        return consumer

    async def publishable(self, topic: str) -> tuple[TopicPartition, ...]:
        """Return the partitions to which a topic can be published now; as ``TubeMQClient.publishable``.

        Raises:
            ProduceError: the topic does not exist, or its name cannot be one.
            RpcError: the master refuses this client.
            TubeMQConnectionError: no master answered.
        """
        self._check_open()
        if (remote := self._client.remote) is not None:
            return await remote.queries.publishable(topic)
        return await publishable(self._client.config, self._connections, topic)

    async def layout(self, *topics: str) -> TopicsLayout:
        """Return where the partitions of topics are.

        Raises:
            RpcError: a topic does not exist (431), or the group may not read it (450, 455).
            TubeMQConnectionError: no master answered.
        """
        self._check_open()
        require_topic_names(topics)
        if (remote := self._client.remote) is not None:
            return await remote.queries.layout(topics)
        config = self._client.config
        return await topics_layout(
            config, self._connections, topics, web=lambda: usual_web_servers(config.masters)
        )

    async def bounds(self, layout: TopicsLayout) -> StoreBounds:
        """Return where the stores of a layout begin and end now; brokers that are away are part of it."""
        self._check_open()
        if (remote := self._client.remote) is not None:
            return await remote.queries.bounds(layout.stores)
        return await store_bounds(self._client.config, self._connections, layout.stores, layout.visit_token)

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
        return self._reading(self._range_items(self._client.request(layout, offsets)), on_loss)

    def admin(self, web_address: str, *, token: str | None = None) -> AsyncMasterAdmin:
        """Return the administration of a cluster, whose calls are awaited; see ``MasterAdmin``.

        Raises:
            OptionError: the address is not one.
        """
        return AsyncMasterAdmin(self._client.admin(web_address, token=token), self._check_open)

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
            request = self._client.request(layout, OffsetRange(partition, *bounds[partition.store_id]))
            async with contextlib.aclosing(self._range_items(request)) as items:
                async for item in items:
                    yield item

    async def _range_items(self, request: RangeRequest) -> Items:
        require_sound(request.range)
        remote = self._client.remote
        batches = (
            read_range(self._client.config, self._connections, request)
            if remote is None
            else remote.range_items(request)
        )
        async with contextlib.aclosing(batches):
            async for batch in batches:
                if isinstance(batch, LossRecord):
                    yield batch
                else:
                    yield records_of(batch, exact_offsets=request.own_store)
