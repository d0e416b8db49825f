"""Fixtures of the integration tests: one Spark session, and every server by the same name."""

import contextlib
import os
import zlib
from pathlib import Path

import psutil
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from integration_tests.real import load
from integration_tests.real.artifacts import REQUIRED_VARIABLE, VERSIONS, is_required, require_real_tubemq
from integration_tests.real.cluster import SHORT_LIVED_VARIABLE
from integration_tests.real.fixtures import java_client, java_clients, real_brokers
from integration_tests.rig import clusters, runs
from integration_tests.rig.processes import two_gateways
from integration_tests.rig.servers import (
    embedded_server,
    real_server,
    secured_embedded_server,
    secured_real_server,
    tls_embedded_server,
    tls_real_server,
)
from testkit.interrupts import hear_interrupts
from testkit.sampling import leave_most_cases_to_the_night
from tubemq_spark.spark.local import why_not

__all__ = ["java_client", "java_clients", "real_brokers"]

JAVA_SERVERS = {"real_brokers", "compared_java", "faulty_java", "full_java"}
"""Fixtures that start some."""

MARKERS = {
    "spark": {"spark"},
    "real": {*JAVA_SERVERS, "java_client", "java_clients", "java_load"},
}
"""A test gets the marker when it uses one of these fixtures."""

OWN_SERVERS = {
    "test_brokers_away",
    "test_consumers_on_faults",
    "test_differential",
    "test_frames_for_java",
    "test_frames_through_faults",
    "test_group_over_time",
    "test_java_brokers",
    "test_matrix",
    "test_one_peer",
    "test_restarted_master",
    "test_topics_removed",
    "test_write_faults",
}
"""Files whose tests share servers with no other file, so each may run in any process."""
OWN_SERVERS_OF_EACH_TEST = {
    "test_contract",
    "test_expired_data",
    "test_kill",
    "test_recovery",
    "test_repeats",
    "test_stress",
    "test_through_gateways",
}
"""Files whose tests take minutes and share no servers, so each test may run in any process."""
BRIEFLY_ON_JAVA_BROKERS = {"test_frames_for_java", "test_matrix", "test_topics_removed"}
"""Files with ``real_brokers``, whose short form takes less time than another start of these brokers."""
ON_JAVA_FIRST = {"test_java_equality", "test_kill"}
"""Files whose tests run on the Java TubeMQ where it is required; there the embedded server is nightly."""

PRELOADED = Path(__file__).parent / "preloaded"
"""Where Spark's daemons of Python workers find what they import once, instead of each of their forks: a fifth
of the time of tests through Spark. ``make wheel-test``, clusters and examples do without."""

THROUGH_GATEWAYS = "TUBEMQ_THROUGH_GATEWAYS"
"""``1``: queries reach the servers through two gateways, of which one is killed in turn."""
KILLED_EVERY_S = 10.0

SECONDS_WITH_SERVERS = 300
"""The longest time of a test that says nothing else; the first one of a process starts servers and Spark."""

JAVA_SERVER, JAVA_BROKERS = "java server", "java brokers"
"""Groups of tests: those that share one Java broker, and those with several brokers or with logins."""
EMBEDDED_PARTS = 12

NEWEST, *_, OLDEST = VERSIONS

BOTH_SERVERS = ["embedded", pytest.param("real", marks=pytest.mark.real)]


def java_command(process):
    """Return the command line of a JVM, or nothing for another process or one that has just ended."""
    try:
        return " ".join(process.cmdline()) if process.name() == "java" else ""
    except psutil.NoSuchProcess:
        return ""


def pytest_configure():
    """Before the processes of xdist start: all have one seed, brokers of one kind, and Spark its preloads."""
    hear_interrupts()
    runs.choose_seed()
    os.environ.setdefault(SHORT_LIVED_VARIABLE, runs.form(short="1", long="0"))
    paths = [str(PRELOADED), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


def pytest_report_header():
    """Say how to repeat the run."""
    long = "long" if runs.is_long() else "short"
    return f"seed: {runs.choose_seed()} ({runs.SEED_VARIABLE}); {long} form ({runs.LONG_VARIABLE}=1: long)"


def pytest_terminal_summary(terminalreporter):
    """Show what tests count and record, ``record_property("compared", 7)``."""
    reports = [*terminalreporter.stats.get("passed", ()), *terminalreporter.stats.get("failed", ())]
    for report in reports:
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid}: {name}: {value}")


