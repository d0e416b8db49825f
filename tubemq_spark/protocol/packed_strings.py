"""The grammar of TubeMQ's packed strings: parts between separators, read into values and written from them.

So masters and clients say where topics are, and which partitions are held, wanted or in trouble. The formats
know no escaping, so writers refuse parts that contain a separator. Each format comes as a pair:
``parse_x(format_x(value)) == value``, and writing what was read gives the peer's own text again. Where
TubeMQ's peers differ, readers accept what all of them write.

Readers of parts raise ValueError, which ``parse_packed`` turns into the peer's error; writers raise
LocalProtocolError, since options are checked earlier.
"""

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeVar

from tubemq_spark.errors import LocalProtocolError, RemoteProtocolError
from tubemq_spark.model import PARTITIONS_PER_STORE, Endpoint, TopicPartition
from tubemq_spark.protocol.constants import DEFAULT_BROKER_PORT

# TokenConstants: `:` fields, `#` sections, `@` consumer and group, `,` lists, `=` key and value.
_SEPARATORS: Final = frozenset(":#@,=")
_INT32_MAX: Final = (1 << 31) - 1
_SHOWN_CHARACTERS: Final = 200

Value = TypeVar("Value")


def parse_packed(text: str, form: str, read: Callable[[str], Value]) -> Value:
    """Parse a peer's text by ``read``, and name the text in its error."""
    try:
        return read(text)
    except ValueError as error:
        shown = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
        raise RemoteProtocolError(
            "TUBEMQ_BAD_PACKED_STRING", text=shown, form=form, what=str(error)
        ) from error


def split(text: str, separator: str, least: int, most: int) -> list[str]:
    """Return the parts of a text, which must be at least and at most so many."""
    # Not trimmed before: Java's String.split drops empty items at the end, so peers write an empty port as
    # one blank.
    parts = text.split(separator)
    if not least <= len(parts) <= most:
        raise ValueError(f"{text[:_SHOWN_CHARACTERS]!r} has {len(parts)} parts between {separator!r}")
    return parts


def read_name(text: str) -> str:
    """Return a part that is a name."""
    if not text or text.isspace():
        raise ValueError("a name is blank")
    # One separator more would move all that follows it: formats have no escaping.
    for separator in _SEPARATORS:
        if separator in text:
            raise ValueError(f"the name {text[:_SHOWN_CHARACTERS]!r} contains {separator!r}")
    return text


def read_number(text: str, limit: int = _INT32_MAX) -> int:
    """Return a part that is a decimal number from 0 to ``limit``."""
    # int() alone would accept blanks, signs, underscores and other scripts' digits.
    if not (text.isascii() and text.isdigit()) or int(text) > limit:
        raise ValueError(f"{text[:_SHOWN_CHARACTERS]!r} is not a number from 0 to {limit}")
    return int(text)


def read_port(text: str) -> int:
    """Return a part that is a port."""
    port = read_number(text, 65535)
    if port == 0:
        raise ValueError("the port is 0")
    return port


def is_packable(name: str) -> bool:
    """Tell whether a name can be written into a packed string: it is not blank and has no separator."""
    return bool(name) and not name.isspace() and _SEPARATORS.isdisjoint(name)


def checked(name: str) -> str:
    """Return a name that can be written."""
    if not is_packable(name):
        raise misuse(f"the name {name!r} in a packed string")
    return name


def nonempty(items: Sequence[Value]) -> Sequence[Value]:
    """Return a list that can be written."""
    if not items:
        raise misuse("a packed list without items")
    return items


def misuse(what: str) -> LocalProtocolError:
    """Return the error for something that no packed string can express."""
    return LocalProtocolError("TUBEMQ_PROTOCOL_MISUSE", what=what)


