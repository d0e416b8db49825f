"""Spark over TLS to both servers, which want certificates of their clients, and what is shown if it fails."""

import pytest

from integration_tests.rig.queries import refusal, to_topic
from testkit.certificates import Authority

ROWS = 1_000
PATIENT = {"deliveryTimeoutMs": "600000"}
"""A wait for an answer would be longer than a test may take."""


def options_of(server, pair, **changes):
    """Return the options of a client that the server takes, but for ``changes``; None leaves one out."""
    options = {
        "tubemq.master.servers": server.master,
        "tubemq.group": "tls_group",
        "tubemq.tls.enabled": "true",
        "tubemq.tls.caFile": str(server.authority.cert),
        "tubemq.tls.certFile": str(pair.cert),
        "tubemq.tls.keyFile": str(pair.key),
        **{f"tubemq.{name}": text for name, text in changes.items()},
    }
    return {name: text for name, text in options.items() if text is not None}


@pytest.fixture(scope="module")
def pair(tls_server):
    return tls_server.authority.issue("client")


def read(spark, topic, options):
    frame = spark.read.format("tubemq").options(subscribe=topic, **options).load()
    return sorted(int(row.value) for row in frame.select("value").collect())


def test_batches_and_streams_write_and_read(spark, tls_server, pair, tmp_path):
    """An encrypted key opens by its password; planning, tasks that read and tasks that write all use TLS."""
    key = str(pair.encrypted_key("hush"))
    options = options_of(tls_server, pair, **{"tls.keyFile": key, "tls.keyPassword": "hush"})
    rows = spark.range(ROWS, numPartitions=2).selectExpr("cast(id as string) as value")
    rows.write.format("tubemq").options(topic="written", **options).mode("append").save()
    assert tls_server.stored("written") == ROWS

    stream = spark.readStream.format("tubemq").options(
        subscribe="written", startingOffsets="earliest", maxOffsetsPerTrigger="400", **options
    )
    query = to_topic(stream.load().select("value"), tmp_path, {"topic": "copied", **options})

    assert len(query.recentProgress) >= 3
    assert read(spark, "written", options) == list(range(ROWS))
    assert read(spark, "copied", options) == list(range(ROWS))


@pytest.mark.any_server
def test_the_password_of_the_key_is_not_shown(spark, tls_server, pair):
    key = str(pair.encrypted_key("hush"))
    options = options_of(tls_server, pair, **{"tls.keyFile": key, "tls.keyPassword": "guessed"})
    condition, sentence = refusal(lambda: read(spark, "written", options))
    assert condition == "TUBEMQ_TLS_FILE"
    assert key in sentence
    assert "guessed" not in sentence


def wrong_ca(server, directory):
    return {"tls.caFile": str(Authority(directory, "stranger").cert)}


def other_name(_server, _directory):
    return {"tls.serverName": "tube.example"}


def no_certificate(_server, _directory):
    return {"tls.certFile": None, "tls.keyFile": None}


def expired_certificate(server, _directory):
    pair = server.authority.issue("expired", expired=True)
    return {"tls.certFile": str(pair.cert), "tls.keyFile": str(pair.key)}


def strange_certificate(_server, directory):
    pair = Authority(directory, "stranger").issue("client")
    return {"tls.certFile": str(pair.cert), "tls.keyFile": str(pair.key)}


def plain_port(server, _directory):
    return {"master.servers": server.plain_master}


def no_tls(_server, _directory):
    return {f"tls.{name}": None for name in ("enabled", "caFile", "certFile", "keyFile")}


@pytest.mark.parametrize(
    ("changed", "expected", "told"),
    [
        pytest.param(
            wrong_ca, "TUBEMQ_TLS_CERTIFICATE", "its issuer is not trusted", marks=pytest.mark.any_server
        ),
        pytest.param(
            other_name,
            "TUBEMQ_TLS_CERTIFICATE",
            "it does not name 'tube.example'",
            marks=pytest.mark.any_server,
        ),
        (no_certificate, "TUBEMQ_TLS_REFUSED", "set tubemq.tls.certFile and tubemq.tls.keyFile"),
        *(
            pytest.param(
                certificate,
                "TUBEMQ_TLS_REFUSED",
                "is valid and that the server trusts its CA",
                marks=pytest.mark.any_server,
            )
            for certificate in (expired_certificate, strange_certificate)
        ),
        (plain_port, "TUBEMQ_TLS_NOT_SPOKEN", "name the TLS port"),
        (no_tls, "TUBEMQ_TLS_EXPECTED", "set tubemq.tls.enabled=true"),
    ],
)
def test_what_does_not_fit_is_told_at_once(spark, tls_server, pair, changed, expected, told, tmp_path):
    options = options_of(tls_server, pair, **changed(tls_server, tmp_path))
    row = spark.range(1).selectExpr("'x' as value", "'rejected' as topic")
    for action in (
        lambda: read(spark, "rejected", options),
        lambda: row.write.format("tubemq").options(**options, **PATIENT).mode("append").save(),
    ):
        condition, sentence = refusal(action)
        assert condition == expected
        assert options["tubemq.master.servers"] in sentence
        assert told in sentence