@pytest.fixture(scope="session", autouse=True)
def no_jvm_left():
    """Nothing that a test has started runs on at the end; Spark ends its own JVM with this process."""
    yield
    left = filter(None, map(java_command, psutil.Process().children(recursive=True)))
    assert not [command for command in left if "org.apache.spark" not in command]


@pytest.fixture(scope="session", params=BOTH_SERVERS)
def server(request, tmp_path_factory):
    """A TubeMQ with fresh topics: every test that asks for it runs on both kinds."""
    with contextlib.ExitStack() as running:
        if request.param == "embedded":
            found = running.enter_context(embedded_server(tmp_path_factory.mktemp("embedded")))
        else:
            require_real_tubemq()
            found = running.enter_context(real_server())
        if os.environ.get(THROUGH_GATEWAYS) == "1":
            gateways = running.enter_context(two_gateways(found.master))
            running.enter_context(gateways.killed_in_turn(KILLED_EVERY_S))
            found.gateways = gateways.addresses
        yield found


@pytest.fixture
def ask(server):
    """Send parameters to the master's administration API."""
    return server.admin.ask


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


@pytest.fixture(scope="module", params=BOTH_SERVERS)
def tls_server(request, tmp_path_factory):
    """A TubeMQ of two brokers that takes clients of a test's authority only, over TLS."""
    directory = tmp_path_factory.mktemp("tls")
    if request.param == "embedded":
        with tls_embedded_server(directory) as running:
            yield running
    else:
        require_real_tubemq()
        with tls_real_server(directory) as running:
            yield running


@pytest.fixture(scope="module")
def faulty_java():
    """Two Java brokers that lose nothing when they are killed."""
    require_real_tubemq()
    with clusters.java_cluster() as running:
        yield running


@pytest.fixture(params=BOTH_SERVERS)
def faulty_cluster(request):
    """Three embedded brokers or two Java ones, which a test may kill, freeze and disconnect."""
    if request.param == "real":
        yield request.getfixturevalue("faulty_java")
    else:
        with clusters.embedded_cluster() as running:
            yield running


@pytest.fixture(scope="session")
def java_load():
    """The load generators of TubeMQ's distribution: ``load.produce`` and ``load.consume``."""
    require_real_tubemq()
    return load


@pytest.fixture(scope="session")
def spark_session(request):
    """One Spark session for all tests; quiet, because many of them let queries fail on purpose."""
    reason = why_not()
    if reason is not None and is_required():
        pytest.fail(f"{REQUIRED_VARIABLE}=required, but Spark {reason}", pytrace=False)
    session = request.getfixturevalue("tubemq_spark_session")
    session.sparkContext.setLogLevel("OFF")
    return session


@pytest.fixture
def spark(spark_session):
    """The session, in which no query outlives its test."""
    # Another connection is another thread of the JVM, in which no session is active.
    SparkSession._get_j_spark_session_class(spark_session._jvm).setActiveSession(spark_session._jsparkSession)
    yield spark_session
    for query in spark_session.streams.active:
        query.stop()


def pytest_exception_interact(call):
    """Leave this thread's connection to Spark's JVM after a time-out; a new one is made when it is needed.

    A call may have been broken off, whose answer then still comes: the next call on that connection would
    take it for its own, and so all later tests would fail.
    """
    connection = thread_connection()
    if connection is not None and "Timeout" in str(call.excinfo.value):
        connection.close()


