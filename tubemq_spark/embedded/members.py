"""Who is registered at the master: producers, and the groups of consumers that balance by themselves."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping

from tubemq_spark.embedded.dispatch import RefusedError
from tubemq_spark.embedded.leases import monotonic_ms
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.errcodes import ErrCode


@dataclasses.dataclass(slots=True)
class Producer:
    """A registered producer."""

    heard_at_ms: int


@dataclasses.dataclass(slots=True)
class Consumer:
    """A member of a group."""

    client_id: str
    node_id: int
    heard_at_ms: int
    assigned_at_ms: int
    """When the client took over a layout, by its own clock; below 0 when it has none yet."""
    held: tuple[TopicPartition, ...] = ()
    """The partitions it says it holds."""


@dataclasses.dataclass(frozen=True, slots=True)
class GroupTerms:
    """What all members of a group must agree on; the first one sets it (ConsumeGroupInfo)."""

    topics: frozenset[str]
    filters: Mapping[str, frozenset[str]]
    """Message types by topic; topics without filter are not in it."""
    source_count: int
    """How many members there shall be; not above 0: not stated."""


@dataclasses.dataclass(slots=True)
class Group:
    """A group that has members."""

    name: str
    terms: GroupTerms
    members: dict[str, Consumer] = dataclasses.field(default_factory=dict)

    def check(self, terms: GroupTerms, consumer: Consumer) -> None:
        """Refuse a member that does not fit to the others.

        Raises:
            RefusedError: 425, 426, 429 or 430, in this order.
        """
        client = f"[Inconsistency subscribe] {consumer.client_id} subscribed"
        if terms.topics != self.terms.topics:
            text = f"topics {_listed(terms.topics)} unequal to group's {_listed(self.terms.topics)}"
            raise RefusedError(ErrCode.CLIENT_INCONSISTENT_TOPICSET, f"{client} {text}")
        if terms.filters != self.terms.filters:
            text = f"filters of {self.name} differ from those of the group's other members"
            raise RefusedError(ErrCode.CLIENT_INCONSISTENT_FILTERSET, f"{client} {text}")
        if terms.source_count != self.terms.source_count:
            text = f"with sourceCount {terms.source_count}, the group has {self.terms.source_count}"
            raise RefusedError(ErrCode.CLIENT_INCONSISTENT_SOURCECOUNT, f"{client} {text}")
        for other in self.members.values():
            same = other.node_id == consumer.node_id and other.client_id != consumer.client_id
            if same and terms.source_count > 0:
                text = f"with nodeId {consumer.node_id}, which {other.client_id} has"
                raise RefusedError(ErrCode.CLIENT_DUPLICATE_INDEXID, f"{client} {text}")


class Members:
    """All that a master keeps in memory only; the master's lock guards it."""

    def __init__(self, timeout_ms: int, now_ms: Callable[[], int] = monotonic_ms) -> None:
        """Forget clients that were silent for ``timeout_ms``."""
        self._timeout_ms = timeout_ms
        self._now_ms = now_ms
        self._producers: dict[str, Producer] = {}
        self.groups: dict[str, Group] = {}

    def add_producer(self, client_id: str) -> None:
        """Register a producer, or register it again."""
        self._producers[client_id] = Producer(self._now_ms())

    def hear_producer(self, client_id: str) -> None:
        """Note that a producer lives.

        Raises:
            RefusedError: it is not registered: 411.
        """
        producer = self._producers.get(client_id)
        if producer is None:
            raise RefusedError(
                ErrCode.HB_NO_NODE, f"Invalid node id:{client_id}, you have to append node first!"
            )
        producer.heard_at_ms = self._now_ms()

    def remove_producer(self, client_id: str) -> None:
        """Forget a producer; an unknown one is fine."""
        self._producers.pop(client_id, None)

    def add_consumer(self, group_name: str, terms: GroupTerms, consumer: Consumer) -> None:
        """Register a consumer, or register it again; the first of a group sets its terms.

        Raises:
            RefusedError: it does not fit to the others: 425, 426, 429, 430.
        """
        group = self.groups.get(group_name) or Group(group_name, terms)
        group.check(terms, consumer)
        consumer.heard_at_ms = self._now_ms()
        group.members[consumer.client_id] = consumer
        self.groups[group_name] = group

    def hear_consumer(self, group_name: str, client_id: str) -> tuple[Group, Consumer]:
        """Note that a consumer lives, and return it with its group.

        Raises:
            RefusedError: the group or the client is not registered: 411.
        """
        group = self.groups.get(group_name)
        if group is None:
            raise RefusedError(ErrCode.HB_NO_NODE, f"Not found groupName {group_name} in holder!")
        consumer = group.members.get(client_id)
        if consumer is None:
            text = f"Not found client {client_id} in group({group_name})"
            raise RefusedError(ErrCode.HB_NO_NODE, text)
        consumer.heard_at_ms = self._now_ms()
        return group, consumer

    def remove_consumer(self, group_name: str, client_id: str) -> None:
        """Forget a consumer, and its group with the last one; an unknown one is fine."""
        group = self.groups.get(group_name)
        if group is not None:
            group.members.pop(client_id, None)
            if not group.members:
                del self.groups[group_name]

    def expire(self) -> list[str]:
        """Forget the clients that were silent for too long; return their ids."""
        latest = self._now_ms() - self._timeout_ms
        producers = [name for name, producer in self._producers.items() if producer.heard_at_ms <= latest]
        consumers = [
            (group.name, consumer.client_id)
            for group in self.groups.values()
            for consumer in group.members.values()
            if consumer.heard_at_ms <= latest
        ]
        for client_id in producers:
            self.remove_producer(client_id)
        for group_name, client_id in consumers:
            self.remove_consumer(group_name, client_id)
        return producers + [client_id for _, client_id in consumers]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
