"""The real TubeMQ that other tests rely on: its servers, its Java client, its generators."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from py4j.protocol import Py4JJavaError

from integration_tests.real import artifacts, load
from integration_tests.real.cluster import RealTubeMQ, TopicSpec
from integration_tests.real.java_client import JavaClientError, OutgoingMessage
from integration_tests.real.processes import wait_until
from tubemq_spark.errors import AdminError
from tubemq_spark.model import OffsetBounds

pytestmark = pytest.mark.real

SHAPES = {
    "plain": TopicSpec(),
    "wide": TopicSpec(stores=2, partitions=3),
    "stopped": TopicSpec(),
    "killed": TopicSpec(),
    "mastered": TopicSpec(),
    "growing": TopicSpec(),
    "removed": TopicSpec(),
    "loaded": TopicSpec(stores=2, properties=load.PATIENT),
    "paused": TopicSpec(),
}


@pytest.fixture(scope="module")
def cluster(real_tubemq):
    """The session's cluster with the topics of this file."""
    real_tubemq.add_topics(SHAPES)
    return real_tubemq


def numbered(count):
    """Return messages of many sizes that tell their number."""
    return [
        OutgoingMessage(
            body=b"%d:" % number + bytes(number * 97 % 5000),
            attributes={"n": str(number), "long": "ä" * (number % 50 + 1)},
            message_type=f"type{number % 3}",
            message_time="202611211200",
        )
        for number in range(count)
    ]


def contents(messages):
    """Return what an application put into messages or got out of them, in an order of its own."""
    return sorted((m.body, sorted(m.attributes.items()), m.message_type, m.message_time) for m in messages)


def test_topics_are_published_in_their_shape(cluster):
    """Right after a topic was added, producers and consumers are told of it."""
    published = cluster.admin.published_topics()

    seen = {name: (published[name, 1].stores, published[name, 1].partitions) for name in ("plain", "wide")}
    assert seen == {"plain": (1, 1), "wide": (2, 3)}
    assert cluster.admin.accepts_publish("plain")


def test_java_messages_come_back_equal(cluster, java_client):
    """What the Java producer sends, the Java consumer reads, attributes and all."""
    messages = numbered(100)
    with java_client.producer(cluster.master, "wide") as producer:
        sent = producer.send_all("wide", messages)

    received = java_client.read_all(cluster.master, "wide", "equal_group", expected=100)

    assert contents(received) == contents(messages)
    assert {(m.partition_id, m.message_id) for m in received} == {
        (s.partition_id, s.message_id) for s in sent
    }
    assert {s.partition_id for s in sent} == {0, 1, 2, 10000, 10001, 10002}


def test_one_thread_keeps_the_order(cluster, java_client):
    """Sent by one thread to one partition, messages stand in the order they were given in."""
    messages = numbered(50)
    with java_client.producer(cluster.master, "plain") as producer:
        sent = producer.send_all("plain", messages, threads=1)

    received = java_client.read_all(cluster.master, "plain", "order_group", expected=50)

    assert [m.body for m in received] == [m.body for m in messages]
    assert [s.append_offset for s in sent] == [28 * number for number in range(50)]
    assert cluster.brokers[1].admin.pubinfo(["plain"]) == {("plain", 0): OffsetBounds(0, 28 * 50)}


def test_java_client_tells_what_is_wrong(cluster, java_client):
    """A refusal of the Java client arrives with its code."""
    with (
        java_client.producer(cluster.master, "plain") as producer,
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


def test_stopped_broker_keeps_all_messages(cluster, java_client):
    """A broker that ends in good order writes everything first."""
    with java_client.producer(cluster.master, "stopped") as producer:
        producer.send_all("stopped", numbered(50))

    cluster.restart_broker(1)

    received = java_client.read_all(cluster.master, "stopped", "stop_group")
    assert contents(received) == contents(numbered(50))


def test_killed_broker_comes_back(cluster, java_client):
    """After a crash a broker may have lost messages, and serves again."""
    with java_client.producer(cluster.master, "killed") as producer:
        producer.send("killed", b"before")

    cluster.kill_broker(1)
    assert not cluster.brokers[1].admin.is_up()
    cluster.start_broker(1)

    with java_client.producer(cluster.master, "killed") as producer:
        producer.send("killed", b"after")
    received = java_client.read_all(cluster.master, "killed", "kill_group", expected=1)
    assert received[-1].body == b"after"


def test_paused_broker_goes_on(cluster, java_client):
    """A broker that hung for a while has lost nothing."""
    with java_client.producer(cluster.master, "paused") as producer:
        producer.send("paused", b"before")
        cluster.pause_broker(1)
        cluster.resume_broker(1)
        producer.send("paused", b"after")

    assert cluster.message_count("paused") == 2


def test_master_can_be_stopped_killed_and_started(cluster, java_client):
    """A master that comes back publishes all topics at once."""
    cluster.stop_master()
    assert not cluster.admin.is_active()
    cluster.start_master()
    cluster.kill_master()
    cluster.start_master()

    with java_client.producer(cluster.master, "mastered") as producer:
        producer.send("mastered", b"x")
    assert cluster.message_count("mastered") == 1


def test_topic_added_later_and_grown(cluster, java_client):
    """A topic can come later and get more partitions, each within seconds."""
    cluster.add_topic("later", stores=1, partitions=2)
    cluster.grow_topic("later", stores=2, partitions=2)

    with java_client.producer(cluster.master, "later") as producer:
        sent = producer.send_all("later", numbered(20), threads=1)
    assert {s.partition_id for s in sent} == {0, 1, 10000, 10001}


def test_removed_topic_is_gone_and_can_come_again(cluster, java_client):
    """A topic made anew under an old name is empty."""
    with java_client.producer(cluster.master, "removed") as producer:
        producer.send("removed", b"old")

    cluster.remove_topic("removed")
    cluster.add_topic("removed")

    with java_client.producer(cluster.master, "removed") as producer:
        assert producer.send("removed", b"new").append_offset == 0


def test_refused_administration_is_an_error(cluster):
    """The server reports a failed item inside a successful answer; it is raised all the same."""
    with pytest.raises(AdminError) as refused:
        cluster.admin.add_topic("plain", [1])

    assert refused.value.code == 402


def test_cluster_with_two_brokers_and_one_more(java_client):
    """A topic spreads over all brokers, also over one that joins later."""
    with RealTubeMQ({"spread": TopicSpec()}, brokers=2) as own:
        assert own.admin.topic_brokers("spread") == {1, 2}
        joined = own.add_broker(["spread"])

        sent = []
        with java_client.producer(own.master, "spread") as producer:

            def every_broker_took_one():
                # On a busy machine the Java producer passes over brokers that answer late.
                sent.extend(producer.send_all("spread", numbered(30)))
                return {s.broker_id for s in sent} == {1, 2, joined}

            wait_until(every_broker_took_one, timeout_s=40, what="messages on every broker")
        assert own.message_count("spread") == len(sent)


def test_load_producer_counts_what_the_broker_stores(cluster):
    """The messages the load producer calls accepted are exactly those in the topic."""
    produced = load.produce(cluster.master, "loaded", 20_000)

    assert produced.unanswered == 0
    assert produced.accepted == cluster.message_count("loaded")


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
