"""Offsets of times: replaces each time of an offset spec by the offset where its records begin."""

import concurrent.futures
import contextlib
import datetime
import re
import zoneinfo
from collections.abc import Iterator, Mapping
from typing import Final

from tubemq_spark.cluster.base import Cluster
from tubemq_spark.errors import OptionError
from tubemq_spark.model import (
    INDEX_ENTRY_BYTES,
    OffsetBounds,
    OffsetRange,
    StoreId,
    TopicPartition,
    TopicsLayout,
)
from tubemq_spark.offsets.loss import LossRecord
from tubemq_spark.offsets.offset_spec import Edge, OffsetSpec, Timestamp, timestamps, with_timestamps_resolved
from tubemq_spark.offsets.time_search import Look, first_at
from tubemq_spark.protocol.fetch_columns import FetchedBatch

_MINUTE: Final = "%Y%m%d%H%M"
_IS_MINUTE: Final = re.compile(r"[0-9]{12}")
_MOST_THREADS: Final = 16


class TimeSearch:
    """Looks for times in the partitions of one layout."""

    def __init__(
        self,
        cluster: Cluster,
        layout: TopicsLayout,
        bounds: Mapping[StoreId, OffsetBounds],
        time_zone: str,
    ) -> None:
        """Ask nobody yet; ``time_zone`` is that of the messages' times."""
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
        wanted = {
            partition: time
            for partition, time in timestamps(spec, self._layout.partitions).items()
            if partition.store_id in self._bounds
        }
        if not wanted:
            return spec

        def search(partition: TopicPartition) -> int | Edge:
            time = wanted[partition]
            found = self._first_at(partition, self._minute(time), option)
            place = if_none if found is None else found
            if place is None:
                raise OptionError(
                    "TUBEMQ_NO_RECORD_OF_TIME", option=option, partition=partition, time=time.ms
                )
            return place

        workers = min(_MOST_THREADS, len(wanted))
        with concurrent.futures.ThreadPoolExecutor(workers, thread_name_prefix="tubemq-time") as executor:
            found = dict(zip(wanted, executor.map(search, wanted), strict=True))
        return with_timestamps_resolved(spec, found)

    def _minute(self, time: Timestamp) -> str:
        """Return the minute of a time as messages carry it: text whose order is that of the times."""
        moment = datetime.datetime.fromtimestamp(time.ms / 1000, self._zone)
        return moment.strftime(_MINUTE)

    def _first_at(self, partition: TopicPartition, minute: str, option: str) -> int | None:
        held = self._bounds[partition.store_id]

        def look(offset: int) -> Look:
            with self._records(partition, offset, held.latest) as batches:
                batch = next(batches, None)
            if batch is None:
                return Look(held.latest, earlier=False, later=False)
            seen = _look_at(batch, minute)
            if seen is None:
                raise OptionError(
                    "TUBEMQ_NO_MESSAGE_TIME", option=option, partition=partition, offset=batch.start
                )
            return seen

        return first_at(held, look)

    @contextlib.contextmanager
    def _records(self, partition: TopicPartition, start: int, end: int) -> Iterator[Iterator[FetchedBatch]]:
        alone = partition.store_id in self._layout.alone_in_store
        request = self._layout.request(OffsetRange(partition, start, end), own_store=alone)
        batches = self._cluster.read_range(request, _pass_over)
        try:
            yield batches
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()


def _pass_over(_: LossRecord) -> None:
    """Let a search go on behind records that are gone: who reads the range will report them."""


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
