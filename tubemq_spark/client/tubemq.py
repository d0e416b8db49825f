"""The entry to TubeMQ without Spark: one object that owns the connections."""

import dataclasses
import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Self

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.assigned.consumer import AssignedConsumer
from tubemq_spark.client.consumer.assigned.core import AssignedCoreBase
from tubemq_spark.client.consumer.consumer import GroupConsumer
from tubemq_spark.client.consumer.core import ConsumerCore
from tubemq_spark.client.consumer.user_code import UserCode, UserThread
from tubemq_spark.client.consumer_config import Node, Subscription, names_of, require_topic_names
from tubemq_spark.client.metadata.admin import MasterAdmin
from tubemq_spark.client.names.guesses import answers_guesses, wrong_constructor
from tubemq_spark.client.producer.pipeline import Pipeline, RunUserCode
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.client.reader.records import Record
from tubemq_spark.client.reader.selection import EndPlace, PartitionName, Selection, StartPlace
from tubemq_spark.client.reader.topic_reader import (
    range_request,
    read_records,
    read_topics,
    records_in_thread,
)
from tubemq_spark.client.transport.client_base import ClientBase, new_transport
from tubemq_spark.client.urls import UrlSettings
from tubemq_spark.errors import OptionError, TubeMQConnectionError
from tubemq_spark.model import Endpoint, OffsetBounds, OffsetRange, StoreBounds, TopicPartition, TopicsLayout
from tubemq_spark.net import loop
from tubemq_spark.net.connections import Connections, close_connections
from tubemq_spark.net.retry import Interruptible
from tubemq_spark.offsets.loss import LossPolicy, fail_on_loss
from tubemq_spark.settings.fields import bad_setting

if TYPE_CHECKING:
    from tubemq_spark.arrow import ArrowReader


