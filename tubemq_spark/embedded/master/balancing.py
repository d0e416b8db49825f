"""Which member of a group should have which partitions, and how they move there: without clock or lock.

TubeMQ (DefaultLoadBalancer) assigns free partitions at random and evens the numbers out in later rounds. Here
one round does both, deterministically and with as few moves as possible.

Partitions move by events, sent and answered in heartbeats; ``GroupEvents`` is the state machine of one group
(ConsumerEventManager). A member's events are *queued* by a round, *handed* to the member with its next
heartbeat, and *answered* by a later one. A round starts only when no event of the group is left; events that
stay unanswered for too many rounds are abandoned.

Invariants:

1. No member is told to connect a partition that another member may still have: one that it reports, that it
   was told to connect, or that an abandoned event may have made it connect (``_Share.claimed``).
2. No member is told to connect anything while any member of the group still has to disconnect.
3. A member has at most one event at a time, and gets each event once.
"""

import collections
import dataclasses
from collections.abc import Collection, Mapping, Set as AbstractSet
from typing import Final

from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.messages import DISCONNECTS, EventType

Partitions = frozenset[TopicPartition]

DEFAULT_BROKERS_PER_CLIENT: Final = 1000
"""Maximum number of brokers per member (maxGroupBrokerConsumeRate)."""


def spread(
    holdings: Mapping[str, AbstractSet[TopicPartition]],
    partitions: AbstractSet[TopicPartition],
) -> dict[str, Partitions]:
    """Return the partitions that each member should have.

    The numbers differ by at most one. Only partitions that members have beyond their share move, which is the
    least possible. A partition that two members have, or that is gone, is taken away.
    """
    shares: dict[str, list[TopicPartition]] = {}
    free = set(partitions)
    for member in sorted(holdings):
        shares[member] = sorted(free & holdings[member])
        free.difference_update(shares[member])
    if shares:
        _deal_out(shares, free, len(partitions))
    return {member: frozenset(parts) for member, parts in shares.items()}


def assign_named(
    named: Mapping[TopicPartition, str],
    members: Collection[str],
    partitions: AbstractSet[TopicPartition],
) -> dict[str, Partitions]:
    """Return the first partitions of each member of a bound group: those that it named."""
    return {
        member: frozenset(
            partition for partition, owner in named.items() if owner == member and partition in partitions
        )
        for member in members
    }


