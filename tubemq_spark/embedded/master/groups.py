"""The clients that are online: producers, and consumer groups with what their members must agree on.

See ConsumeGroupInfo. The members of a bound group start at offsets that they name (PBParameterUtils). The
master only ensures that a member gets the partitions that it named. The member itself tells the offsets to
the broker, when it first registers there.
"""

import dataclasses
import enum
from collections.abc import Callable, Iterable, Mapping, Set as AbstractSet
from typing import Final

from tubemq_spark.embedded.dispatch import RefusedError, trimmed
from tubemq_spark.embedded.master.balancing import GroupEvents, MemberEvent
from tubemq_spark.embedded.scheduler import monotonic_ms
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.constants import UNDEFINED
from tubemq_spark.protocol.errcodes import ErrCode

Starts = Mapping[TopicPartition, int]


def parse_starts(text: str, topics: AbstractSet[str]) -> dict[TopicPartition, int]:
    """Parse ``brokerId:topic:partitionId=offset,...``; blank means none.

    Another form, or a topic that is not subscribed, is refused (400).
    """
    text = trimmed("requiredPartition", text)
    return dict(_parse_start(item, topics) for item in text.split(",")) if text else {}


def winners(starts: Mapping[str, Starts], *, select_big: bool) -> dict[TopicPartition, str]:
    """Return which member gets which of the named partitions.

    If several named one, the biggest offset wins, and the last of equal ones; or the smallest offset, and the
    first of equal ones. ``starts`` has the members in the order in which they joined.
    """
    best: dict[TopicPartition, tuple[int, str]] = {}
    for member, named in starts.items():
        for partition, offset in named.items():
            winner = best.get(partition)
            if winner is None or (offset >= winner[0] if select_big else offset < winner[0]):
                best[partition] = (offset, member)
    return {partition: member for partition, (_, member) in best.items()}


def check_start(session_key: str, source_count: int) -> None:
    """Check what a member of a bound group says about its start."""
    if not session_key:
        raise _refused("blank value of sessionKey!")
    if source_count <= 0:
        raise _refused("totalSourceCount must over zero!")


def _parse_start(item: str, topics: AbstractSet[str]) -> tuple[TopicPartition, int]:
    """Parse one item of a bound start: a partition, and its offset."""
    key, equals, value = item.partition("=")
    parts = [trimmed("requiredPartition", part) for part in key.split(":")]
    if not equals or len(parts) != 3:
        what = f"unformatted Partition-Offset value : {item} must be aa:bbb:ccc=val1,ddd:eee:ff=val2"
        raise _refused(what)
    broker_id, topic, partition_id = parts
    if topic not in topics:
        what = f"wrong offset reset for unsubscribed topic: reset item is {item}"
        raise _refused(f"{what}, request topicList are [{', '.join(sorted(topics))}]")
    try:
        return TopicPartition(topic, int(broker_id), int(partition_id)), int(value)
    except ValueError:
        raise _refused(f"required long type value of {item}' Offset!") from None


def _refused(what: str) -> RefusedError:
    return RefusedError(ErrCode.BAD_REQUEST, f"[Parameter error] {what}")


class ConsumeType(enum.Enum):
    """How partitions are assigned to the members of a group, by TubeMQ's names (ConsumeType)."""

    NORMAL = "unbound"
    """The master assigns them."""
    BOUND = "bound"
    """The same, but members start at offsets that they name."""
    CLIENT_BALANCE = "client-rebalance"
    """The members agree among themselves."""


@dataclasses.dataclass(slots=True)
class RegisteredConsumer:
    """A member of a group."""

    client_id: str
    node_id: int = UNDEFINED
    heard_at_ms: int = 0
    assigned_at_ms: int = UNDEFINED
    """When a client-balanced member adopted a layout, by its own clock; below 0: it has none."""
    held: tuple[TopicPartition, ...] = ()
    """The partitions that a client-balanced member reports."""
    from_max_id: int = UNDEFINED
    """The last order to start from the latest message that a client-balanced member has followed."""
    source_count: int = UNDEFINED
    starts: Mapping[TopicPartition, int] = dataclasses.field(default_factory=dict)
    """Where a bound member wants to start, by partition."""