@answers_guesses
class TubeMQClient(ClientBase[Producer, GroupConsumer, AssignedConsumer]):
    """A client of one cluster; threads may share it.

    Making one reaches no server. As a context manager it closes its producers, its consumers and its
    connections at the end.

        client = TubeMQClient.connect("10.1.2.3:8715", group="etl")
        same = TubeMQClient.from_url("tubemq://10.1.2.3:8715?group=etl")
        with client.producer() as producer:
            producer.send("clicks", b"home", key=b"anna")
        with client.group_consumer("clicks") as consumer:  # or client.assigned_consumer("clicks")
            batch = consumer.fetch(timeout_ms=1000)
        for record in client.read("clicks", last=10):
            print(record.offset, record.text())

        client.topics()
        client.partitions("clicks")
        client.publishable("clicks")
        client.offsets("clicks")
        client.offsets_at("clicks", datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))
        client.lag("etl", "clicks")
        client.admin(token="abc").add_topic("clicks", broker_ids=[1, 2])

        layout = client.layout("clicks")
        for store, bounds in client.bounds(layout).by_store.items():
            print(store, bounds.latest)
        for partition in layout.partitions:
            first = list(client.read_range(layout, OffsetRange(partition, 0, 280)))
        client.close()

    See docs/client/which-consumer.md for the ways to read.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        subscription: Subscription | None = None,
        node: Node | None = None,
        gateways: tuple[Endpoint, ...] = (),
        gateway_token: str | None = None,
        master_web: tuple[Endpoint, ...] = (),
    ) -> None:
        """Use these settings; ``connect`` takes the usual ones by name, and ``from_url`` all as one text.

        Args:
            config: the settings.
            subscription: what consumers ask for unless they are told.
            node: which of several assigned consumers those of this client are, unless they are told.
            gateways: gateways to go through, in place of the masters, of which ``config`` then names none.
            gateway_token: what shows gateways who calls, where they demand that.
            master_web: where masters serve their administration API, if not at their usual ports.

        Raises:
            OptionError: a setting makes no sense.
        """
        if not isinstance(config, ClientConfig):
            raise wrong_constructor(type(self), ClientConfig)
        if gateways and config.masters not in ((), gateways):
            raise OptionError("TUBEMQ_MASTERS_AND_GATEWAYS")
        config = dataclasses.replace(config, masters=gateways or config.masters).validate()
        settings = UrlSettings(config, subscription, node, gateways, gateway_token, master_web)
        self._connections = Connections(config.connect_timeout_ms)
        super().__init__(settings, new_transport(settings, self._connections))
        self._until_closed = Interruptible(lambda: TubeMQConnectionError("TUBEMQ_CLIENT_CLOSED"))
        """How reads wait: they would take closed connections for a broker that is away."""

    @classmethod
    def _of_settings(cls, settings: UrlSettings) -> Self:
        """Return a client with these settings."""
        return cls(
            settings.config,
            subscription=settings.subscription,
            node=settings.node,
            gateways=settings.gateways,
            gateway_token=settings.gateway_token,
            master_web=settings.master_web,
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
        self._transport.close()
        close_connections(self._connections)

    def publishable(self, topic: str) -> tuple[TopicPartition, ...]:
        """Return the partitions to which a topic can be published now, in order.

        There are none while it is closed for publishing, or all its brokers are away.

        Raises:
            ProduceError: the topic does not exist, or its name cannot be one.
            RpcError: the master refuses this client.
            TubeMQConnectionError: no master answered.
        """
        return loop.run(self._transport.publishable(topic))

    def layout(self, *topics: str) -> TopicsLayout:
        """Return where the partitions of topics are.

        Raises:
            OptionError: no topic could have one of the names.
            RpcError: a topic does not exist (431), or the group may not read it (450, 455).
            TubeMQConnectionError: no master answered.
        """
        require_topic_names(topics)
        return loop.run(self._transport.layout(topics))

    def bounds(self, layout: TopicsLayout) -> StoreBounds:
        """Return where the stores of a layout begin and end now; brokers that are away are part of it."""
        return loop.run(self._transport.bounds(layout))

    # Questions, which need no consumer and disturb none.

    def topics(self) -> tuple[str, ...]:
        """Return the names of all topics, sorted; the masters' administration API is asked.

        Raises:
            TubeMQConnectionError: no master's administration API answered.
            AdminError: a master refuses.
        """
        return loop.run(self._questions.topics())

    def partitions(self, topic: str) -> tuple[TopicPartition, ...]:
        """Return all partitions of a topic, in their order, those that cannot be read now among them.

        Raises:
            OptionError: no topic could have the name.
            RpcError: the topic does not exist (431), or the reader groups may not read it (450, 455).
            TubeMQConnectionError: no master answered.
        """
        return loop.run(self._questions.partitions(topic))

    def offsets(self, topic: str) -> dict[TopicPartition, OffsetBounds]:
        """Return where each partition of a topic begins and ends now, in index bytes, 28 for a message.

        For example ``client.offsets("clicks")[partition].latest``. Partitions that share a store share these,
        too.

        Raises:
            TubeMQError: as ``partitions``; or a broker is away.
        """
        return loop.run(self._questions.offsets(topic))

    def offsets_at(self, topic: str, time: datetime.datetime | int) -> dict[TopicPartition, int]:
        """Return where the messages of a time or later begin in each partition; its end if there are none.

        Messages carry the minute that their producer gave them, in ``message_time_zone``. It takes some 25
        fetches per partition.

        Args:
            topic: the topic's name.
            time: with a time zone, or in milliseconds since 1970.

        Raises:
            OptionError: the time is none, or the messages of a partition carry none.
            TubeMQError: as ``offsets``.
        """
        return loop.run(self._questions.offsets_at(topic, time))

    def lag(
        self, group: str | None = None, topics: str | Iterable[str] | None = None
    ) -> dict[TopicPartition, int | None]:
        """Return how many messages a group has not read, in each partition in which it has a position.

        Brokers tell where a group stands by their administration API, some seconds late; no consumer is
        disturbed. Where partitions share a store, those of the others count too. None: a broker does not
        answer.

        Args:
            group: the group; by default the client's.
            topics: the only topics to look at; by default all that the group has read.

        Raises:
            OptionError: no broker has a position of the group there.
            TubeMQConnectionError: no master's administration API answered.
            TubeMQError: a master refuses.
        """
        return loop.run(self._questions.lag(group or self.group, names_of(topics)))

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
    ) -> Iterator[Record]:
        """Yield records that topics hold now, one partition after the other and each in its order.

        For example ``client.read("clicks", last=10)``, or
        ``client.read("clicks", start=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), limit=1000)``.

        Args:
            topics: the topics' names.
            start: where to begin: ``"earliest"``, a time with its time zone or in milliseconds since 1970, or
                an offset of each partition, ``{partition: 2800}``. One that is not named begins where its log
                does.
            end: where to end, before a time or offsets, as ``start``; ``"latest"`` is the end of now.
            limit: how many messages to read in all.
            last: read only the last so many messages of each partition, before ``end``; not with ``start``.
            partitions: the only partitions to read; of a single topic also by text, such as ``"1:10000"``.
            on_loss: what to do about records that are gone or damaged; by default it is an error.

        Raises:
            OptionError: an argument is wrong, or does not fit another.
            OffsetFormatError: an offset is negative or not a multiple of 28.
            RpcError: a topic does not exist, or the group may not read it.
            DataLossError: records are gone or damaged, by ``on_loss``.
            TubeMQConnectionError: no master answered, or a broker is away.
        """
        items = read_topics(self._transport, Selection.of(topics, start, end, limit, last, partitions))
        return records_in_thread(items, on_loss, self._until_closed)

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
        items = read_records(self._transport, range_request(self._transport, layout, offsets))
        return records_in_thread(items, on_loss, self._until_closed)

    def read_arrow(
        self,
        topics: str | Iterable[str] | None = None,
        *,
        columns: Iterable[str] | None = None,
        start: StartPlace | None = None,
        end: EndPlace | None = None,
        limit: int | None = None,
        partitions: Iterable[PartitionName] | None = None,
        options: Mapping[str, object] | None = None,
        **more: object,
    ) -> "ArrowReader":
        """Return a ``pyarrow.RecordBatchReader`` of messages, with the columns and options of Spark's source.

        Where the read begins and ends is fixed by this call, and ``latest`` is the end of now. A batch, of
        some 8 MiB or 40,000 messages, is read when it is asked for. To close the reader, which is a context
        manager, ends the read. Its ``losses`` are what ``failOnDataLoss=false`` has passed over.

        For example ``client.read_arrow("clicks", columns=["value", "timestamp"], start=day)``.

        Args:
            topics: the topics; one text is one topic. None with the options ``subscribePattern`` and
                ``assign``.
            columns: the columns to read, in their order; no other one is decoded. By default those that a
                frame in Spark has.
            start: where to begin, as ``read``; in place of options such as ``startingOffsets``.
            end: where to end, as ``read``.
            limit: how many rows to read in all.
            partitions: the only partitions to read, as ``read``; in place of the option ``assign``.
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

        if "last" in more:
            raise bad_setting("last", "given", "left out: read takes it, read_arrow reads from a start")
        if topics is None and (
            partitions is not None or isinstance(start, Mapping) or isinstance(end, Mapping)
        ):
            raise bad_setting("topics", "missing", "given with partitions")
        names = None if topics is None else names_of(topics)
        selection = Selection.of(names or (), start, end, limit, partitions=partitions)
        all_options = {**(options or {}), **more}
        reader = read_arrow(self._transport, self._settings, names, columns, all_options, selection)
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

    def admin(self, web_address: str | None = None, *, token: str | None = None) -> MasterAdmin:
        """Return the administration of the cluster; see ``MasterAdmin``.

        Args:
            web_address: ``host:port`` of the active master's web server. By default the first call looks for
                it, at ``master_web`` or the usual ports of the masters. A client of gateways has to name it,
                since gateways do not administer.
            token: the cluster's ``confModAuthToken``, for calls that change something.

        Raises:
            OptionError: the address is not one, or is left out by a client of gateways.
        """
        return self._admin(web_address, token)


def client_of(settings: UrlSettings) -> TubeMQClient:
    """Return a client with these settings."""
    return TubeMQClient._of_settings(settings)  # noqa: SLF001 (of this module)
