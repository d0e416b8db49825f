"""Which partitions are held, wanted or in trouble, as packed strings: see ``packed_strings``."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Final

from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.protocol.packed_strings import (
    checked,
    misuse,
    nonempty,
    parse_packed,
    read_name,
    read_number,
    read_port,
    split,
)

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
