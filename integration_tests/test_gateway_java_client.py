"""A client in Java, made from gateway.proto by gRPC's own tools, publishes, reads and commits."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tubemq_spark.protocol.gateway
from integration_tests.conftest import BOTH_SERVERS
from integration_tests.real.artifacts import GRPC_PLUGIN, PROTOC, grpc_java, require_real_tubemq, required
from integration_tests.real.cluster import RealTubeMQ, TopicSpec
from tubemq_spark.client import TubeMQClient
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.cluster.config import ClusterConfig
from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.model import Endpoint

TOPIC, SHAPE, GROUP = "shared_with_java", (2, 1), "java_client"
PROTO = Path(tubemq_spark.protocol.gateway.__file__).parent / "proto/tubemq/gateway/v1/gateway.proto"
PROGRAM = Path(__file__).parent / "programs" / "GatewayClient.java"


@pytest.fixture(scope="module")
def class_path(tmp_path_factory):
    """The class path of a program that is compiled with the code that gRPC's tools make of the service."""
    home = required(grpc_java)
    generated, classes = tmp_path_factory.mktemp("generated"), tmp_path_factory.mktemp("classes")
    command = [
        home / PROTOC,
        f"--plugin=protoc-gen-grpc-java={home / GRPC_PLUGIN}",
        f"--proto_path={PROTO.parent}",
    ]
    command += [f"--java_out={generated}", f"--grpc-java_out=@generated=omit:{generated}", PROTO.name]
    subprocess.run(command, check=True)
    sources = [*generated.rglob("*.java"), PROGRAM]
    subprocess.run(["javac", "-nowarn", "-cp", f"{home}/*", "-d", classes, *sources], check=True)
    return f"{classes}:{home}/*"


@pytest.fixture(params=BOTH_SERVERS)
def master(request):
    """The master of two brokers."""
    if request.param == "embedded":
        with EmbeddedTubeMQ(topics={TOPIC: SHAPE}, brokers=2) as running:
            yield running.master
    else:
        require_real_tubemq()
        with RealTubeMQ({TOPIC: TopicSpec(*SHAPE)}, brokers=2) as running:
            yield running.master


@pytest.fixture
def gateway(master):
    """The address of a gateway in a process of its own."""
    command = [sys.executable, "-m", "tubemq_spark", "gateway", "--master-servers", master]
    command += ["--listen", "127.0.0.1:0", "--log-level", "WARNING"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield re.search(r"serves at (\S+)", process.stdout.readline())[1]
        finally:
            process.terminate()


def run(class_path, gateway, *, publish, read, start):
    """Run the program; return what it read and the other lines that it printed."""
    arguments = [gateway, TOPIC, GROUP, str(publish), str(read), start]
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


def in_ranges(others):
    """Take the lines about records of ranges out of the others; return offsets, values and attributes."""
    records = [line.split(" ", 1)[1] for line in others if line.startswith("range ")]
    others[:] = [line for line in others if not line.startswith("range ")]
    return [re.fullmatch(r"(\d+) (\w+ \d+) (.*)", record).groups() for record in records]


def write(master, *values, **how):
    with TubeMQClient.connect(master) as client, client.producer() as producer:
        for value in values:
            producer.send(TOPIC, value.encode(), **how)


def stored(master):
    with TubeMQClient.connect(master) as client:
        return [record.value.decode() for record in client.read(TOPIC)]


def where_the_group_stands(master):
    """Return that and the end, for each partition."""
    cluster = open_cluster(ClusterConfig(ClientConfig((Endpoint.parse(master),), GROUP)).validate())
    layout = cluster.layout([TOPIC])
    bounds = cluster.bounds(layout).complete()
    positions = cluster.group_positions(layout)
    return {one: (positions[one], bounds[one.store_id].latest) for one in layout.partitions}


@pytest.mark.any_server
def test_a_client_that_has_the_proto_only_publishes_reads_and_commits(master, gateway, class_path):
    python, java = [f"python {number}" for number in range(6)], [f"java {number}" for number in range(10)]
    write(master, *python, attributes={"kind": "a"})

    values, others = run(class_path, gateway, publish=10, read=16, start="beginning")

    assert sorted(values) == sorted(python + java)
    ranges = in_ranges(others)
    assert others[1:] == ["attached 4", "refused NOT_FOUND TUBEMQ_TOPIC_UNKNOWN", "closed"]
    assert sorted(value for _, value, _ in ranges) == sorted(python + java)
    assert all(int(offset) % 28 == 0 for offset, _, _ in ranges)
    # Python's producer writes the time of a message as an attribute too.
    assert all(("kind=a" in attributes) == (value in python) for _, value, attributes in ranges)
    assert {attributes for _, value, attributes in ranges if value in java} == {"none"}
    assert sorted(stored(master)) == sorted(python + java)
    assert all(position == end for position, end in where_the_group_stands(master).values())

    # Where the first session has committed, the next one goes on.
    write(master, "python 6", "python 7", "python 8")
    values, _ = run(class_path, gateway, publish=0, read=3, start="group")
    assert sorted(values) == ["python 6", "python 7", "python 8"]
    assert all(position == end for position, end in where_the_group_stands(master).values())
