"""Offsets of times: replaces each time of an offset spec by the offset where its records begin."""

import datetime
import re
import zoneinfo
from collections.abc import Mapping
from typing import Final

from tubemq_spark.cluster.base import Cluster
from tubemq_spark.cluster.peek import peek
from tubemq_spark.errors import OptionError
from tubemq_spark.model import (
    INDEX_ENTRY_BYTES,
    OffsetBounds,
    OffsetRange,
    StoreId,
    TopicPartition,
    TopicsLayout,
)
from tubemq_spark.net.side_by_side import all_of
from tubemq_spark.offsets.offset_spec import Edge, OffsetSpec, Timestamp, timestamps, with_timestamps_resolved
from tubemq_spark.offsets.time_search import Look, first_at
from tubemq_spark.protocol.fetch_columns import FetchedBatch

_MINUTE: Final = "%Y%m%d%H%M"
_IS_MINUTE: Final = re.compile(r"[0-9]{12}")


class TimeSearch:
    """Looks for times in the partitions of one layout; messages carry them in ``time_zone``."""

    def __init__(
        self,
        cluster: Cluster,
        layout: TopicsLayout,
        bounds: Mapping[StoreId, OffsetBounds],
        time_zone: str,
    ) -> None:
        self._cluster = cluster
        self._layout = layout
        self._bounds = bounds
        self._zone = zoneinfo.ZoneInfo(time_zone)

    def resolve(self, spec: OffsetSpec, *, option: str, if_none: Edge | None) -> OffsetSpec:
        """Return the spec with an offset in place of each time; partitions are searched side by side.

        Args:
            spec: what the user asks for.
            option: where it comes from, for errors.
            if_none: what to do where no record is of that time or later; None is an error.

        Raises:
            OptionError: a partition has no such record, or its messages carry no time.
            TubeMQError: a broker does not answer, or refuses.
        """
        times = {
            partition: time
            for partition, time in timestamps(spec, self._layout.partitions).items()
            if partition.store_id in self._bounds
        }
        if not times:
            return spec

        def search(partition: TopicPartition) -> int | Edge:
            time = times[partition]
            offset = self._first_at(partition, self._minute(time), option)
            place = if_none if offset is None else offset
            if place is None:
                raise OptionError(
                    "TUBEMQ_NO_RECORD_OF_TIME", option=option, partition=partition, time=time.ms
                )
            return place

        return with_timestamps_resolved(spec, all_of(search, times))

    def _minute(self, time: Timestamp) -> str:
        """Return the minute of a time as messages carry it: text whose order is that of the times."""
        moment = datetime.datetime.fromtimestamp(time.ms / 1000, self._zone)
        return moment.strftime(_MINUTE)

    def _first_at(self, partition: TopicPartition, minute: str, option: str) -> int | None:
        bounds = self._bounds[partition.store_id]

        def look(offset: int) -> Look:
            with peek(self._cluster, self._layout, OffsetRange(partition, offset, bounds.latest)) as batches:
                batch = next(batches, None)
            if batch is None:
                return Look(bounds.latest, earlier=False, later=False)
            times = _look_at(batch, minute)
            if times is None:
                raise OptionError(
                    "TUBEMQ_NO_MESSAGE_TIME", option=option, partition=partition, offset=batch.start
                )
            return times

        return first_at(bounds, look)


def _look_at(batch: FetchedBatch, minute: str) -> Look | None:
    """Compare the times of some records with a minute; None when they carry none."""
    columns = batch.columns
    times = ((row, columns.message(row).message_time) for row in range(len(columns)))
    timed = ((row, time) for row, time in times if time is not None and _IS_MINUTE.fullmatch(time))
    first = next(timed, None)
    if first is None:
        return None
    if first[1] >= minute:
        return Look(batch.next, earlier=False, later=True, first_later=_place(batch, first[0]))
    later = next((row for row, time in timed if time >= minute), None)
    if later is None:
        return Look(batch.next, earlier=True, later=False)
    return Look(batch.next, earlier=True, later=True, first_later=_place(batch, later))


def _place(batch: FetchedBatch, row: int) -> int | None:
    """Return the offset of a record, where that is known."""
    if not batch.dense:
        return None
    return batch.start + INDEX_ENTRY_BYTES * int(batch.columns.ordinals[row])
