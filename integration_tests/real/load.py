"""The distribution's load generators: many equal messages fast, in a JVM of their own.

The generators look at their counters every five seconds only, so a run takes up to that much
longer than its work. To measure a rate, watch the brokers' offsets instead.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from integration_tests.real.artifacts import distribution
from integration_tests.real.processes import ProcessGroup, tail
from integration_tests.real.servers import LOG4J2
from tubemq_spark.client.metadata.admin import Parameter

PRODUCER_CLASS: Final = "org.apache.inlong.tubemq.server.tools.cli.CliProducer"
CONSUMER_CLASS: Final = "org.apache.inlong.tubemq.server.tools.cli.CliConsumer"
HEAP_MB: Final = 512
MAX_CLIENTS: Final = 32
RPC_TIMEOUT_MS: Final = 120_000

PATIENT: Final[Mapping[str, Parameter]] = {"memCacheMsgSizeInMB": 64, "memCacheMsgCntInK": 200}
"""Properties of a topic that refuses no messages under the full load of `produce`.

Each of its stores takes 64 MB outside the broker's heap.
"""

PRODUCED: Final = re.compile(r"^Finished,.* sent count = \d+ : \d+ \((\d+):(\d+):(\d+)\)", re.MULTILINE)
CONSUMED: Final = re.compile(r"^Finished,.* received count = \d+ : (\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Produced:
    """How the brokers took a generator's messages."""

    accepted: int
    refused: int
    """Answered with an error; a topic with little memory refuses some under full load."""

    unanswered: int
    """Never answered; the broker may hold these or not."""


def produce(master: str, topic: str, messages: int, *, size: int = 100, timeout_s: float = 300.0) -> Produced:
    """Send messages of `size` bytes from many clients, each waiting for its answers."""
    # Each client sends the same number. Clients that do not wait are faster, but on a busy
    # machine their backlog runs into time-outs, and then it is unknown what was stored.
    clients = next(count for count in range(MAX_CLIENTS, 0, -1) if messages % count == 0)
    waiting = ["--sync-produce", f"--client-count={clients}", f"--num-send-threads={clients}"]
    return _produce(master, topic, messages // clients, size, waiting, timeout_s)


def produce_ahead(
    master: str, topic: str, messages: int, *, size: int = 100, timeout_s: float = 600.0
) -> Produced:
    """Send messages of `size` bytes from one client that does not wait for answers, as it does by default."""
    return _produce(master, topic, messages, size, ["--client-count=1"], timeout_s)


def _produce(
    master: str, topic: str, per_client: int, size: int, how: list[str], timeout_s: float
) -> Produced:
    output = _run(
        [
            PRODUCER_CLASS,
            f"--master-servers={master}",
            f"--topicName={topic}",
            f"--messages={per_client}",
            f"--message-data-size={size}",
            "--without-delay",
            "--conn-reuse=true",
            f"--rpc-timeout={RPC_TIMEOUT_MS}",
            *how,
        ],
        timeout_s,
    )
    return Produced(*map(int, _counts(PRODUCED, output)))


def consume(
    master: str,
    topic: str,
    group: str,
    messages: int,
    *,
    push: bool = False,
    timeout_s: float = 300.0,
) -> int:
    """Read until at least `messages` have come, and return how many have.

    The group is a new one or has nothing committed: reading begins at the earliest message.
    """
    output = _run(
        [
            CONSUMER_CLASS,
            f"--master-servers={master}",
            f"--topicName={topic}",
            f"--groupName={group}",
            f"--messages={messages}",
            "--consume-position=-1",
            *(["--consume-push"] if push else []),
        ],
        timeout_s,
    )
    (received,) = _counts(CONSUMED, output)
    return int(received)


def _run(arguments: list[str], timeout_s: float) -> str:
    """Run a generator to its end and return all it printed."""
    with tempfile.TemporaryDirectory(prefix="tubemq-load-") as name, ProcessGroup() as group:
        directory = Path(name)
        logging = directory / "log4j2.xml"
        logging.write_text(LOG4J2, encoding="utf-8")
        log = directory / "output.log"
        command = [
            "java",
            f"-Xmx{HEAP_MB}m",
            f"-Dlog4j.configurationFile={logging}",
            "-cp",
            distribution().client_class_path,
            *arguments,
        ]
        child = group.spawn(command, cwd=directory, log=log)
        try:
            child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            text = f"{arguments[0]} was not done in {timeout_s:g} s:\n{tail(log)}"
            raise TimeoutError(text) from None
        return log.read_text(encoding="utf-8", errors="replace")


def _counts(pattern: re.Pattern[str], output: str) -> tuple[str, ...]:
    match = pattern.search(output)
    if match is None:
        raise RuntimeError(f"the generator told no counts; it printed:\n{output[-2000:]}")
    return match.groups()
