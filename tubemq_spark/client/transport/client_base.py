"""What clients for threads and coroutines have in common: settings, and how things are made.

Neither asks whether it goes to masters or through gateways: that is its transport's affair.
"""

import abc
import dataclasses
import datetime
import functools
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Generic, Self, TypeVar, Unpack

from tubemq_spark.client.config import (
    DEFAULT_DELIVERY_TIMEOUT_MS,
    DEFAULT_GROUP,
    BuiltInPartitioner,
    ClientConfig,
    CustomPartitioner,
    built_in_partitioner,
    usual_web_servers,
)
from tubemq_spark.client.consumer.assigned.core import AssignedCoreBase
from tubemq_spark.client.consumer.core import ConsumerCore, ConsumerSetup
from tubemq_spark.client.consumer.user_code import OnChange, UserCode
from tubemq_spark.client.consumer_config import (
    BoundStart,
    ConsumerConfig,
    ConsumerSettings,
    Node,
    Subscription,
    require_topic_names,
    with_settings,
)
from tubemq_spark.client.metadata.admin import MasterAdmin
from tubemq_spark.client.metadata.admin_questions import ActiveMasterAdmin
from tubemq_spark.client.metadata.questions import Questions
from tubemq_spark.client.names.guesses import AnsweringType, answers_guesses, refuse_unknown_fields
from tubemq_spark.client.producer.pipeline import Pipeline, RunUserCode
from tubemq_spark.client.reader.times import milliseconds, offsets_of_time
from tubemq_spark.client.remote import check_access
from tubemq_spark.client.transport.base import Transport
from tubemq_spark.client.transport.direct import DirectTransport
from tubemq_spark.client.urls import GATEWAY_SCHEME, UrlSettings, parse_url
from tubemq_spark.errors import OptionError
from tubemq_spark.model import Endpoint, OffsetBounds, TopicPartition, TopicsLayout, rows_between
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.tls import TlsConfig
from tubemq_spark.offsets.loss import LossPolicy, fail_on_loss
from tubemq_spark.protocol.constants import DEFAULT_MASTER_PORT, DEFAULT_MASTER_TLS_PORT, DEFAULT_WEB_PORT
from tubemq_spark.settings.fields import bad_setting

ProducerKind = TypeVar("ProducerKind")
GroupConsumerKind = TypeVar("GroupConsumerKind")
AssignedConsumerKind = TypeVar("AssignedConsumerKind")


def new_transport(settings: UrlSettings, connections: Connections) -> Transport:
    """Return the way to the cluster that settings name: through their gateways, if they name some."""
    config, gateways = settings.config, settings.gateways
    if not gateways:
        return DirectTransport(config, connections, lambda: web_servers(settings))
    if settings.master_web:
        raise bad_setting("master_web", "given", "left out through gateways, whose operator sets it")
    check_access(config, settings.gateway_token)
    # gRPC is needed for gateways only.
    from tubemq_spark.client.remote.gateways import Gateways
    from tubemq_spark.client.transport.gateway import GatewayTransport

    return GatewayTransport(Gateways(gateways, config, settings.gateway_token))


def web_servers(settings: UrlSettings) -> tuple[Endpoint, ...]:
    """Return where masters may serve their administration API."""
    return settings.master_web or usual_web_servers(settings.config.masters)


