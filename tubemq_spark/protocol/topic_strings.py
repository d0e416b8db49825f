"""What masters say about brokers and topics, as packed strings: see ``packed_strings``."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Final

from tubemq_spark.model import PARTITIONS_PER_STORE, Endpoint
from tubemq_spark.protocol.constants import DEFAULT_BROKER_PORT
from tubemq_spark.protocol.packed_strings import (
    checked,
    nonempty,
    parse_packed,
    read_name,
    read_number,
    read_port,
    split,
)

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
