"""Which partitions are whose, when consumers split them by their numbers without asking each other."""

from collections.abc import Iterable
from typing import Final

from tubemq_spark.client.subscription import Node
from tubemq_spark.model import TopicPartition

_JAVA_FACTOR: Final = 31
_UINT32: Final = (1 << 32) - 1


def share_of(partitions: Iterable[TopicPartition], node: Node) -> tuple[TopicPartition, ...]:
    """Return the partitions of one of several consumers, in order: each partition is in exactly one share.

    A partition's share is the Java hash code of its key, as a number without sign, modulo the number of
    consumers: as in TubeMQ's own example (ClientBalanceConsumerExample), so that both can share a group.
    """
    return tuple(sorted(one for one in partitions if _hash(one) % node.source_count == node.node_id))


def _hash(partition: TopicPartition) -> int:
    """Return ``String.hashCode`` of ``brokerId:topic:partitionId``; the names in it are ASCII."""
    number = 0
    for character in f"{partition.broker_id}:{partition.topic}:{partition.partition_id}":
        number = (number * _JAVA_FACTOR + ord(character)) & _UINT32
    return number
