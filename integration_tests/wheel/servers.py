"""Servers around what is tried: TubeMQ by the installed command, a stand-alone Spark cluster."""

import contextlib
import dataclasses
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from integration_tests.wheel.environment import Environment, FailedError, clean_environment

_START_SECONDS: Final = 60
_PORTS: Final = ("master-port", "broker-port", "master-web-port", "broker-web-port")
_TOPICS: Final = ("clicks:3:1", "shouting:1:1", "letters:1:1")


@dataclasses.dataclass(frozen=True)
class SparkCluster:
    """A running stand-alone cluster."""

    url: str
    workers: list[subprocess.Popen[bytes]]
    """The processes of the workers, whose children are the executors."""


@contextlib.contextmanager
def tubemq(environment: Environment, directory: Path) -> Iterator[str]:
    """Run ``tubemq-spark embedded`` as README says, on free ports; give the master's address."""
    ports = [f"--{server}=0" for server in _PORTS]
    topics = [f"--topic={topic}" for topic in _TOPICS]
    command = [environment.path / "bin" / "tubemq-spark", "embedded", f"--data={directory / 'data'}"]
    with _process([*command, *ports, *topics], directory / "tubemq.log") as (_, log):
        yield _wait_for(log, r"^master +(\S+)")


@contextlib.contextmanager
def spark_cluster(environment: Environment, directory: Path, workers: int) -> Iterator[SparkCluster]:
    """Run a stand-alone master and workers of an installed PySpark, one core each."""
    start = environment.spark_home / "bin" / "spark-class"
    deploy = "org.apache.spark.deploy"
    variables = {
        "SPARK_WORKER_DIR": str(directory / "work"),
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
    }
    started = []
    with contextlib.ExitStack() as running:
        ports = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        master = [str(start), f"{deploy}.master.Master", *ports]
        _, log = running.enter_context(_process(master, directory / "spark-master.log", variables))
        url = _wait_for(log, r"(spark://127\.0\.0\.1:\d+)")
        for number in range(1, workers + 1):
            # Of a host each: Spark runs no speculative task on the host of the first attempt.
            options = ["--host", f"127.0.0.{number}", "--cores", "1", "--memory", "1g", "--webui-port", "0"]
            worker = [str(start), f"{deploy}.worker.Worker", *options, url]
            name = f"spark-worker-{number}.log"
            process, log = running.enter_context(_process(worker, directory / name, variables))
            _wait_for(log, r"(Successfully registered with master)")
            started.append(process)
        yield SparkCluster(url, started)


@contextlib.contextmanager
def _process(
    command: Sequence[str | Path], log: Path, variables: Mapping[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=clean_environment(variables),
        )
    try:
        yield process, log
    finally:
        process.terminate()
        process.wait()


def _wait_for(log: Path, pattern: str) -> str:
    """Return what the pattern's group matches in a server's output, as soon as it is there."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        found = re.search(pattern, log.read_text(), re.MULTILINE)
        if found:
            return found[1]
        time.sleep(0.1)
    raise FailedError(f"{pattern} is not in {log}:\n{log.read_text()}")