def thread_connection():
    """Return this thread's connection to Spark's JVM, if there is one."""
    gateway = SparkContext._gateway
    return gateway and gateway._gateway_client.get_thread_connection()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark tests with what their fixtures need, and with the process that they run in when there are several.

    First of all hooks: xdist looks at the groups in a hook of its own, and ignores those that come later.
    Last of all, after the shuffle, come the groups in the order in which processes are to begin them.
    """
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        for marker, needed in MARKERS.items():
            if needed & fixtures:
                item.add_marker(marker)
        item.add_marker(pytest.mark.xdist_group(process_of(item, fixtures)))
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS_WITH_SERVERS))
        if is_repetition(item) or item.get_closest_marker("ecosystem") is not None:
            item.add_marker(pytest.mark.nightly)
    leave_most_cases_to_the_night(items)
    if is_required():
        leave_twins_to_the_night(items)
    result = yield
    items.sort(key=lambda item: turn_of(item.get_closest_marker("xdist_group").args[0]))
    return result


def parameters_of(item):
    return item.callspec.params if hasattr(item, "callspec") else {}


def is_repetition(item):
    """Whether what a test shows is shown by the same test with other parameters.

    What needs no server is shown on the embedded one. Of the Java clients the version in between must
    write and read, and the oldest one do on the embedded server all that the newest one does on both.
    The demo is ``make run``, and what it does with a server is shown on the Java one by the tests of each
    reader and sink. A Java broker that restarts and a topic that is closed are shown by
    ``test_java_brokers`` in less time.
    """
    parameters = parameters_of(item)
    on_java = "real" in parameters.values()
    if is_required() and (item.path.stem == "test_demo" or (item.path.stem in ON_JAVA_FIRST and not on_java)):
        return True
    if item.get_closest_marker("slow_on_java") and on_java:
        return True
    if item.get_closest_marker("any_server") and on_java:
        return True
    if "client" not in parameters or item.get_closest_marker("every_version"):
        return False
    return parameters["client"] not in ((NEWEST,) if on_java else (NEWEST, OLDEST))


def leave_twins_to_the_night(items):
    """Run what runs on the Java TubeMQ, and takes long, by night on the embedded server too."""
    on_java = {twin_of(item) for item in items if is_on("real", item) and not is_nightly(item)}
    for item in items:
        if is_on("embedded", item) and takes_long(item) and twin_of(item) in on_java:
            item.add_marker(pytest.mark.nightly)


def is_on(server, item):
    return server in parameters_of(item).values()


def is_nightly(item):
    return item.get_closest_marker("nightly") is not None


def takes_long(item):
    """Whether a test goes through Spark or Java's clients."""
    return item.get_closest_marker("spark") is not None or "client" in parameters_of(item)


def twin_of(item):
    """Return what distinguishes a test from all others but itself on the other server."""
    others = {
        name: str(value) for name, value in parameters_of(item).items() if value not in ("embedded", "real")
    }
    return item.path, item.originalname, tuple(sorted(others.items()))


def pytest_collection_finish(session):
    """Refuse to run in several processes that would each start every server."""
    if getattr(session.config.option, "loadgroup", False):
        lost = [item.nodeid for item in session.items if "@" not in item.nodeid.rpartition("::")[2]]
        assert not lost, f"xdist does not know the group of {lost[:3]}"


def process_of(item, fixtures):
    """Return the name of the group of tests that run in one process: servers are started in few of them.

    A Java TubeMQ takes long to start, an embedded one does not: its tests, which are most, come in several
    parts, so that no process waits for another one at the end. A test and all its parameters are in one part,
    so that what it starts for itself is started once.
    """
    on_java = "real" in parameters_of(item).values() or bool(fixtures & JAVA_SERVERS)
    where = "Java" if on_java else "embedded"
    if on_java and item.path.stem in BRIEFLY_ON_JAVA_BROKERS and not runs.is_long():
        return JAVA_BROKERS
    if item.path.stem in OWN_SERVERS:
        return f"own servers of {item.path.stem}, {where}"
    if item.path.stem in OWN_SERVERS_OF_EACH_TEST:
        return f"own servers of {item.path.stem}, {where}, {zlib.crc32(item.nodeid.encode())}"
    if on_java:
        return JAVA_SERVER if "server" in fixtures else JAVA_BROKERS
    test = f"{item.path.stem}::{item.originalname}"
    return f"embedded {zlib.crc32(test.encode()) % EMBEDDED_PARTS + 1}"


def turn_of(group):
    """Return when a group is begun: what takes longest first, and what fills up processes last.

    It needs ``--no-loadscope-reorder``, without which groups come by their numbers of tests.
    """
    if group in (JAVA_SERVER, JAVA_BROKERS):
        return 0
    return 1 if group.startswith("own servers") else 2
