"""Numbers about the gateway itself: its event loop, its memory, its connections."""

import re
import time

from tests.gateway.running import PlainClient, gateway, tubemq
from tests.waiting import wait_until
from tubemq_spark.net import loop


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
