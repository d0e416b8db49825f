"""What a reader is told before it finds out by wrong results."""

import datetime
import functools
import logging
import zoneinfo
from collections.abc import Iterable, Mapping
from typing import Final

from tubemq_spark.cluster.base import Cluster
from tubemq_spark.cluster.peek import peek
from tubemq_spark.model import (
    INDEX_ENTRY_BYTES,
    MSG_TIME_KEY,
    OffsetRange,
    StoreId,
    TopicPartition,
    TopicsLayout,
)
from tubemq_spark.net.side_by_side import answers_and_errors
from tubemq_spark.offsets.message_time import minutes_of
from tubemq_spark.source.background import BackgroundQuestions

logger = logging.getLogger(__name__)


class NullOffsetWarning:
    """Says, once per topic, that ``offset`` is null where the partitions of a topic share stores.

    A row's place in a shared store is not told by the protocol, so a join or ``distinct`` on
    ``(partition, offset)`` would drop rows without a word. Where only some message types are read it is null
    everywhere, which the option says.
    """

    def __init__(self, columns: Iterable[str], *, filtered: bool = False) -> None:
        self._wanted = "offset" in set(columns) and not filtered
        self._told: set[str] = set()

    def check(self, layout: TopicsLayout) -> None:
        """Check a layout; called for every new one."""
        if not self._wanted:
            return
        shared = {store.topic for store in layout.stores.keys() - layout.alone_in_store.keys()}
        for topic in sorted(shared - self._told):
            logger.warning(
                "column 'offset' is null in rows of topic %s: several of its partitions share a store. "
                "Do not join or deduplicate on it; leave it out of the schema to silence this",
                topic,
            )
        self._told |= shared


_MOST_STORES: Final = 16
_MOST_ENTRIES: Final = 1_000
_PATIENCE_MS: Final = 2_000
"""How long the look at a store may take."""
_WORTH_A_WORD_MINUTES: Final = 60
"""Most watermarks have a delay of minutes."""


class StartTimes:
    """A warning where a run of a stream begins at very different times in its stores.

    A micro-batch takes rows of all stores. Where some begin hours before others, a watermark follows the late
    ones, and Spark drops the rows of the early ones as late, which only its metric
    ``numRowsDroppedByWatermark`` tells. The driver knows where a run begins, so it looks once, beside the
    first trigger. No trigger waits for it.
    """

    def __init__(self, cluster: Cluster, time_zone: str) -> None:
        self._cluster = cluster
        self._zone = zoneinfo.ZoneInfo(time_zone)
        self._questions: BackgroundQuestions[None] = BackgroundQuestions("tubemq-start-times")

    def look(self, layout: TopicsLayout, ranges: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Begin to look where a micro-batch begins, and return at once.

        One partition of each store is looked at, or of each topic where there are many stores.
        """
        of_stores: dict[StoreId, OffsetRange] = {}
        for partition, (begin, end) in sorted(ranges.items()):
            if begin < end and partition in layout.partitions:
                first = OffsetRange(partition, begin, min(end, begin + _MOST_ENTRIES * INDEX_ENTRY_BYTES))
                of_stores.setdefault(partition.store_id, first)
        chosen = list(of_stores.values())
        if len(chosen) > _MOST_STORES:  # to plan from many costs no fetch, so this costs few
            chosen = list({range_.partition.topic: range_ for range_ in chosen}.values())[:_MOST_STORES]
        if len(chosen) > 1:
            self._questions.begin(functools.partial(self._compare, layout, chosen))

    def _compare(self, layout: TopicsLayout, ranges: list[OffsetRange]) -> None:
        answers, errors = answers_and_errors(functools.partial(self._first_minute, layout), ranges)
        for range_, error in errors.items():
            logger.debug("when %s begins is not known: %s", range_, error)
        minutes = {range_.partition: minute for range_, minute in answers.items() if minute is not None}
        if not minutes:
            return
        earliest, latest = min(minutes, key=minutes.__getitem__), max(minutes, key=minutes.__getitem__)
        apart = minutes[latest] - minutes[earliest]
        if apart >= _WORTH_A_WORD_MINUTES:
            logger.warning(
                "what is read first is of very different times: %s begins at %s, and %s at %s (UTC). A "
                "watermark with a delay below %d minutes takes rows of the former for late ones, which Spark "
                "drops",
                *(earliest, _shown(minutes[earliest]), latest, _shown(minutes[latest]), apart),
            )

    def _first_minute(self, layout: TopicsLayout, range_: OffsetRange) -> int | None:
        """Return the earliest minute of the first messages that have one, since 1970."""
        with peek(self._cluster, layout, range_, _PATIENCE_MS) as batches:
            for batch in batches:
                times = (minutes_of(text, self._zone) for text in set(batch.columns.each(MSG_TIME_KEY)))
                if known := [minutes.first for minutes in times if minutes is not None]:
                    return min(known)
        return None


def _shown(minute: int) -> str:
    return f"{datetime.datetime.fromtimestamp(minute * 60, datetime.UTC):%Y-%m-%d %H:%M}"
