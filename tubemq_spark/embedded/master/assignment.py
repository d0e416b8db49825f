"""Which member of a group should have which partitions: pure functions without clock or lock.

TubeMQ (DefaultLoadBalancer) assigns free partitions at random and evens the numbers out in later rounds. Here
one round does both, deterministically and with as few moves as possible.
"""

from collections.abc import Collection, Mapping, Set as AbstractSet
from typing import Final

from tubemq_spark.model import TopicPartition

Partitions = frozenset[TopicPartition]

DEFAULT_BROKERS_PER_CLIENT: Final = 1000
"""Maximum number of brokers per member (maxGroupBrokerConsumeRate)."""


def spread(
    holdings: Mapping[str, AbstractSet[TopicPartition]],
    partitions: AbstractSet[TopicPartition],
) -> dict[str, Partitions]:
    """Return what each member should have.

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
    """Return what each member of a bound group gets first: the partitions that it named."""
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
