"""The entry to TubeMQ without Spark: one object that owns the connections."""

import contextlib
import dataclasses
import weakref
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from tubemq_spark.client.config import (
    DEFAULT_DELIVERY_TIMEOUT_MS,
    DEFAULT_GROUP,
    ClientConfig,
    usual_web_servers,
)
from tubemq_spark.client.consumer.assigned.consumer import AssignedConsumer
from tubemq_spark.client.consumer.assigned.core import AssignedCore, AssignedCoreBase
from tubemq_spark.client.consumer.callbacks import OnChange
from tubemq_spark.client.consumer.consumer import Consumer
from tubemq_spark.client.consumer.core import ConsumerCore
from tubemq_spark.client.consumer.group.consumer import GroupConsumer
from tubemq_spark.client.consumer.group.core import GroupCore
from tubemq_spark.client.consumer.user_code import UserCode, UserThread
from tubemq_spark.client.consumer_config import ConsumerConfig
from tubemq_spark.client.metadata.admin import MasterAdmin
from tubemq_spark.client.metadata.bounds import store_bounds
from tubemq_spark.client.metadata.layout import topics_layout
from tubemq_spark.client.metadata.topics import publishable
from tubemq_spark.client.partitioners import BuiltInPartitioner, CustomPartitioner, by_name
from tubemq_spark.client.producer.broker_pipeline import BrokerPipeline
from tubemq_spark.client.producer.pipeline import Pipeline, RunUserCode
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.client.reader.blocking import read_in_thread
from tubemq_spark.client.reader.records import Record, records_of
from tubemq_spark.client.subscription import BoundStart, Node, Subscription, require_topic_names
from tubemq_spark.client.urls import GATEWAY_SCHEME, UrlSettings, parse_url
from tubemq_spark.errors import OptionError, TubeMQConnectionError
from tubemq_spark.model import Endpoint, OffsetRange, RangeRequest, StoreBounds, TopicPartition, TopicsLayout
from tubemq_spark.net import loop
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.process_connections import close_connections
from tubemq_spark.net.retry import Interruptible, Wait
from tubemq_spark.net.tls import TlsConfig
from tubemq_spark.offsets.loss import LossPolicy, fail_on_loss
from tubemq_spark.protocol.constants import DEFAULT_MASTER_PORT, DEFAULT_MASTER_TLS_PORT
from tubemq_spark.protocol.fetch_columns import FetchedBatch
from tubemq_spark.settings.fields import bad_setting

if TYPE_CHECKING:
    from tubemq_spark.arrow import ArrowReader
    from tubemq_spark.client.remote.client import RemoteClient


