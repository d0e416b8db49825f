"""Write docs/gateway/metrics.md from the metrics of the gateway; a unit test compares the two."""

from pathlib import Path

from prometheus_client import Metric

from tubemq_spark.gateway.server import LIMITS, GatewayServer
from tubemq_spark.gateway.session.sessions import ENDS
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import Endpoint

PAGE = Path(__file__).resolve().parents[1] / "docs" / "gateway" / "metrics.md"

HEAD = """\
# Metrics of a gateway

<!-- Written by `make docs` from tubemq_spark/gateway. -->

With the setting `metrics`, a [gateway](gateway.md) serves over HTTP, without a login and read-only:

| path | what is there |
|---|---|
| `/metrics` | all numbers on this page, as Prometheus reads them |
| `/` | a page for people: rates, sessions, routes, and what waits; it reloads itself and nothing else |
| `/health` | status 200 while the gateway takes calls, and 503 when it is about to stop, for load balancers |

The page names clients, their groups and their addresses, but no secrets. Serve it to operators only, for
example at `127.0.0.1:9191`. Page and metrics answer requests to an address, to localhost, to this host's own
name, or to one of `metrics_hosts`; a browser might send others for pages of other sites. A load balancer may
ask for `/health` by any name.

```yaml
scrape_configs:
  - job_name: tubemq-gateway
    static_configs:
      - targets: ["gateway1:9191", "gateway2:9191"]
```

## All metrics

A counter only grows, a gauge is what it is now, and a histogram has `_bucket`, `_sum` and `_count`.

| metric | kind | labels | what it says |
|---|---|---|---|
"""

TAIL = """
| label | values |
|---|---|
| `method` | a method of the service, such as `ReadRange` |
| `status` | a status of gRPC, such as `OK` or `UNAVAILABLE` |
| `direction` | `read` or `published` |
| `reason` | `session_unknown`, as at each gateway that a client comes to; `draining` |
| `end` | {ends} |
| `setting` | the [setting](gateway.md#settings) that is the limit: {limits} |
| `kind` | why records are missing, as in the conditions `TUBEMQ_DATA_LOSS`, such as `EXPIRED` |

## What to watch

These are alerts of `deploy/prometheus/rules.yml`, and a dashboard for Grafana shows all of it:
[monitoring](../spark/monitoring.md#rules-and-dashboards) says how to use both.

- **Refused calls.** `rate(tubemq_gateway_calls_total{{status="RESOURCE_EXHAUSTED"}}[5m]) > 0`: a limit is
  reached, and the log says which. Start another gateway, or raise the
  [limit](gateway.md#limits-and-who-counts). How near one is:
  `tubemq_gateway_sessions / ignoring(setting) tubemq_gateway_limit{{setting="sessions"}}`.
- **Calls that queue.** `tubemq_gateway_waiting_calls > 0` for minutes: brokers are slow, or `reads` is too
  small.
- **No master.** `tubemq_gateway_degraded > 0` for minutes: no master answers, and the gateway uses what one
  said before, for `route_expiry_ms`.
- **Memory.** `process_resident_memory_bytes` near what the process may have, or
  `tubemq_gateway_bytes_in_flight` near `total_bytes`: clients read more slowly than brokers give, or brokers
  store more slowly than clients send.
- **What is left behind.** `tubemq_gateway_endings > 0` for minutes: brokers do not answer, so consumers of
  clients that have gone are still closing.
- **A slow event loop.**
  `histogram_quantile(0.99, rate(tubemq_gateway_loop_lag_seconds_bucket[5m])) > 0.1`: the process has more to
  do than one core can. Start another.
- **The certificate.** `0 < tubemq_gateway_certificate_expires_seconds < time() + 7 * 86400`: new connections
  fail in a week. It is that of the files which were read last, as new connections see it.
- **Losses.** `increase(tubemq_gateway_losses_total[1h]) > 0`: records were gone before they were read.
- **Lost clients.** `increase(tubemq_gateway_sessions_ended_total{{end="lost"}}[1h]) > 0`: clients that had
  attached partitions were killed, or could not reach the gateway.
- **A policy that is not used.** `increase(tubemq_gateway_policy_failures_total[1h]) > 0`: the file has a
  mistake, and the log says which.
"""


def page() -> str:
    """Return the whole page."""
    settings = GatewaySettings(master_servers=(Endpoint("master", 8715),), node_name="page")
    metrics = GatewayServer(settings).metrics
    rows = [_row(metric, metrics.labels.get(metric.name, ())) for metric in metrics.registry.collect()]
    ends = "; ".join(f"`{end}`: {text}" for end, text in ENDS.items())
    limits = ", ".join(f"`{limit}`" for limit in LIMITS)
    return HEAD + "".join(rows) + TAIL.format(ends=ends, limits=limits)


def _row(metric: Metric, labels: tuple[str, ...]) -> str:
    name = f"{metric.name}{'_total' * (metric.type == 'counter')}"
    shown = ", ".join(f"`{label}`" for label in labels)
    return f"| `{name}` | {metric.type} | {shown} | {metric.documentation} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