_MAX_ROUTE_PARTITIONS: Final = 100_000
"""Of a topic on all brokers, far above any real one: a broken peer could claim billions."""


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A broker of the cluster, online or not."""

    broker_id: int
    endpoint: Endpoint


@dataclasses.dataclass(frozen=True, slots=True)
class RouteItem:
    """How much of a topic one broker has: ``stores`` logs of ``partitions`` partitions each."""

    broker_id: int
    partitions: int
    stores: int


@dataclasses.dataclass(frozen=True, slots=True)
class TopicRoute:
    """Where a topic can be published now; without ``max_message_bytes`` the cluster's limit applies."""

    topic: str
    routes: tuple[RouteItem, ...]
    max_message_bytes: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class MetaItem:
    """How much of a topic one broker has, and whether that can be read now."""

    broker_id: int
    stores: int
    partitions: int
    subscribable: bool


@dataclasses.dataclass(frozen=True, slots=True)
class TopicMeta:
    """A topic's layout for a consumer that balances by itself."""

    topic: str
    items: tuple[MetaItem, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class TopicCondition:
    """A topic's filter: only messages of these types are wanted; none means all."""

    topic: str
    message_types: tuple[str, ...]


def partition_ids(stores: int, partitions: int) -> list[int]:
    """Return the numbers of a topic's partitions on one broker, ascending (ProducerManager)."""
    # partitionId = store * 10000 + index: the store is in the number, so partitions of one store share its
    # offsets.
    return [store * PARTITIONS_PER_STORE + index for store in range(stores) for index in range(partitions)]


def parse_broker_info(text: str, default_port: int = DEFAULT_BROKER_PORT) -> BrokerInfo:
    """Read ``brokerId:host:port`` of brokerInfos and brokerConfigList.

    A blank or missing port is the default: 8123, or 8124 for a client that uses TLS.
    """

    def read(text: str) -> BrokerInfo:
        # Java's client throws on a missing third part; C++ and Go fall back to 8123, also over TLS.
        broker_id, host, *port = split(text, ":", 2, 3)  # no trimming before: the blank is a part
        number = port[0].strip() if port else ""
        return BrokerInfo(
            read_number(broker_id), Endpoint(read_name(host), read_port(number) if number else default_port)
        )

    return parse_packed(text, "brokerId:host:port", read)


def format_broker_info(info: BrokerInfo, default_port: int | None = DEFAULT_BROKER_PORT) -> str:
    """Write ``brokerId:host:port``; the default port is one blank, as Java's master writes it.

    With ``default_port=None`` every port is written as a number, which all clients understand as well.
    """
    # An empty part would be dropped by String.split of Java's client; hence the blank.
    port = " " if info.endpoint.port == default_port else str(info.endpoint.port)
    return f"{info.broker_id}:{checked(info.endpoint.host)}:{port}"


def parse_topic_route(text: str) -> TopicRoute:
    """Read ``topic#brokerId:partitions:stores,...#maxMessageBytes`` of topicInfos.

    The limit may be missing, also with its ``#``.
    """

    def read(text: str) -> TopicRoute:
        # Java's master always writes the second #, and a limit behind it only where it differs from the
        # cluster's.
        topic, routes, *limit = split(text, "#", 2, 3)
        max_message_bytes = read_number(limit[0]) if limit and limit[0] else None
        items = tuple(map(_route, routes.split(",")))
        _check_size(sum(item.stores * item.partitions for item in items))
        return TopicRoute(read_name(topic), items, max_message_bytes)

    return parse_packed(text, "topic#brokerId:partitions:stores,...#maxMessageBytes", read)


def format_topic_route(route: TopicRoute) -> str:
    """Write ``topic#brokerId:partitions:stores,...#`` and the topic's own size limit, if it has one."""
    items = ",".join(f"{item.broker_id}:{item.partitions}:{item.stores}" for item in nonempty(route.routes))
    limit = "" if route.max_message_bytes is None else str(route.max_message_bytes)  # its # stays
    return f"{checked(route.topic)}#{items}#{limit}"


def parse_topic_meta(text: str) -> TopicMeta:
    """Read ``topic#brokerId:stores:partitions:status,...`` of topicMetaInfoList.

    Stores come before partitions here; in topicInfos it is the other way round.
    """

    def read(text: str) -> TopicMeta:
        topic, items = split(text, "#", 2, 2)
        metas = tuple(_meta_item(item) for item in items.split(","))
        _check_size(sum(item.stores * item.partitions for item in metas))
        return TopicMeta(read_name(topic), metas)

    return parse_packed(text, "topic#brokerId:stores:partitions:status,...", read)


def format_topic_meta(meta: TopicMeta) -> str:
    """Write ``topic#brokerId:stores:partitions:status,...``."""
    items = ",".join(
        f"{item.broker_id}:{item.stores}:{item.partitions}:{int(item.subscribable)}"
        for item in nonempty(meta.items)
    )
    return f"{checked(meta.topic)}#{items}"


def parse_topic_condition(text: str) -> TopicCondition:
    """Read ``topic#type,type``; ``topic#``, which the Go client sends, is a topic without filter."""

    def read(text: str) -> TopicCondition:
        topic, types = split(text, "#", 2, 2)
        # The Java master trims the items as well.
        names = tuple(read_name(item.strip()) for item in types.split(",")) if types.strip() else ()
        return TopicCondition(read_name(topic), names)

    return parse_packed(text, "topic#type,...", read)


def format_topic_condition(condition: TopicCondition) -> str:
    """Write ``topic#type,type``.

    Without a type it is refused: Java's master fails on ``topic#``, so such a topic is left out.
    """
    types = ",".join(checked(item) for item in nonempty(condition.message_types))
    return f"{checked(condition.topic)}#{types}"


def topic_conditions(message_types: Mapping[str, Collection[str]]) -> list[str]:
    """Write the filters of a subscription, one text per topic that has any, with sorted types.

    All members of a group must send the same; a master compares sets, older ones compared the texts.
    """
    return [
        format_topic_condition(TopicCondition(topic, tuple(sorted(types))))
        for topic, types in sorted(message_types.items())
        if types  # TMaster answers `topic#` with ERROR, InvocationTargetException
    ]


def _route(item: str) -> RouteItem:
    broker_id, partitions, stores = map(read_number, split(item, ":", 3, 3))  # topicInfos: partNum, storeNum
    _check_partitions(partitions)
    return RouteItem(broker_id, partitions, stores)


def _meta_item(item: str) -> MetaItem:
    broker_id, stores, partitions, status = map(read_number, split(item, ":", 4, 4))  # not as topicInfos
    _check_partitions(partitions)
    if status > 1:  # 1: may be subscribed now, 0: not
        raise ValueError(f"the status {status} is neither 0 nor 1")
    return MetaItem(broker_id, stores, partitions, status == 1)


def _check_partitions(partitions: int) -> None:
    if partitions > PARTITIONS_PER_STORE:
        raise ValueError(f"{partitions} partitions in a store are too many")


def _check_size(partitions: int) -> None:
    if partitions > _MAX_ROUTE_PARTITIONS:
        raise ValueError(f"{partitions} partitions of a topic are too many")


_SEPARATOR: Final = re.compile("([@#:])")


@dataclasses.dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition and the broker that serves it."""

    broker_id: int
    endpoint: Endpoint  # brokers do not compare it with their own
    topic: str
    partition_id: int

    @property
    def partition(self) -> TopicPartition:
        """The partition without its broker's address."""
        return TopicPartition(self.topic, self.broker_id, self.partition_id)


@dataclasses.dataclass(frozen=True, slots=True)
class SubscribeInfo:
    """Which consumer of which group holds a partition, or is told to take or to release it."""

    consumer_id: str
    group: str
    held: PartitionInfo


@dataclasses.dataclass(frozen=True, slots=True)
class FailureInfo:
    """A partition that a heartbeat found in trouble, and why (``protocol.errcodes``)."""

    code: int  # 411: not registered or timed out; 412: held by another consumer
    failed: PartitionInfo


def parse_partition(text: str) -> PartitionInfo:
    """Read ``brokerId:host:port#topic:partitionId`` of a broker heartbeat's partitionInfo."""
    return parse_packed(text, "brokerId:host:port#topic:partitionId", _partition)


def format_partition(broker_id: int, endpoint: Endpoint, topic: str, partition_id: int) -> str:
    """Write ``brokerId:host:port#topic:partitionId``; the port is always a number here."""
    return f"{broker_id}:{checked(endpoint.host)}:{endpoint.port}#{checked(topic)}:{partition_id}"


def parse_subscribe_info(text: str) -> SubscribeInfo:
    """Read ``consumerId@group#brokerId:host:port#topic:partitionId``; blanks around the parts are ignored."""

    def read(text: str) -> SubscribeInfo:
        # A comment in TubeMQ's proto file shows `-` between the parts; the code (SubscribeInfo) writes # and
        # @.
        # Cut first and stripped then: a pattern for the blanks themselves costs their number squared.
        parts = "".join(part.strip() for part in _SEPARATOR.split(text))
        owner, _, partition = parts.partition("#")
        consumer_id, group = split(owner, "@", 2, 2)
        return SubscribeInfo(read_name(consumer_id), read_name(group), _partition(partition))

    return parse_packed(text, "consumerId@group#brokerId:host:port#topic:partitionId", read)


def format_subscribe_info(info: SubscribeInfo) -> str:
    """Write ``consumerId@group#brokerId:host:port#topic:partitionId``."""
    place = info.held
    partition = format_partition(place.broker_id, place.endpoint, place.topic, place.partition_id)
    return f"{checked(info.consumer_id)}@{checked(info.group)}#{partition}"


def format_required_partition(offsets: Mapping[TopicPartition, int]) -> str:
    """Write ``brokerId:topic:partitionId=offset,...`` in the mapping's order."""
    return ",".join(  # RegisterRequestC2M.requiredPartition (11); may be empty
        f"{partition.broker_id}:{checked(partition.topic)}:{partition.partition_id}={offset}"
        for partition, offset in offsets.items()
    )


def parse_failure_info(text: str) -> FailureInfo:
    """Read ``errCode:brokerId:host:port#topic:partitionId`` of a broker's heartbeat answer."""

    def read(text: str) -> FailureInfo:
        # Cut at the first colon only: the partition has colons of its own.
        code, _, partition = text.partition(":")  # HeartBeatResponseB2C.failureInfo (5)
        return FailureInfo(read_number(code), _partition(partition))

    return parse_packed(text, "errCode:brokerId:host:port#topic:partitionId", read)


def parse_part_sub_info(text: str) -> tuple[TopicPartition, ...]:
    """Read ``topic#brokerId:partitionId,...``: what of one topic a self-balancing consumer holds."""

    def read(text: str) -> tuple[TopicPartition, ...]:
        topic, items = split(text, "#", 2, 2)  # ClientSubRepInfo.partSubInfo (5)
        topic = read_name(topic)
        pairs = (map(read_number, split(item, ":", 2, 2)) for item in items.split(","))
        return tuple(TopicPartition(topic, broker_id, number) for broker_id, number in pairs)

    return parse_packed(text, "topic#brokerId:partitionId,...", read)


def format_part_sub_info(partitions: Sequence[TopicPartition]) -> str:
    """Write ``topic#brokerId:partitionId,...``."""
    topics = {partition.topic for partition in nonempty(partitions)}
    if len(topics) != 1:
        raise misuse(f"one partSubInfo for the topics {sorted(topics)}")
    return f"{checked(topics.pop())}#{','.join(partition.local_id for partition in partitions)}"


def _partition(text: str) -> PartitionInfo:
    broker, place = split(text, "#", 2, 2)
    broker_id, host, port = split(broker, ":", 3, 3)  # over TLS the TLS port; never blank here
    topic, partition_id = split(place, ":", 2, 2)  # store * 10000 + index
    endpoint = Endpoint(read_name(host), read_port(port))
    return PartitionInfo(read_number(broker_id), endpoint, read_name(topic), read_number(partition_id))
