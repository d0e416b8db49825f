"""What the listener knows, for Prometheus; the one module that needs ``prometheus_client``.

Metrics are made when they are asked for, from what the listener knows then: a query that has ended has
none. ``FAMILIES`` are all there are.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from tubemq_spark.errors import OptionError, TubeMQError
from tubemq_spark.files.folder_uri import EXPECTED, FolderUri, redacted
from tubemq_spark.observe.progress import QueryState, SourceState
from tubemq_spark.offsets.ledger import SUFFIX, gaps, observations_of

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from tubemq_spark.observe.listener import LagListener

logger = logging.getLogger(__name__)


try:
    import prometheus_client
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector, CollectorRegistry
except ImportError as missing:
    raise OptionError("TUBEMQ_NO_PROMETHEUS") from missing

_QUERY: Final = ("query",)
_SOURCE: Final = ("query", "source")
_TOPIC: Final = ("query", "source", "topic")
_PARTITION: Final = ("query", "source", "topic", "broker", "partition")
_LOSS: Final = ("group", "topic", "reason")


class Family(NamedTuple):
    """One metric; the name of a counter is without ``_total``."""

    kind: type[CounterMetricFamily] | type[GaugeMetricFamily]
    text: str
    labels: tuple[str, ...]


FAMILIES: Final[Mapping[str, Family]] = {
    "tubemq_lag_rows": Family(GaugeMetricFamily, "Rows that the query has not read yet.", _TOPIC),
    "tubemq_lag_seconds": Family(
        GaugeMetricFamily, "How long ago the topic ended where the query stands.", _TOPIC
    ),
    "tubemq_catch_up_seconds": Family(GaugeMetricFamily, "How long the query needs to catch up.", _TOPIC),
    "tubemq_progress_timestamp_seconds": Family(
        GaugeMetricFamily,
        "When the query last began a micro-batch or found nothing new, in seconds since 1970.",
        _TOPIC,
    ),
    "tubemq_read_rows": Family(CounterMetricFamily, "Rows between the offsets of micro-batches.", _TOPIC),
    "tubemq_input_rows": Family(CounterMetricFamily, "Rows that Spark got from the source.", _SOURCE),
    "tubemq_brokers_away": Family(GaugeMetricFamily, "Brokers whose stores wait.", _SOURCE),
    "tubemq_broker_outages": Family(CounterMetricFamily, "How often a broker went away.", _SOURCE),
    "tubemq_query_idle": Family(GaugeMetricFamily, "Whether the query found nothing new.", _QUERY),
    "tubemq_batches": Family(CounterMetricFamily, "Micro-batches that ended.", _QUERY),
    "tubemq_batch_seconds": Family(CounterMetricFamily, "How long they took together.", _QUERY),
    "tubemq_observed_bytes": Family(CounterMetricFamily, "Bytes that with_bytes counted.", _QUERY),
    "tubemq_query_failures": Family(
        CounterMetricFamily, "Runs of queries that an error ended.", ("query", "condition")
    ),
    "tubemq_partition_lag_rows": Family(
        GaugeMetricFamily, "Rows that the query has not read yet.", _PARTITION
    ),
    "tubemq_partition_lag_seconds": Family(
        GaugeMetricFamily, "How long ago the partition ended where the query stands.", _PARTITION
    ),
    "tubemq_partition_read_rows": Family(
        CounterMetricFamily, "Rows between the offsets of micro-batches.", _PARTITION
    ),
    "tubemq_losses": Family(CounterMetricFamily, "Losses in the ledger.", _LOSS),
    "tubemq_lost_rows": Family(CounterMetricFamily, "Rows of those losses whose rows are known.", _LOSS),
    "tubemq_loss_ledger_timestamp_seconds": Family(
        GaugeMetricFamily, "When the ledger was last read, in seconds since 1970.", ()
    ),
}


_READ_SECONDS: Final = 30.0
"""The ledger is not read more often, however often Prometheus asks: it may be in an object store."""


_PATIENCE_SECONDS: Final = 2.0
"""So long who asks waits for a read that begins; one that takes longer goes on, and holds up no metrics."""


class LossKind(NamedTuple):
    """What losses are counted by."""

    group: str
    """The consumer group of the query that passed over them."""
    topic: str
    reason: str


class LossCount(NamedTuple):
    """How many losses, and how many rows of those of which that is known."""

    losses: int
    rows: int


class LedgerLosses:
    """Counts what is in a ledger; both counts only grow, although gaps that touch become one."""

    def __init__(self, folder: str, clock: Callable[[], float] = time.time) -> None:
        """Take the folder of ``lossLedger``."""
        place = FolderUri.parse(folder)
        if place is None:
            shown = redacted(folder)
            raise OptionError("TUBEMQ_OPTION_VALUE", option="loss_ledger", value=shown, expected=EXPECTED)
        self._place = place
        self._clock = clock
        self._lock = threading.Lock()
        self._tried_at: float | None = None
        self._reading: threading.Thread | None = None
        self._failed = False
        self._counts: dict[LossKind, LossCount] = {}
        self.read_at: float | None = None
        """When it was last read, in seconds since 1970; None before."""

    def counts(self) -> Mapping[LossKind, LossCount]:
        """Return the losses as of a moment ago; if the ledger cannot be read, those that were read last."""
        if (reading := self._begin_to_read()) is not None:
            reading.join(_PATIENCE_SECONDS)
        with self._lock:
            return dict(self._counts)

    def _begin_to_read(self) -> threading.Thread | None:
        """Read in a thread if it is time; return the thread, or None if none has begun."""
        with self._lock:
            now = self._clock()
            if self._tried_at is not None and 0 <= now - self._tried_at < _READ_SECONDS:
                return None
            if self._reading is not None and self._reading.is_alive():
                return None
            self._tried_at = now
            self._reading = threading.Thread(
                target=self._take_losses, args=(now,), name="tubemq-loss-ledger", daemon=True
            )
            self._reading.start()
            return self._reading

    def _take_losses(self, now: float) -> None:
        """Read the ledger, and add the losses that are new to the counters."""
        try:
            seen = self._read()
        except TubeMQError as error:
            logger.log(logging.DEBUG if self._failed else logging.WARNING, "%s", error)
            self._failed = True
            return
        self._failed = False
        with self._lock:
            self.read_at = now
            for kind, count in seen.items():
                before = self._counts.get(kind, LossCount(0, 0))
                self._counts[kind] = LossCount(max(before.losses, count.losses), max(before.rows, count.rows))

    def _read(self) -> Mapping[LossKind, LossCount]:
        # Arrow's file systems take a while to load.
        from tubemq_spark.files.text_files import TextFiles

        # All of it first: threads that read go on until the last file is taken.
        files = list(TextFiles(self._place, "lossLedger", SUFFIX).read())
        observations = [
            observation
            for name, text in files
            for observation in observations_of(text, f"{self._place}/{name}")
        ]
        seen: dict[LossKind, LossCount] = {}
        for gap in gaps(observations):
            kind = LossKind(gap.origin.consumer_group, gap.loss.partition.topic, gap.loss.loss.value)
            losses, rows = seen.get(kind, LossCount(0, 0))
            seen[kind] = LossCount(losses + 1, rows + (gap.loss.rows or 0))
        return seen


class _Samples:
    """The values of all metrics at a moment."""

    def __init__(self) -> None:
        self.families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {
            name: family.kind(name, family.text, labels=family.labels) for name, family in FAMILIES.items()
        }

    def add(self, name: str, value: float | None, *labels: str) -> None:
        """Add a value to ``tubemq_<name>``; what is not known has none."""
        if value is not None:
            self.families[f"tubemq_{name}"].add_metric(labels, value)

    def add_query(self, query: QueryState, *, partitions: bool) -> None:
        self.add("query_idle", query.idle, query.name)
        self.add("observed_bytes", query.observed_bytes, query.name)
        self.add("batches", query.batches, query.name)
        self.add("batch_seconds", query.batch_seconds, query.name)
        for source in query.sources:
            self._add_source(source)
            if partitions:
                self._add_partitions(source)

    def _add_source(self, source: SourceState) -> None:
        labels = source.lag.query, str(source.lag.source)
        self.add("input_rows", source.input_rows, *labels)
        self.add("brokers_away", source.away, *labels)
        self.add("broker_outages", source.outages, *labels)
        for topic in source.lag.topics:
            self.add("lag_rows", topic.rows, *labels, topic.topic)
            self.add("lag_seconds", topic.seconds, *labels, topic.topic)
            self.add("catch_up_seconds", topic.catch_up_seconds, *labels, topic.topic)
            self.add("progress_timestamp_seconds", source.lag.at, *labels, topic.topic)
        for name, rows in source.read_by_topic.items():
            self.add("read_rows", rows, *labels, name)

    def _add_partitions(self, source: SourceState) -> None:
        for lag in source.partitions:
            partition = lag.partition
            labels = (
                source.lag.query,
                str(source.lag.source),
                partition.topic,
                str(partition.broker_id),
                str(partition.partition_id),
            )
            self.add("partition_lag_rows", lag.rows, *labels)
            self.add("partition_lag_seconds", lag.seconds, *labels)
            self.add("partition_read_rows", source.read_by_partition.get(partition, 0), *labels)

    def add_losses(self, ledger: LedgerLosses) -> None:
        for kind, count in ledger.counts().items():
            self.add("losses", count.losses, *kind)
            self.add("lost_rows", count.rows, *kind)
        self.add("loss_ledger_timestamp_seconds", ledger.read_at)


class _Collector(Collector):
    """Makes the metrics of the moment."""

    def __init__(self, listener: "LagListener", ledger: LedgerLosses | None, *, partitions: bool) -> None:
        self._listener = listener
        self._ledger = ledger
        self._partitions = partitions

    def describe(self) -> Iterator[Metric]:
        """Return the metrics without values, for the registry."""
        yield from _Samples().families.values()

    def collect(self) -> Iterator[Metric]:
        """Return the metrics; what is not known has no value."""
        samples = _Samples()
        for query in self._listener.states():
            samples.add_query(query, partitions=self._partitions)
        for (name, condition), count in self._listener.failures().items():
            samples.add("query_failures", count, name, condition)
        if self._ledger is not None:
            samples.add_losses(self._ledger)
        yield from samples.families.values()


class LagMetrics:
    """Serves what a listener knows; a context manager whose end closes the server."""

    def __init__(
        self, listener: "LagListener", ledger: LedgerLosses | None = None, *, partitions: bool = False
    ) -> None:
        self.collector = _Collector(listener, ledger, partitions=partitions)
        """To be registered with a registry of your own."""
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self.collector)
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def text(self) -> str:
        """Return the metrics in Prometheus's text format."""
        return prometheus_client.generate_latest(self._registry).decode()

    def serve(self, port: int, host: str = "127.0.0.1") -> int:
        """Serve the metrics over HTTP until ``close``; return the port, which is a free one for 0."""
        self.close()
        try:
            self._server, self._thread = prometheus_client.start_http_server(port, host, self._registry)
        except OSError as error:
            from tubemq_spark.net.listener import listen_error

            raise listen_error(host, port, "port", error) from error
        return self._server.server_port

    def close(self) -> None:
        """Stop serving."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
