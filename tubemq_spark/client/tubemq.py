"""The entry to TubeMQ without Spark: one object that owns the connections."""

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.assigned.consumer import AssignedConsumer
from tubemq_spark.client.consumer.assigned.core import AssignedCoreBase
from tubemq_spark.client.consumer.core import ConsumerCore
from tubemq_spark.client.consumer.group.consumer import GroupConsumer
from tubemq_spark.client.consumer.user_code import UserCode, UserThread
from tubemq_spark.client.metadata.admin import MasterAdmin
from tubemq_spark.client.producer.pipeline import Pipeline, RunUserCode
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.client.reader.blocking import read_in_thread
from tubemq_spark.client.reader.records import Record, records_of
from tubemq_spark.client.subscription import Node, Subscription, require_topic_names
from tubemq_spark.client.transport.client_base import ClientBase
from tubemq_spark.client.transport.opening import new_transport
from tubemq_spark.client.urls import UrlSettings
from tubemq_spark.errors import OptionError, TubeMQConnectionError
from tubemq_spark.model import Endpoint, OffsetRange, RangeRequest, StoreBounds, TopicPartition, TopicsLayout
from tubemq_spark.net import loop
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.process_connections import close_connections
from tubemq_spark.net.retry import Interruptible, Wait
from tubemq_spark.offsets.loss import LossPolicy, fail_on_loss
from tubemq_spark.protocol.fetch_columns import FetchedBatch

if TYPE_CHECKING:
    from tubemq_spark.arrow import ArrowReader


