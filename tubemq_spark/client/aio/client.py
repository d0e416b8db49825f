"""The entry to TubeMQ for coroutines: reads in their loop, and threads for what cannot but block."""

import asyncio
import contextlib
import datetime
import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

from tubemq_spark.client.aio.consumer import AsyncAssignedConsumer, AsyncGroupConsumer
from tubemq_spark.client.aio.producer import AsyncProducer
from tubemq_spark.client.consumer.assigned.core import AssignedCoreBase
from tubemq_spark.client.consumer.core import ConsumerCore
from tubemq_spark.client.consumer.user_code import UserCode, UserLoop
from tubemq_spark.client.consumer_config import names_of, require_topic_names
from tubemq_spark.client.metadata.admin import MasterAdmin
from tubemq_spark.client.names.guesses import AnsweringType, answers_guesses, wrong_constructor
from tubemq_spark.client.producer.pipeline import Pipeline, RunUserCode
from tubemq_spark.client.reader.records import Record
from tubemq_spark.client.reader.selection import EndPlace, PartitionName, Selection, StartPlace
from tubemq_spark.client.reader.topic_reader import Items, range_request, read_records, read_topics
from tubemq_spark.client.transport.client_base import ClientBase, parts_of
from tubemq_spark.client.tubemq import TubeMQClient, client_of
from tubemq_spark.client.urls import UrlSettings
from tubemq_spark.errors import TubeMQConnectionError
from tubemq_spark.model import OffsetBounds, OffsetRange, StoreBounds, TopicPartition, TopicsLayout
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.loop import in_thread
from tubemq_spark.offsets.loss import LossPolicy, LossRecord, fail_on_loss

_THREAD: Final = "tubemq-aio"


class Reading:
    """Records for one coroutine, while a task reads the next batch.

    =========  ==============================================================================================
    state      meaning
    =========  ==============================================================================================
    *new*      nothing was asked of any server: the coroutine has not begun
    *ahead*    the task reads the batch that comes next, or waits until the last one is taken
    *ended*    there is no next one, or ``close`` was called: the task has ended, its leases are given back
    =========  ==============================================================================================

    Invariants:

    - The reading owns the task, and ``close`` waits for its end.
    - So two batches are held at most, of some MiB each: the one that is taken from, and the next.
    - After ``close`` no record comes: what is ahead is dropped.
    """

    def __init__(self, items: Items, on_loss: LossPolicy, *, closed: bool = False) -> None:
        """Ask nothing; what is ``closed`` from the start refuses to."""
        self._items = items
        self._on_loss = on_loss
        self._ahead: asyncio.Queue[Iterable[Record] | LossRecord | None] = asyncio.Queue(1)
        self._task: asyncio.Task[None] | None = None
        self._closed = closed

    async def records(self) -> AsyncGenerator[Record, None]:
        """Yield the records."""
        self._refuse_if_closed()
        self._task = asyncio.create_task(self._read())
        try:
            while (item := await self._ahead.get()) is not None:
                self._ahead.task_done()
                if isinstance(item, LossRecord):
                    self._on_loss(item)
                    continue
                for record in item:
                    yield record
            self._refuse_if_closed()
            await self._task
        finally:
            await self.close()

    async def close(self) -> None:
        """End the reading, and wait until its leases were given back; may be repeated."""
        self._closed = True
        if self._task is None:
            await self._items.aclose()
            return
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _read(self) -> None:
        try:
            async with contextlib.aclosing(self._items) as items:
                async for item in items:
                    await self._ahead.put(item)
                    await self._ahead.join()  # the next one is begun when this one is taken
        except BaseException:
            # Who waits for the next batch gets the end at once.
            if self._ahead.full():
                self._ahead.get_nowait()
            self._ahead.put_nowait(None)
            raise
        await self._ahead.put(None)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise TubeMQConnectionError("TUBEMQ_CLIENT_CLOSED")


Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def _awaited(
    method: Callable[Concatenate[MasterAdmin, Arguments], Answer],
) -> Callable[Concatenate["AsyncMasterAdmin", Arguments], Coroutine[Any, Any, Answer]]:
    """Return a call that is awaited, with the name, the arguments and the errors of one that blocks."""

    @functools.wraps(method)
    async def call(self: "AsyncMasterAdmin", /, *args: Arguments.args, **named: Arguments.kwargs) -> Answer:
        self._check_open()
        return await in_thread(functools.partial(method, self._admin, *args, **named), "tubemq-admin")

    return call


@answers_guesses
class AsyncMasterAdmin(metaclass=AnsweringType):
    """Administers a cluster through the web address of its active master, as ``MasterAdmin`` does.

    Every call is awaited. One that is cancelled is carried out all the same.

        await client.admin(token="abc").add_topic("clicks", broker_ids=[1, 2])
    """

    def __init__(self, admin: MasterAdmin, check_open: Callable[[], object]) -> None:
        """Ask no server; ``AsyncTubeMQClient.admin`` makes one."""
        self._admin = admin
        self._check_open = check_open

    @property
    def url(self) -> str:
        """The one page that answers all calls."""
        return self._admin.url

    call = _awaited(MasterAdmin.call)
    ask = _awaited(MasterAdmin.ask)
    is_active = _awaited(MasterAdmin.is_active)
    group_nodes = _awaited(MasterAdmin.group_nodes)
    add_broker = _awaited(MasterAdmin.add_broker)
    online_broker = _awaited(MasterAdmin.online_broker)
    broker_run_status = _awaited(MasterAdmin.broker_run_status)
    broker_web_servers = _awaited(MasterAdmin.broker_web_servers)
    add_topic = _awaited(MasterAdmin.add_topic)
    modify_topic = _awaited(MasterAdmin.modify_topic)
    delete_topic = _awaited(MasterAdmin.delete_topic)
    remove_topic = _awaited(MasterAdmin.remove_topic)
    topic_info = _awaited(MasterAdmin.topic_info)
    topics = _awaited(MasterAdmin.topics)
    topic_brokers = _awaited(MasterAdmin.topic_brokers)
    accepts_publish = _awaited(MasterAdmin.accepts_publish)
    published_topics = _awaited(MasterAdmin.published_topics)
    consumer_group = _awaited(MasterAdmin.consumer_group)
    group_control = _awaited(MasterAdmin.group_control)
    consume_controls = _awaited(MasterAdmin.consume_controls)
    online_groups = _awaited(MasterAdmin.online_groups)


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
