"""Fixtures of the integration tests: one Spark session, and every server by the same name."""

import os
import sys

import pytest

from integration_tests.real import load
from integration_tests.real.availability import require_real_tubemq
from integration_tests.real.fixtures import java_client, real_tubemq
from integration_tests.servers import embedded_server, real_server

__all__ = ["java_client", "real_tubemq"]

MARKERS = {
    "spark": {"spark"},
    "real": {"real_tubemq", "java_client", "java_load"},
}
"""A test gets the marker when it uses one of these fixtures."""


@pytest.fixture(scope="session", params=["embedded", pytest.param("real", marks=pytest.mark.real)])
def server(request, tmp_path_factory):
    """A TubeMQ with fresh topics: every test that asks for it runs on both kinds."""
    if request.param == "embedded":
        with embedded_server(tmp_path_factory.mktemp("embedded")) as running:
            yield running
    else:
        require_real_tubemq()
        with real_server() as running:
            yield running


@pytest.fixture(scope="session")
def java_load():
    """The load producer of TubeMQ's distribution: ``load.produce``."""
    require_real_tubemq()
    return load.produce


@pytest.fixture(scope="session")
def spark_session(tmp_path_factory):
    """One Spark session on two cores for all tests; its Python workers run this interpreter."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .appName("tubemq_spark tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        # These queries are short: a quarter less of work without the second stage of the JIT compiler.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def spark(spark_session):
    """The session, in which no query outlives its test."""
    yield spark_session
    for query in spark_session.streams.active:
        query.stop()


def pytest_collection_modifyitems(items):
    """Let a test's fixtures say what it needs."""
    for item in items:
        for marker, fixtures in MARKERS.items():
            if fixtures & set(getattr(item, "fixturenames", ())):
                item.add_marker(marker)
