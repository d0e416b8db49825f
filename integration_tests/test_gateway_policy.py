"""The policy that the documentation shows, before a gateway over TLS, and Spark as two of its clients."""

import hashlib
import re
from pathlib import Path

import pytest

from integration_tests.rig.messages import assert_same_rows
from integration_tests.rig.queries import refusal
from testkit.certificates import Authority
from tubemq_spark.gateway.process import BackgroundGateway
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import Endpoint

ROWS = 1_000
PAGE = Path(__file__).resolve().parents[1] / "docs" / "gateway" / "gateway.md"
TOKEN = "the token of etl"


@pytest.fixture
def topic(server):
    return server.fresh_topic("3x1")


@pytest.fixture
def documented(topic):
    """The example of the page, with a token of ours, about a topic of ours."""
    (text,) = re.findall(r"```toml\n(\[\[clients\]\].*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    changed = re.sub(r"[0-9a-f]{64}", hashlib.sha256(TOKEN.encode()).hexdigest(), text)
    assert changed != text
    assert '"clicks"' in changed
    return changed.replace('"clicks"', f'"{topic}"')


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def gateway(server, authority, documented, tmp_path):
    pair, policy = authority.issue("gateway"), tmp_path / "policy.toml"
    policy.write_text(documented, encoding="utf-8")
    settings = GatewaySettings(
        listen=Endpoint("127.0.0.1", 0),
        master_servers=(Endpoint.parse(server.master),),
        tls_cert=str(pair.cert),
        tls_key=str(pair.key),
        tls_client_ca=str(authority.cert),
        policy=str(policy),
    )
    with BackgroundGateway(settings.validate()) as running:
        yield running


@pytest.fixture
def options(gateway, authority):
    def options(pair, **more):
        return {
            "tubemq.gateway.servers": gateway.address,
            "tubemq.tls.enabled": "true",
            "tubemq.tls.caFile": str(authority.cert),
            "tubemq.tls.certFile": str(pair.cert),
            "tubemq.tls.keyFile": str(pair.key),
            **{f"tubemq.{name}": text for name, text in more.items()},
        }

    return options


@pytest.mark.any_server
def test_a_writer_and_a_reader_do_what_the_documented_policy_allows(spark, server, topic, authority, options):
    collector = options(authority.issue("collector", "collector.example.com"))
    etl = options(authority.issue("etl", "etl.example.com"), **{"gateway.token": TOKEN, "group": "etl"})
    rows = spark.range(ROWS, numPartitions=2).selectExpr("cast(id as string) as value")

    def write(to, by):
        rows.write.format("tubemq").options(topic=to, **by).mode("append").save()

    def read(by):
        frame = spark.read.format("tubemq").options(subscribe=topic, **by).load()
        return [int(row.value) for row in frame.select("value").collect()]

    write(topic, collector)
    assert_same_rows(read(etl), range(ROWS))
    for forbidden in (
        lambda: write(topic, etl),
        lambda: write(server.fresh_topic("1x1"), collector),
        lambda: read(collector),
        lambda: read(etl | {"tubemq.group": "other"}),
    ):
        condition, _ = refusal(forbidden)
        assert condition == "TUBEMQ_GATEWAY_FORBIDDEN"
