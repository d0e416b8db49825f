"""Who is registered at the master: producers, and the groups of consumers."""

import dataclasses
from collections.abc import Callable

from tubemq_spark.embedded.clock import monotonic_ms
from tubemq_spark.embedded.dispatch import RefusedError
from tubemq_spark.embedded.master.groups import Group, GroupTerms, RegisteredConsumer
from tubemq_spark.protocol.errcodes import ErrCode


@dataclasses.dataclass(slots=True)
class RegisteredProducer:
    """A registered producer."""

    heard_at_ms: int


class Members:
    """The registered clients, which the master keeps in memory only; hold the master's lock."""

    def __init__(self, timeout_ms: int, now_ms: Callable[[], int] = monotonic_ms) -> None:
        """``expire`` removes clients that have been silent for ``timeout_ms``."""
        self._timeout_ms = timeout_ms
        self._now_ms = now_ms
        self._producers: dict[str, RegisteredProducer] = {}
        self.groups: dict[str, Group] = {}

    @property
    def producer_count(self) -> int:
        """How many producers are registered."""
        return len(self._producers)

    def add_producer(self, client_id: str) -> None:
        """Register a producer, or register it again."""
        self._producers[client_id] = RegisteredProducer(self._now_ms())

    def record_producer_heartbeat(self, client_id: str) -> None:
        """Record that a producer is alive.

        One that is not registered is refused (411).
        """
        producer = self._producers.get(client_id)
        if producer is None:
            raise RefusedError(ErrCode.HB_NO_NODE, _append_first(client_id))
        producer.heard_at_ms = self._now_ms()

    def remove_producer(self, client_id: str) -> None:
        """Remove a producer, if it is registered."""
        self._producers.pop(client_id, None)

    def add_consumer(self, group_name: str, terms: GroupTerms, consumer: RegisteredConsumer) -> Group:
        """Register a consumer, or register it again; the first of a group sets its terms."""
        group = self.groups.get(group_name) or Group(group_name, terms)
        group.check(terms, consumer)
        consumer.heard_at_ms = self._now_ms()
        group.members[consumer.client_id] = consumer
        self.groups[group_name] = group
        return group

    def record_consumer_heartbeat(
        self, group_name: str, client_id: str, *, client_balanced: bool
    ) -> tuple[Group, RegisteredConsumer]:
        """Record that a consumer is alive, and return it with its group.

        An unknown group or member is refused (411). TubeMQ does not check that the request fits the group's
        kind; ``client_balanced`` only chooses the text.
        """
        group = self.groups.get(group_name)
        if group is None:
            raise RefusedError(ErrCode.HB_NO_NODE, f"Not found groupName {group_name} in holder!")
        consumer = group.members.get(client_id)
        if consumer is None:
            text = f"Not found client {client_id} in group({group_name})"
            if not client_balanced:
                text = f"Update consumer node exception:{_append_first(f'{client_id}@{group_name}')}"
            raise RefusedError(ErrCode.HB_NO_NODE, text)
        consumer.heard_at_ms = self._now_ms()
        return group, consumer

    def remove_consumer(self, group_name: str, client_id: str) -> None:
        """Remove a consumer, if it is registered, and its group with the last one."""
        group = self.groups.get(group_name)
        if group is not None:
            group.remove(client_id)
            if not group.members:
                del self.groups[group_name]

    def forget_all(self) -> None:
        """Remove all clients, as a restart of the master does."""
        self._producers.clear()
        self.groups.clear()

    def expire(self) -> list[str]:
        """Remove the clients that have been silent for too long; return their ids."""
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


def _append_first(node_id: str) -> str:
    return f"Invalid node id:{node_id}, you have to append node first!"
