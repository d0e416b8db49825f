"""The entry to TubeMQ for coroutines: reads in their loop, and threads for what cannot but block."""

import asyncio
import datetime
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Final, Self

from tubemq_spark.client.aio.admin import AsyncMasterAdmin
from tubemq_spark.client.aio.consumer import AsyncAssignedConsumer, AsyncGroupConsumer
from tubemq_spark.client.aio.producer import AsyncProducer
from tubemq_spark.client.aio.reading import Reading
from tubemq_spark.client.consumer.assigned.core import AssignedCoreBase
from tubemq_spark.client.consumer.core import ConsumerCore
from tubemq_spark.client.consumer.user_code import UserCode, UserLoop
from tubemq_spark.client.names.guesses import answers_guesses, wrong_constructor
from tubemq_spark.client.producer.pipeline import Pipeline, RunUserCode
from tubemq_spark.client.reader.records import Record
from tubemq_spark.client.reader.selection import EndPlace, PartitionName, Selection, StartPlace
from tubemq_spark.client.reader.topic_reader import Items, range_request, read_records, read_topics
from tubemq_spark.client.subscription import names_of, require_topic_names
from tubemq_spark.client.transport.client_base import ClientBase, parts_of
from tubemq_spark.client.tubemq import TubeMQClient, client_of
from tubemq_spark.client.urls import UrlSettings
from tubemq_spark.errors import TubeMQConnectionError
from tubemq_spark.model import OffsetBounds, OffsetRange, StoreBounds, TopicPartition, TopicsLayout
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.loop import in_thread
from tubemq_spark.offsets.loss import LossPolicy, fail_on_loss

_THREAD: Final = "tubemq-aio"


@answers_guesses
class AsyncTubeMQClient(ClientBase[AsyncProducer, AsyncGroupConsumer, AsyncAssignedConsumer]):
    """A client of one cluster for the coroutines of an event loop.

    Making one reaches no server. As a context manager it closes its producers, its consumers and its
    connections at the end.

        async with AsyncTubeMQClient.connect("10.1.2.3:8715", group="etl") as client:
            async with client.producer() as producer:
                await producer.send("clicks", b"home")
            async with client.group_consumer("clicks") as consumer:
                batch = await consumer.fetch(timeout_ms=1000)
            async for record in client.read("clicks", last=10):
                print(record.text())
            await client.offsets("clicks")

    The other calls are those of ``TubeMQClient``, awaited: see ``TubeMQClient``.
    """

    def __init__(self, client: TubeMQClient) -> None:
        """Take over a client, with its settings; ``connect`` and ``from_url`` make one."""
        if not isinstance(client, TubeMQClient):
            raise wrong_constructor(type(self), TubeMQClient)
        self._client = client
        self._connections = Connections()
        settings, transport = parts_of(client)
        super().__init__(settings, transport.with_connections(self._connections))
        self._closed = False

    @classmethod
    def _of_settings(cls, settings: UrlSettings) -> Self:
        """Return a client with these settings."""
        return cls(client_of(settings))

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
        return await self._transport.publishable(topic)

    async def layout(self, *topics: str) -> TopicsLayout:
        """Return where the partitions of topics are.

        Raises:
            RpcError: a topic does not exist (431), or the group may not read it (450, 455).
            TubeMQConnectionError: no master answered.
        """
        self._check_open()
        require_topic_names(topics)
        return await self._transport.layout(topics)

    async def bounds(self, layout: TopicsLayout) -> StoreBounds:
        """Return where the stores of a layout begin and end now; brokers that are away are part of it."""
        self._check_open()
        return await self._transport.bounds(layout)

    # Questions, which need no consumer and disturb none.

    async def topics(self) -> tuple[str, ...]:
        """Return the names of all topics, sorted; as ``TubeMQClient.topics``.

        Raises:
            TubeMQError: as ``TubeMQClient.topics``.
        """
        self._check_open()
        return await self._questions.topics()

    async def partitions(self, topic: str) -> tuple[TopicPartition, ...]:
        """Return all partitions of a topic, in their order; as ``TubeMQClient.partitions``.

        Raises:
            TubeMQError: as ``TubeMQClient.partitions``.
        """
        self._check_open()
        return await self._questions.partitions(topic)

    async def offsets(self, topic: str) -> dict[TopicPartition, OffsetBounds]:
        """Return where each partition of a topic begins and ends now; as ``TubeMQClient.offsets``.

        Raises:
            TubeMQError: as ``TubeMQClient.offsets``.
        """
        self._check_open()
        return await self._questions.offsets(topic)

    async def offsets_at(self, topic: str, time: datetime.datetime | int) -> dict[TopicPartition, int]:
        """Return where the messages of a time or later begin; as ``TubeMQClient.offsets_at``.

        Raises:
            TubeMQError: as ``TubeMQClient.offsets_at``.
        """
        self._check_open()
        return await self._questions.offsets_at(topic, time)

    async def lag(
        self, group: str | None = None, topics: str | Iterable[str] | None = None
    ) -> dict[TopicPartition, int | None]:
        """Return how many messages a group has not read; as ``TubeMQClient.lag``.

        Raises:
            TubeMQError: as ``TubeMQClient.lag``.
        """
        self._check_open()
        return await self._questions.lag(group or self.group, names_of(topics))

    # Reading.

    def read(
        self,
        *topics: str,
        start: StartPlace | None = None,
        end: EndPlace | None = None,
        limit: int | None = None,
        last: int | None = None,
        partitions: Iterable[PartitionName] | None = None,
        on_loss: LossPolicy = fail_on_loss,
    ) -> AsyncGenerator[Record, None]:
        """Yield records that topics hold now, one partition after the other and each in its order.

        One batch is read ahead. To stop early, leave it inside
        ``async with contextlib.aclosing(client.read(...)) as records``: then leases are given back at once.

        Args:
            topics: the topics' names.
            start: where to begin, as ``TubeMQClient.read``.
            end: where to end.
            limit: how many messages to read in all.
            last: read only the last so many messages of each partition.
            partitions: the only partitions to read.
            on_loss: what to do about records that are gone or damaged; by default it is an error. It is
                called in the event loop.

        Raises:
            TubeMQError: as ``TubeMQClient.read``.
        """
        return self._reading(
            read_topics(self._transport, Selection.of(topics, start, end, limit, last, partitions)), on_loss
        )

    def read_range(
        self, layout: TopicsLayout, offsets: OffsetRange, *, on_loss: LossPolicy = fail_on_loss
    ) -> AsyncGenerator[Record, None]:
        """Yield the records of one partition between two offsets, in index bytes; otherwise as ``read``.

        Raises:
            TubeMQError: as ``TubeMQClient.read_range``.
        """
        request = range_request(self._transport, layout, offsets)
        return self._reading(read_records(self._transport, request), on_loss)

    def admin(self, web_address: str | None = None, *, token: str | None = None) -> AsyncMasterAdmin:
        """Return the administration of the cluster, whose calls are awaited; see ``TubeMQClient.admin``.

        Raises:
            OptionError: the address is not one, or is left out by a client of gateways.
        """
        return AsyncMasterAdmin(self._admin(web_address, token), self._check_open)

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
