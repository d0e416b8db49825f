"""The embedded server in a separate process, and what must be true whatever is sent to it."""

import contextlib
import dataclasses
import os
import re
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

from fuzz import credentials
from fuzz.corpus import TOPICS
from testkit.connections import connected, submit_call
from tubemq_spark.model import Endpoint
from tubemq_spark.net.connection import Connection
from tubemq_spark.protocol import messages
from tubemq_spark.protocol.constants import Method, ServiceType
from tubemq_spark.protocol.pb import broker_pb2, common_pb2, master_pb2

PORTS: Final = ("master", "broker", "master_web", "broker_web")
_MEGABYTE: Final = 1 << 20
_SETTLE_S: Final = 60.0
"""How long threads and descriptors of closed connections may take to disappear."""
_SPARE: Final = 4
"""More threads or descriptors than this are a leak; fewer can be new files, or a running task."""


class BrokenError(Exception):
    """The server did what it must not do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """What is acceptable."""

    answer_s: float = 60.0
    """The time in which a valid request is answered, and a connection is closed: long, since the server may
    run at the lowest priority beside others. One that hangs is still noticed."""
    growth_mb: int = 60
    """Growth of resident memory since the start, or since the warm-up: usually 15 after a minute."""


class Target:
    """A running server; ``check`` raises an error if something is wrong with it."""

    def __init__(self, folder: Path, limits: Limits, *, secured: bool) -> None:
        """Start a server on a directory in ``folder``, where its standard error is written too."""
        self._limits = limits
        self._errors = folder / "errors"
        self._command = _command(folder / "data", secured=secured)
        self._ends: dict[tuple[str, int], int] = {}
        """The offset of the last acknowledged valid message, by topic and partition."""
        self._start()

    def _start(self) -> None:
        # With one glibc arena, growth is memory that is in use; otherwise each of many threads would keep
        # some megabytes of freed memory in its own arena.
        environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
        with self._errors.open("a", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )
        self.addresses = _addresses(_introduction(self._process))
        self._usage = psutil.Process(self._process.pid)
        self._visit_token = credentials.VISIT_TOKEN
        self._ask_both()
        self._threads = self._usage.num_threads()
        self._descriptors = self._usage.num_fds()
        self.measure_growth_from_now()

    def kill(self) -> None:
        """End the server at once."""
        self._process.kill()
        self._process.communicate()

    def reopen(self) -> None:
        """Kill the server and restart it on its directory."""
        self.kill()
        self._start()

    def measure_growth_from_now(self) -> None:
        """Compare memory with its present size, because what a server needs to work is not a leak."""
        self._memory = self._usage.memory_info().rss

    @property
    def growth_mb(self) -> float:
        """Growth of resident memory since the start or ``measure_growth_from_now``."""
        return float(self._usage.memory_info().rss - self._memory) / _MEGABYTE

    def exchange(self, port: str, data: bytes) -> bytes:
        """Send bytes on a new connection, and read until the server closes it."""
        address = self.addresses[port]
        deadline = time.monotonic() + self._limits.answer_s
        data = credentials.with_visit_token(data, self._visit_token)
        try:
            with socket.create_connection((address.host, address.port), self._limits.answer_s) as connected:
                return _pump(connected, data, deadline)
        except TimeoutError:
            raise BrokenError(f"the {port} did not close a connection in {self._limits.answer_s} s") from None
        except ConnectionRefusedError as error:
            raise BrokenError(f"the {port} cannot be reached: {error}") from error

    def check(self) -> None:
        """Check that the server is in good health."""
        if self._process.poll() is not None:
            raise BrokenError(f"the server ended with {self._process.returncode}: {self._said()[-2000:]}")
        try:
            self._ask_both()
        except Exception as error:
            raise BrokenError(f"a valid request was not answered correctly: {error}") from error
        if "Traceback" in (said := self._said()):
            raise BrokenError(f"an unexpected exception: {said[said.index('Traceback') :][:4000]}")
        self._check_settled("threads", self._threads)
        self._check_settled("fds", self._descriptors)
        if self.growth_mb > self._limits.growth_mb:
            raise BrokenError(f"resident memory grew by {self.growth_mb:.0f} MB")

    def _check_settled(self, what: str, before: int) -> None:
        deadline = time.monotonic() + _SETTLE_S
        while (now := getattr(self._usage, f"num_{what}")()) > before + _SPARE:
            if time.monotonic() > deadline:
                raise BrokenError(f"{now} {what}, {before} at the start")
            time.sleep(0.05)

    def _said(self) -> str:
        return self._errors.read_text(encoding="utf-8", errors="replace")

    def _ask_both(self) -> None:
        timeout_ms = int(self._limits.answer_s * 1000)
        register = master_pb2.RegisterRequestP2M(
            clientId="good_client",
            topicList=list(TOPICS),
            brokerCheckSum=-1,
            hostName="127.0.0.1",
        )
        with connected(self.addresses["master"], timeout_ms) as master:
            # As late as possible: it counts for 20 s. A server that does not demand logins ignores it.
            proof = messages.authenticate_info(
                credentials.USER, credentials.PASSWORD, int(time.time() * 1000), 7
            )
            register.authInfo.authInfo.CopyFrom(proof)
            answer = submit_call(
                master,
                ServiceType.MASTER,
                Method.PRODUCER_REGISTER,
                register,
                master_pb2.RegisterResponseM2P,
                timeout_ms=timeout_ms,
            ).result()
        if not answer.success:
            raise BrokenError(f"the master refused a valid request: {answer}")
        self._visit_token = answer.authorizedInfo.visitAuthorizedToken
        with connected(self.addresses["broker"], timeout_ms) as broker:
            for topic, (stores, partitions) in TOPICS.items():
                for store in range(stores):
                    self._send(broker, topic, 10_000 * store + partitions - 1, timeout_ms)

    def _send(self, broker: Connection, topic: str, partition_id: int, timeout_ms: int) -> None:
        message = broker_pb2.SendMessageRequestP2B(
            clientId="good_client",
            topicName=topic,
            partitionId=partition_id,
            data=b"good",
            flag=0,
            checkSum=-1,
            sentAddr=0,
            authInfo=common_pb2.AuthorizedInfo(
                visitAuthorizedToken=self._visit_token, authAuthorizedToken=credentials.TOKEN
            ),
        )
        answer = submit_call(
            broker,
            ServiceType.BROKER_WRITE,
            Method.SEND_MESSAGE,
            message,
            broker_pb2.SendMessageResponseB2P,
            timeout_ms=timeout_ms,
        ).result()
        if not answer.success:
            raise BrokenError(f"the broker refused a valid message: {answer}")
        latest = self._ends.get((topic, partition_id), -1)
        if answer.appendOffset <= latest:
            raise BrokenError(
                f"{topic} continues at {answer.appendOffset}, but {latest} was acknowledged before"
            )
        self._ends[topic, partition_id] = answer.appendOffset


@contextlib.contextmanager
def running(limits: Limits | None = None, *, secured: bool = False) -> Iterator[Target]:
    """Start a server, with or without logins, and end it."""
    with tempfile.TemporaryDirectory(prefix="tubemq-fuzz-") as folder:
        target = Target(Path(folder), limits or Limits(), secured=secured)
        try:
            yield target
        finally:
            target.kill()


def _command(data: Path, *, secured: bool) -> list[str]:
    if secured:
        return [sys.executable, "-m", "fuzz.secured_server", str(data)]
    ports = [f"--{name}-port=0" for name in ("master", "broker", "master-web", "broker-web")]
    topics = [f"--topic={name}:{stores}:{partitions}" for name, (stores, partitions) in TOPICS.items()]
    return [sys.executable, "-m", "tubemq_spark", "embedded", *ports, *topics, "--data", str(data)]


def _introduction(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("Stop"):
            break
    return "".join(lines)


def _addresses(introduction: str) -> dict[str, Endpoint]:
    """Parse the addresses: one per line, or the web ports as ``http://host:port (broker)``."""
    found = dict(re.findall(r"^(\w+) +(\S+)$", introduction, re.MULTILINE))
    found |= {f"{name}_web": place for place, name in re.findall(r"http://(\S+) \((\w+)\)", introduction)}
    try:
        return {name: Endpoint.parse(found[name]) for name in PORTS}
    except KeyError as error:
        raise BrokenError(f"the server does not print the address of its {error}: {introduction}") from error


def _pump(connected: socket.socket, data: bytes, deadline: float) -> bytes:
    """Send and receive at the same time, as answers may come before all is sent; return the answers."""
    received = []
    rest = memoryview(data)
    connected.setblocking(False)
    with selectors.DefaultSelector() as selector, contextlib.suppress(ConnectionError):
        selector.register(connected, selectors.EVENT_READ | selectors.EVENT_WRITE)
        while True:
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError
            if ready[0][1] & selectors.EVENT_WRITE:
                rest = rest[connected.send(rest) :] if rest else rest
                if not rest:
                    # This fails if the server has already hung up (ENOTCONN), which reading will show.
                    with contextlib.suppress(OSError):
                        connected.shutdown(socket.SHUT_WR)
                    selector.modify(connected, selectors.EVENT_READ)
            if ready[0][1] & selectors.EVENT_READ:
                part = connected.recv(1 << 18)
                if not part:
                    break
                received.append(part)
    return b"".join(received)
