"""Showing a stream's progress as the position of the user's consumer group, one way only."""

import logging
from collections.abc import Mapping

from tubemq_spark.cluster.base import Cluster
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import TopicPartition
from tubemq_spark.source.layout_cache import LayoutCache

logger = logging.getLogger(__name__)


class GroupProgress:
    """Moves the group to where micro-batches have ended; failures never end the query.

    ``_shown`` is where the group is known to stand; a partition that could not be moved is missing there, so
    it is tried again. One warning tells that some could not be moved, and one that all could again.
    """

    def __init__(self, cluster: Cluster, layouts: LayoutCache) -> None:
        self._cluster = cluster
        self._layouts = layouts
        self._shown: dict[TopicPartition, int] = {}
        self._failing = False

    def show(self, positions: Mapping[TopicPartition, int]) -> None:
        """Move the group in the partitions whose positions have changed."""
        changed = {
            partition: offset
            for partition, offset in positions.items()
            if self._shown.get(partition) != offset
        }
        if not changed:
            return
        try:
            failures = self._cluster.move_group(self._layouts.recent(missing_ok=True), changed)
        except TubeMQError as error:
            self._note(error, len(changed))
            return
        shown = self._shown | changed
        self._shown = {
            partition: shown[partition] for partition in positions if partition in shown.keys() - failures
        }
        self._note(next(iter(failures.values()), None), len(failures))

    def _note(self, error: TubeMQError | None, count: int) -> None:
        if error is not None and not self._failing:
            logger.warning("the group's position is not moved in %d partitions; the first: %s", count, error)
        if error is None and self._failing:
            logger.warning("the group's position is moved in all partitions again")
        self._failing = error is not None
