"""Partitions that the master no longer lists: gone, or only not listed yet.

A master that has just started lists the partitions of a broker only after that broker has reported to it,
which brokers do every 8 s with the settings TubeMQ ships (``heartbeatPeriodMs``). So a partition that is
missing from a layout is treated as existing for a while. A topic that the master does not know (431) is gone
at once: that is its stored configuration.
"""

from collections.abc import Collection
from typing import Final

from tubemq_spark.model import TopicPartition, TopicsLayout

UNLISTED_SECONDS: Final = 20.0
"""How long a partition may be missing before it is treated as gone."""


def unlisted(known: Collection[TopicPartition], layout: TopicsLayout) -> set[TopicPartition]:
    """Return the known partitions that a layout lacks although their topic exists."""
    return {
        partition
        for partition in set(known) - layout.partitions.keys()
        if partition.topic not in layout.missing_topics
    }


class Unlisted:
    """Remembers since when partitions have been missing."""

    def __init__(self) -> None:
        self._since: dict[TopicPartition, float] = {}

    def expected(
        self, known: Collection[TopicPartition], layout: TopicsLayout, now: float
    ) -> frozenset[TopicPartition]:
        """Return the known partitions that are treated as existing although a layout lacks them.

        Args:
            known: the partitions that a stream knows.
            layout: the newest layout.
            now: the time in seconds, of any clock that never goes back.
        """
        missing = unlisted(known, layout)
        self._since = {partition: self._since.get(partition, now) for partition in missing}
        return frozenset(
            partition for partition, since in self._since.items() if now - since < UNLISTED_SECONDS
        )
