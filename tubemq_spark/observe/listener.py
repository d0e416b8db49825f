"""The listener of Spark's progress events: it keeps the lag of each query, and logs it once a minute.

Spark calls it from threads of its own, so everything that it keeps is behind one lock. It asks no server: all
it knows comes from the offsets in the events. What it must not do is fail or take long, as that would hold up
the events of all queries. Spark tells the events of a run in order, its end last.
"""

import logging
import math
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from tubemq_spark.observe.lag import QueryLag, SourceHistory, TopicLag
from tubemq_spark.observe.progress import moment, source_offsets

if TYPE_CHECKING:
    from tubemq_spark.observe.metrics import Metrics

logger = logging.getLogger(__name__)

_LOG_SECONDS: Final = 60.0
_TOPICS_LOGGED: Final = 5


class _Query:
    """One run of a query."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sources: dict[int, SourceHistory] = {}
        self.at = math.nan
        self.logged_at = -math.inf

    def lags(self) -> list[QueryLag]:
        return [
            QueryLag(self.name, number, self.at, tuple(history.lags()))
            for number, history in sorted(self.sources.items())
        ]


class LagListener(StreamingQueryListener):
    """Knows how far the streaming queries of a session are behind in their topics.

    ``spark.streams.addListener(LagListener())``. Queries that end are forgotten; sources of other kinds than
    TubeMQ's are left alone.
    """

    def __init__(self, *, log_seconds: float = _LOG_SECONDS) -> None:
        """Log the lag of each query with level INFO, at most once in so many seconds."""
        self._log_seconds = log_seconds
        self._lock = threading.Lock()
        self._queries: dict[str, _Query] = {}
        """By the id of the run, as text."""

    def lags(self) -> list[QueryLag]:
        """Return the lag of every source of every query, as of its last micro-batch or idle look."""
        with self._lock:
            return [lag for query in self._queries.values() for lag in query.lags()]

    def metrics(self) -> "Metrics":
        """Return the lags for Prometheus; needs the extra ``tubemq_spark[prometheus]``.

        Raises:
            OptionError: ``prometheus_client`` is not installed.
        """
        from tubemq_spark.observe.metrics import Metrics

        return Metrics(self.lags)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: a query is known with its first progress."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Learn from a micro-batch."""
        progress = event.progress
        run, at = str(progress.runId), moment(progress.timestamp)
        sources = {
            number: offsets
            for number, source in enumerate(progress.sources)
            if (offsets := source_offsets(source)) is not None
        }
        if not sources:
            return
        with self._lock:
            query = self._queries.setdefault(run, _Query(progress.name or str(progress.id)))
            query.at = at
            for number, offsets in sources.items():
                query.sources.setdefault(number, SourceHistory()).add(at, offsets.latest, offsets.positions)
            is_due = at - query.logged_at >= self._log_seconds
            lags = query.lags() if is_due else []
            if is_due:
                query.logged_at = at
        for lag in lags:
            logger.info("%s", _line(lag))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Note when Spark last looked: what was true after the last micro-batch still is."""
        with self._lock:
            query = self._queries.get(str(event.runId))
            if query is not None:
                query.at = moment(event.timestamp)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Forget a query."""
        with self._lock:
            self._queries.pop(str(event.runId), None)


def _line(lag: QueryLag) -> str:
    """Return a lag as one line."""
    furthest = sorted(lag.topics, key=lambda topic: (-topic.rows, topic.topic))
    shown = [f"{topic.topic} {_amount(topic.rows, topic.seconds)}" for topic in furthest[:_TOPICS_LOGGED]]
    more = f" and {len(furthest) - _TOPICS_LOGGED} more topics" if len(furthest) > _TOPICS_LOGGED else ""
    rows = sum(topic.rows for topic in furthest)
    whole = _amount(rows, _longest(lag, lambda topic: topic.seconds))
    catch_up = _longest(lag, lambda topic: topic.catch_up_seconds)
    ending = ""
    if rows and catch_up is not None:
        ending = (
            f"; it catches up in about {catch_up:.0f} s" if catch_up < math.inf else "; it does not catch up"
        )
    return f"query {lag.query}, source {lag.source}: {whole} ({', '.join(shown)}{more}){ending}"


def _amount(rows: int, seconds: float | None) -> str:
    return f"{rows} rows behind" if seconds is None else f"{rows} rows and {seconds:.1f} s behind"


def _longest(lag: QueryLag, of: Callable[[TopicLag], float | None]) -> float | None:
    values: Iterable[float | None] = [of(topic) for topic in lag.topics]
    numbers = [value for value in values if value is not None]
    return max(numbers, default=0.0) if len(numbers) == len(lag.topics) else None