@dataclasses.dataclass(frozen=True, slots=True)
class GroupTerms:
    """What all members of a group must agree on; the first member sets it."""

    topics: frozenset[str]
    filters: Mapping[str, frozenset[str]]
    """Message types by topic; topics without a filter are absent."""
    source_count: int
    """The expected number of members; 0 or below: not stated."""
    kind: ConsumeType = ConsumeType.CLIENT_BALANCE
    session_key: str = ""
    """Identifies one start of a bound group."""
    select_big: bool = True
    """Whether the biggest of several offsets for a partition of a bound group wins, or the smallest."""


@dataclasses.dataclass(frozen=True, slots=True)
class ResourceCheck:
    """Whether a group has enough members for the brokers of its topics."""

    configured_rate: int
    """The maximum number of brokers per member by the group's control; -2: not set."""
    current_rate: int
    members_needed: int | None
    """None: the group has enough."""


@dataclasses.dataclass(slots=True)
class Group:
    """A group that has members; ``events`` is used only if the master balances it."""

    name: str
    terms: GroupTerms
    members: dict[str, RegisteredConsumer] = dataclasses.field(default_factory=dict)
    events: GroupEvents = dataclasses.field(default_factory=GroupEvents)
    not_allocated: bool = True
    """Whether no member has finished an event."""
    bound_rounds: int = 0
    """In how many rounds a bound group got the partitions that it named."""
    waited_rounds: int = 0
    """In how many rounds a bound group had too few members."""
    resources: ResourceCheck | None = None
    from_max_id: int = UNDEFINED
    """The order to client-balanced members to start from the latest message: a time in ms."""
    layout: list[str] | None = None
    """The partitions of the topics, as client-balanced members were last told."""
    layout_id: int = UNDEFINED
    """The id of ``layout``: members that know a different one get it."""

    @property
    def client_balanced(self) -> bool:
        """Whether the members balance among themselves."""
        return self.terms.kind is ConsumeType.CLIENT_BALANCE

    def held(self, consumer: RegisteredConsumer) -> list[TopicPartition]:
        """Return the partitions that a member reports."""
        return list(consumer.held) if self.client_balanced else sorted(self.events.held(consumer.client_id))

    def record_heartbeat(
        self, consumer: RegisteredConsumer, partitions: Iterable[TopicPartition] | None, answered: int = 0
    ) -> None:
        """Record a member's heartbeat.

        ``partitions`` are all that it has, if it reports them; ``answered`` is the id of the event that it
        has finished, 0 or below: none.
        """
        if answered > 0:
            self.not_allocated = False
        if self.client_balanced:
            consumer.held = consumer.held if partitions is None else tuple(partitions)
        else:
            self.events.record_heartbeat(
                consumer.client_id, None if partitions is None else frozenset(partitions), answered
            )

    def next_event(self, consumer: RegisteredConsumer) -> MemberEvent | None:
        """Return the event that a member gets now, if any; it gets each event only once."""
        return None if self.client_balanced else self.events.next_event(consumer.client_id)

    def named_partitions(self) -> dict[TopicPartition, str]:
        """Return which member of a bound group gets which of the partitions that members named."""
        starts = {name: member.starts for name, member in self.members.items()}
        return winners(starts, select_big=self.terms.select_big)

    def remove(self, client_id: str) -> None:
        """Remove a member and everything that was planned for it."""
        self.members.pop(client_id, None)
        self.events.leave(client_id)

    def check(self, terms: GroupTerms, consumer: RegisteredConsumer) -> None:
        """Refuse a member that does not agree with the others.

        The codes are 424 to 430, in the order of TubeMQ's checks.
        """
        if self.members:
            _check_kind(self.terms, terms, consumer)
            _check_subscription(self.terms, terms, consumer)
            if self.terms.kind is ConsumeType.BOUND:
                _check_start(self.terms, terms, consumer)
            elif self.client_balanced and self.terms.source_count > 0:
                self._check_node(terms, consumer)

    def _check_node(self, terms: GroupTerms, consumer: RegisteredConsumer) -> None:
        _check_same("sourceCount", self.terms.source_count, terms.source_count, _SOURCE_COUNT, consumer)
        for member in self.members.values():
            if member.node_id == consumer.node_id and member.client_id != consumer.client_id:
                text = (
                    f"{_prefix(consumer)}'s nodeId value({consumer.node_id}) is occupied by "
                    f"{member.client_id}'s nodeId value({member.node_id}) in the group!"
                )
                raise RefusedError(ErrCode.CLIENT_DUPLICATE_INDEXID, text)


