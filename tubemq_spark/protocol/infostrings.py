"""The strings in which TubeMQ packs brokers, routes and partitions, read into values and written from them.

The formats know no escaping, so writers refuse parts that contain a separator. Each format comes as a pair:
``parse_x(format_x(value)) == value``, and writing what was read gives the peer's own text again. Where
TubeMQ's peers differ, readers take what all of them write.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from tubemq_spark.errors import LocalProtocolError, RemoteProtocolError
from tubemq_spark.model import PARTITIONS_PER_STORE, Endpoint, TopicPartition
from tubemq_spark.protocol.constants import DEFAULT_BROKER_PORT

_SEPARATORS: Final = frozenset(":#@,=")
_INT32_MAX: Final = (1 << 31) - 1
_INT64_MAX: Final = (1 << 63) - 1
_MAX_ROUTE_PARTITIONS: Final = 100_000
"""Far above any real topic; keeps a broken peer from making us list billions of partitions."""
_SHOWN_CHARACTERS: Final = 200

Value = TypeVar("Value")


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A broker of the cluster, online or not."""

    broker_id: int
    endpoint: Endpoint


@dataclasses.dataclass(frozen=True, slots=True)
class Route:
    """How much of a topic one broker has: ``stores`` logs of ``partitions`` partitions each."""

    broker_id: int
    partitions: int
    stores: int


@dataclasses.dataclass(frozen=True, slots=True)
class TopicRoute:
    """Where a topic can be published now; without ``max_message_bytes`` the cluster's limit holds."""

    topic: str
    routes: tuple[Route, ...]
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
class PartitionInfo:
    """A partition and the broker that serves it."""

    broker_id: int
    endpoint: Endpoint
    topic: str
    partition_id: int

    @property
    def partition(self) -> TopicPartition:
        """The partition without its broker's address."""
        return TopicPartition(self.topic, self.broker_id, self.partition_id)


@dataclasses.dataclass(frozen=True, slots=True)
class SubscribeInfo:
    """Which consumer of which group holds a partition, or shall take it or give it up."""

    consumer_id: str
    group: str
    held: PartitionInfo


@dataclasses.dataclass(frozen=True, slots=True)
class TopicCondition:
    """A topic's filter: only messages of these types are wanted; none means all."""

    topic: str
    message_types: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class FailureInfo:
    """A partition that a heartbeat found in trouble, and why (``protocol.errcodes``)."""

    code: int
    failed: PartitionInfo


def partition_ids(stores: int, partitions: int) -> list[int]:
    """Return the numbers of a topic's partitions on one broker, ascending (ProducerManager)."""
    return [store * PARTITIONS_PER_STORE + index for store in range(stores) for index in range(partitions)]


def parse_broker_info(text: str, default_port: int = DEFAULT_BROKER_PORT) -> BrokerInfo:
    """Read ``brokerId:host:port`` of brokerInfos and brokerConfigList.

    A blank or missing port is the default: 8123, or 8124 for a client that uses TLS.

    Raises:
        RemoteProtocolError: the text has another form.
    """

    def read(text: str) -> BrokerInfo:
        broker_id, host, *port = _split(text, ":", 2, 3)
        number = port[0].strip() if port else ""
        return BrokerInfo(
            _number(broker_id), Endpoint(_name(host), _port(number) if number else default_port)
        )

    return _reading(text, "brokerId:host:port", read)


def format_broker_info(info: BrokerInfo, default_port: int | None = DEFAULT_BROKER_PORT) -> str:
    """Write ``brokerId:host:port``; the default port is one blank, as Java's master writes it.

    With ``default_port=None`` every port is written as a number, which all clients understand as well.
    """
    port = " " if info.endpoint.port == default_port else str(info.endpoint.port)
    return f"{info.broker_id}:{_checked(info.endpoint.host)}:{port}"


def parse_topic_route(text: str) -> TopicRoute:
    """Read ``topic#brokerId:partitions:stores,...#maxMessageBytes`` of topicInfos.

    The limit may be missing, also with its ``#``.

    Raises:
        RemoteProtocolError: the text has another form.
    """

    def read(text: str) -> TopicRoute:
        topic, routes, *limit = _split(text, "#", 2, 3)
        max_message_bytes = _number(limit[0]) if limit and limit[0] else None
        return TopicRoute(_name(topic), tuple(_route(item) for item in routes.split(",")), max_message_bytes)

    return _reading(text, "topic#brokerId:partitions:stores,...#maxMessageBytes", read)


def format_topic_route(route: TopicRoute) -> str:
    """Write ``topic#brokerId:partitions:stores,...#`` and the topic's own size limit, if it has one."""
    items = ",".join(f"{item.broker_id}:{item.partitions}:{item.stores}" for item in _some(route.routes))
    limit = "" if route.max_message_bytes is None else str(route.max_message_bytes)
    return f"{_checked(route.topic)}#{items}#{limit}"