def members_needed(brokers: int, members: int, rate: int) -> int | None:
    """Return how many members a group needs, or None if it has enough.

    ``rate`` is the maximum number of brokers per member.
    """
    return -(-brokers // rate) if brokers // members > rate else None


def _deal_out(shares: dict[str, list[TopicPartition]], free: set[TopicPartition], count: int) -> None:
    """Bring every member to its part of ``count``, from free partitions and from members that have more."""
    least, extra = divmod(count, len(shares))
    # The members with most partitions get the larger parts, so that fewest partitions move.
    by_load = sorted(shares, key=lambda member: -len(shares[member]))
    sizes = {member: least + (place < extra) for place, member in enumerate(by_load)}
    spare = set(free)
    for member, parts in shares.items():
        spare.update(parts[sizes[member] :])
        del parts[sizes[member] :]
    queue = sorted(spare, reverse=True)
    for member, parts in shares.items():
        while len(parts) < sizes[member]:
            parts.append(queue.pop())


NONE: Final[Partitions] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class MemberEvent:
    """What one member has to connect or disconnect."""

    rebalance_id: int
    """Above 0; rises with every round."""
    type: EventType
    partitions: Partitions

    @property
    def disconnects(self) -> bool:
        """Whether the partitions are to be disconnected."""
        return self.type in DISCONNECTS


@dataclasses.dataclass(slots=True)
class _Share:
    """The state of one member."""

    held: Partitions = NONE
    """What it last reported."""
    doubtful: Partitions = NONE
    """The partitions that an abandoned event told it to connect: it may have them, or may still connect them.
    The next round creates an event for them, and the answer to that resolves the doubt."""
    present: bool = False
    """Whether it takes part in rounds: it has sent a heartbeat, or joined with partitions."""
    queue: collections.deque[MemberEvent] = dataclasses.field(default_factory=collections.deque)
    handed: bool = False
    """Whether the member has the first event of the queue."""

    @property
    def claimed(self) -> Partitions:
        """What no other member may be given."""
        connecting = self.queue[0].partitions if self.handed and not self.queue[0].disconnects else NONE
        return self.held | self.doubtful | connecting


class GroupEvents:
    """The events of one group's members."""

    def __init__(self) -> None:
        self._shares: dict[str, _Share] = {}
        self._unfinished_rounds = 0

    def join(self, member: str, partitions: Partitions = NONE) -> None:
        """Add a member, or add it again; without partitions it takes part from its first heartbeat on."""
        share = self._shares.setdefault(member, _Share())
        if partitions:
            share.held = partitions
            share.present = True

    def leave(self, member: str) -> None:
        """Remove a member; its partitions become free."""
        self._shares.pop(member, None)

    def held(self, member: str) -> Partitions:
        """Return the partitions that a member reports."""
        share = self._shares.get(member)
        return share.held if share else NONE

    def record_heartbeat(self, member: str, partitions: Partitions | None = None, answered: int = 0) -> None:
        """Record a heartbeat.

        ``partitions`` are all that the member has, if it reports them; ``answered`` is the id of the event
        that it has finished, 0 or below: none. An answer to an event before its present one, which was
        abandoned, is ignored.
        """
        share = self._shares[member]
        share.present = True
        if share.handed and answered >= share.queue[0].rebalance_id:
            event = share.queue.popleft()
            share.handed = False
            # Without a report, the answer has to suffice.
            share.held = share.held - event.partitions if event.disconnects else share.held | event.partitions
            # In a pair, the answer to the disconnect says nothing about what the connect will bring.
            share.doubtful = share.doubtful - event.partitions if share.queue else NONE
        if partitions is not None:
            share.held = partitions

    def next_event(self, member: str) -> MemberEvent | None:
        """Return the event to hand to a member now, if any (invariants 2 and 3)."""
        share = self._shares[member]
        while share.queue and not share.handed:
            event = share.queue[0]
            if not event.disconnects:
                if any(other.queue and other.queue[0].disconnects for other in self._shares.values()):
                    return None
                claims = (other.claimed for name, other in self._shares.items() if name != member)
                event = dataclasses.replace(event, partitions=event.partitions.difference(*claims))
                if not event.partitions:
                    share.queue.popleft()
                    continue
                share.queue[0] = event
            share.handed = True
            return event
        return None

    def begin_round(self, patience: int) -> bool:
        """Return whether the group can be balanced now, which it can if no event is left.

        Events that have been left for ``patience`` rounds are abandoned.
        """
        if not any(share.queue for share in self._shares.values()):
            self._unfinished_rounds = 0
            return True
        if self._unfinished_rounds < patience:
            self._unfinished_rounds += 1
            return False
        self._unfinished_rounds = 0
        for share in self._shares.values():
            share.doubtful = share.claimed - share.held
            share.queue.clear()
            share.handed = False
        return True

    def holdings(self) -> dict[str, Partitions]:
        """Return the partitions that each member that takes part has, or may have."""
        return {member: share.claimed for member, share in self._shares.items() if share.present}

    def plan(self, targets: Mapping[str, Partitions], rebalance_id: int) -> None:
        """Create the events that bring members from what they have to what they should have.

        Members that are not in ``targets`` keep what they have.
        """
        for member, partitions in targets.items():
            share = self._shares[member]
            share.queue.extend(_events_for(rebalance_id, share.claimed - partitions, partitions - share.held))


def _events_for(rebalance_id: int, give: Partitions, take: Partitions) -> list[MemberEvent]:
    events = []
    if give:
        kind = EventType.DISCONNECT if take else EventType.ONLY_DISCONNECT
        events.append(MemberEvent(rebalance_id, kind, give))
    if take:
        kind = EventType.CONNECT if give else EventType.ONLY_CONNECT
        events.append(MemberEvent(rebalance_id, kind, take))
    return events
