"""The fixtures for users' tests, in a separate pytest run each time.

It is a run in this process, except where what was imported before would make a difference.
"""

import importlib.metadata
import subprocess
import sys

import pytest

# A run forgets what it imports, and some packages cannot be imported twice.
import tubemq_spark.embedded.server
import tubemq_spark.gateway.process
import tubemq_spark.spark.local
import tubemq_spark.testing.client  # noqa: F401

pytest_plugins = ["pytester"]

USUAL = ("-p", "no:randomly", "-p", "no:cacheprovider", "-W", "error", "--strict-markers")


@pytest.fixture
def run(pytester):
    """Run a test module."""

    def run_module(text, *arguments, **outcomes):
        pytester.makepyfile(text)
        result = pytester.runpytest_inprocess(*USUAL, *arguments)
        result.assert_outcomes(**outcomes)
        return result

    return run_module


def test_a_setting_says_how_many_brokers_there_are(run, pytester):
    pytester.makeini("[pytest]\ntubemq_brokers = 3")
    run(
        """
        import pytest

        def test_everywhere(tubemq, tubemq_topic, tubemq_client, tubemq_faults):
            assert list(tubemq.brokers) == [1, 2, 3]
            for number in tubemq.brokers:
                tubemq_client.send(tubemq_topic, str(number), partition=(number, 0))
            assert sorted(tubemq_client.values(tubemq_topic)) == [b"1", b"2", b"3"]
            tubemq_faults.stop_broker(2)

        def test_a_stopped_broker_is_back_in_the_next_test(tubemq):
            assert set(tubemq.overview().brokers.values()) == {"running"}

        @pytest.mark.tubemq_topic(2, brokers=[1, 3])
        def test_on_some(tubemq, tubemq_topic):
            assert [tubemq_topic in tubemq.topics_of(number) for number in (1, 2, 3)] == [True, False, True]
        """,
        passed=3,
    )


def test_a_setting_that_is_not_a_number_of_brokers_is_refused(run, pytester):
    pytester.makeini("[pytest]\ntubemq_brokers = 0")
    result = run("def test_it(tubemq): pass", errors=1)
    result.stdout.fnmatch_lines(["*tubemq_brokers is '0'; it must be a number of brokers, at least 1*"])


def test_topics_are_empty_fresh_and_of_the_shape_that_was_asked_for(run):
    run(
        """
        import pytest
        from tubemq_spark.embedded.server import EmbeddedTubeMQ

        seen = set()

        @pytest.mark.parametrize("number", range(3))
        def test_usual(tubemq, tubemq_topic, tubemq_client, number):
            assert type(tubemq) is EmbeddedTubeMQ
            assert tubemq_topic not in seen
            seen.add(tubemq_topic)
            spec = tubemq.topics()[tubemq_topic]
            assert (spec.stores, spec.partitions) == (1, 1)
            assert tubemq_client.values(tubemq_topic) == []
            tubemq_client.send(tubemq_topic, "x", b"y", message_type="kind")
            assert tubemq_client.values(tubemq_topic) == [b"x", b"y"]
            assert tubemq_client.messages(tubemq_topic)[0].message_type == "kind"

        @pytest.mark.tubemq_topic(stores=2, partitions=3)
        def test_marked(tubemq, tubemq_topic, tubemq_topic_factory):
            spec = tubemq.topics()[tubemq_topic]
            assert (spec.stores, spec.partitions) == (2, 3)
            other = tubemq_topic_factory(4)
            assert other != tubemq_topic
            assert tubemq.topics()[other].stores == 4

        @pytest.mark.parametrize("text", ["long " * 20])
        def test_long_names_are_cut(tubemq_topic, text):
            assert len(tubemq_topic) == 64
        """,
        passed=5,
    )


def test_faults_end_with_the_test(run):
    run(
        """
        from tubemq_spark.protocol.constants import Method

        def test_one(tubemq_faults, tubemq_topic, tubemq_client):
            tubemq_faults.answer(Method.SEND_MESSAGE, 503, times=2)
            tubemq_client.send(tubemq_topic, "x")
            tubemq_faults.answer(Method.SEND_MESSAGE, 400)

        def test_two(tubemq_topic, tubemq_client, tubemq_options, tubemq):
            tubemq_client.send(tubemq_topic, "x")
            assert tubemq_options == {"tubemq.master.servers": tubemq.master, "tubemq.group": "tests"}
        """,
        passed=2,
    )


def test_rules_that_a_test_leaves_end_with_it(run):
    run(
        """
        from tubemq_spark.protocol.constants import Method

        def test_one(tubemq, tubemq_topic):
            tubemq.faults.answer(Method.SEND_MESSAGE, 403)

        def test_two(tubemq, tubemq_topic, tubemq_client):
            assert tubemq.faults.in_force() == ()
            tubemq_client.send(tubemq_topic, "x")
        """,
        passed=2,
    )


def test_an_error_names_the_rules_in_force(run):
    run(
        """
        import pytest
        from tubemq_spark.errors import ProduceError
        from tubemq_spark.protocol.constants import Method

        def test_it(tubemq_faults, tubemq_topic, tubemq_client):
            tubemq_faults.answer(Method.SEND_MESSAGE, 400, broker=1)
            tubemq_faults.answer(Method.SEND_MESSAGE, 400, times=0)
            with pytest.raises(ProduceError) as info:
                tubemq_client.send(tubemq_topic, "x")
            assert info.value.__notes__ == [
                "A fault is in force: SEND_MESSAGE at broker 1, applied to 1 requests"
            ]
        """,
        passed=1,
    )