def parse_topic_meta(text: str) -> TopicMeta:
    """Read ``topic#brokerId:stores:partitions:status,...`` of topicMetaInfoList.

    Stores stand before partitions here, the other way round than in topicInfos.

    Raises:
        RemoteProtocolError: the text has another form.
    """

    def read(text: str) -> TopicMeta:
        topic, items = _split(text, "#", 2, 2)
        return TopicMeta(_name(topic), tuple(_meta_item(item) for item in items.split(",")))

    return _reading(text, "topic#brokerId:stores:partitions:status,...", read)


def format_topic_meta(meta: TopicMeta) -> str:
    """Write ``topic#brokerId:stores:partitions:status,...``."""
    items = ",".join(
        f"{item.broker_id}:{item.stores}:{item.partitions}:{int(item.subscribable)}"
        for item in _some(meta.items)
    )
    return f"{_checked(meta.topic)}#{items}"


def parse_partition(text: str) -> PartitionInfo:
    """Read ``brokerId:host:port#topic:partitionId`` of a broker heartbeat's partitionInfo.

    Raises:
        RemoteProtocolError: the text has another form.
    """
    return _reading(text, "brokerId:host:port#topic:partitionId", _partition)


def format_partition(broker_id: int, endpoint: Endpoint, topic: str, partition_id: int) -> str:
    """Write ``brokerId:host:port#topic:partitionId``; the port is always a number here."""
    return f"{broker_id}:{_checked(endpoint.host)}:{endpoint.port}#{_checked(topic)}:{partition_id}"


def parse_subscribe_info(text: str) -> SubscribeInfo:
    """Read ``consumerId@group#brokerId:host:port#topic:partitionId``.

    Raises:
        RemoteProtocolError: the text has another form.
    """

    def read(text: str) -> SubscribeInfo:
        owner, _, partition = text.partition("#")
        consumer_id, group = _split(owner, "@", 2, 2)
        return SubscribeInfo(_name(consumer_id), _name(group), _partition(partition))

    return _reading(text, "consumerId@group#brokerId:host:port#topic:partitionId", read)


def format_subscribe_info(info: SubscribeInfo) -> str:
    """Write ``consumerId@group#brokerId:host:port#topic:partitionId``."""
    held = info.held
    partition = format_partition(held.broker_id, held.endpoint, held.topic, held.partition_id)
    return f"{_checked(info.consumer_id)}@{_checked(info.group)}#{partition}"


def parse_topic_condition(text: str) -> TopicCondition:
    """Read ``topic#type,type``; ``topic#``, which the Go client sends, is a topic without filter.

    Raises:
        RemoteProtocolError: the text has another form.
    """

    def read(text: str) -> TopicCondition:
        topic, types = _split(text, "#", 2, 2)
        # The Java master trims the items as well.
        names = tuple(_name(item.strip()) for item in types.split(",")) if types.strip() else ()
        return TopicCondition(_name(topic), names)

    return _reading(text, "topic#type,...", read)


def format_topic_condition(condition: TopicCondition) -> str:
    """Write ``topic#type,type``.

    Raises:
        LocalProtocolError: there is no type: Java's master fails on ``topic#``, so leave such a topic out.
    """
    types = ",".join(_checked(item) for item in _some(condition.message_types))
    return f"{_checked(condition.topic)}#{types}"


def parse_required_partition(text: str) -> dict[TopicPartition, int]:
    """Read ``brokerId:topic:partitionId=offset,...``: where a bound group starts; may be empty.

    Raises:
        RemoteProtocolError: the text has another form.
    """

    def read(text: str) -> dict[TopicPartition, int]:
        return dict(_start(item) for item in text.split(",")) if text else {}

    return _reading(text, "brokerId:topic:partitionId=offset,...", read)


def format_required_partition(offsets: Mapping[TopicPartition, int]) -> str:
    """Write ``brokerId:topic:partitionId=offset,...`` in the mapping's order."""
    return ",".join(
        f"{partition.broker_id}:{_checked(partition.topic)}:{partition.partition_id}={offset}"
        for partition, offset in offsets.items()
    )


def parse_failure_info(text: str) -> FailureInfo:
    """Read ``errCode:brokerId:host:port#topic:partitionId`` of a broker's heartbeat answer.

    Raises:
        RemoteProtocolError: the text has another form.
    """

    def read(text: str) -> FailureInfo:
        code, _, partition = text.partition(":")
        return FailureInfo(_number(code), _partition(partition))

    return _reading(text, "errCode:brokerId:host:port#topic:partitionId", read)


def format_failure_info(info: FailureInfo) -> str:
    """Write ``errCode:brokerId:host:port#topic:partitionId``."""
    failed = info.failed
    partition = format_partition(failed.broker_id, failed.endpoint, failed.topic, failed.partition_id)
    return f"{info.code}:{partition}"


