"""Fixtures of the integration tests: one Spark session, and every server by the same name."""

import psutil
import pytest

from integration_tests.real import load
from integration_tests.real.availability import require_real_tubemq
from integration_tests.real.fixtures import java_client, java_clients, real_tubemq
from integration_tests.servers import (
    embedded_server,
    real_server,
    secured_embedded_server,
    secured_real_server,
)

__all__ = ["java_client", "java_clients", "real_tubemq"]

MARKERS = {
    "spark": {"spark"},
    "real": {"real_tubemq", "java_client", "java_clients", "java_load", "compared_java"},
}
"""A test gets the marker when it uses one of these fixtures."""

LONG_TESTS = {"test_kill", "test_load", "test_real_fixture", "test_differential"}

BOTH_SERVERS = ["embedded", pytest.param("real", marks=pytest.mark.real)]


def java_command(process):
    """Return the command line of a JVM, or nothing for another process or one that has just ended."""
    try:
        return " ".join(process.cmdline()) if process.name() == "java" else ""
    except psutil.NoSuchProcess:
        return ""


@pytest.fixture(scope="session", autouse=True)
def no_jvm_left():
    """Nothing that a test has started runs on at the end; Spark ends its own JVM with this process."""
    yield
    left = filter(None, map(java_command, psutil.Process().children(recursive=True)))
    assert not [command for command in left if "org.apache.spark" not in command]


@pytest.fixture(scope="session", params=BOTH_SERVERS)
def server(request, tmp_path_factory):
    """A TubeMQ with fresh topics: every test that asks for it runs on both kinds."""
    if request.param == "embedded":
        with embedded_server(tmp_path_factory.mktemp("embedded")) as running:
            yield running
    else:
        require_real_tubemq()
        with real_server() as running:
            yield running


@pytest.fixture(scope="session", params=BOTH_SERVERS)
def secured_server(request, tmp_path_factory):
    """A TubeMQ that demands a login of its clients."""
    if request.param == "embedded":
        with secured_embedded_server(tmp_path_factory.mktemp("secured")) as running:
            yield running
    else:
        require_real_tubemq()
        with secured_real_server() as running:
            yield running


@pytest.fixture(scope="session")
def java_load():
    """The load generators of TubeMQ's distribution: ``load.produce`` and ``load.consume``."""
    require_real_tubemq()
    return load


@pytest.fixture(scope="session")
def spark_session(tubemq_spark_session):
    """One Spark session for all tests; quiet, because many of them let queries fail on purpose."""
    tubemq_spark_session.sparkContext.setLogLevel("OFF")
    return tubemq_spark_session


@pytest.fixture
def spark(spark_session):
    """The session, in which no query outlives its test."""
    yield spark_session
    for query in spark_session.streams.active:
        query.stop()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Let a test's fixtures say what it needs, and which process it runs in when there are several.

    First of all hooks: xdist looks at the groups in a hook of its own, and ignores those that come later.
    """
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        for marker, needed in MARKERS.items():
            if needed & fixtures:
                item.add_marker(marker)
        item.add_marker(pytest.mark.xdist_group(process_of(item, fixtures)))


def pytest_collection_finish(session):
    """Refuse to run in several processes that would each start every server."""
    if getattr(session.config.option, "loadgroup", False):
        lost = [item.nodeid for item in session.items if "@" not in item.nodeid.rpartition("::")[2]]
        assert not lost, f"xdist does not know the group of {lost[:3]}"


def process_of(item, fixtures):
    """Return the name of a test's process: so each kind of server is started once and not in all of them.

    The tests on the Java TubeMQ take twice as long as the others, hence two processes for them.
    """
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    if "real" not in parameters.values() and not fixtures & {"real_tubemq", "compared_java"}:
        return "embedded"
    return "java servers, long tests" if item.path.stem in LONG_TESTS else "java servers"
