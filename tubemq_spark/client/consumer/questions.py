"""What consumers ask about the logs of their partitions, under reader groups: no position moves by it."""

import contextlib
import datetime
import functools
import zoneinfo
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Final, Protocol

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.metadata.bounds import store_bounds
from tubemq_spark.client.reader.range_reader import read_range
from tubemq_spark.client.reader.times import search_in_loop, times_of
from tubemq_spark.errors import OptionError
from tubemq_spark.model import (
    Endpoint,
    OffsetRange,
    RangeRequest,
    Route,
    StoreBounds,
    StoreId,
    TopicPartition,
)
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.side_by_side import each_of
from tubemq_spark.offsets.loss import LossRecord
from tubemq_spark.offsets.offset_spec import LATEST_MS, Edge
from tubemq_spark.protocol.fetch_columns import FetchedBatch
from tubemq_spark.settings.fields import bad_setting

_A_MINUTE_MS: Final = 60_000
_MOST_SEARCHES: Final = 16
"""How many partitions are searched at once."""


class Questions(Protocol):
    """A way to ask."""

    async def bounds(self, stores: Mapping[StoreId, Endpoint]) -> StoreBounds:
        """Return where stores begin and end now; brokers that do not answer are part of it."""

    def peek(self, endpoint: Endpoint, records: OffsetRange) -> AsyncGenerator[FetchedBatch, None]:
        """Yield the records of a range, and pass over those that are gone."""


class BrokerQuestions:
    """Asks brokers."""

    def __init__(
        self, config: ClientConfig, connections: Connections, visit_token: Callable[[], int]
    ) -> None:
        """Ask nothing.

        Args:
            config: the settings.
            connections: the connections.
            visit_token: returns the one that the consumer's session has now.
        """
        self._config = config
        self._connections = connections
        self._visit_token = visit_token

    async def bounds(self, stores: Mapping[StoreId, Endpoint]) -> StoreBounds:
        """See ``Questions``."""
        return await store_bounds(self._config, self._connections, stores, self._visit_token())

    async def peek(self, endpoint: Endpoint, records: OffsetRange) -> AsyncGenerator[FetchedBatch, None]:
        """See ``Questions``."""
        # A member is not told which other partitions are in the store.
        request = RangeRequest(records, Route(endpoint, self._visit_token()), own_store=False)
        async with contextlib.aclosing(read_range(self._config, self._connections, request)) as items:
            async for item in items:
                if not isinstance(item, LossRecord):
                    yield item


async def offsets_of_time(
    questions: Questions,
    places: Mapping[TopicPartition, Endpoint],
    time: datetime.datetime | int,
    time_zone: str,
) -> dict[TopicPartition, int | Edge]:
    """Return where the messages of a time or later begin in partitions; their ends where there are none.

    Args:
        questions: how to ask.
        places: the partitions, with their brokers.
        time: with a time zone, or in milliseconds since 1970.
        time_zone: in which messages carry their times.

    Raises:
        OptionError: the time is none, or the messages of a partition carry none.
        TubeMQError: a broker does not answer, or refuses.
    """
    minute, zone = _milliseconds(time) // _A_MINUTE_MS, zoneinfo.ZoneInfo(time_zone)
    asked = await questions.bounds({partition.store_id: endpoint for partition, endpoint in places.items()})
    bounds = asked.complete()

    async def place(partition: TopicPartition) -> int | Edge:
        peek = functools.partial(questions.peek, places[partition])
        search = times_of(partition, bounds[partition.store_id], zone)
        offset = await search_in_loop(search.first_of(minute), peek)
        if search.has_records and not search.has_times:
            raise OptionError("TUBEMQ_NO_MESSAGE_TIME", option="time", partition=partition)
        return Edge.LATEST if offset is None else offset

    return await each_of(place, places, _MOST_SEARCHES)


def _milliseconds(time: datetime.datetime | int) -> int:
    if isinstance(time, datetime.datetime) and time.tzinfo is not None:
        return round(time.timestamp() * 1000)
    if isinstance(time, int) and 0 <= time <= LATEST_MS:
        return time
    raise bad_setting("time", repr(time), "a datetime with a time zone, or milliseconds since 1970")