def parse_part_sub_info(text: str) -> tuple[TopicPartition, ...]:
    """Read ``topic#brokerId:partitionId,...``: what a self-balancing consumer holds of one topic.

    Raises:
        RemoteProtocolError: the text has another form.
    """

    def read(text: str) -> tuple[TopicPartition, ...]:
        topic, items = _split(text, "#", 2, 2)
        pairs = (_split(item, ":", 2, 2) for item in items.split(","))
        return tuple(
            TopicPartition(_name(topic), _number(broker), _number(number)) for broker, number in pairs
        )

    return _reading(text, "topic#brokerId:partitionId,...", read)


def format_part_sub_info(partitions: Sequence[TopicPartition]) -> str:
    """Write ``topic#brokerId:partitionId,...``.

    Raises:
        LocalProtocolError: no partition, or partitions of several topics: one string holds one topic.
    """
    topics = {partition.topic for partition in _some(partitions)}
    if len(topics) != 1:
        raise _misuse(f"one partSubInfo for the topics {sorted(topics)}")
    return f"{_checked(topics.pop())}#{','.join(partition.local_id for partition in partitions)}"


def _route(item: str) -> Route:
    broker_id, partitions, stores = map(_number, _split(item, ":", 3, 3))
    _check_size(stores, partitions)
    return Route(broker_id, partitions, stores)


def _meta_item(item: str) -> MetaItem:
    broker_id, stores, partitions, status = map(_number, _split(item, ":", 4, 4))
    _check_size(stores, partitions)
    if status > 1:
        raise ValueError(f"the status {status} is neither 0 nor 1")
    return MetaItem(broker_id, stores, partitions, status == 1)


def _partition(text: str) -> PartitionInfo:
    broker, place = _split(text, "#", 2, 2)
    broker_id, host, port = _split(broker, ":", 3, 3)
    topic, partition_id = _split(place, ":", 2, 2)
    return PartitionInfo(
        _number(broker_id), Endpoint(_name(host), _port(port)), _name(topic), _number(partition_id)
    )


def _start(item: str) -> tuple[TopicPartition, int]:
    place, offset = _split(item, "=", 2, 2)
    broker_id, topic, partition_id = _split(place, ":", 3, 3)
    partition = TopicPartition(_name(topic), _number(broker_id), _number(partition_id))
    return partition, _number(offset, _INT64_MAX)


def _reading(text: str, form: str, read: Callable[[str], Value]) -> Value:
    """Call a reader; it says what is wrong with a ValueError, the peer's fault is said here once."""
    try:
        return read(text)
    except ValueError as error:
        shown = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
        raise RemoteProtocolError(
            "TUBEMQ_BAD_PACKED_STRING", text=shown, form=form, what=str(error)
        ) from error


def _split(text: str, separator: str, least: int, most: int) -> list[str]:
    parts = text.split(separator)
    if not least <= len(parts) <= most:
        raise ValueError(f"{text[:_SHOWN_CHARACTERS]!r} has {len(parts)} parts between {separator!r}")
    return parts


def _name(text: str) -> str:
    if not text or text.isspace():
        raise ValueError("a name is blank")
    for separator in _SEPARATORS:
        if separator in text:
            raise ValueError(f"the name {text[:_SHOWN_CHARACTERS]!r} contains {separator!r}")
    return text


def _number(text: str, limit: int = _INT32_MAX) -> int:
    # int() alone would take blanks, signs, underscores and other scripts' digits.
    if not (text.isascii() and text.isdigit()) or int(text) > limit:
        raise ValueError(f"{text[:_SHOWN_CHARACTERS]!r} is no number from 0 to {limit}")
    return int(text)


def _port(text: str) -> int:
    port = _number(text, 65535)
    if port == 0:
        raise ValueError("the port is 0")
    return port


def _check_size(stores: int, partitions: int) -> None:
    if partitions > PARTITIONS_PER_STORE or stores * partitions > _MAX_ROUTE_PARTITIONS:
        raise ValueError(f"{stores} stores of {partitions} partitions are too many")


def _some(items: Sequence[Value]) -> Sequence[Value]:
    if not items:
        raise _misuse("a packed list without items")
    return items


def is_packable(name: str) -> bool:
    """Whether a name can stand in a packed string: it is not blank and has none of the separators."""
    return bool(name) and not name.isspace() and _SEPARATORS.isdisjoint(name)


def _checked(name: str) -> str:
    """Refuse a name that would break the format; options are checked earlier, so this is a bug of ours."""
    if not is_packable(name):
        raise _misuse(f"the name {name!r} in a packed string")
    return name


def _misuse(what: str) -> LocalProtocolError:
    return LocalProtocolError("TUBEMQ_PROTOCOL_MISUSE", what=what)
