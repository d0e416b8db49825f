"""One Kafka broker that is its own controller (KRaft), in a process of its own."""

import base64
import socket
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from integration_tests.real.artifacts import cached, jars
from integration_tests.real.processes import ProcessGroup, free_port, tail, wait_until

_PROPERTIES: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={directory}/data
num.partitions=1
offsets.topic.replication.factor=1
"""
_START_S: Final = 60.0
_HEAP: Final = "-Xmx1g"


@contextmanager
def kafka_server(directory: Path) -> Iterator[str]:
    """Run a broker whose files are in a directory; yield its ``host:port``.

    Topics are created when they are first used, with one partition.
    """
    broker, controller = free_port(), free_port()
    directory.mkdir(parents=True)
    settings = directory / "server.properties"
    settings.write_text(
        _PROPERTIES.format(broker=broker, controller=controller, directory=directory), encoding="utf-8"
    )
    java = ["java", _HEAP, "-cp", f"{server_jars()}/*"]
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", settings],
        check=True,
        capture_output=True,
    )
    log = directory / "kafka.log"
    with ProcessGroup() as processes:
        server = processes.spawn([*java, "kafka.Kafka", str(settings)], cwd=directory, log=log)

        def serves() -> bool:
            if server.poll() is not None:
                raise RuntimeError(f"Kafka ended: {tail(log)}")
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", broker)) == 0

        wait_until(serves, timeout_s=_START_S, what="Kafka to serve")
        yield f"127.0.0.1:{broker}"


SPARK_VERSION: Final = "4.2.0"
KAFKA_VERSION: Final = "3.9.1"
SERVER: Final = (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",)
CONNECTOR: Final = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_VERSION}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.commons:commons-pool2:2.12.1",
    f"org.apache.kafka:kafka-clients:{KAFKA_VERSION}",
)


def server_jars() -> Path:
    """Return a directory with all that a Kafka broker needs."""
    return cached(f"kafka-{KAFKA_VERSION}", lambda scratch: jars(*SERVER, scratch=scratch))


def connector_jars() -> str:
    """Return what Spark's Kafka connector needs besides Spark, as Spark's setting ``spark.jars`` has it."""
    name = f"spark-kafka-{SPARK_VERSION}"
    home = cached(name, lambda scratch: jars(*CONNECTOR, scratch=scratch, alone=True))
    return ",".join(str(path) for path in sorted(home.glob("*.jar")))
