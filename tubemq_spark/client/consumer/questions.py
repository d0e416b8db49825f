"""What consumers ask about the logs of their partitions, under reader groups: no position moves by it."""

import contextlib
import datetime
import zoneinfo
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Final, Protocol

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.metadata.bounds import store_bounds
from tubemq_spark.client.reader.blocking import read_in_thread
from tubemq_spark.client.reader.times import times_of
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
from tubemq_spark.net import loop
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.net.side_by_side import all_of
from tubemq_spark.offsets.loss import LossRecord
from tubemq_spark.offsets.offset_spec import LATEST_MS, Edge
from tubemq_spark.protocol.fetch_columns import FetchedBatch
from tubemq_spark.settings.fields import bad_setting

_A_MINUTE_MS: Final = 60_000


class Questions(Protocol):
    """A way to ask."""

    def bounds(self, stores: Mapping[StoreId, Endpoint]) -> StoreBounds:
        """Return where stores begin and end now; brokers that do not answer are part of it."""

    def peek(
        self, endpoint: Endpoint, records: OffsetRange
    ) -> AbstractContextManager[Iterator[FetchedBatch]]:
        """Read a range within a ``with`` block, and pass over records that are gone."""


class BrokerQuestions:
    """Asks brokers."""

    def __init__(self, config: ClientConfig, pool: ChannelPool, visit_token: Callable[[], int]) -> None:
        """Ask nothing.

        Args:
            config: the settings.
            pool: the channels.
            visit_token: returns the one that the consumer's session has now.
        """
        self._config = config
        self._pool = pool
        self._visit_token = visit_token

    def bounds(self, stores: Mapping[StoreId, Endpoint]) -> StoreBounds:
        """See ``Questions``."""
        return loop.run(store_bounds(self._config, self._pool.connections, stores, self._visit_token()))

    def peek(
        self, endpoint: Endpoint, records: OffsetRange
    ) -> AbstractContextManager[Iterator[FetchedBatch]]:
        """See ``Questions``."""
        # A member is not told which other partitions are in the store.
        request = RangeRequest(records, Route(endpoint, self._visit_token()), own_store=False)
        return contextlib.closing(read_in_thread(self._config, self._pool.connections, request, pass_over))


def offsets_of_time(
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
    bounds = questions.bounds(
        {partition.store_id: endpoint for partition, endpoint in places.items()}
    ).complete()

    def place(partition: TopicPartition) -> int | Edge:
        def peek(records: OffsetRange) -> AbstractContextManager[Iterator[FetchedBatch]]:
            return questions.peek(places[partition], records)

        search = times_of(partition, bounds[partition.store_id], peek, zone)
        offset = search.first_of(minute)
        if search.has_records and not search.has_times:
            raise OptionError("TUBEMQ_NO_MESSAGE_TIME", option="time", partition=partition)
        return Edge.LATEST if offset is None else offset

    return all_of(place, places)


def _milliseconds(time: datetime.datetime | int) -> int:
    if isinstance(time, datetime.datetime) and time.tzinfo is not None:
        return round(time.timestamp() * 1000)
    if isinstance(time, int) and 0 <= time <= LATEST_MS:
        return time
    raise bad_setting("time", repr(time), "a datetime with a time zone, or milliseconds since 1970")


def pass_over(_: LossRecord) -> None:
    """Look behind records that are gone."""