class TubeMQClient(ClientBase[Producer, GroupConsumer, AssignedConsumer]):
    """A client of one cluster; threads may share it.

    Making one reaches no server. As a context manager it closes its producers, its consumers and its
    connections at the end.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        subscription: Subscription | None = None,
        node: Node | None = None,
        gateways: tuple[Endpoint, ...] = (),
        gateway_token: str | None = None,
    ) -> None:
        """Use these settings; ``connect`` takes the usual ones by name, and ``from_url`` all as one text.

        Args:
            config: the settings.
            subscription: what consumers ask for unless they are told.
            node: which of several assigned consumers those of this client are, unless they are told.
            gateways: gateways to go through, in place of the masters, of which ``config`` then names none.
            gateway_token: what shows gateways who calls, where they demand that.

        Raises:
            OptionError: a setting makes no sense.
        """
        if gateways and config.masters not in ((), gateways):
            raise OptionError("TUBEMQ_MASTERS_AND_GATEWAYS")
        config = dataclasses.replace(config, masters=gateways or config.masters).validate()
        settings = UrlSettings(config, subscription, node, gateways, gateway_token)
        self._connections = Connections(config.connect_timeout_ms)
        super().__init__(settings, new_transport(settings, self._connections))
        self._until_closed = Interruptible(lambda: TubeMQConnectionError("TUBEMQ_CLIENT_CLOSED"))
        """How reads wait: they would take closed connections for a broker that is away."""

    @classmethod
    def of_settings(cls, settings: UrlSettings) -> Self:
        """Return a client with these settings; not for users."""
        return cls(
            settings.config,
            subscription=settings.subscription,
            node=settings.node,
            gateways=settings.gateways,
            gateway_token=settings.gateway_token,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close producers, consumers and connections.

        What a producer has not stored is abandoned, and reads that are under way end with an error.
        """
        self._until_closed.end()
        for user in list(self._open):
            user.close()
        self.transport.close()
        close_connections(self._connections)

    def publishable(self, topic: str) -> tuple[TopicPartition, ...]:
        """Return the partitions to which a topic can be published now, in order.

        There are none while it is closed for publishing, or all its brokers are away.

        Raises:
            ProduceError: the topic does not exist, or its name cannot be one.
            RpcError: the master refuses this client.
            TubeMQConnectionError: no master answered.
        """
        return loop.run(self.transport.publishable(topic))

    def layout(self, *topics: str) -> TopicsLayout:
        """Return where the partitions of topics are.

        Raises:
            OptionError: no topic could have one of the names.
            RpcError: a topic does not exist (431), or the group may not read it (450, 455).
            TubeMQConnectionError: no master answered.
        """
        require_topic_names(topics)
        return loop.run(self.transport.layout(topics))

    def bounds(self, layout: TopicsLayout) -> StoreBounds:
        """Return where the stores of a layout begin and end now; brokers that are away are part of it."""
        return loop.run(self.transport.bounds(layout))

    def read(self, *topics: str, on_loss: LossPolicy = fail_on_loss) -> Iterator[Record]:
        """Yield all records that topics hold now, one partition after the other and each in its order.

        Args:
            topics: the topics' names.
            on_loss: what to do about records that are gone or damaged; by default it is an error.

        Raises:
            RpcError: a topic does not exist, or the group may not read it.
            DataLossError: records are gone or damaged, by ``on_loss``.
            TubeMQConnectionError: no master answered, or a broker is away.
        """
        return _one_by_one(self._batches(topics, on_loss, self._until_closed))

    def _batches(
        self, topics: Iterable[str], on_loss: LossPolicy, wait: Wait
    ) -> Generator[Iterator[Record], None, None]:
        """Yield what ``read`` yields, batch by batch."""
        layout = self.layout(*topics)
        bounds = self.bounds(layout).complete()
        for partition in layout.partitions:
            offsets = OffsetRange(partition, *bounds[partition.store_id])
            yield from self._range_batches(self._request(layout, offsets), on_loss, wait)

    def read_range(
        self, layout: TopicsLayout, offsets: OffsetRange, *, on_loss: LossPolicy = fail_on_loss
    ) -> Iterator[Record]:
        """Yield the records of one partition between two offsets, in index bytes.

        Raises:
            OptionError: the layout does not list the partition.
            OffsetFormatError: an offset is not a multiple of 28, or negative.
            DataLossError: records are gone or damaged, by ``on_loss``.
            TubeMQError: as ``read``.
        """
        return _one_by_one(self._range_batches(self._request(layout, offsets), on_loss, self._until_closed))

    def _range_batches(
        self, request: RangeRequest, on_loss: LossPolicy, wait: Wait
    ) -> Generator[Iterator[Record], None, None]:
        """Yield what ``read_range`` yields, batch by batch."""
        items = self.transport.read_range(request)
        fetched = read_in_thread(items, request.range, on_loss, wait)
        return _in_batches(fetched, exact_offsets=request.own_store)

    def read_arrow(
        self,
        topics: str | Iterable[str] | None = None,
        *,
        columns: Iterable[str] | None = None,
        options: Mapping[str, object] | None = None,
        **more: object,
    ) -> "ArrowReader":
        """Return a ``pyarrow.RecordBatchReader`` of messages, with the columns and options of Spark's source.

        Where the read begins and ends is fixed by this call, and ``latest`` is the end of now. A batch, of
        some 8 MiB or 40,000 messages, is read when it is asked for. To close the reader, which is a context
        manager, ends the read. Its ``losses`` are what ``failOnDataLoss=false`` has passed over.

        For example ``client.read_arrow("clicks", columns=["value", "timestamp"], startingTimestamp=day)``.

        Args:
            topics: the topics; one text is one topic. None with the options ``subscribePattern`` and
                ``assign``.
            columns: the columns to read, in their order; no other one is decoded. By default those that a
                frame in Spark has.
            options: options of a batch read by name, those with a dot among them. Those about the connection
                are the client's. A bool, a number, an aware ``datetime`` for a time, a dict for JSON and a
                list for commas do instead of text.
            **more: further options.

        Raises:
            OptionError: an option or a column is not known, or cannot be used.
            TubeMQError: as in Spark: a topic does not exist, a store had no answer, records are gone. What
                happens later is raised by the reader.
        """
        # The one import that runs up: all that is above the client, and PyArrow, for this call only.
        from tubemq_spark.arrow import read_arrow

        all_options = {**(options or {}), **more}
        reader = read_arrow(self.transport, self.settings, topics, columns, all_options)
        self._open.add(reader)
        return reader

    def _new_user_code(self) -> UserCode:
        return UserThread()

    def _new_producer(self, make: Callable[[RunUserCode], Pipeline]) -> Producer:
        return Producer(make)

    def _new_group_consumer(self, core: ConsumerCore) -> GroupConsumer:
        return GroupConsumer(core)

    def _new_assigned_consumer(self, core: AssignedCoreBase) -> AssignedConsumer:
        return AssignedConsumer(core)

    @staticmethod
    def admin(web_address: str, *, token: str | None = None) -> MasterAdmin:
        """Return the administration of a cluster; see ``MasterAdmin``.

        Raises:
            OptionError: the address is not one.
        """
        return MasterAdmin(web_address, token=token)


def _in_batches(
    fetched: Generator[FetchedBatch, Any, None], *, exact_offsets: bool
) -> Generator[Iterator[Record], None, None]:
    with contextlib.closing(fetched):
        for batch in fetched:
            yield records_of(batch, exact_offsets=exact_offsets)


def _one_by_one(batches: Generator[Iterator[Record], None, None]) -> Iterator[Record]:
    with contextlib.closing(batches):
        for batch in batches:
            yield from batch