class TopicQuestions:
    """What users ask about topics and groups without being a member of a group, as coroutines.

    They ask as a *visitor*, under one of the reader groups. A question under the group itself would make this
    process a member of it for a moment: the master would share out the partitions of its consumers again, or
    would refuse the question because they read other topics.
    """

    def __init__(self, visitor: Questions) -> None:
        """Ask no server."""
        self._visitor = visitor

    async def topics(self) -> tuple[str, ...]:
        """Return the names of all topics, sorted."""
        return tuple(sorted(await self._visitor.topics()))

    async def partitions(self, topic: str) -> tuple[TopicPartition, ...]:
        """Return all partitions of a topic, in their order."""
        return tuple((await self._layout(topic)).partitions)

    async def offsets(self, topic: str) -> dict[TopicPartition, OffsetBounds]:
        """Return where each partition of a topic begins and ends."""
        layout = await self._layout(topic)
        bounds = (await self._visitor.bounds(layout)).complete()
        return {partition: bounds[partition.store_id] for partition in layout.partitions}

    async def offsets_at(self, topic: str, time: datetime.datetime | int) -> dict[TopicPartition, int]:
        """Return where the messages of a time or later begin in each partition; its end if there are none."""
        ms = milliseconds(time)
        return await offsets_of_time(self._visitor, await self._layout(topic), ms)

    async def lag(self, group: str, topics: Collection[str]) -> dict[TopicPartition, int | None]:
        """Return how many messages follow a group's position; None: a broker does not tell."""
        require_topic_names(topics)
        stored = await self._visitor.stored_offsets(group, topics)
        if not stored.offsets:
            for error in stored.failures.values():
                raise error
            raise OptionError("TUBEMQ_GROUP_UNKNOWN", group=group)
        positions = {offset.partition: offset.committed for offset in stored.offsets}
        read = {partition.topic for partition in positions}
        layout = await self._visitor.layout(sorted(topics or read), missing_ok=True)
        places = [
            place for place in layout.partitions if place in positions or place.broker_id in stored.failures
        ]
        bounds = (await self._visitor.bounds(layout, {place.store_id for place in places})).by_store
        return {place: _unread(positions.get(place), bounds.get(place.store_id)) for place in places}

    async def _layout(self, topic: str) -> TopicsLayout:
        require_topic_names((topic,))
        return await self._visitor.layout((topic,))


def _unread(position: int | None, bounds: OffsetBounds | None) -> int | None:
    """Return how many messages that are still there follow a position."""
    if position is None or bounds is None:
        return None
    return rows_between(max(position, bounds.earliest), bounds.latest)


