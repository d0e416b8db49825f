"""Which member of a group should have which partitions: pure arithmetic, no clock, no lock.

TubeMQ (DefaultLoadBalancer) deals free partitions out at random and evens the numbers out in later rounds;
here one round does both, with as few moves as can be, and always the same way.
"""

from collections.abc import Collection, Mapping, Set as AbstractSet
from typing import Final

from tubemq_spark.model import TopicPartition

Partitions = frozenset[TopicPartition]

DEFAULT_BROKERS_PER_CLIENT: Final = 1000
"""How many brokers one member may have to serve (maxGroupBrokerConsumeRate)."""


def spread(
    holdings: Mapping[str, AbstractSet[TopicPartition]],
    partitions: AbstractSet[TopicPartition],
    away: AbstractSet[str] = frozenset(),
) -> dict[str, Partitions]:
    """Return what each member should have.

    The numbers differ by one at most. Nobody loses a partition more than that takes: as many partitions
    move as the members have above their share, which is the least possible.

    Args:
        holdings: what each member has now; partitions that two have, or that are gone, are taken away.
        partitions: all that there are.
        away: members that shall have nothing.
    """
    wanted: dict[str, list[TopicPartition]] = {}
    free = set(partitions)
    for member in sorted(holdings):
        wanted[member] = sorted(free & holdings[member]) if member not in away else []
        free.difference_update(wanted[member])
    takers = [member for member in wanted if member not in away]
    if takers:
        _deal_out(wanted, takers, free, len(partitions))
    return {member: frozenset(parts) for member, parts in wanted.items()}


def assign_named(
    listed: Mapping[TopicPartition, str],
    members: Collection[str],
    partitions: AbstractSet[TopicPartition],
) -> dict[str, Partitions]:
    """Return what each member of a bound group gets at first: the partitions it is to start at."""
    return {
        member: frozenset(
            partition for partition, owner in listed.items() if owner == member and partition in partitions
        )
        for member in members
    }


def members_needed(brokers: int, members: int, rate: int) -> int | None:
    """Return how many members a group must have, or None when it has enough.

    Args:
        brokers: on how many brokers the group's topics are.
        members: how many it has or will have, at least one.
        rate: how many brokers one member may have to serve, at least one.
    """
    return -(-brokers // rate) if brokers // members > rate else None


def _deal_out(
    wanted: dict[str, list[TopicPartition]], takers: list[str], free: set[TopicPartition], count: int
) -> None:
    """Bring every taker to its share of ``count``: from what is free, and from those that have more."""
    share, extra = divmod(count, len(takers))
    # Those that have most keep one more than the others: so the fewest partitions move.
    by_load = sorted(takers, key=lambda member: -len(wanted[member]))
    shares = {member: share + (place < extra) for place, member in enumerate(by_load)}
    spare = set(free)
    for member in takers:
        spare.update(wanted[member][shares[member] :])
        del wanted[member][shares[member] :]
    queue = sorted(spare, reverse=True)
    for member in takers:
        while len(wanted[member]) < shares[member]:
            wanted[member].append(queue.pop())