def test_topics_end_with_the_test_and_their_files_are_closed(run):
    run(
        """
        from pathlib import Path
        import pytest

        names, open_files = set(), []

        @pytest.mark.parametrize("number", range(12))
        def test_it(tubemq, tubemq_topic, tubemq_topic_factory, tubemq_client, number):
            removed = tubemq_topic_factory()
            tubemq_client.send(tubemq_topic, "x")
            tubemq_client.send(removed, "x")
            tubemq.remove_topic(removed)
            assert set(tubemq.topics()) == {tubemq_topic}
            assert tubemq_topic not in names
            names.add(tubemq_topic)
            open_files.append(len(list(Path("/proc/self/fd").iterdir())))
            assert open_files[-1] < open_files[0] + 12
        """,
        passed=12,
    )


def test_a_marker_that_is_misspelt_is_named(run):
    result = run(
        """
        import pytest

        @pytest.mark.tubemq_topic(store=3)
        def test_it(tubemq_topic):
            pass
        """,
        errors=1,
    )
    result.stdout.fnmatch_lines(
        ["*the marker tubemq_topic of *test_it: *'store'; it takes stores, partitions and brokers*"]
    )


def test_a_gateway_stands_before_the_server(run):
    run(
        """
        from tubemq_spark.cluster.config import ClusterConfig
        from tubemq_spark.client.remote.gateways import close_process_gateways
        from tubemq_spark.cluster.open import open_cluster
        from tubemq_spark.client.config import ClientConfig
        from tubemq_spark.model import Endpoint

        def test_it(tubemq_gateway, tubemq_topic, tubemq_client):
            tubemq_client.send(tubemq_topic, "x", "y")
            config = ClusterConfig(ClientConfig((), "tests"), (Endpoint.parse(tubemq_gateway.address),))
            cluster = open_cluster(config.validate())
            bounds = cluster.bounds(cluster.layout([tubemq_topic]))
            assert [one.latest for one in bounds.by_store.values()] == [2 * 28]
            close_process_gateways()
        """,
        passed=1,
    )


@pytest.mark.process
def test_without_its_packages_tests_of_a_gateway_are_skipped_and_others_run(pytester):
    pytester.makepyfile(
        """
        import sys

        sys.modules["grpc"] = None

        def test_of_a_gateway(tubemq_gateway):
            assert False

        def test_without_one(tubemq_topic, tubemq_client):
            tubemq_client.send(tubemq_topic, "x")
            assert tubemq_client.values(tubemq_topic) == [b"x"]
        """
    )
    result = pytester.runpytest_subprocess(*USUAL, "-rs")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["*needs grpc: pip install 'tubemq_spark?gateway?'*"])


def test_naming_the_plugin_does_no_harm(run, pytester):
    pytester.makeconftest('pytest_plugins = ["tubemq_spark.testing"]')
    run("def test_it(tubemq_topic): pass", passed=1)


def test_the_plugin_can_be_left_out(pytester):
    result = pytester.runpytest_inprocess("--markers")
    result.stdout.fnmatch_lines(["*tubemq_topic*"])
    result = pytester.runpytest_inprocess("-p", "no:tubemq_spark.testing", "--markers")
    result.stdout.no_fnmatch_line("*tubemq_topic*")


def test_a_server_of_the_test_suite_replaces_the_default_server(run):
    run(
        """
        import pytest
        from tubemq_spark.embedded.server import EmbeddedTubeMQ

        @pytest.fixture(scope="session")
        def tubemq():
            with EmbeddedTubeMQ(topics={"mine": (1, 1)}) as server:
                yield server

        def test_it(tubemq_client, tubemq_topic):
            assert tubemq_client.values("mine") == []
            assert tubemq_client.values(tubemq_topic) == []
        """,
        passed=1,
    )


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"JAVA_HOME": "", "PATH": "/nowhere"}, "needs Java 17 or newer, but no java was found on the PATH"),
        ({"JAVA_HOME": "/nowhere"}, "needs Java 17 or newer, but no java was found in JAVA_HOME=/nowhere"),
    ],
)
def test_without_java_spark_tests_are_skipped_with_the_reason(run, monkeypatch, environment, reason):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    result = run("def test_it(tubemq_spark_session): pass", "-rs", skipped=1)
    result.stdout.fnmatch_lines([f"*{reason}*"])


@pytest.mark.parametrize(
    ("version", "reason"),
    [(None, "needs PySpark: pip install"), ("3.5.4", "needs PySpark 4.2 or newer, but 3.5.4")],
)
def test_without_a_new_pyspark_spark_tests_are_skipped_with_the_reason(run, monkeypatch, version, reason):
    real = importlib.metadata.version

    def version_of(name):
        if name != "pyspark":
            return real(name)
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", version_of)
    result = run("def test_it(tubemq_spark_session): pass", "-rs", skipped=1)
    result.stdout.fnmatch_lines([f"*{reason}*"])


@pytest.mark.process
def test_importing_the_plugin_is_cheap():
    """It is imported by every pytest in an environment with this package."""
    code = (
        "import sys, pytest; before = set(sys.modules); import tubemq_spark.testing; "
        "print(sorted(name for name in set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['tubemq_spark', 'tubemq_spark.logs', 'tubemq_spark.testing']"
