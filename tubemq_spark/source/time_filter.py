"""Which messages a batch read by times has when it must be exact: those of a time in its range, no others.

The driver then plans the whole of each partition, since a message of any time may be anywhere, and tasks
leave out the others. They compare what the column ``timestamp`` shows. A message without a time has none, and
is left out as ``where("timestamp >= ...")`` would leave it out; a task says how many it has left out so.
"""

import dataclasses
import logging
import zoneinfo
from collections.abc import Iterator
from typing import Final

import numpy as np

from tubemq_spark.model import MSG_TIME_KEY, TopicPartition
from tubemq_spark.offsets.message_time import minutes_of
from tubemq_spark.offsets.offset_spec import timestamps
from tubemq_spark.options import ReadOptions, TimestampSearch
from tubemq_spark.protocol.fetch_columns import FetchedBatch, MessageColumns

logger = logging.getLogger(__name__)

_MINUTE_MS: Final = 60_000
_MOST_TEXTS: Final = 20_000
"""How many texts are remembered: those of a minute are equal."""


class TimeFilter:
    """Leaves messages out by their times, for one task."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._zone = zoneinfo.ZoneInfo(options.message_time_zone)
        self._minutes: dict[str | None, int | None] = {}
        self._untimed = 0

    def chosen(self, partition: TopicPartition, batches: Iterator[FetchedBatch]) -> Iterator[FetchedBatch]:
        """Yield the batches of a partition, with those of its messages that the read has."""
        options = self._options
        start = timestamps(options.starting, (partition,)).get(partition)
        end = None if options.ending is None else timestamps(options.ending, (partition,)).get(partition)
        if options.timestamp_search is not TimestampSearch.EXACT or (start is None and end is None):
            return batches
        first = None if start is None else start.ms // _MINUTE_MS
        # All messages of a minute that has begun before the end may be before it.
        last = None if end is None else -(-end.ms // _MINUTE_MS) - 1
        return (
            dataclasses.replace(batch, columns=self._within(batch.columns, first, last)) for batch in batches
        )

    def finish(self) -> None:
        """Say what was left out without a time."""
        if self._untimed:
            logger.warning(
                "%d messages carry no time: a read with timestampSearch=exact leaves them out", self._untimed
            )

    def _within(self, columns: MessageColumns, first: int | None, last: int | None) -> MessageColumns:
        minutes = [self._minute(text) for text in columns.each(MSG_TIME_KEY)]
        self._untimed += minutes.count(None)
        rows = [
            row
            for row, minute in enumerate(minutes)
            if minute is not None and (first is None or first <= minute) and (last is None or minute <= last)
        ]
        return columns if len(rows) == len(columns) else columns.take(np.array(rows, np.int64))

    def _minute(self, text: str | None) -> int | None:
        if text not in self._minutes:
            if len(self._minutes) >= _MOST_TEXTS:
                self._minutes.clear()
            meaning = minutes_of(text, self._zone)
            self._minutes[text] = None if meaning is None else meaning.first
        return self._minutes[text]
