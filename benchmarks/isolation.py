"""What one frozen broker of three, and one frozen cluster of two, cost the others: rates and stalls.

    make bench-isolation
    make bench-isolation ARGS="--only keyed unkeyed --seconds 30"

Needs Maven. Brokers and masters are the Java TubeMQ; freezing is SIGSTOP: connections stay open, and
nothing is read or answered. Each line is one way to use the client. It works with all brokers sound
(*control*) and then with one frozen (*frozen*), for the same number of seconds each, and what counts in
both is only what the other two brokers have to do with:

- Consumers and the stream read what a process of its own writes to these two at a steady pace; the frozen
  broker has nothing new. Producers send at a steady pace. What a producer sends without keys may go to any
  broker, so all of its acknowledgements count.
- *rate* is messages per second; *stall* is the longest time without a message, an acknowledgement or a row.
- *heartbeats*: a member of a group on one cluster, while other members of its process are on a second one
  whose servers are all frozen; the stall is the longest time between two heartbeats that reach its master.
  They are sent every 13 s.

JSON is the last line.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import itertools
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.table import Table

from benchmarks.spark import session
from benchmarks.turns import screen
from integration_tests.real.cluster import RealTubeMQ, TopicSpec
from testkit.forwarder import Forwarder
from tubemq_spark.client import ConsumePosition, ConsumerConfig, TubeMQClient
from tubemq_spark.client.aio import AsyncTubeMQClient
from tubemq_spark.datasource import TubeMQDataSource

FROZEN: Final = 2
OTHERS: Final = (1, 3)
PACE: Final = 300
"""Messages per second."""
BODY: Final = b"x" * 100
FROM_FIRST: Final = ConsumerConfig(consume_position=ConsumePosition.FIRST)
GRACE_S: Final = 2.0
"""After this time a way of working has settled."""
STREAM_GRACE_S: Final = 15.0
"""The first micro-batches take longer."""
HEARTBEATS: Final = "heartbeats"


class Meter:
    """Counts what comes, and keeps the longest time without anything; safe for threads."""

    def __init__(self) -> None:
        """Begin to count."""
        self._lock = threading.Lock()
        self.start()

    def start(self) -> None:
        """Begin again at nothing."""
        with self._lock:
            self._began = self._last = time.monotonic()
            self._count, self._stall = 0, 0.0

    def note(self, count: int = 1) -> None:
        """Count something that has come."""
        with self._lock:
            now = time.monotonic()
            self._stall = max(self._stall, now - self._last)
            self._last, self._count = now, self._count + count

    def read(self) -> "Reading":
        """Return what was counted since the beginning."""
        with self._lock:
            now = time.monotonic()
            return Reading(self._count / (now - self._began), max(self._stall, now - self._last))


@dataclasses.dataclass(frozen=True)
class Reading:
    """What came in some time."""

    rate: float
    stall_s: float


@dataclasses.dataclass(frozen=True)
class Line:
    """A way of using the client, with all brokers sound and with one frozen."""

    what: str
    control: Reading
    frozen: Reading


def measured(cluster: RealTubeMQ, what: str, meter: Meter, seconds: float) -> Line:
    """Measure work that goes on, first with all brokers and then with one of them frozen."""
    time.sleep(GRACE_S)
    meter.start()
    time.sleep(seconds)
    control = meter.read()
    cluster.pause_broker(FROZEN)
    try:
        meter.start()
        time.sleep(seconds)
        return Line(what, control, meter.read())
    finally:
        cluster.resume_broker(FROZEN)


@contextlib.contextmanager
def running(*works: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run functions in threads, which end when the event is set."""
    ended = threading.Event()
    threads = [threading.Thread(target=work, args=(ended,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join(60)


def paced(ended: threading.Event, send: Callable[[int], object]) -> None:
    """Call a function with rising numbers, so many times each second."""
    began = time.monotonic()
    for number in itertools.count():
        if ended.wait(max(0.0, began + number / PACE - time.monotonic())):
            return
        send(number)


def feed(master: str, topic: str) -> None:
    """Write to the brokers that are never frozen until this process is ended."""
    with TubeMQClient.connect(master, group="feeders") as client, client.producer() as producer:
        paced(
            threading.Event(),
            lambda number: producer.send(topic, BODY, partition=(OTHERS[number % len(OTHERS)], 0)),
        )


@contextlib.contextmanager
def fed(cluster: RealTubeMQ, topic: str) -> Iterator[None]:
    """Write to a topic from a process of its own during the block."""
    feeder = subprocess.Popen([sys.executable, __file__, "--feed", cluster.master, topic])
    try:
        yield
    finally:
        feeder.kill()
        feeder.wait()


def group(cluster: RealTubeMQ, topic: str, seconds: float) -> Line:
    """Read as a member of a group, in one thread."""
    meter = Meter()
    with (
        fed(cluster, topic),
        TubeMQClient.connect(cluster.master, group="members") as client,
        client.group_consumer(topic, settings=FROM_FIRST) as consumer,
    ):

        def consume(ended: threading.Event) -> None:
            while not ended.is_set():
                if (batch := consumer.fetch(200)) is not None:
                    consumer.confirm(batch)
                    meter.note(len(batch))

        await_all(lambda: len(consumer.connected))
        with running(consume):
            return measured(cluster, "group consumer", meter, seconds)


def asynchronous_group(cluster: RealTubeMQ, topic: str, seconds: float) -> Line:
    """Read as a member of a group, in one coroutine."""
    meter = Meter()
    ready = threading.Event()

    async def consume(ended: threading.Event) -> None:
        async with (
            AsyncTubeMQClient.connect(cluster.master, group="coroutines") as client,
            client.group_consumer(topic, settings=FROM_FIRST) as consumer,
        ):
            while not ended.is_set():
                if len(consumer.connected) == len(cluster.brokers):
                    ready.set()
                if (batch := await consumer.fetch(200)) is not None:
                    await consumer.confirm(batch)
                    meter.note(len(batch))

    with fed(cluster, topic), running(lambda ended: asyncio.run(consume(ended))):
        await_all(lambda: len(cluster.brokers) * ready.is_set())
        return measured(cluster, "asynchronous group consumer", meter, seconds)


def await_all(connected: Callable[[], int]) -> None:
    """Wait until a member has a partition of each broker."""
    deadline = time.monotonic() + 120
    while connected() < len(OTHERS) + 1:
        if time.monotonic() > deadline:
            raise RuntimeError("the master gave the member no partitions of some brokers for two minutes")
        time.sleep(0.1)


def keyed(cluster: RealTubeMQ, topic: str, seconds: float) -> Line:
    """Send messages with keys in one thread."""
    return produced(cluster, topic, seconds, "keyed producer", keys=True)


def unkeyed(cluster: RealTubeMQ, topic: str, seconds: float) -> Line:
    """Send messages without keys in one thread."""
    return produced(cluster, topic, seconds, "unkeyed producer", keys=False)


def produced(cluster: RealTubeMQ, topic: str, seconds: float, what: str, *, keys: bool) -> Line:
    """Send, and count the acknowledgements of the other brokers; without keys, of all."""
    meter = Meter()
    counted = OTHERS if keys else tuple(cluster.brokers)

    with (
        TubeMQClient.connect(cluster.master, group="writers") as client,
        contextlib.closing(client.producer()) as producer,
    ):

        def send(number: int) -> None:
            key = b"%d" % number if keys else None
            producer.send(topic, BODY, key=key, callback=note)

        def note(result: object, _error: object) -> None:
            if result is not None and result.partition.broker_id in counted:  # type: ignore[attr-defined]
                meter.note()

        with running(lambda ended: paced(ended, send)):
            return measured(cluster, what, meter, seconds)


def stream(cluster: RealTubeMQ, topic: str, seconds: float) -> Line:
    """Read with a streaming query of Spark."""
    meter = Meter()
    with tempfile.TemporaryDirectory() as folder, session(Path(folder)) as spark, fed(cluster, topic):
        spark.dataSource.register(TubeMQDataSource)
        frame = (
            spark.readStream.format("tubemq")
            .option("tubemq.master.servers", cluster.master)
            .option("subscribe", topic)
            .option("startingOffsets", "latest")
            .load()
        )
        query = (
            frame.writeStream.foreachBatch(
                lambda batch, _: meter.note(count) if (count := batch.count()) else None
            )
            .option("checkpointLocation", f"{folder}/checkpoint")
            .start()
        )
        try:
            while not meter.read().rate:
                if query.exception() is not None:
                    raise RuntimeError("the query ended") from query.exception()
                time.sleep(1)
            time.sleep(STREAM_GRACE_S)
            return measured(cluster, "stream, rows of the other brokers", meter, seconds)
        finally:
            query.stop()


def heartbeats(cluster: RealTubeMQ, topic: str, seconds: float) -> Line:
    """Measure the heartbeats of a member on one cluster while another one is frozen."""
    meter = Meter()
    with contextlib.ExitStack() as closing:
        other = closing.enter_context(RealTubeMQ({topic: TopicSpec()}))
        way = closing.enter_context(Forwarder(cluster.master, on_request=meter.note))
        for number in range(4):
            client = closing.enter_context(TubeMQClient.connect(other.master, group=f"others_{number}"))
            closing.enter_context(client.assigned_consumer(topic))
            closing.enter_context(contextlib.closing(client.producer())).publishable(topic)
        client = closing.enter_context(TubeMQClient.connect(way.address, group="members_of_a_sound_one"))
        consumer = closing.enter_context(client.group_consumer(topic, settings=FROM_FIRST))
        await_all(lambda: len(consumer.connected))
        meter.start()
        time.sleep(seconds)
        control = meter.read()
        other.pause()
        try:
            meter.start()
            time.sleep(seconds)
            return Line(HEARTBEATS, control, meter.read())
        finally:
            other.resume()


WAYS: Final = {
    "group": group,
    "async_group": asynchronous_group,
    "keyed": keyed,
    "unkeyed": unkeyed,
    "stream": stream,
    HEARTBEATS: heartbeats,
}


def show(lines: Sequence[Line]) -> None:
    """Draw the table."""
    table = Table(title="one of three brokers frozen; for heartbeats, a second cluster")
    for name in ("what", "rate, control", "rate, frozen", "ratio", "stall s, control", "stall s, frozen"):
        table.add_column(name, justify="left" if name == "what" else "right")
    for line in lines:
        ratio = line.frozen.rate / line.control.rate if line.control.rate else float("nan")
        rates = (f"{line.control.rate:.1f}", f"{line.frozen.rate:.1f}", f"{ratio:.2f}")
        table.add_row(line.what, *rates, f"{line.control.stall_s:.2f}", f"{line.frozen.stall_s:.2f}")
    screen.print(table)


def main() -> None:
    """Start the servers, measure one way after the other, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--seconds", type=float, default=25.0, help="of control, and of frozen, each")
    parser.add_argument("--feed", nargs=2, metavar=("MASTER", "TOPIC"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.feed:
        feed(*arguments.feed)
        return
    lines = []
    with RealTubeMQ({way: TopicSpec() for way in arguments.only}, brokers=3) as cluster:
        for way in arguments.only:
            screen.print(f"measuring {way}")
            seconds = max(arguments.seconds, 60.0) if way == HEARTBEATS else arguments.seconds
            lines.append(WAYS[way](cluster, way, seconds))
            # A master lists a broker again some time after it is back.
            time.sleep(0 if way == arguments.only[-1] else 35)
    show(lines)
    print(json.dumps([dataclasses.asdict(line) for line in lines]))


if __name__ == "__main__":
    main()
