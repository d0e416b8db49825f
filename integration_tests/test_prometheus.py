"""A real Prometheus scrapes a job and a gateway: rules and dashboards in ``deploy/`` show what it has."""

import contextlib
import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from integration_tests.real.processes import free_port, wait_until
from integration_tests.rig.messages import produce_numbers
from integration_tests.rig.queries import Collected, read_stream, run, start
from testkit.monitoring import (
    DASHBOARDS,
    RULES,
    dashboard,
    metrics_in,
    panels,
    questions,
    rules,
    with_variables,
)
from tubemq_spark.client import ClientConfig, TubeMQClient
from tubemq_spark.cluster.config import ClusterConfig
from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.errors import TubeMQError
from tubemq_spark.gateway.process import BackgroundGateway
from tubemq_spark.gateway.settings import load_settings
from tubemq_spark.model import Endpoint, OffsetRange, TopicPartition
from tubemq_spark.observe import LagListener, with_bytes
from tubemq_spark.protocol.gateway import gateway_pb2 as pb
from tubemq_spark.protocol.gateway.service import SERVICE, SESSION_KEY

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Debian's prometheus"),
]

PATIENCE_SECONDS = 120
GATEWAYS, STREAMS = re.compile("tubemq_gateway|process_"), re.compile("tubemq_(?!gateway)")
ONLY_WITH_TLS = "tubemq_gateway_certificate_expires_seconds"
"""The gateway of this test has no certificate that could expire."""


class Prometheus:
    """A running Prometheus."""

    def __init__(self, address: str) -> None:
        self.address = address

    def asked(self, expression: str) -> list[dict]:
        """Return the series of an expression now."""
        query = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"http://{self.address}/api/v1/query?{query}", timeout=20) as answer:
            return json.load(answer)["data"]["result"]

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=5).close()
            return True
        return False


@contextlib.contextmanager
def prometheus(folder: Path, **targets: str):
    """Run one that scrapes each target twice a second."""
    jobs = "".join(
        f"  - {{job_name: {job}, static_configs: [{{targets: ['{target}']}}]}}\n"
        for job, target in targets.items()
    )
    config = folder / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 1s}\n"
        f"rule_files: ['{RULES}']\nscrape_configs:\n{jobs}"
    )
    running = Prometheus(f"127.0.0.1:{free_port()}")
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={running.address}",
            "--log.level=warn",
        ]
    )
    try:
        wait_until(running.is_ready, timeout_s=PATIENCE_SECONDS, what="Prometheus")
        yield running
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


def use(gateway: str, topic: str, expired: str) -> None:
    """Publish and read through a gateway, meet a loss there, and make calls that fail."""
    cluster = open_cluster(ClusterConfig(ClientConfig((), "it_group"), (Endpoint.parse(gateway),)))
    losses = []
    layout = cluster.layout([topic, expired])
    for name in (topic, expired):
        request = layout.request(OffsetRange(TopicPartition(name, 1, 0), 0, 28 * 20), own_store=True)
        list(cluster.read_range(request, losses.append))
    assert losses
    with pytest.raises(TubeMQError):
        cluster.layout(["no_such_topic"])
    stranger = pb.SessionRef(client_id="stranger", epoch=1, secret=b"unknown to the gateway".ljust(32))
    with grpc.insecure_channel(gateway) as channel:
        call = channel.unary_unary(f"/{SERVICE}/QueryRoute")
        with pytest.raises(grpc.RpcError):
            call(b"", metadata=[(SESSION_KEY, stranger.SerializeToString())])
    with (
        TubeMQClient.from_url(f"gateway://{gateway}?group=it_group") as client,
        client.producer() as producer,
    ):
        producer.send(topic, b"20").result()


def await_series(prometheus: Prometheus, about: re.Pattern[str], go_on: Callable[[], object]) -> None:
    """Go on until all that panels ask and rules record has series.

    Whatever alerts and the page ask must be something that Prometheus understands.
    """
    asked = [
        with_variables(target["expr"], "20s")
        for file in DASHBOARDS
        for panel in panels(dashboard(file))
        for target in panel.get("targets", ())
    ]
    asked += [rule["record"] for rule in rules() if "record" in rule]
    asked += [name for rule in rules() for name in sorted(metrics_in(rule["expr"]))]
    missing = [one for one in asked if about.search(one) and ONLY_WITH_TLS not in one]
    assert len(missing) > 10

    def shown() -> bool:
        go_on()
        missing[:] = [one for one in missing if not prometheus.asked(one)]
        return not missing

    with contextlib.suppress(TimeoutError):
        wait_until(shown, timeout_s=PATIENCE_SECONDS, what="all series")
    assert missing == []
    for expression in [rule["expr"] for rule in rules()] + questions():
        prometheus.asked(expression)


@pytest.mark.parametrize("server", ["embedded"], indirect=True)
def test_panels_and_rules_of_gateways_have_series(server, tmp_path):
    topic, expired = server.fresh_topic(), server.fresh_topic()
    for name in (topic, expired):
        produce_numbers(server.master, name, range(20))
    server.expire(expired)
    flags = {"master_servers": server.master, "listen": "127.0.0.1:0", "metrics": "127.0.0.1:0"}
    with (
        BackgroundGateway(load_settings(None, {}, flags)) as gateway,
        prometheus(tmp_path, gateway=gateway.server.metrics_address) as scraped,
    ):
        await_series(scraped, GATEWAYS, lambda: use(gateway.address, topic, expired))


@pytest.mark.parametrize("server", ["embedded"], indirect=True)
def test_panels_and_rules_of_streams_have_series(spark, server, tmp_path):
    topic, expired, ledger = server.fresh_topic(), server.fresh_topic(), tmp_path / "losses"
    for name in (topic, expired):
        produce_numbers(server.master, name, range(20))
    server.expire(expired)
    listener = LagListener(spark)
    spark.streams.addListener(listener)
    with (
        contextlib.closing(listener.metrics(partitions=True, loss_ledger=str(ledger))) as metrics,
        prometheus(tmp_path, streams=f"127.0.0.1:{metrics.serve(0)}") as scraped,
    ):
        gone = {"startingOffsets": json.dumps({expired: {"1:0": 0}})}
        kept = {"failOnDataLoss": "false", "lossLedger": str(ledger)}
        run(read_stream(spark, server, expired, **gone, **kept), Collected(), tmp_path / "kept")
        with pytest.raises(Exception, match="TUBEMQ_DATA_LOSS"):
            run(read_stream(spark, server, expired, **gone), Collected(), tmp_path / "failed")
        frame = with_bytes(read_stream(spark, server, topic))
        query = start(frame, Collected(), tmp_path / "steady", processingTime="0 seconds")
        await_series(scraped, STREAMS, lambda: produce_numbers(server.master, topic, [20]))
        query.stop()
    spark.streams.removeListener(listener)
