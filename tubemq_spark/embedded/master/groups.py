"""Consumer groups that are online, and what their members must agree on (ConsumeGroupInfo)."""

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from typing import Final

from tubemq_spark.embedded.dispatch import RefusedError
from tubemq_spark.embedded.master import bound
from tubemq_spark.embedded.master.rebalance_events import GroupEvents, RebalanceEvent
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.constants import UNDEFINED
from tubemq_spark.protocol.errcodes import ErrCode


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
    """When a client-balanced member adopted a layout, by its own clock; below 0: it has none yet."""
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
    """Whether no member has finished an event yet."""
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

    def next_event(self, consumer: RegisteredConsumer) -> RebalanceEvent | None:
        """Return the event that a member gets now, if any; it gets each event only once."""
        return None if self.client_balanced else self.events.next_event(consumer.client_id)

    def named_partitions(self) -> dict[TopicPartition, str]:
        """Return which member of a bound group gets which of the partitions that members named."""
        starts = {name: member.starts for name, member in self.members.items()}
        return bound.winners(starts, select_big=self.terms.select_big)

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
