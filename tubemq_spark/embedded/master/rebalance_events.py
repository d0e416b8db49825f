"""How a group's partitions come to its members: events, handed out and answered in heartbeats.

One group's state machine, without clock and lock (ConsumerEventManager). What it promises: nobody is told
to take a partition that another member may still have.
"""

import collections
import dataclasses
import enum
import itertools
from collections.abc import Iterable, Mapping
from typing import Final

from tubemq_spark.embedded.master.assignment import Partitions

NONE: Final[Partitions] = frozenset()


class EventType(enum.IntEnum):
    """What a member shall do (EventType); the first two come in pairs, the disconnect first."""

    CONNECT = 1
    DISCONNECT = 2
    ONLY_CONNECT = 10
    ONLY_DISCONNECT = 20


_DISCONNECTS: Final = frozenset({EventType.DISCONNECT, EventType.ONLY_DISCONNECT})


@dataclasses.dataclass(frozen=True, slots=True)
class RebalanceEvent:
    """What one member shall take or give up."""

    rebalance_id: int
    """Above 0; rises from round to round."""
    type: EventType
    partitions: Partitions

    @property
    def disconnects(self) -> bool:
        """Whether the partitions are to be given up."""
        return self.type in _DISCONNECTS


@dataclasses.dataclass(slots=True)
class _Share:
    """One member's side."""

    held: Partitions = NONE
    """What it said last that it has."""
    doubtful: Partitions = NONE
    """What it was told to take by an event that was given up: it may have it, or take it yet. The next
    round makes an event for it, and the answer to that clears it up."""
    present: bool = False
    """Whether it counts: it has sent a heartbeat, or came with partitions."""
    queue: collections.deque[RebalanceEvent] = dataclasses.field(default_factory=collections.deque)
    handed: bool = False
    """Whether the first event of the queue is with the member."""

    @property
    def claimed(self) -> Partitions:
        """What nobody else must be given."""
        connecting = self.queue[0].partitions if self.handed and not self.queue[0].disconnects else NONE
        return self.held | self.doubtful | connecting


class GroupEvents:
    """The events of one group."""

    def __init__(self) -> None:
        self._shares: dict[str, _Share] = {}
        self._unfinished_rounds = 0

    def join(self, member: str, held: Partitions = NONE) -> None:
        """Take a member in, or in again; with partitions it counts at once, else from its first heartbeat."""
        share = self._shares.setdefault(member, _Share())
        if held:
            share.held = held
            share.present = True

    def leave(self, member: str) -> None:
        """Forget a member; what it had is free."""
        self._shares.pop(member, None)

    def held(self, member: str) -> Partitions:
        """Return what a member says it has."""
        share = self._shares.get(member)
        return share.held if share else NONE

    def hear(self, member: str, held: Partitions | None = None, answered: int = 0) -> None:
        """Take in a heartbeat.

        Args:
            member: whose.
            held: all that it has, when it says so.
            answered: the id of the event it has carried out, or not above 0. The answer to an earlier event
                than the one it has, which was given up, counts for nothing.
        """
        share = self._shares[member]
        share.present = True
        if share.handed and answered >= share.queue[0].rebalance_id:
            event = share.queue.popleft()
            share.handed = False
            # Without a list its word must do.
            share.held = share.held - event.partitions if event.disconnects else share.held | event.partitions
            # Of a pair, the disconnect's answer says nothing of what the connect will take.
            share.doubtful = share.doubtful - event.partitions if share.queue else NONE
        if held is not None:
            share.held = held

    def next_event(self, member: str) -> RebalanceEvent | None:
        """Return the event to hand to a member now, once only, and none while it has one.

        Nobody of the group is told to take a partition while anybody still has to give one up.
        """
        share = self._shares[member]
        while share.queue and not share.handed:
            event = share.queue[0]
            if not event.disconnects:
                if self._disconnecting():
                    return None
                event = dataclasses.replace(event, partitions=event.partitions - self._others(member))
                if not event.partitions:
                    share.queue.popleft()
                    continue
                share.queue[0] = event
            share.handed = True
            return event
        return None

    def begin_round(self, patience: int) -> bool:
        """Return whether the group can be balanced now: it can when no event is left.

        Events that were there in ``patience`` rounds are given up.
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
        """Return what each member that counts has, or may have."""
        return {member: share.claimed for member, share in self._shares.items() if share.present}

    def plan(self, wanted: Mapping[str, Partitions], rebalance_id: int) -> None:
        """Make the events that bring members from what they have to what they should have.

        Members that are not in ``wanted`` keep what they have.
        """
        for member, partitions in wanted.items():
            share = self._shares[member]
            share.queue.extend(_events(rebalance_id, share.claimed - partitions, partitions - share.held))

    def _disconnecting(self) -> bool:
        return any(share.queue and share.queue[0].disconnects for share in self._shares.values())

    def _others(self, member: str) -> Partitions:
        return _union(share.claimed for name, share in self._shares.items() if name != member)


def _union(parts: Iterable[Partitions]) -> Partitions:
    return frozenset(itertools.chain.from_iterable(parts))


def _events(rebalance_id: int, give: Partitions, take: Partitions) -> list[RebalanceEvent]:
    events = []
    if give:
        kind = EventType.DISCONNECT if take else EventType.ONLY_DISCONNECT
        events.append(RebalanceEvent(rebalance_id, kind, give))
    if take:
        kind = EventType.CONNECT if give else EventType.ONLY_CONNECT
        events.append(RebalanceEvent(rebalance_id, kind, take))
    return events
