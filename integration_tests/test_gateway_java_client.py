"""A client in Java, made from gateway.proto by gRPC's own tools, publishes, reads and commits."""

import contextlib
import subprocess
from pathlib import Path

import pytest

import tubemq_spark.protocol.gateway
from integration_tests.real import grpc_java
from integration_tests.real.maven import ArtifactsUnavailableError
from tubemq_spark.client import TubeMQClient
from tubemq_spark.gateway.background import BackgroundGateway
from tubemq_spark.gateway.loading import load_settings

PROTO = Path(tubemq_spark.protocol.gateway.__file__).with_name("gateway.proto")
PROGRAM = Path(__file__).parent / "programs" / "GatewayClient.java"


@pytest.fixture(scope="module")
def class_path(tmp_path_factory):
    try:
        grpc_java.grpc_home()
    except ArtifactsUnavailableError as error:
        pytest.skip(str(error))
    return grpc_java.compile_client(PROTO, PROGRAM, tmp_path_factory.mktemp("client"))


@pytest.fixture
def gateway(server):
    made = BackgroundGateway(load_settings(flags={"master_servers": server.master, "listen": "127.0.0.1:0"}))
    made.start()
    with contextlib.ExitStack() as ending:
        ending.callback(made.stop, 0)
        yield made.address


def run(class_path, gateway, topic, group, *, publish, read, start):
    """Run the program; return what it read and the other lines that it printed."""
    arguments = [gateway, topic, group, str(publish), str(read), start]
    done = subprocess.run(
        ["java", "-XX:TieredStopAtLevel=1", "-cp", class_path, "GatewayClient", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    values = [line.removeprefix("read ") for line in lines if line.startswith("read ")]
    return values, [line for line in lines if not line.startswith("read ")]


def write(server, topic, *values):
    with TubeMQClient.connect(server.master) as client, client.producer() as producer:
        for value in values:
            producer.send(topic, value.encode())


def test_a_client_that_has_the_proto_only_publishes_reads_and_commits(server, gateway, class_path):
    topic, group = server.fresh_topic("3x1"), "java_client"
    python, java = [f"python {number}" for number in range(6)], [f"java {number}" for number in range(10)]
    write(server, topic, *python)

    values, others = run(class_path, gateway, topic, group, publish=10, read=16, start="beginning")

    assert sorted(values) == sorted(python + java)
    assert [line.split()[0] for line in others] == ["published", "attached", "closed"]
    with TubeMQClient.connect(server.master) as client:
        stored = [record.value.decode() for record in client.read(topic)]
    assert sorted(stored) == sorted(python + java)

    # Where the first session has committed, the next one goes on.
    write(server, topic, "python 6", "python 7", "python 8")
    values, _ = run(class_path, gateway, topic, group, publish=0, read=3, start="group")
    assert sorted(values) == ["python 6", "python 7", "python 8"]
