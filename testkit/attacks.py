"""What a hostile client of a gateway tries, and what the gateway and its other clients notice.

Each attack is a function that takes a ``Stage`` and returns what it has reached: lines, none when it failed.
``run`` watches the gateway's memory and another client's heartbeats during the attack. The attacker knows the
.proto file; it calls from 127.0.0.1, the others from other addresses.
"""

import contextlib
import dataclasses
import json
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Final, Self, cast

import grpc

from testkit.certificates import Authority
from testkit.forwarder import Forwarder
from testkit.gateway_caller import Caller, GatewayProcess, opening, status
from testkit.heartbeats import SOURCE
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.errors import TubeMQError
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, sends
from tubemq_spark.protocol.gateway.failures import from_proto
from tubemq_spark.protocol.gateway.service import METHODS
from tubemq_spark.protocol.send_batch import SendBatch

MIB: Final = 1 << 20
LIMIT_BYTES: Final = 64 * MIB
"""What the gateway may keep for its clients, of one and of all."""
LIMITS: Final = (f"--total-bytes={LIMIT_BYTES}", f"--session-bytes={LIMIT_BYTES}")
SLACK_BYTES: Final = 96 * MIB
"""How much more memory than that it may take: messages are there in two forms for a moment, and allocators
keep some."""
TOPIC: Final = "demo"
_QUIET_S: Final = 3.0
_STALLED_S: Final = 3.0
_SENT_BYTES: Final = 384 * MIB
"""How much attackers of the memory send."""
_ROWS: Final = 64
_ROW_BYTES: Final = 200 << 10
_INDEX_BYTES: Final = 28
_LOG_BYTES: Final = 256 << 10
_THREADS_OF_PAGE: Final = 64
_SLOW_LINES: Final = 9


