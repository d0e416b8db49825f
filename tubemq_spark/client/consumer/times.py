"""Where the messages of a time begin in a consumer's partitions; no position moves by asking."""

import contextlib
import datetime
import zoneinfo
from collections.abc import AsyncGenerator
from typing import Final

from tubemq_spark.client.metadata.questions import Questions
from tubemq_spark.client.reader.times import search_in_loop, times_of
from tubemq_spark.errors import OptionError
from tubemq_spark.model import OffsetRange, TopicPartition, TopicsLayout
from tubemq_spark.net.side_by_side import each_of
from tubemq_spark.offsets.loss import LossRecord
from tubemq_spark.offsets.offset_spec import LATEST_MS, Edge
from tubemq_spark.protocol.fetch_columns import FetchedBatch
from tubemq_spark.settings.fields import bad_setting

_A_MINUTE_MS: Final = 60_000
_MOST_SEARCHES: Final = 16
"""How many partitions are searched at once."""


async def offsets_of_time(
    questions: Questions, layout: TopicsLayout, time: datetime.datetime | int, time_zone: str
) -> dict[TopicPartition, int | Edge]:
    """Return where the messages of a time or later begin in partitions; their ends where there are none.

    Args:
        questions: how to ask.
        layout: the partitions.
        time: with a time zone, or in milliseconds since 1970.
        time_zone: in which messages carry their times.

    Raises:
        OptionError: the time is none, or the messages of a partition carry none.
        TubeMQError: a broker does not answer, or refuses.
    """
    minute, zone = _milliseconds(time) // _A_MINUTE_MS, zoneinfo.ZoneInfo(time_zone)
    bounds = (await questions.bounds(layout)).complete()

    async def peek(records: OffsetRange) -> AsyncGenerator[FetchedBatch, None]:
        # A member is not told which other partitions are in the store.
        async with contextlib.aclosing(questions.read_range(layout.request(records))) as items:
            async for item in items:
                if not isinstance(item, LossRecord):
                    yield item

    async def place(partition: TopicPartition) -> int | Edge:
        search = times_of(partition, bounds[partition.store_id], zone)
        offset = await search_in_loop(search.first_of(minute), peek)
        if search.has_records and not search.has_times:
            raise OptionError("TUBEMQ_NO_MESSAGE_TIME", option="time", partition=partition)
        return Edge.LATEST if offset is None else offset

    return await each_of(place, layout.partitions, _MOST_SEARCHES)


def _milliseconds(time: datetime.datetime | int) -> int:
    if isinstance(time, datetime.datetime) and time.tzinfo is not None:
        return round(time.timestamp() * 1000)
    if isinstance(time, int) and 0 <= time <= LATEST_MS:
        return time
    raise bad_setting("time", repr(time), "a datetime with a time zone, or milliseconds since 1970")