class TubeMQClient:
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
        self._config = dataclasses.replace(config, masters=gateways or config.masters).validate()
        self._remote = _remote(self._config, gateways, gateway_token) if gateways else None
        self.group = config.group
        self.subscription = subscription
        self.node = None if node is None else node.validate()
        self._connections = Connections(config.connect_timeout_ms)
        self._until_closed = Interruptible(lambda: TubeMQConnectionError("TUBEMQ_CLIENT_CLOSED"))
        """How reads wait: they would take closed connections for a broker that is away."""
        self._open: weakref.WeakSet[Producer | Consumer | ArrowReader] = weakref.WeakSet()

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
        """Return a client of a cluster.

        Args:
            masters: ``host:port`` of each master, in one text with commas between or one by one. The text may
                be a URL, ``tubemq://host:port,host:port``. Without a port it is 8715, or 8716 with ``tls``.
                Or the URL of gateways, ``gateway://host:port,host:port?group=etl``, with all settings that
                ``from_url`` takes; those that are given here count more.
            group: the consumer group under which this client reads; it moves no position of that group.
            username: the user's name, for clusters that ask for one; with ``password``.
            password: the user's password.
            tls: how to speak TLS with masters and brokers; None: without it.
            delivery_timeout_ms: how long a message of a producer may take until a broker has stored it.

        Raises:
            OptionError: an address, a setting or a file of ``tls`` cannot be used.
        """
        if isinstance(masters, str) and masters.strip().startswith(GATEWAY_SCHEME):
            settings = parse_url(masters)
            arguments = {
                "group": None if group == DEFAULT_GROUP else group,
                "username": username,
                "password": password,
                "tls": tls,
                "delivery_timeout_ms": None
                if delivery_timeout_ms == DEFAULT_DELIVERY_TIMEOUT_MS
                else delivery_timeout_ms,
            }
            changes: dict[str, Any] = {key: value for key, value in arguments.items() if value is not None}
            if "group" in changes:
                changes["reader_groups"] = ()
            return cls._of(settings, dataclasses.replace(settings.config, **changes))
        addresses = masters.split(",") if isinstance(masters, str) else masters
        default_port = DEFAULT_MASTER_PORT if tls is None else DEFAULT_MASTER_TLS_PORT
        endpoints = tuple(Endpoint.parse(address, default_port) for address in addresses)
        return cls(
            ClientConfig(endpoints, group, username, password, tls, delivery_timeout_ms=delivery_timeout_ms)
        )

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Return a client of a cluster with the settings in a URL, see ``tubemq_spark.client.urls``.

        For example ``tubemq://m1:8715,m2:8715?group=etl&topics=clicks,orders``, or
        ``gateway://g1:11911,g2:11911?group=etl``.

        Raises:
            OptionError: the URL cannot be read, a key is not known or given twice, or a setting makes no
                sense.
        """
        settings = parse_url(url)
        return cls._of(settings, settings.config)

    @classmethod
    def _of(cls, settings: UrlSettings, config: ClientConfig) -> Self:
        return cls(
            config,
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
        if self._remote is not None:
            self._remote.close()
        close_connections(self._connections)

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
    ) -> Producer:
        """Return a new producer, which threads may share. What is not given is as in the client's settings.

        Args:
            name: how the producer calls itself in errors and in the log; by default its client id.
            linger_ms: how long a message may wait for others that are then sent together with it.
            delivery_timeout_ms: how long a message may take from its acceptance until a broker has stored it,
                and how long ``send`` waits for masters and for a topic's partitions.
            retry_ambiguous: whether a message that may be stored, although no broker said so, is sent again;
                if not, it fails.
            keep_order: whether a partition has the messages with a key, and those that name it, in the order
                of sending also when one had to be sent again; it then has one under way at a time.
            partitioner: how the partitions of messages are chosen: ``"roundRobin"``, ``"sticky"``, or an
                object of your own, see ``CustomPartitioner``.
            stamp_message_time: whether a message that ``send`` is given no time for gets that of sending.
            message_time_zone: the zone in which that is written, such as ``"Asia/Shanghai"``; by default UTC.

        Raises:
            OptionError: a setting cannot be used.
        """
        config = self.changed_config(
            linger_ms=linger_ms,
            delivery_timeout_ms=delivery_timeout_ms,
            retry_ambiguous=retry_ambiguous,
            keep_order=keep_order,
            partitioner=partitioner,
            stamp_message_time=stamp_message_time,
            message_time_zone=message_time_zone,
        )
        connections = self._connections
        producer = Producer(
            lambda run_user_code: self.producer_pipeline(config, name, connections, run_user_code)
        )
        self._open.add(producer)
        return producer

    def producer_pipeline(
        self, config: ClientConfig, name: str, connections: Connections, run_user_code: RunUserCode
    ) -> Pipeline:
        """Return what moves the messages of a producer with some settings; not for users.

        Args:
            config: the settings.
            name: how the producer calls itself in errors and in the log; by default its client id.
            connections: those to masters, of the loop in which the pipeline will run.
            run_user_code: how the user's partitioner is called when a message is sent again.

        Raises:
            OptionError: a setting makes no sense through gateways.
        """
        if self._remote is not None:
            return self._remote.pipeline(config, name)
        return BrokerPipeline(config, connections, name, detailed=True, run_user_code=run_user_code)

    def publishable(self, topic: str) -> tuple[TopicPartition, ...]:
        """Return the partitions to which a topic can be published now, in order.

        There are none while it is closed for publishing, or all its brokers are away.

        Raises:
            ProduceError: the topic does not exist, or its name cannot be one.
            RpcError: the master refuses this client.
            TubeMQConnectionError: no master answered.
        """
        if self._remote is not None:
            return self._remote.publishable(topic)
        return loop.run(publishable(self._config, self._connections, topic))

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
    ) -> GroupConsumer:
        """Return a new member of the client's group; open and close it with a ``with`` block.

        Args:
            topics: the topics; one text is one topic. By default those of the client's URL.
            message_types: the message types to read, for some of the topics or none.
            start: where a bound group starts.
            on_loss: what to do about records that are gone or damaged; by default it is an error.
            on_assigned: called with the partitions that have come, before any message of them is handed out.
                It may ``seek``. As ``on_revoked``, it is called in a thread of its own, one call at a time;
                what it raises, the next ``fetch`` raises (``TUBEMQ_CALLBACK_FAILED``).
            on_revoked: called with the partitions that go: before the member gives them up and behind their
                last batch, or after they were lost, and when the consumer closes. Others wait for it.
            settings: how the consumer waits and confirms; by default the client's.

        Raises:
            OptionError: a topic, a filter, a number or a setting cannot be used.
            OffsetFormatError: an offset of ``start`` is not one.
        """
        core = self.group_core(
            self._connections,
            UserThread(),
            topics,
            message_types=message_types,
            start=start,
            on_loss=on_loss,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            settings=settings,
        )
        consumer = GroupConsumer(core)
        self._open.add(consumer)
        return consumer

    def group_core(
        self,
        connections: Connections,
        user_code: UserCode,
        topics: str | Iterable[str] | None,
        *,
        message_types: Mapping[str, Iterable[str]] | None,
        start: BoundStart | None,
        on_loss: LossPolicy,
        on_assigned: OnChange | None,
        on_revoked: OnChange | None,
        settings: ConsumerConfig | None,
    ) -> ConsumerCore:
        """Return a new member of the client's group, for the loop of some connections; not for users.

        Raises:
            TubeMQError: as ``group_consumer``.
        """
        subscription = self.subscription if topics is None else Subscription.of(topics, message_types, start)
        if subscription is None or (topics is None and (message_types is not None or start is not None)):
            raise bad_setting("topics", "missing", "given")
        if self.node is not None:
            raise bad_setting("node_id", "given", "left out: the master shares out a group's partitions")
        config = dataclasses.replace(self._config, consumer=settings or self._config.consumer).validate()
        if self._remote is not None:
            return self._remote.group_consumer(
                config,
                subscription,
                user_code,
                on_loss=on_loss,
                on_assigned=on_assigned,
                on_revoked=on_revoked,
            )
        return GroupCore(
            config,
            connections,
            subscription,
            user_code,
            on_loss=on_loss,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
        )

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
    ) -> AssignedConsumer:
        """Return a new consumer of partitions that you name; open and close it with a ``with`` block.

        Args:
            topics: the topics; one text is one topic. By default those of the client's URL.
            message_types: the message types to read, for some of the topics or none.
            source_count: how many consumers the group has, if the master is to check that; with ``node_id``.
            node_id: the number of this one, from 0 on; see ``AssignedConsumer.share``.
            on_loss: what to do about records that are gone or damaged; by default it is an error. It must
                not call the consumer.
            follow_resets: whether the consumer goes behind the last messages when an administrator wants its
                group to.
            settings: how the consumer waits and confirms; by default the client's.

        Raises:
            OptionError: a topic, a filter, a number or a setting cannot be used.
        """
        core = self.assigned_core(
            self._connections,
            UserThread(),
            topics,
            message_types=message_types,
            source_count=source_count,
            node_id=node_id,
            on_loss=on_loss,
            follow_resets=follow_resets,
            settings=settings,
        )
        consumer = AssignedConsumer(core)
        self._open.add(consumer)
        return consumer

    def assigned_core(
        self,
        connections: Connections,
        user_code: UserCode,
        topics: str | Iterable[str] | None,
        *,
        message_types: Mapping[str, Iterable[str]] | None,
        source_count: int | None,
        node_id: int | None,
        on_loss: LossPolicy,
        follow_resets: bool,
        settings: ConsumerConfig | None,
    ) -> AssignedCoreBase:
        """Return a new consumer of named partitions, for the loop of some connections; not for users.

        Raises:
            TubeMQError: as ``assigned_consumer``.
        """
        subscription = self.subscription if topics is None else Subscription.of(topics, message_types)
        if subscription is None or (topics is None and message_types is not None):
            raise bad_setting("topics", "missing", "given")
        if subscription.start is not None:
            raise bad_setting("session_key", "given", "left out: assigned consumers name their offsets")
        node = self.node
        if source_count is not None or node_id is not None:
            if source_count is None or node_id is None:
                raise bad_setting("source_count", source_count, "given together with node_id")
            node = Node(source_count, node_id).validate()
        config = dataclasses.replace(self._config, consumer=settings or self._config.consumer).validate()
        if self._remote is None:
            return AssignedCore(
                config,
                connections,
                subscription,
                user_code,
                node=node,
                on_loss=on_loss,
                follow_resets=follow_resets,
            )
        if follow_resets:
            raise bad_setting("follow_resets", True, "False through gateways, which do not tell of resets")
        return self._remote.assigned_consumer(config, subscription, user_code, node=node, on_loss=on_loss)

    def changed_config(
        self, *, partitioner: str | BuiltInPartitioner | CustomPartitioner | None, **changes: object
    ) -> ClientConfig:
        """Return the settings with those changes that are not None; not for users."""
        changes["partitioner"] = by_name(partitioner) if isinstance(partitioner, str) else partitioner
        settings: dict[str, Any] = {key: value for key, value in changes.items() if value is not None}
        return dataclasses.replace(self._config, **settings).validate()

    def layout(self, *topics: str) -> TopicsLayout:
        """Return where the partitions of topics are.

        Raises:
            OptionError: no topic could have one of the names.
            RpcError: a topic does not exist (431), or the group may not read it (450, 455).
            TubeMQConnectionError: no master answered.
        """
        require_topic_names(topics)
        if self._remote is not None:
            return self._remote.layout(topics)
        masters = self._config.masters
        return loop.run(
            topics_layout(self._config, self._connections, topics, web=lambda: usual_web_servers(masters))
        )

    def bounds(self, layout: TopicsLayout) -> StoreBounds:
        """Return where the stores of a layout begin and end now; brokers that are away are part of it."""
        if self._remote is not None:
            return self._remote.bounds(layout.stores)
        return loop.run(store_bounds(self._config, self._connections, layout.stores, layout.visit_token))

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
            yield from self._range_batches(self.request(layout, offsets), on_loss, wait)

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
        return _one_by_one(self._range_batches(self.request(layout, offsets), on_loss, self._until_closed))

    def request(self, layout: TopicsLayout, offsets: OffsetRange) -> RangeRequest:
        """Return what to read of a layout's partition; not for users.

        Raises:
            OptionError: the layout does not list the partition.
        """
        if offsets.partition not in layout.partitions:
            raise OptionError("TUBEMQ_PARTITION_NOT_LISTED", partition=offsets.partition)
        alone = offsets.partition.store_id in layout.alone_in_store and not self._config.message_types
        return layout.request(offsets, own_store=alone)

    def _range_batches(
        self, request: RangeRequest, on_loss: LossPolicy, wait: Wait
    ) -> Generator[Iterator[Record], None, None]:
        """Yield what ``read_range`` yields, batch by batch."""
        if self._remote is not None:
            fetched = self._remote.read_range(request, on_loss, wait)
        else:
            fetched = read_in_thread(self._config, self._connections, request, on_loss, wait)
        return _in_batches(fetched, exact_offsets=request.own_store)

    @property
    def config(self) -> ClientConfig:
        """The settings; not for users."""
        return self._config

    @property
    def remote(self) -> "RemoteClient | None":
        """The gateways through which the client goes; not for users."""
        return self._remote

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
        reader = read_arrow(self._config, self._connections, self._remote, topics, columns, all_options)
        self._open.add(reader)
        return reader

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


def _remote(config: ClientConfig, gateways: tuple[Endpoint, ...], token: str | None) -> "RemoteClient":
    # gRPC is needed for gateways only.
    from tubemq_spark.client.remote.client import RemoteClient

    return RemoteClient(config, gateways, token)
