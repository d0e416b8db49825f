"""Offsets of times: replaces each time of an offset spec by the offset where its records begin, or end."""

import functools
import logging
import zoneinfo
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tubemq_spark.client.reader.times import Search, Times, search_in_thread, times_of
from tubemq_spark.cluster.base import Cluster
from tubemq_spark.cluster.peek import peek
from tubemq_spark.errors import OptionError
from tubemq_spark.model import OffsetBounds, StoreId, TopicPartition, TopicsLayout
from tubemq_spark.net.side_by_side import all_of
from tubemq_spark.offsets.notation import listed
from tubemq_spark.offsets.offset_spec import Edge, OffsetSpec, timestamps, with_timestamps_resolved

logger = logging.getLogger(__name__)

_USUAL_MINUTES: Final = 1
"""Clocks differ, and messages wait to be sent: times that go back by so much are in order."""


class TimeSearch:
    """Looks for times in the partitions of one layout; messages carry them in ``time_zone``."""

    def __init__(
        self,
        cluster: Cluster,
        layout: TopicsLayout,
        bounds: Mapping[StoreId, OffsetBounds],
        time_zone: str,
        *,
        advice: str,
    ) -> None:
        self._advice = advice
        self._cluster = cluster
        self._layout = layout
        self._bounds = bounds
        self._zone = zoneinfo.ZoneInfo(time_zone)
        self._searches: dict[TopicPartition, Times] = {}
        self._warned = False

    def begin(
        self, spec: OffsetSpec, *, option: str, if_none: Edge | None, if_untimed: Edge | None = None
    ) -> OffsetSpec:
        """Return the spec with the offset where records of a time begin in place of each time.

        ``if_none`` counts where no record is of that time or later, ``if_untimed`` where none has a time;
        None is an error. Partitions are searched side by side. A warning says where times are so far out of
        order, or missing, that records may be missed.
        """
        return self._resolved(
            spec,
            lambda search, ms: search.first_of(ms // 60_000),
            lambda search: search.ahead,
            option,
            if_none,
            if_untimed,
        )

    def end(self, spec: OffsetSpec, *, option: str, if_untimed: Edge | None = None) -> OffsetSpec:
        """Return the spec with the offset where earlier records end in place of each time; see ``begin``."""
        return self._resolved(
            spec,
            # Of a minute that has begun before the time, all records may be earlier.
            lambda search, ms: search.end_of(-(-ms // 60_000)),
            lambda search: search.behind,
            option,
            None,
            if_untimed,
        )

    def _search(self, partition: TopicPartition) -> Times:
        """Return the times of a partition; each search adds to them."""
        if partition not in self._searches:
            bounds = self._bounds[partition.store_id]
            self._searches[partition] = times_of(partition, bounds, self._zone)
        return self._searches[partition]

    def _resolved(
        self,
        spec: OffsetSpec,
        look: Callable[[Times, int], Search[int] | Search[int | None]],
        disorder: Callable[[Times], int],
        option: str,
        if_none: Edge | None,
        if_untimed: Edge | None,
    ) -> OffsetSpec:
        times = {
            partition: time.ms
            for partition, time in timestamps(spec, self._layout.partitions).items()
            if partition.store_id in self._bounds
        }
        if not times:
            return spec

        def place(partition: TopicPartition) -> int | Edge:
            search, ms = self._search(partition), times[partition]
            offset = search_in_thread(look(search, ms), functools.partial(peek, self._cluster, self._layout))
            if search.has_records and not search.has_times:
                if if_untimed is None:
                    raise OptionError("TUBEMQ_NO_MESSAGE_TIME", option=option, partition=partition)
                return if_untimed
            found = if_none if offset is None else offset
            if found is None:
                raise OptionError("TUBEMQ_NO_RECORD_OF_TIME", option=option, partition=partition, time=ms)
            return found

        resolved = with_timestamps_resolved(spec, all_of(place, times))
        self._warn(sorted(times), option, disorder)
        return resolved

    def _warn(
        self,
        partitions: Sequence[TopicPartition],
        option: str,
        disorder: Callable[[Times], int],
    ) -> None:
        """Say, once, where records may be missed."""
        searches = {partition: self._searches[partition] for partition in partitions}
        mixed = {
            partition: disorder(search)
            for partition, search in searches.items()
            if disorder(search) > _USUAL_MINUTES
        }
        untimed = [
            partition
            for partition, search in searches.items()
            if search.unsure or (search.has_records and not search.has_times)
        ]
        if self._warned or not (mixed or untimed):
            return
        self._warned = True
        found = []
        if mixed:
            minutes = max(mixed.values())
            found.append(
                f"in {listed(list(mixed))}, times go back by up to {minutes} minutes, so the range has "
                f"{2 * minutes} minutes to spare"
            )
        if untimed:
            found.append(f"in {listed(untimed)}, many messages carry no time, so the range has them all")
        logger.warning(
            "option '%s': %s. That is what %d fetches have shown. The range has messages of other times as "
            "well, and may lack some that are farther out of order: %s",
            option,
            "; ".join(found),
            sum(search.fetches for search in searches.values()),
            self._advice,
        )