_SOURCE_COUNT: Final = ErrCode.CLIENT_INCONSISTENT_SOURCECOUNT
_SUBSCRIBE: Final = "is inconsistency with other consumers"


def _check_kind(group: GroupTerms, member: GroupTerms, consumer: RegisteredConsumer) -> None:
    if member.kind is not group.kind:
        text = (
            f"{_prefix(consumer)} using {member.kind.value} subscribe {_SUBSCRIBE} "
            f"using {group.kind.value} subscribe in the group"
        )
        raise RefusedError(ErrCode.CLIENT_INCONSISTENT_CONSUMETYPE, text)


def _check_subscription(group: GroupTerms, member: GroupTerms, consumer: RegisteredConsumer) -> None:
    if member.topics != group.topics:
        text = (
            f"{_prefix(consumer)} subscribed topics {java_set(member.topics)} {_SUBSCRIBE} in the group, "
            f"existedTopics: {java_set(group.topics)}"
        )
        raise RefusedError(ErrCode.CLIENT_INCONSISTENT_TOPICSET, text)
    if member.filters != group.filters:
        with_filter = f"with filter condition {_conditions(member)}"
        subscription = with_filter if member.filters else "without filter condition "
        there = f", existed topic conditions is {_conditions(group)}"
        text = f"{_prefix(consumer)} subscribe {subscription} {_SUBSCRIBE} in the group"
        text += there if group.filters else ": topic without conditions"
        raise RefusedError(ErrCode.CLIENT_INCONSISTENT_FILTERSET, text)


def _check_start(group: GroupTerms, member: GroupTerms, consumer: RegisteredConsumer) -> None:
    """Compare what is said about the start of a bound group."""
    code = ErrCode.CLIENT_INCONSISTENT_SESSIONKEY
    _check_same("sessionKey", group.session_key, member.session_key, code, consumer)
    code = ErrCode.CLIENT_INCONSISTENT_SELECTBIG
    _check_same("isSelectBig", group.select_big, member.select_big, code, consumer)
    _check_same("sourceCount", group.source_count, member.source_count, _SOURCE_COUNT, consumer)


def _check_same(
    name: str, group: object, member: object, code: ErrCode, consumer: RegisteredConsumer
) -> None:
    if group != member:
        text = (
            f"{_prefix(consumer)}'s {name} {_SUBSCRIBE} in the group, "
            f"required is {_java(group)}, request is {_java(member)}"
        )
        raise RefusedError(code, text)


def java_set(names: Iterable[str]) -> str:
    """Return sorted names in the form of a Java set."""
    return f"[{', '.join(sorted(names))}]"


def _prefix(consumer: RegisteredConsumer) -> str:
    return f"[Inconsistency subscribe] {consumer.client_id}"


def _conditions(terms: GroupTerms) -> str:
    items = (f"{topic}={java_set(types)}" for topic, types in sorted(terms.filters.items()))
    return f"{{{', '.join(items)}}}"


def _java(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class Members:
    """The registered clients, which the master keeps in memory only; hold the master's lock."""

    def __init__(self, timeout_ms: int, now_ms: Callable[[], int] = monotonic_ms) -> None:
        """``expire`` removes clients that have been silent for ``timeout_ms``."""
        self._timeout_ms = timeout_ms
        self._now_ms = now_ms
        self._producers: dict[str, int] = {}
        """When each was last heard."""
        self.groups: dict[str, Group] = {}

    @property
    def producer_count(self) -> int:
        """How many producers are registered."""
        return len(self._producers)

    def add_producer(self, client_id: str) -> None:
        """Register a producer, or register it again."""
        self._producers[client_id] = self._now_ms()

    def record_producer_heartbeat(self, client_id: str) -> None:
        """Record that a producer is alive.

        One that is not registered is refused (411).
        """
        if client_id not in self._producers:
            raise RefusedError(ErrCode.HB_NO_NODE, _append_first(client_id))
        self.add_producer(client_id)

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
        producers = [name for name, heard_at_ms in self._producers.items() if heard_at_ms <= latest]
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
