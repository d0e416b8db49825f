"""What a gateway is doing, as a line, and as numbers."""

import re
import time

from tests.gateway.running import PlainClient, gateway, tubemq
from tests.waiting import wait_until
from tubemq_spark.gateway.overview import Flow, GatewayOverview, report
from tubemq_spark.net import loop

FLOWS = {"read": Flow(3_000, 2_000_000, 1_500.4, 1_000_000), "published": Flow(0, 0, 0, 0)}


def overview(draining=False, degraded=False, **numbers):
    return GatewayOverview(
        name="g1",
        cluster="default",
        version="1",
        address="host:11911",
        masters=("m:8715",),
        uptime_ms=1_000,
        draining=draining,
        degraded=degraded,
        flows=FLOWS,
        history={},
        numbers=numbers,
        sessions=(),
        session_count=1,
        routes=(),
    )


def test_a_line_has_rates_and_what_there_is():
    assert report(overview(reads=2, fetches=0)) == (
        "gateway g1 serves at host:11911, 1 session; "
        "read 1,500 messages/s, 1.0 MB/s (3,000 messages, 2.0 MB in total); "
        "published 0 messages/s, 0.0 MB/s (0 messages, 0.0 MB in total); reads: 2"
    )
    assert report(overview()).endswith("; idle")
    assert "about to stop" in report(overview(draining=True))
    assert "serves at host:11911, but no master answers, 1 session" in report(overview(degraded=True))


def value(running, name):
    return float(re.search(rf"^{name} (.*)$", running.server.metrics.text(), re.MULTILINE)[1])


def test_the_numbers_of_the_process_are_there_and_a_busy_event_loop_is_told():
    with tubemq(demo=(1, 1)) as server, gateway(server) as running, PlainClient(running.address) as client:
        client.open()
        client("QueryRoute", topics=["demo"])
        assert value(running, "tubemq_gateway_upstream_connections") >= 1
        assert value(running, "process_resident_memory_bytes") > 10_000_000
        assert value(running, "tubemq_gateway_certificate_expires_seconds") == 0

        async def hold():
            time.sleep(1.5)

        loop.run(hold())
        wait_until(lambda: value(running, "tubemq_gateway_loop_lag_seconds_sum") > 0.5)
