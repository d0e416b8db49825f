"""What a gateway counts, in Prometheus' text format; ``docs/gateway/metrics.md`` lists it."""

from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, TypeAlias

from tubemq_spark.errors import OptionError

Metric: TypeAlias = Any
"""A metric of Prometheus' client, which is imported late."""

DIRECTIONS: Final = ("read", "published")
"""Which way messages pass, as ``Metrics.passed`` calls it."""
_PREFIX: Final = "tubemq_gateway_"
_BYTES: Final = (0, *(1 << power for power in range(16, 41, 4)))
_SECONDS: Final = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)


def _prometheus() -> ModuleType:
    try:
        import prometheus_client
    except ImportError:
        raise OptionError("TUBEMQ_GATEWAY_MISSING", package="prometheus_client") from None
    return prometheus_client


class Metrics:
    """The numbers of one gateway; what counts or notes one thing is an attribute that is called."""

    def __init__(self) -> None:
        prometheus = _prometheus()
        self.registry = prometheus.CollectorRegistry()
        self.labels: dict[str, tuple[str, ...]] = {}
        """The labels of those that have some, by the name without ``_total``."""
        self._calls = self._counter("calls", "Calls that ended", "method", "status")
        self._seconds = self._metric(
            prometheus.Histogram, "call_seconds", "How long calls took", "method", buckets=_SECONDS
        )
        self._rows = self._metric(prometheus.Counter, "rows", "Messages that passed", "direction")
        size = "Bytes of messages that passed, attributes and numbers included"
        self._bytes = self._metric(prometheus.Counter, "bytes", size, "direction")
        self.lost = self._counter("losses", "Losses that readers were told of", "kind")
        self.redirected = self._counter(
            "calls_redirected",
            "Calls whose client was told to open its session, or to use another gateway",
            "method",
            "reason",
        )
        self.session_ended = self._counter("sessions_ended", "Sessions that ended, by how they did", "end")
        behind = "How much data stores held behind what was read"
        self.behind = self._metric(prometheus.Histogram, "behind_bytes", behind, buckets=_BYTES).observe
        self.policy_failed = self._counter("policy_failures", "Changes of the policy that could not be used")
        late = "How late the event loop was"
        self.lagged = self._metric(prometheus.Histogram, "loop_lag_seconds", late, buckets=_SECONDS).observe
        # Memory, CPU time and open files, under Prometheus' own names.
        prometheus.ProcessCollector(registry=self.registry)
        self.hook_failed = self._counter("hooks_failed", "Hooks that raised an exception")
        self._limits = self._metric(prometheus.Gauge, "limit", "What a setting allows at most", "setting")
        self._watched: dict[str, Callable[[], float]] = {}
        self.totals: dict[str, tuple[int, int]] = dict.fromkeys(DIRECTIONS, (0, 0))
        """How many messages and bytes have passed, by direction."""

    def _metric(self, kind: Callable[..., Any], name: str, text: str, *labels: str, **more: object) -> Metric:
        full = f"{_PREFIX}{name}"
        if labels:
            self.labels[full] = labels
        return kind(full, text, labels, registry=self.registry, **more)

    def _counter(self, name: str, text: str, *labels: str) -> Callable[..., None]:
        """Return a function that adds 1 to a counter; its arguments are the values of the labels."""
        metric = self._metric(_prometheus().Counter, name, text, *labels)
        return lambda *values: (metric.labels(*values) if values else metric).inc()

    def watch(self, name: str, text: str, value: Callable[[], float], *, on_page: bool = True) -> None:
        """Show a number that is asked for at each look; ``on_page``: on the status page, too."""
        self._metric(_prometheus().Gauge, name, text).set_function(value)
        if on_page:
            self._watched[text] = value

    def limited(self, setting: str, most: int) -> None:
        """Show what a setting allows, to compare with what there is."""
        self._limits.labels(setting).set(most)

    def watched(self) -> dict[str, int]:
        """Return the numbers of the page as they are now, by their texts."""
        return {text: int(value()) for text, value in self._watched.items()}

    def ended(self, method: str, status: str, seconds: float) -> None:
        """Count a call."""
        self._calls(method, status)
        self._seconds.labels(method).observe(seconds)

    def passed(self, direction: str, rows: int, size: int) -> None:
        """Count messages that were ``read`` or ``published``."""
        self._rows.labels(direction).inc(rows)
        self._bytes.labels(direction).inc(size)
        had_rows, had_bytes = self.totals[direction]
        self.totals[direction] = had_rows + rows, had_bytes + size

    def text(self) -> str:
        """Return all numbers as Prometheus reads them."""
        return str(_prometheus().generate_latest(self.registry).decode())
