"""The listener of Spark's events: it keeps what each query has read and is behind, and logs it once a minute.

Spark calls it from threads of its own, so everything that it keeps is behind one lock. It asks no server:
all it knows comes from the events, and of an idle query from its last progress, which Spark keeps up to
date and does not send. What it must not do is fail or take long, as that would hold up the events of all
queries. Spark tells the events of a run in order, its end last.
"""

import collections
import logging
import math
import re
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from tubemq_spark.observe.lag import QueryLag, longest
from tubemq_spark.observe.progress import (
    QueryRun,
    QueryState,
    SourceOffsets,
    moment,
    observed_bytes,
    source_offsets,
)

if TYPE_CHECKING:
    from tubemq_spark.observe.metrics import LagMetrics

logger = logging.getLogger(__name__)

_LOG_SECONDS: Final = 60.0
_TOPICS_LOGGED: Final = 5
_MOST_FAILURES: Final = 1_000
"""So many pairs of a query and a condition are counted: queries without a name have a new one each time."""
_CONDITION: Final = re.compile(r"\[(TUBEMQ_[A-Z_.]+)\]")
_OTHER: Final = "other"
"""The condition of failures that are not ours."""


class LagListener(StreamingQueryListener):
    """Knows how far the streaming queries of a session are behind in their topics, and how they do.

    ``spark.streams.addListener(LagListener())``. Queries that end are forgotten; sources of other kinds than
    TubeMQ's are left alone.
    """

    def __init__(self, spark: SparkSession | None = None, *, log_seconds: float = _LOG_SECONDS) -> None:
        """Log the lag of each query with level INFO, at most once in so many seconds.

        Args:
            spark: the session of the queries, by default the active one. Without a session, an idle query
                keeps the numbers of its last micro-batch.
            log_seconds: how many seconds.
        """
        self.spark = spark or SparkSession.getActiveSession()
        self._log_seconds = log_seconds
        self._lock = threading.Lock()
        self._names: dict[str, str] = {}
        """Of all queries, by the id of the run, as text."""
        self._runs: dict[str, QueryRun] = {}
        """Those that read from TubeMQ, by the id of the run."""
        self._logged_at: dict[str, float] = {}
        self._failures: collections.Counter[tuple[str, str]] = collections.Counter()

    def lags(self) -> list[QueryLag]:
        """Return the lag of every source of every query, as of its last micro-batch or idle look."""
        with self._lock:
            return [lag for run in self._runs.values() for lag in run.lags()]

    def states(self) -> list[QueryState]:
        """Return the state of every query that reads from TubeMQ."""
        with self._lock:
            return [run.state() for run in self._runs.values()]

    def failures(self) -> Mapping[tuple[str, str], int]:
        """Return how many runs failed, by query and condition, as far as TubeMQ has to do with them."""
        with self._lock:
            return dict(self._failures)

    def metrics(self, *, partitions: bool = False, loss_ledger: str | None = None) -> "LagMetrics":
        """Return the metrics for Prometheus; needs the extra ``tubemq_spark[prometheus]``.

        Args:
            partitions: whether there are series of each partition too, and not only of each topic.
            loss_ledger: the folder of ``lossLedger``, as this process reaches it: the losses in it are
                counted. By default there are no counters of losses.

        Raises:
            OptionError: ``prometheus_client`` is not installed, or ``loss_ledger`` is no folder.
        """
        from tubemq_spark.observe.metrics import LagMetrics, LedgerLosses

        ledger = None if loss_ledger is None else LedgerLosses(loss_ledger)
        return LagMetrics(self, ledger, partitions=partitions)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Note the name of a query; more is known with its first progress."""
        with self._lock:
            self._names[str(event.runId)] = event.name or str(event.id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Learn from a micro-batch."""
        progress = event.progress
        run_id, at = str(progress.runId), moment(progress.timestamp)
        sources = {
            number: (offsets, progress.sources[number].numInputRows)
            for number, offsets in _offsets(progress).items()
        }
        if not sources:
            return
        seconds = progress.batchDuration / 1000
        size = observed_bytes(progress.observedMetrics)
        with self._lock:
            run = self._runs.setdefault(run_id, QueryRun(progress.name or str(progress.id)))
            run.batch_ended(at, seconds, sources, size)
            is_due = at - self._logged_at.get(run_id, -math.inf) >= self._log_seconds
            lags = run.lags() if is_due else []
            if is_due:
                self._logged_at[run_id] = at
        for lag in lags:
            logger.info("%s", _line(lag))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Note when Spark last looked, and what it saw then."""
        run_id = str(event.runId)
        with self._lock:
            run = self._runs.get(run_id)
            if run is not None:
                run.found_nothing(moment(event.timestamp))
        if run is None:
            return
        progress = self._last_progress(event)
        if progress is not None:
            with self._lock:
                run.looked(moment(progress.timestamp), _offsets(progress))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Forget a query; count a failure."""
        run_id = str(event.runId)
        with self._lock:
            run = self._runs.pop(run_id, None)
            self._logged_at.pop(run_id, None)
            name = self._names.pop(run_id, str(event.id))
            condition = _CONDITION.search(event.exception or "")
            if event.exception is None or (run is None and condition is None):
                return
            failure = name if run is None else run.name, condition[1] if condition else _OTHER
            if failure in self._failures or len(self._failures) < _MOST_FAILURES:
                self._failures[failure] += 1

    def _last_progress(self, event: QueryIdleEvent) -> StreamingQueryProgress | None:
        """Return Spark's last progress of an idle query; None if Spark does not give it."""
        try:
            query = self.spark.streams.get(str(event.id)) if self.spark is not None else None
            progress = query.lastProgress if query is not None else None
        except Exception as error:  # noqa: BLE001 - the query may have ended, or be of another session
            logger.debug("the progress of query %s is not known: %s", event.id, error)
            return None
        return progress if progress is not None and progress.runId == event.runId else None


def _offsets(progress: StreamingQueryProgress) -> dict[int, SourceOffsets]:
    """Return the offsets of TubeMQ's sources, by their places in the query."""
    return {
        number: offsets
        for number, source in enumerate(progress.sources)
        if (offsets := source_offsets(source)) is not None
    }


def _line(lag: QueryLag) -> str:
    """Return a lag as one line."""
    furthest = sorted(lag.topics, key=lambda topic: (-topic.rows, topic.topic))
    shown = [f"{topic.topic} {_amount(topic.rows, topic.seconds)}" for topic in furthest[:_TOPICS_LOGGED]]
    more = f" and {len(furthest) - _TOPICS_LOGGED} more topics" if len(furthest) > _TOPICS_LOGGED else ""
    rows = sum(topic.rows for topic in furthest)
    whole = _amount(rows, longest(topic.seconds for topic in furthest))
    catch_up = longest(topic.catch_up_seconds for topic in furthest)
    ending = ""
    if rows and catch_up is not None:
        ending = (
            f"; it catches up in about {catch_up:.0f} s" if catch_up < math.inf else "; it does not catch up"
        )
    return f"query {lag.query}, source {lag.source}: {whole} ({', '.join(shown)}{more}){ending}"


def _amount(rows: int, seconds: float | None) -> str:
    return f"{rows} rows behind" if seconds is None else f"{rows} rows and {seconds:.1f} s behind"
