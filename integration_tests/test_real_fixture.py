"""How the rig of the Java TubeMQ tells that something is wrong; that it works, all tests on it show."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from py4j.protocol import Py4JJavaError

from integration_tests.real import artifacts
from integration_tests.real.java_client import JavaClientError
from integration_tests.real.processes import wait_until
from tubemq_spark.errors import AdminError

pytestmark = pytest.mark.real


def test_java_client_tells_what_is_wrong(real_brokers, java_client):
    """A refusal of the Java client arrives with its code."""
    with (
        java_client.producer(real_brokers.master, "stopped") as producer,
        pytest.raises(JavaClientError, match="not publish") as refused,
    ):
        producer.send("unknown_topic", b"x")

    assert refused.value.code == 443


def test_java_client_errors_are_not_looked_up_in_spark(spark, java_client):
    """PySpark converts exceptions of every JVM; in Spark's, their numbers may be those of other objects."""
    client, in_spark = java_client._jvm.view, spark._jvm.java.lang.NumberFormatException

    def number(thing):
        return int(thing._target_id[1:])

    ahead = number(client.java.lang.Object()) + 50
    while number(in_spark("before")) < ahead:
        pass
    of_spark = [in_spark("of Spark") for _ in range(20)]
    while number(client.java.lang.Object()) < number(of_spark[5]):
        pass

    with pytest.raises(Py4JJavaError, match='For input string: "client"'):
        client.java.lang.Integer.parseInt("client")


def test_refused_administration_is_an_error(real_brokers):
    """The server reports a failed item inside a successful answer; it is raised all the same."""
    with pytest.raises(AdminError) as refused:
        real_brokers.admin.add_topic("stopped", [1])

    assert refused.value.code == 402


def test_missing_tools_are_named(monkeypatch, tmp_path):
    """Without Java or Maven the reason says which one is missing."""
    monkeypatch.setenv("TUBEMQ_SPARK_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "java" in artifacts.why_unavailable()

    java = tmp_path / "java"
    java.touch(mode=0o755)
    assert "mvn" in artifacts.why_unavailable()
    with pytest.raises(artifacts.ArtifactsUnavailableError, match="Maven"):
        artifacts.distribution()


def test_client_jars_are_the_pinned_ones(tmp_path):
    """Maven bringing one file more, or another one under a pinned name, is refused."""
    pinned = artifacts.PINNED["tubemq-client-1.5.0"]
    for name in pinned:
        (tmp_path / name).write_bytes(b"another")
    with pytest.raises(artifacts.ChecksumError, match="pinned is"):
        artifacts.pinned("tubemq-client-1.5.0", tmp_path)

    (tmp_path / "more.jar").touch()
    with pytest.raises(artifacts.ChecksumError, match=r"other files than pinned: \['more.jar'\]"):
        artifacts.pinned("tubemq-client-1.5.0", tmp_path)


ORPHANING = """
import os, signal, sys
from pathlib import Path
from integration_tests.real.processes import ProcessGroup
child = ProcessGroup().spawn(["sleep", "600"], cwd=Path("."), log=Path(sys.argv[1]))
print(child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_no_child_outlives_a_killed_python(tmp_path):
    """Even when Python dies without a chance to clean up, its children die too."""
    root = Path(__file__).parents[1]
    command = [sys.executable, "-c", ORPHANING, str(tmp_path / "log")]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr

    wait_until(lambda: not psutil.pid_exists(int(ended.stdout)), timeout_s=5, what="the child to die")