class Heartbeats:
    """Another client's, in a process of its own; a context manager."""

    def __init__(self, address: str, ca: Path | None) -> None:
        """Begin them."""
        command = [sys.executable, "-m", "testkit.heartbeats", address, *([str(ca)] if ca else [])]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._input = cast("IO[str]", self._process.stdin)
        self._output = cast("IO[str]", self._process.stdout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._input.close()
        self._process.wait()
        self._output.close()

    def look(self) -> tuple[list[float], list[str]]:
        """Return how long those since the last look took, in milliseconds, and what went wrong.

        At least ten are waited for, unless one fails: an attack may be over before.
        """
        self._input.write("\n")
        self._input.flush()
        told = json.loads(self._output.readline())
        return told["took"], told["errors"]


class Peak:
    """The most memory that a gateway has while this is open."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self._gateway = gateway
        self._over = threading.Event()
        self.before = self.top = 0

    def __enter__(self) -> Self:
        self.before = self.top = self._gateway.memory_bytes
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.02):
            self.top = max(self.top, self._gateway.memory_bytes)


@dataclasses.dataclass
class Stage:
    """A server and a gateway before it, and who calls it."""

    server: EmbeddedTubeMQ
    gateway: GatewayProcess
    closing: contextlib.ExitStack
    ca: Path | None

    def attacker(self, client_id: str = "mallory", **how: Any) -> Caller:
        """Return a client that calls from the attacker's host."""
        ca = self.ca.read_bytes() if self.ca else None
        return self.closing.enter_context(Caller(self.gateway.address, client_id, ca=ca, **how))

    def other(self, client_id: str, source: str = SOURCE) -> Caller:
        """Return a client that calls from another host, without a session."""
        forwarder = self.closing.enter_context(Forwarder(self.gateway.address, source=source))
        ca = self.ca.read_bytes() if self.ca else None
        return self.closing.enter_context(Caller(forwarder.address, client_id, ca=ca))

    def log(self) -> str:
        """Return what the gateway has written to its log."""
        return cast("Path", self.gateway.log).read_text(errors="replace")


Attack = Callable[[Stage], list[str]]


def batch_of(*values: bytes) -> pb.MessageBatch:
    """Return messages for the first broker."""
    batch = sends.to_proto(SendBatch.of(TOPIC, list(values)))
    batch.MergeFrom(pb.MessageBatch(places=[pb.Place(broker_id=1)], place_codes=bytes(4 * len(values))))
    return batch


def requests_of(batches: Iterable[pb.MessageBatch]) -> Iterator[bytes]:
    """Return the requests of a stream that publishes batches."""
    yield pb.PublishStreamRequest(begin=pb.PublishStreamRequest.Begin()).SerializeToString()
    for number, batch in enumerate(batches, 1):
        yield pb.PublishStreamRequest(batch=batch, number=number).SerializeToString()


def publish(client: Caller, *values: bytes) -> None:
    """Store messages of one batch."""
    stored = 0
    requests = list(requests_of([batch_of(*values)]))
    for answer in client.send("PublishStream", requests, timeout=20):
        for failure in answer.failures:
            raise from_proto(failure.error)
        stored += sum(receipt.count for receipt in answer.receipts)
    if stored != len(values):
        raise RuntimeError(f"{stored} of {len(values)} messages are stored")


class Flood:
    """Streams that send as much as the gateway takes, without a look at its answers."""

    def __init__(self) -> None:
        self.sent = 0
        self._calls: list[Any] = []
        self._over = threading.Event()
        self._lock = threading.Lock()

    def begin(self, client: Caller, name: str, requests: bytes | Iterable[bytes]) -> None:
        """Begin one."""
        single = isinstance(requests, bytes)
        self._calls.append(client.send(name, requests if single else self._counted(requests), timeout=60))

    def _counted(self, requests: Iterable[bytes]) -> Iterator[bytes]:
        for data in requests:
            if self._over.is_set():
                return
            yield data
            with self._lock:
                self.sent += len(data)
        # Nothing is half-closed: what was sent is to stay.
        self._over.wait(60)

    def wait(self, wanted: int) -> None:
        """Wait until so much was sent, or the peer takes no more; then all streams end."""
        last, since = -1, time.monotonic()
        while self.sent < wanted and time.monotonic() - since < _STALLED_S:
            if self.sent != last:
                last, since = self.sent, time.monotonic()
            time.sleep(0.02)
        time.sleep(0.5)
        self._over.set()
        for call in self._calls:
            call.cancel()


def refused(work: Callable[[], object]) -> bool:
    """Tell whether a call fails."""
    try:
        work()
    except (grpc.RpcError, TubeMQError):
        return True
    return False


def tried(what: str, work: Callable[[], object]) -> list[str]:
    """Return a line when work fails that should not."""
    try:
        work()
    except grpc.RpcError as error:
        return [f"{what}: {error.code().name} {str(error.details())[:160]}"]
    except TubeMQError as error:
        return [f"{what}: {str(error)[:160]}"]
    return []


# The ten.


def hijack(stage: Stage) -> list[str]:
    """Act in another client's session, and with its login."""
    reached = []
    ann = stage.other("ann")
    ann.open("ann", username="ann", password="ann-secret")
    mallory = stage.attacker()
    mallory.open("mallory")
    told = str(mallory("ListSessions"))
    if "secret" in told or "epoch" in told:
        reached.append("ListSessions tells what proves a session")
    for secret in (b"", bytes(32), mallory.session.secret):
        mallory.session = pb.SessionRef(client_id="ann", epoch=1, secret=secret)
        if not refused(lambda: publish(mallory, b"forged")):
            reached.append("a message was stored as another client")
        if not refused(lambda: mallory("Heartbeat")):
            reached.append("a sign of life of another client")
        # The answer about a session that is not there is that it is closed.
        mallory("CloseSession")
    for epoch in (1, 2):
        mallory.session = pb.SessionRef(client_id="ann", epoch=epoch, secret=bytes(32))
        if not refused(lambda: mallory.open("mallory")):
            reached.append(f"the session's id was taken over by epoch {epoch}")
    if refused(lambda: ann("Heartbeat")):
        reached.append("the session is lost to its client")
    log = cast("Path", stage.gateway.log).with_suffix(".plain")
    with GatewayProcess(stage.server.master, log=log) as plain, Caller(plain.address, "ann") as open_to_all:
        if not refused(lambda: open_to_all.open("ann", username="ann", password="ann-secret")):
            reached.append("a password was taken without TLS")
    return reached


def memory_by_a_window(stage: Stage) -> list[str]:
    """Publish in one stream to a broker that hangs, with limits of the client's own choice."""
    return _publish_to_a_frozen_broker(stage, 1, max_in_flight=2_000_000_000, max_in_flight_bytes=1 << 62)


def memory_by_many_windows(stage: Stage) -> list[str]:
    """Publish in many streams to a broker that hangs."""
    return _publish_to_a_frozen_broker(stage, 24)


def _publish_to_a_frozen_broker(stage: Stage, streams: int, **settings: Any) -> list[str]:
    first = stage.attacker("stream_0")
    first.open(**settings)
    publish(first, b"x")
    stage.server.faults.freeze_broker(1)
    flood = Flood()
    for number in range(streams):
        client = first if number == 0 else stage.attacker(f"stream_{number}")
        client.open(**settings)
        count = _SENT_BYTES // streams // MIB
        batches = (batch_of(bytes(MIB)) for _ in range(count))
        flood.begin(client, "PublishStream", requests_of(batches))
    flood.wait(_SENT_BYTES)
    return []


def memory_by_bodies(stage: Stage) -> list[str]:
    """Send large bodies for sessions that do not exist, and parts of batches that never end."""
    flood = Flood()
    stranger = stage.attacker("stranger")
    whole = pb.PublishStreamRequest(batch=batch_of(bytes(30 * MIB)), number=1).SerializeToString()
    for _ in range(10):
        flood.begin(stranger, "PublishStream", [*requests_of([]), whole])
        flood.begin(stranger, "Heartbeat", whole)
    pieces = [
        pb.PublishStreamRequest(part=pb.PublishStreamRequest.Part(data=bytes(MIB), size=1 << 40), number=1)
    ] * 32
    data = [piece.SerializeToString() for piece in pieces]
    for number in range(20):
        client = stranger
        if number % 2:
            client = stage.attacker(f"pieces_{number}")
            client.open()
        flood.begin(client, "PublishStream", [*requests_of([]), *data])
    flood.wait(20 * 62 * MIB)
    return []


def memory_by_names(stage: Stage) -> list[str]:
    """Open sessions with descriptions of megabytes."""
    calls = []
    first = stage.attacker("named")
    for number in range(60):
        text = "x" * (30 if number % 4 == 0 else 1) * MIB
        client = Caller(stage.gateway.address, f"named_{number}", beside=first)
        asked = opening(client.session, group="attack")
        calls.append(client.begin("OpenSession", language=text, version=text, **asked))
    for name in ("reader_groups", "message_types"):
        client = Caller(stage.gateway.address, name, beside=first)
        asked = opening(client.session, group="attack", **{name: ["x" * MIB, "y" * MIB]})
        calls.append(client.begin("OpenSession", **asked))
    return ["descriptions of megabytes were kept"] * any(status(call) == "OK" for call in calls)


def memory_by_sessions(stage: Stage) -> list[str]:
    """Open sessions with as many and as long reader groups as there may be."""
    first = stage.attacker("large")
    calls = []
    for number in range(200):
        client = Caller(stage.gateway.address, f"large_{number}", beside=first)
        groups = [f"g{number}_{place}_" + "x" * 900 for place in range(256)]
        asked = opening(client.session, group="attack", reader_groups=groups)
        calls.append(client.begin("OpenSession", **asked))
        many = Caller(stage.gateway.address, f"many_{number}", beside=first)
        asked = opening(many.session, group="attack", reader_groups=[f"r{place}" for place in range(10_000)])
        calls.append(many.begin("OpenSession", **asked))
    # The last bound is that of the memory, by ``run``.
    return ["10,000 reader groups were kept"] * any(status(call) == "OK" for call in calls[1::2])


def memory_by_lists(stage: Stage) -> list[str]:
    """Publish batches of millions of blank topics, headers and places, which are two bytes each."""
    flood = Flood()
    client = stage.attacker("listed")
    client.open()
    size = 2 * MIB
    for name in ("topics", "headers", "places"):
        field = pb.MessageBatch.DESCRIPTOR.fields_by_name[name]
        blank = bytes([field.number << 3 | 2, 0]) * (size // 2)
        batch = pb.PublishStreamRequest.DESCRIPTOR.fields_by_name["batch"]
        length = bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14 & 0x7F | 0x80, size >> 21])
        whole = bytes([batch.number << 3 | 2]) + length + blank
        for _ in range(10):
            flood.begin(client, "PublishStream", [*requests_of([]), whole])
    flood.wait(30 * size)
    return []


