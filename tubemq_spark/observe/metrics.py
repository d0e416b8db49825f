"""The lags of queries for Prometheus; the one module that needs ``prometheus_client``.

Metrics are made when they are asked for, from what the listener knows then: a query that has ended has
none.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, Self

from tubemq_spark.errors import OptionError
from tubemq_spark.observe.lag import QueryLag

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

try:
    import prometheus_client
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.registry import Collector, CollectorRegistry
except ImportError as missing:
    raise OptionError("TUBEMQ_NO_PROMETHEUS") from missing

_LABELS: Final = ("query", "source", "topic")


class _LagCollector(Collector):
    """Makes the metrics of the moment."""

    def __init__(self, lags: Callable[[], Iterable[QueryLag]]) -> None:
        self._lags = lags

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Return the metrics without values, for the registry."""
        yield from self._families()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Return the metrics; what is not known has no value."""
        rows, seconds, catch_up, at = families = self._families()
        for lag in self._lags():
            for topic in lag.topics:
                labels = (lag.query, str(lag.source), topic.topic)
                rows.add_metric(labels, topic.rows)
                at.add_metric(labels, lag.at)
                if topic.seconds is not None:
                    seconds.add_metric(labels, topic.seconds)
                if topic.catch_up_seconds is not None:
                    catch_up.add_metric(labels, topic.catch_up_seconds)
        yield from families

    @staticmethod
    def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily]:
        return (
            GaugeMetricFamily("tubemq_lag_rows", "Rows that the query has not read yet.", labels=_LABELS),
            GaugeMetricFamily(
                "tubemq_lag_seconds", "How long ago the topic ended where the query stands.", labels=_LABELS
            ),
            GaugeMetricFamily(
                "tubemq_catch_up_seconds", "How long the query needs to catch up.", labels=_LABELS
            ),
            GaugeMetricFamily(
                "tubemq_progress_timestamp_seconds",
                "When the query last began a micro-batch or found nothing new, in seconds since 1970.",
                labels=_LABELS,
            ),
        )


class Metrics:
    """Serves lags; a context manager whose end closes the server."""

    def __init__(self, lags: Callable[[], Iterable[QueryLag]]) -> None:
        self.collector = _LagCollector(lags)
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
        """Serve the metrics over HTTP until ``close``; return the port, which is a free one for 0.

        Raises:
            OSError: the port is in use.
        """
        self.close()
        self._server, self._thread = prometheus_client.start_http_server(port, host, self._registry)
        return self._server.server_port

    def close(self) -> None:
        """Stop serving."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
