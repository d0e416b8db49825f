"""Who waits for messages of which partition, so that one asks the broker for all.

A broker answers at once that it has nothing, and never later that it has something. Of the consumers that
wait at the end of one partition, of any group, only the *first* asks its broker again and again. When it, or
a publisher of this gateway, has seen messages there, all of them are woken and ask once.

A consumer that filters messages says nothing about those of others, so consumers wait beside those with equal
filters. One that waits is not woken where the first one is held up by a rule of flow control, or reads
another consumer's messages only; so each asks by itself too, seldom.

Used in the event loop only.
"""

from collections.abc import Collection, Iterable
from typing import Protocol, TypeAlias

from tubemq_spark.model import TopicPartition

Filter: TypeAlias = frozenset[str]


class Waiter(Protocol):
    """A consumer for which fetches wait."""

    @property
    def filter(self) -> Filter:
        """The message types that it reads; none: all."""

    def wake(self, partition: TopicPartition) -> None:
        """Ask for this partition at once, if it waits at its end."""


class Arrivals:
    """The consumers of a gateway that wait."""

    def __init__(self) -> None:
        self._waiting: dict[TopicPartition, dict[Filter, dict[Waiter, None]]] = {}
        self._partitions: dict[Waiter, set[TopicPartition]] = {}

    def wait(self, waiter: Waiter, partition: TopicPartition) -> bool:
        """Note that a consumer waits for a partition; return whether it is the first."""
        line = self._waiting.setdefault(partition, {}).setdefault(waiter.filter, {})
        line[waiter] = None
        self._partitions.setdefault(waiter, set()).add(partition)
        return next(iter(line)) is waiter

    def leave(self, waiter: Waiter, partitions: Collection[TopicPartition] | None = None) -> None:
        """Forget that a consumer waits for partitions, by default for any.

        Where it was the first, the next one takes its place at once.
        """
        waits_for = self._partitions.get(waiter, set())
        for partition in sorted(waits_for if partitions is None else waits_for.intersection(partitions)):
            waits_for.discard(partition)
            self._remove(waiter, partition)
        if not waits_for:
            self._partitions.pop(waiter, None)

    def arrived(self, partitions: Iterable[TopicPartition], seen_by: Waiter | None = None) -> None:
        """Wake all that wait for partitions in which there are messages now."""
        for partition in partitions:
            for waiters in list(self._waiting.get(partition, {}).values()):
                for waiter in list(waiters):
                    if waiter is not seen_by:
                        waiter.wake(partition)

    def _remove(self, waiter: Waiter, partition: TopicPartition) -> None:
        by_filter = self._waiting[partition]
        waiters = by_filter[waiter.filter]
        was_first = next(iter(waiters)) is waiter
        del waiters[waiter]
        if waiters and was_first:
            next(iter(waiters)).wake(partition)
        if not waiters:
            del by_filter[waiter.filter]
        if not by_filter:
            del self._waiting[partition]