def memory_by_waiting(stage: Stage) -> list[str]:
    """Take all room of a session with two parts of a thousand bytes, and send messages that wait for it."""
    client = stage.attacker("waiting")
    client.open()
    flood = Flood()
    part = pb.PublishStreamRequest.Part(data=bytes(1_000), size=LIMIT_BYTES // 2)
    begun = pb.PublishStreamRequest(part=part, number=1).SerializeToString()
    for _ in range(2):
        flood.begin(client, "PublishStream", [*requests_of([]), begun])
    until = time.monotonic() + _STALLED_S
    while client("DescribeGateway").bytes_in_flight < LIMIT_BYTES and time.monotonic() < until:
        time.sleep(0.02)
    whole = list(requests_of([batch_of(bytes(4 * MIB - 4_096))]))
    for _ in range(_SENT_BYTES // (4 * MIB)):
        flood.begin(client, "PublishStream", whole)
    flood.wait(_SENT_BYTES)
    return []


def bodies(stage: Stage) -> list[str]:
    """Begin to open sessions from four addresses, and send no message."""
    over = threading.Event()

    def nothing() -> Iterator[bytes]:
        over.wait(60)
        yield from ()

    path = METHODS["OpenSession"].path
    strangers = [stage.other(f"silent_{number}", f"127.0.1.{number}") for number in range(1, 5)]
    calls = [one.channel.stream_stream(path)(nothing(), timeout=60) for one in strangers for _ in range(50)]
    time.sleep(1)
    new = stage.other("new", "127.0.0.7")
    asked = opening(new.session, group="attack")
    reached = tried("others cannot open a session", lambda: new("OpenSession", timeout=6, **asked))
    over.set()
    for call in calls:
        call.cancel()
    return reached


def threads(stage: Stage) -> list[str]:
    """Begin many calls that do not move, and so keep others out."""
    reached = []
    writer = stage.other("writer")
    writer.open("writers")
    for _ in range(_ROWS // 4):
        publish(writer, *[bytes(_ROW_BYTES)] * 4)
    place = pb.Partition(topic=TOPIC, broker_id=1, partition_id=0)
    range_of_all = {"partition": place, "start": 0, "end": _ROWS * _INDEX_BYTES, "own_store": True}
    range_of_one = range_of_all | {"end": _INDEX_BYTES}

    first = stage.attacker("idle_0")
    first.open()
    evil = [first]
    for number in range(1, 4):
        client = stage.attacker(f"idle_{number}")
        client.open()
        evil.append(client)
    over = threading.Event()

    def begun(client: Caller) -> Iterator[bytes]:
        yield from requests_of([])
        over.wait(60)

    readers = [client.begin("ReadRange", timeout=120, **range_of_all) for client in evil for _ in range(80)]
    time.sleep(1)
    reached += tried("others cannot read", lambda: writer("ReadRange", timeout=20, **range_of_one))
    for call in readers:
        call.cancel()
    writers = [client.send("PublishStream", begun(client), 120) for client in evil for _ in range(80)]
    time.sleep(1)
    reached += tried("others cannot publish", lambda: publish(writer, b"y"))
    for call in writers:
        call.cancel()
    over.set()
    stage.server.close_topic("closed")
    day = stage.attacker("day")
    if not refused(lambda: day.open(delivery_timeout_ms=86_400_000)):
        checks = [day.begin("CheckTopic", timeout=2, topic="closed", publishable=True) for _ in range(300)]
        for call in checks:
            status(call)
        reached += tried("others cannot publish after checks", lambda: publish(writer, b"y"))
    return reached


def questions(stage: Stage) -> list[str]:
    """Ask from two hosts about a broker that hangs, with long time-outs, and for topics that do not exist.

    All of these calls end after two seconds; the gateway's own work for them is to end with them.
    """
    reached = []
    asking = stage.other("asking")
    asking.open("shared")
    asking("QueryRoute", topics=[TOPIC])
    hosts = [stage.other(f"patient_{number}", f"127.0.0.{20 + number}") for number in range(2)]
    for number, client in enumerate(hosts):
        client.open(f"patient_{number}", rpc_timeout_ms=600_000)
        client("QueryRoute", topics=[TOPIC])
    stage.server.faults.freeze_broker(3)
    store = pb.Store(topic=TOPIC, broker_id=3)
    calls = [client.begin("QueryBounds", timeout=2, stores=[store]) for client in hosts for _ in range(60)]
    for call in calls:
        status(call)
    route = {"topics": [TOPIC], "timeout": 20}
    reached += tried(
        "others have no answer beside a broker that hangs", lambda: asking("QueryRoute", **route)
    )
    stage.server.faults.start_broker(3)
    twin = stage.attacker("twin")
    twin.open("shared")
    names = [[f"none_{first}_{number}_" + "x" * 40 for number in range(100)] for first in range(20)]
    calls = [twin.begin("QueryRoute", timeout=2, missing_ok=True, topics=topics) for topics in names]
    for call in calls:
        status(call)
    reached += tried("others have no answer beside missing topics", lambda: asking("QueryRoute", **route))
    return reached


def items(stage: Stage) -> list[str]:
    """Ask for hundreds of thousands of things in few bytes."""
    reached = []
    client = stage.attacker()
    client.open()
    client("QueryRoute", topics=[TOPIC])
    many = 200_000
    store, place = pb.Store(topic=TOPIC, store=9), pb.Partition(topic=TOPIC, broker_id=9)
    bounds = pb.Bounds(earliest=0, latest=_INDEX_BYTES)
    asked: dict[str, dict[str, Any]] = {
        "QueryBounds": {"stores": [store] * many},
        "QueryGroupPositions": {"partitions": [place] * many},
        "QueryFirstReadable": {
            "begins": [pb.QueryFirstReadableRequest.Begin(partition=place, bounds=bounds)] * many
        },
        "ResetOffsets": {"positions": [pb.PartitionOffset(partition=place, offset=0)] * many},
        "AttachPartitions": {"partitions": [pb.AttachPartitionsRequest.Wanted(partition=place)] * many},
        "DetachPartitions": {"partitions": [place] * many},
        "Subscribe": {"topics": [TOPIC] * many},
        "QueryRoute": {"topics": [TOPIC] * many},
        "QueryStoredOffsets": {"topics": [TOPIC] * many},
    }
    for name, fields in asked.items():
        call = client.begin(name, timeout=20, **fields)
        if status(call) not in {"INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"}:
            reached.append(f"{name} of {many} items: {status(call)}")
    return reached


def streams(stage: Stage) -> list[str]:
    """Open thousands of streams on one connection, and all sessions there are."""
    reached = []
    client = stage.attacker()
    client.open()
    over = threading.Event()

    def resting() -> Iterator[bytes]:
        yield from requests_of([])
        over.wait(60)

    calls = [client.begin("SessionEvents", timeout=100) for _ in range(2_000)]
    calls += [client.begin("ReadRange", timeout=100, end=_INDEX_BYTES) for _ in range(2_000)]
    calls += [client.send("PublishStream", resting(), 100) for _ in range(300)]
    time.sleep(5)
    opened, second = 0, stage.attacker("second")
    for first in range(0, 10_500, 500):
        more = [
            Caller(stage.gateway.address, f"many_{first + number}", beside=second) for number in range(500)
        ]
        asked = [one.begin("OpenSession", timeout=20, **opening(one.session, group="attack")) for one in more]
        opened += sum(status(call) == "OK" for call in asked)
    late = stage.other("late")
    if refused(late.open):
        reached.append(f"{opened} sessions of one client keep others out")
    over.set()
    for call in calls:
        call.cancel()
    return reached


def log(stage: Stage) -> list[str]:
    """Write lines of the attacker's own into the log, and fill it."""
    reached = []
    for client_id in ("a\n2026-01-01T00:00:00Z INFO injected by name", "b\x1b[31mred", "c\x85d\u2028e"):
        client = stage.attacker(client_id)
        with contextlib.suppress(grpc.RpcError):
            client.open()
        with contextlib.suppress(grpc.RpcError):
            client("QueryRoute", topics=["no\n2026-01-01T00:00:00Z INFO injected by topic"])
    client = stage.attacker()
    client.open()
    before = stage.gateway.log_bytes()
    for _ in range(300):
        with contextlib.suppress(grpc.RpcError):
            client("QueryRoute", topics=["x" * 100_000])
    stranger = stage.attacker("stranger")
    for _ in range(1_000):
        with contextlib.suppress(grpc.RpcError):
            stranger("Heartbeat")
    grown = stage.gateway.log_bytes() - before
    if grown > _LOG_BYTES:
        reached.append(f"the log grew by {grown >> 10} KiB for 1,300 refused calls")
    written = stage.log()
    if re.search(r"^2026-01-01T00:00:00Z INFO injected", written, re.MULTILINE):
        reached.append("a line of the log is the client's")
    if "\x1b" in written:
        reached.append("control characters are in the log")
    return reached


def page(stage: Stage) -> list[str]:
    """Read the status page by another host's name, and keep its connections."""
    reached = []
    client = stage.attacker()
    client.open("seen-by-others")
    host, _, port = stage.gateway.metrics.rpartition(":")
    address = host, int(port)
    for path in ("/", "/metrics"):
        with socket.create_connection(address, timeout=20) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: evil.example.com\r\n\r\n".encode())
            if b" 200 " in connection.recv(100):
                reached.append(f"{path} is answered under another host's name")
    before = stage.gateway.threads
    with contextlib.ExitStack() as closing:
        slow = []
        for _ in range(300):
            with contextlib.suppress(OSError):
                connection = closing.enter_context(socket.create_connection(address, timeout=0.5))
                connection.sendall(b"GET / HTTP/1.1\r\n")
                slow.append(connection)
        more = stage.gateway.threads - before
        if more > _THREADS_OF_PAGE:
            reached.append(f"{more} threads more for connections that say little")
        # A line every two seconds keeps no connection for long.
        for _ in range(_SLOW_LINES):
            time.sleep(2)
            for connection in slow:
                with contextlib.suppress(OSError):
                    connection.sendall(b"X-Slow: 1\r\n")
        alive = sum(map(_is_open, slow))
    if alive:
        reached.append(f"{alive} of {len(slow)} requests go on although they say little")
    return reached


def _is_open(connection: socket.socket) -> bool:
    """Tell whether the other side has neither closed a connection nor answered."""
    connection.setblocking(False)
    try:
        connection.recv(1)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


ATTACKS: Final[dict[str, Attack]] = {
    "hijack": hijack,
    "memory a: one window": memory_by_a_window,
    "memory b: many windows": memory_by_many_windows,
    "memory c: bodies": memory_by_bodies,
    "memory d: names": memory_by_names,
    "memory e: lists": memory_by_lists,
    "memory f: waiting": memory_by_waiting,
    "bodies": bodies,
    "memory f: sessions": memory_by_sessions,
    "threads": threads,
    "questions": questions,
    "items": items,
    "streams": streams,
    "log": log,
    "page": page,
}


@dataclasses.dataclass
class Outcome:
    """What an attack has reached, and what other clients noticed."""

    reached: list[str]
    quiet_ms: list[float]
    """How long heartbeats of another client took before."""
    took_ms: list[float]
    """How long they took during the attack."""
    errors: list[str]
    """Those that failed."""
    memory_before: int
    memory_top: int

    @property
    def grown_bytes(self) -> int:
        """How much more memory the gateway had at most."""
        return self.memory_top - self.memory_before

    def figures(self) -> dict[str, float]:
        """Return figures for a table."""
        quiet, beside = p99(self.quiet_ms), p99(self.took_ms)
        return {
            "MiB more": self.grown_bytes / MIB,
            "quiet p99 ms": quiet,
            "p99 ms": beside,
            "ratio": beside / quiet,
            "worst ms": max(self.took_ms),
        }


def p99(values: list[float]) -> float:
    """Return what 99 of 100 stay below."""
    return statistics.quantiles(values, n=100, method="inclusive")[98] if len(values) > 1 else values[0]


@contextlib.contextmanager
def staged(folder: Path, *, secured: bool) -> Iterator[Stage]:
    """Give a server of three brokers, and a gateway with default settings and limits of 64 MiB."""
    settings = EmbeddedSettings()
    flags = list(LIMITS)
    ca = None
    if secured:
        settings = EmbeddedSettings(
            authenticate_producers=True,
            authenticate_consumers=True,
            users={"ann": "ann-secret"},
        )
        authority = Authority(folder)
        pair, ca = authority.issue("gateway"), authority.cert
        flags += [f"--tls-cert={pair.cert}", f"--tls-key={pair.key}"]
    topics = {TOPIC: (1, 1), "closed": (1, 1)}
    with (
        EmbeddedTubeMQ(topics=topics, brokers=3, settings=settings) as server,
        GatewayProcess(server.master, *flags, web=server.master_web, log=folder / "gateway.log") as gateway,
        contextlib.ExitStack() as closing,
    ):
        try:
            yield Stage(server, gateway, closing, ca)
        finally:
            server.faults.clear()


def run(name: str, folder: Path, quiet_s: float = 0.5) -> Outcome:
    """Carry an attack out."""
    with (
        staged(folder, secured=name == "hijack") as stage,
        Heartbeats(stage.gateway.address, stage.ca) as beats,
    ):
        beats.look()
        time.sleep(quiet_s)
        quiet, before = beats.look()
        with Peak(stage.gateway) as peak:
            reached = ATTACKS[name](stage)
        took, errors = beats.look()
        return Outcome(reached, quiet, took, before + errors, peak.before, peak.top)
