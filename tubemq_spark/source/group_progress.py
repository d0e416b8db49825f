"""Showing a stream's progress as the position of the user's consumer group, one way only.

A thread shows it, so that no micro-batch waits for a broker that does not answer. While it is busy, only the
newest positions are kept for it; it ends when it has shown them. So the group may lag behind, by as long as
brokers take to answer, and never stands at a micro-batch that is not finished.
"""

import logging
import threading
from collections.abc import Collection, Mapping
from typing import NamedTuple

from tubemq_spark.cluster.base import Cluster
from tubemq_spark.model import TopicPartition, TopicsLayout
from tubemq_spark.source.beside import Begun

logger = logging.getLogger(__name__)


class _Wanted(NamedTuple):
    layout: TopicsLayout
    positions: Mapping[TopicPartition, int]
    left_out: bool
    """Whether there are partitions that are not to be moved now."""


class GroupProgress:
    """Moves the group to where micro-batches have ended; failures never end the query.

    ``_shown`` is where the group is known to stand; a partition that could not be moved is missing there, so
    it is tried again. One warning tells that some could not be moved, and one that all could again.

    ``_wanted`` and ``_moving`` change under the lock; what else there is belongs to the thread, of which
    there is at most one.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._wanted: _Wanted | None = None
        self._moving = False
        self._shown: dict[TopicPartition, int] = {}
        self._failing = False

    def show(
        self, layout: TopicsLayout, positions: Mapping[TopicPartition, int], away: Collection[int]
    ) -> None:
        """Move the group in the partitions whose positions have changed; return at once."""
        asked = {place: offset for place, offset in positions.items() if place.broker_id not in away}
        with self._lock:
            self._wanted = _Wanted(layout, asked, len(asked) < len(positions))
            if self._moving:
                return
            self._moving = True
        Begun(self._follow, "tubemq-group")

    def _follow(self) -> None:
        """Show what is wanted, until nothing newer is."""
        while True:
            with self._lock:
                wanted, self._wanted = self._wanted, None
                self._moving = wanted is not None
            if wanted is None:
                return
            self._move(wanted)

    def _move(self, wanted: _Wanted) -> None:
        changed = {
            partition: offset
            for partition, offset in wanted.positions.items()
            if self._shown.get(partition) != offset
        }
        if not changed:
            return
        failures: Mapping[TopicPartition, Exception]
        try:
            failures = self._cluster.move_group(wanted.layout, changed)
        except Exception as error:  # noqa: BLE001 (failures never end the query, nor what comes later)
            failures = dict.fromkeys(changed, error)
        shown = self._shown | changed
        self._shown = {
            partition: shown[partition]
            for partition in wanted.positions
            if partition in shown.keys() - failures
        }
        self._note(next(iter(failures.values()), None), len(failures), left_out=wanted.left_out)

    def _note(self, error: Exception | None, count: int, *, left_out: bool) -> None:
        if error is not None and not self._failing:
            logger.warning("the group's position is not moved in %d partitions; the first: %s", count, error)
        if error is None and self._failing and not left_out:
            logger.warning("the group's position is moved in all partitions again")
        self._failing = error is not None or (self._failing and left_out)
