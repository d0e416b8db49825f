"""What a gateway counts, in Prometheus' text format; ``docs/gateway.md`` lists it."""

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Final

from tubemq_spark.errors import OptionError

_BYTES: Final = (0, *(1 << power for power in range(16, 41, 4)))
_SECONDS: Final = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)


def _prometheus() -> ModuleType:
    try:
        import prometheus_client
    except ImportError:
        raise OptionError("TUBEMQ_GATEWAY_MISSING", package="prometheus_client") from None
    return prometheus_client


class Metrics:
    """The numbers of one gateway."""

    def __init__(self) -> None:
        """Count from 0; serve nothing yet."""
        prometheus = _prometheus()
        self.registry = prometheus.CollectorRegistry()
        self._calls = prometheus.Counter(
            "tubemq_gateway_calls", "Calls that ended", ["method", "status"], registry=self.registry
        )
        self._seconds = prometheus.Histogram(
            "tubemq_gateway_call_seconds",
            "How long calls took",
            ["method"],
            registry=self.registry,
            buckets=_SECONDS,
        )
        self._rows = prometheus.Counter(
            "tubemq_gateway_rows", "Messages that passed", ["direction"], registry=self.registry
        )
        self._bytes = prometheus.Counter(
            "tubemq_gateway_bytes",
            "Bytes of messages that passed, attributes and numbers included",
            ["direction"],
            registry=self.registry,
        )
        self._losses = prometheus.Counter(
            "tubemq_gateway_losses", "Losses that readers were told of", ["kind"], registry=self.registry
        )
        self._expired = prometheus.Counter(
            "tubemq_gateway_sessions_expired",
            "Sessions that were silent for longer than their lease",
            registry=self.registry,
        )
        self._behind = prometheus.Histogram(
            "tubemq_gateway_behind_bytes",
            "How much data stores held behind what was read",
            registry=self.registry,
            buckets=_BYTES,
        )
        self._hooks = prometheus.Counter(
            "tubemq_gateway_hooks_failed", "Hooks that raised an exception", registry=self.registry
        )
        self._server: tuple[object, threading.Thread] | None = None

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Show a number that is asked for when somebody looks."""
        gauge = _prometheus().Gauge(f"tubemq_gateway_{name}", text, registry=self.registry)
        gauge.set_function(value)

    def ended(self, method: str, status: str, seconds: float) -> None:
        """Count a call."""
        self._calls.labels(method, status).inc()
        self._seconds.labels(method).observe(seconds)

    def passed(self, direction: str, rows: int, size: int) -> None:
        """Count messages that were ``read`` or ``published``."""
        self._rows.labels(direction).inc(rows)
        self._bytes.labels(direction).inc(size)

    def lost(self, kind: str) -> None:
        """Count a loss."""
        self._losses.labels(kind).inc()

    def expired(self, sessions: int) -> None:
        """Count sessions that were silent for too long."""
        self._expired.inc(sessions)

    def behind(self, size: int) -> None:
        """Note how much a reader has still to read."""
        self._behind.observe(size)

    def hook_failed(self) -> None:
        """Count a hook that raised."""
        self._hooks.inc()

    def text(self) -> str:
        """Return all numbers as Prometheus reads them."""
        return str(_prometheus().generate_latest(self.registry).decode())

    def serve(self, host: str, port: int) -> int:
        """Serve the numbers over HTTP; return the port.

        Raises:
            OSError: nothing can listen there.
        """
        server, thread = _prometheus().start_http_server(port, host, self.registry)
        self._server = server, thread
        return int(server.server_port)

    def close(self) -> None:
        """Serve no longer."""
        if self._server is not None:
            server, thread = self._server
            server.shutdown()  # type: ignore[attr-defined]
            server.server_close()  # type: ignore[attr-defined]
            thread.join()
            self._server = None