@answers_guesses
class ClientBase(Generic[ProducerKind, GroupConsumerKind, AssignedConsumerKind], metaclass=AnsweringType):
    """A client of one cluster of either kind."""

    def __init__(self, settings: UrlSettings, transport: Transport) -> None:
        """Reach no server."""
        self._settings = settings
        self._transport = transport
        self.group = settings.config.group
        self.subscription = settings.subscription
        self.node = None if settings.node is None else settings.node.validate()
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()
        """What is closed with the client."""

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
        master_web: str | Iterable[str] = (),
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
            master_web: ``host:port`` where masters serve their administration API, as ``masters``; by
                default it is looked for at their usual ports. ``topics``, ``lag`` and ``admin`` need it.

        Raises:
            OptionError: an address, a setting or a file of ``tls`` cannot be used.
        """
        web = tuple(Endpoint.parse(address, DEFAULT_WEB_PORT) for address in _addresses(master_web))
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
            config = dataclasses.replace(settings.config, **changes)
            return cls._of_settings(dataclasses.replace(settings, config=config, master_web=web))
        default_port = DEFAULT_MASTER_PORT if tls is None else DEFAULT_MASTER_TLS_PORT
        endpoints = tuple(Endpoint.parse(address, default_port) for address in _addresses(masters))
        return cls._of_settings(
            UrlSettings(
                ClientConfig(
                    endpoints, group, username, password, tls, delivery_timeout_ms=delivery_timeout_ms
                ),
                master_web=web,
            )
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
        return cls._of_settings(parse_url(url))

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
    ) -> ProducerKind:
        """Return a new producer, which its users may share. What is not given is as in the client's settings.

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
        changes = {
            "linger_ms": linger_ms,
            "delivery_timeout_ms": delivery_timeout_ms,
            "retry_ambiguous": retry_ambiguous,
            "keep_order": keep_order,
            "partitioner": built_in_partitioner(partitioner) if isinstance(partitioner, str) else partitioner,
            "stamp_message_time": stamp_message_time,
            "message_time_zone": message_time_zone,
        }
        settings: dict[str, Any] = {key: value for key, value in changes.items() if value is not None}
        config = dataclasses.replace(self._settings.config, **settings).validate()
        transport = self._transport
        producer = self._new_producer(
            lambda run_user_code: transport.pipeline(
                config, name, per_message=True, run_user_code=run_user_code
            )
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
        **named: Unpack[ConsumerSettings],
    ) -> GroupConsumerKind:
        """Return a new member of the client's group; a block with it opens and closes it.

        An asynchronous consumer calls ``on_loss``, ``on_assigned`` and ``on_revoked`` in its event loop; they
        may be coroutine functions.

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
            **named: single settings of ``ConsumerConfig`` in place of ``settings``, such as
                ``consume_position="first"``; the others are the client's.

        Raises:
            OptionError: a topic, a filter, a number or a setting cannot be used.
            OffsetFormatError: an offset of ``start`` is not one.
            TypeError: there is no such setting.
        """
        chosen = self._consumer_settings(ClientBase.group_consumer, settings, named)
        subscription = self.subscription if topics is None else Subscription.of(topics, message_types, start)
        if subscription is None or (topics is None and (message_types is not None or start is not None)):
            raise bad_setting("topics", "missing", "given")
        if self.node is not None:
            raise bad_setting("node_id", "given", "left out: the master shares out a group's partitions")
        config = dataclasses.replace(self._settings.config, consumer=chosen).validate()
        setup = ConsumerSetup(config, subscription, self._new_user_code(), on_loss, on_assigned, on_revoked)
        consumer = self._new_group_consumer(self._transport.group_consumer(setup))
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
        **named: Unpack[ConsumerSettings],
    ) -> AssignedConsumerKind:
        """Return a new consumer of partitions that you name; a block with it opens and closes it.

        An asynchronous consumer calls ``on_loss`` in its event loop; it may be a coroutine function.

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
            **named: single settings of ``ConsumerConfig`` in place of ``settings``, such as
                ``consume_position="first"``; the others are the client's.

        Raises:
            OptionError: a topic, a filter, a number or a setting cannot be used.
            TypeError: there is no such setting.
        """
        chosen = self._consumer_settings(ClientBase.assigned_consumer, settings, named)
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
        config = dataclasses.replace(self._settings.config, consumer=chosen).validate()
        setup = ConsumerSetup(
            config,
            subscription,
            self._new_user_code(),
            on_loss,
            node=node,
            follow_resets=follow_resets,
        )
        consumer = self._new_assigned_consumer(self._transport.assigned_consumer(setup))
        self._open.add(consumer)
        return consumer

    def _consumer_settings(
        self, method: Callable[..., object], settings: ConsumerConfig | None, named: ConsumerSettings
    ) -> ConsumerConfig:
        """Return the settings of a consumer, which are given to a method as a whole or by name."""
        refuse_unknown_fields(method, type(self), named, ConsumerSettings.__annotations__)
        if settings is not None and named:
            raise bad_setting("settings", f"given with {', '.join(named)}", "given without settings by name")
        return settings or with_settings(self._settings.config.consumer, named)

    @functools.cached_property
    def _questions(self) -> TopicQuestions:
        """What answers questions about topics and groups."""
        config = self._settings.config
        visitor = dataclasses.replace(config, group=config.reader_groups[0])
        return TopicQuestions(self._transport.with_config(visitor))

    def _admin(self, web_address: str | None, token: str | None) -> MasterAdmin:
        if web_address is not None:
            return MasterAdmin(web_address, token=token)
        if self._settings.gateways:
            rule = "given through gateways, which do not administer the cluster"
            raise bad_setting("web_address", "left out", rule)
        return ActiveMasterAdmin(web_servers(self._settings), token=token)

    # What differs between the two kinds.

    @classmethod
    @abc.abstractmethod
    def _of_settings(cls, settings: UrlSettings) -> Self:
        """Return a client with these settings."""

    @abc.abstractmethod
    def _new_user_code(self) -> UserCode:
        """Return where functions of a consumer's user are called."""

    @abc.abstractmethod
    def _new_producer(self, make: Callable[[RunUserCode], Pipeline]) -> ProducerKind:
        """Return a producer that takes over the pipeline that ``make`` returns."""

    @abc.abstractmethod
    def _new_group_consumer(self, core: ConsumerCore) -> GroupConsumerKind:
        """Return the consumer with this core."""

    @abc.abstractmethod
    def _new_assigned_consumer(self, core: AssignedCoreBase) -> AssignedConsumerKind:
        """Return the consumer with this core."""


def parts_of(client: ClientBase[Any, Any, Any]) -> tuple[UrlSettings, Transport]:
    """Return the settings and the transport of a client, for one of the other kind."""
    return client._settings, client._transport  # noqa: SLF001 (of this module)


def _addresses(addresses: str | Iterable[str]) -> Iterable[str]:
    """Return addresses one by one, which may be one text with commas."""
    return addresses.split(",") if isinstance(addresses, str) else addresses
