"""What ten thousand clients cost one gateway process, and what becomes of them when it has too much to do.

    python -m benchmarks.gateway_scale
    python -m benchmarks.gateway_scale --sessions 1000 --consumers 200 --only calls sessions

- *calls*: the gateway's processor time per call: a heartbeat, a range of 100 rows, the same range refused
  because the gateway is busy, and refused because it does not know the session;
- *sessions*: memory of a session, and how long heartbeats take when each session sends one every ten seconds;
- *consumers*: threads and memory of sessions that have each attached a partition;
- *loss*: one of two gateways is killed: the time until the other one has answered the last of its clients;
- *overload*: three times as many ranges per second as it serves, for some seconds: how many are served, and
  how soon afterwards calls are answered as before.

The server and the gateways are processes of their own; the clients are one event loop with a few dozen
connections. A client that is refused waits as long as it is told, or backs off, shortened at random. JSON is
the last line.
"""

import argparse
import asyncio
import contextlib
import itertools
import os
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from benchmarks.gateway import Figures, fill, screen, show
from integration_tests.rig.processes import ServerProcess
from testkit.attacks import p99
from testkit.gateway_caller import OPTIONS, AsyncCaller, GatewayProcess
from tubemq_spark.model import INDEX_ENTRY_BYTES
from tubemq_spark.protocol.gateway import gateway_pb2 as pb
from tubemq_spark.protocol.gateway.failures import ERROR_TRAILER

PARTS: Final = ("calls", "sessions", "consumers", "loss", "overload")
TOPIC: Final = "rows"
_CONSUMED: Final = "consumed"
_STORES, _PARTITIONS = 1, 100
_CHANNELS: Final = 32
_ROWS: Final = 100
_AT_ONCE: Final = 200
_EVERY_S: Final = 10.0
_LIMIT_S: Final = 120.0


def _of_many(count: int) -> list[str]:
    """Return settings of a gateway for so many sessions of one host.

    A client of a gateway leaves room to others, so the limit is twice as many. To open them all takes longer
    than a lease.
    """
    return [f"--sessions={2 * count + 100}", "--lease-ms=1800000"]


class Clients:
    """Sessions over a few connections to one gateway."""

    def __init__(self, address: str) -> None:
        """Connect to no gateway."""
        self._channels = [grpc.aio.insecure_channel(address, OPTIONS) for _ in range(_CHANNELS)]
        self._turn = itertools.cycle(self._channels)

    def client(self, name: str) -> AsyncCaller:
        """Return a client without a session."""
        return AsyncCaller(next(self._turn), f"{os.getpid()}_{name}")

    def move(self, client: AsyncCaller) -> None:
        """Move a client of another gateway here."""
        client.channel = next(self._turn)

    async def close(self) -> None:
        """Close the connections."""
        for channel in self._channels:
            await channel.close()


async def side_by_side(work: Iterable[Awaitable[Any]], at_once: int = _AT_ONCE) -> list[Any]:
    """Await all, so many at a time."""
    limit = asyncio.Semaphore(at_once)

    async def limited(awaitable: Awaitable[Any]) -> Any:  # noqa: ANN401 (of any type)
        async with limit:
            return await awaitable

    return await asyncio.gather(*map(limited, work))


async def opened(clients: Clients, prefix: str, count: int, group: str | None = "bench") -> list[AsyncCaller]:
    """Open sessions, of one group or each of a group of its own."""
    sessions = [clients.client(f"{prefix}_{number}") for number in range(count)]
    await side_by_side(
        patiently(lambda session=session, name=group or f"bench_{number}": session.open(name))
        for number, session in enumerate(sessions)
    )
    return sessions


class NotAttachedError(Exception):
    """A broker or a master took too long for a consumer."""


async def patiently(ask: Callable[[], Awaitable[Any]], refusals: Counter[str] | None = None) -> None:
    """Repeat a call until it is answered, as a client does: after what it is told, or doubling pauses."""
    end = time.monotonic() + _LIMIT_S
    pause_s = 0.1
    while True:
        try:
            await ask()
        except (grpc.aio.AioRpcError, NotAttachedError) as error:
            if time.monotonic() > end:
                raise
            told_s = 0.0
            if isinstance(error, grpc.aio.AioRpcError):
                told_s = retry_after_s(error)
                if refusals is not None:
                    refusals[error.code().name] += 1
            await asyncio.sleep((told_s or pause_s) * random.uniform(0.5, 1.5))
            pause_s = min(2 * pause_s, 2.0)
        else:
            return


def retry_after_s(error: grpc.aio.AioRpcError) -> float:
    """Return when the gateway says that the call may be repeated; 0: it does not say so."""
    for key, value in error.trailing_metadata() or ():
        if key == ERROR_TRAILER and isinstance(value, bytes):
            return float(pb.TubeError.FromString(value).retry_after_ms) / 1000
    return 0.0


async def read(client: AsyncCaller, timeout: float = 30) -> int:
    """Read the range of 100 rows; return how many came."""
    rows = 0
    partition = pb.Partition(topic=TOPIC, broker_id=1, partition_id=0)
    end = _ROWS * INDEX_ENTRY_BYTES
    async for event in client(
        "ReadRange", timeout=timeout, partition=partition, start=0, end=end, own_store=True
    ):
        rows += event.batch.count
    return rows


async def outcome(work: Awaitable[Any]) -> str:
    """Return the status of a call."""
    try:
        await work
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return "OK"


async def cpu_us(gateway: GatewayProcess, calls: int, ask: Callable[[int], Awaitable[Any]]) -> float:
    """Return the gateway's processor time per call, in microseconds."""
    await side_by_side(ask(number) for number in range(min(50, calls)))
    before = gateway.cpu_s
    await side_by_side((ask(number) for number in range(calls)), at_once=32)
    return (gateway.cpu_s - before) / calls * 1e6


async def measure_calls(server: ServerProcess, count: int) -> Figures:
    """Count the processor time of calls of each kind."""
    figures: Figures = {}
    with GatewayProcess(server.master, "--log-level=WARNING") as gateway:
        clients = Clients(gateway.address)
        sessions = await opened(clients, "calls", 32, None)
        figures["CPU us: heartbeat"] = await cpu_us(
            gateway, count, lambda number: sessions[number % 32]("Heartbeat")
        )
        figures["CPU us: range of 100 rows"] = await cpu_us(
            gateway, count // 4, lambda number: read(sessions[number % 32])
        )
        stranger = clients.client("stranger")
        figures["CPU us: range refused, session unknown"] = await cpu_us(
            gateway, count, lambda _: outcome(read(stranger))
        )
        await clients.close()
    with GatewayProcess(server.master, "--log-level=WARNING", *BUSY) as gateway:
        clients = Clients(gateway.address)
        (reader,) = await opened(clients, "busy", 1)
        # Calls that are not read keep the only thread, and the only place to wait.
        stalled = [
            reader(
                "ReadRange",
                partition=pb.Partition(topic="large", broker_id=1, partition_id=0),
                start=0,
                end=_LARGE_ROWS * INDEX_ENTRY_BYTES,
                own_store=True,
            )
            for _ in range(4)
        ]
        for call in stalled:
            call.add_done_callback(lambda _: None)
        await asyncio.sleep(1.0)
        statuses: Counter[str] = Counter()

        async def ask(_: int) -> None:
            statuses[await outcome(read(reader))] += 1

        figures["CPU us: range refused, busy"] = await cpu_us(gateway, count, ask)
        figures["of them refused, %"] = 100 * statuses["RESOURCE_EXHAUSTED"] / statuses.total()
        for call in stalled:
            call.cancel()
        await clients.close()
    figures["range refused to range served, %"] = (
        100 * figures["CPU us: range refused, busy"] / figures["CPU us: range of 100 rows"]
    )
    return figures


BUSY: Final = ("--reads=1", "--waiting-calls=1", "--queue-ms=600000", "--stall-ms=600000")
_LARGE_ROWS: Final = 256
_LARGE_ROW_BYTES: Final = 200 << 10


async def beat(sessions: list[AsyncCaller], seconds: float, every_s: float = _EVERY_S) -> list[float]:
    """Send heartbeats of all sessions in turn, each once every so often; return their times in ms."""
    took: list[float] = []
    under_way: set[asyncio.Task[None]] = set()

    async def once(session: AsyncCaller) -> None:
        began = time.perf_counter()
        await session("Heartbeat")
        took.append((time.perf_counter() - began) * 1000)

    pause_s = min(every_s / len(sessions), seconds / 20)
    began = time.perf_counter()
    for number in range(int(seconds / pause_s)):
        await asyncio.sleep(max(0.0, began + number * pause_s - time.perf_counter()))
        task = asyncio.ensure_future(once(sessions[number % len(sessions)]))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
    await asyncio.gather(*under_way)
    return took


async def measure_sessions(server: ServerProcess, count: int, seconds: float) -> Figures:
    """Open sessions, and send their heartbeats."""
    with GatewayProcess(server.master, "--log-level=WARNING", *_of_many(count)) as gateway:
        clients = Clients(gateway.address)
        await opened(clients, "warm", 32)
        before = gateway.memory_bytes
        began = time.perf_counter()
        sessions = await opened(clients, "session", count)
        figures = {
            "sessions": float(count),
            "sessions: opened a second": count / (time.perf_counter() - began),
            "sessions: bytes of memory each": (gateway.memory_bytes - before) / count,
        }
        cpu, began = gateway.cpu_s, time.perf_counter()
        took = await beat(sessions, seconds)
        figures |= {
            "sessions: % of a core for a heartbeat each 10 s": 100
            * (gateway.cpu_s - cpu)
            / (time.perf_counter() - began),
            "sessions: heartbeat p50 ms": statistics.median(took),
            "sessions: heartbeat p99 ms": p99(took),
            "sessions: threads": float(gateway.threads),
        }
        await clients.close()
        return figures


async def measure_consumers(server: ServerProcess, count: int, seconds: float) -> Figures:
    """Attach a partition to each of many sessions."""
    with GatewayProcess(server.master, "--log-level=WARNING", *_of_many(count)) as gateway:
        clients = Clients(gateway.address)
        consumers = [clients.client(f"consumer_{number}") for number in range(count)]
        before, began = gateway.memory_bytes, time.perf_counter()

        async def attach(number: int, consumer: AsyncCaller) -> None:
            place = pb.Partition(topic=_CONSUMED, broker_id=1, partition_id=number % _PARTITIONS)
            request = pb.AttachPartitionsRequest.Wanted(partition=place)

            async def ask() -> None:
                answer = await consumer("AttachPartitions", partitions=[request])
                if answer.partitions[0].HasField("error"):
                    raise NotAttachedError(answer.partitions[0].error.text)

            await patiently(lambda: consumer.open(f"consumers_{number // _PARTITIONS}"))
            await patiently(ask)

        await side_by_side(
            (attach(number, consumer) for number, consumer in enumerate(consumers)), at_once=64
        )
        figures = {
            "consumers": float(count),
            "consumers: attached a second": count / (time.perf_counter() - began),
            "consumers: bytes of memory each": (gateway.memory_bytes - before) / count,
            "consumers: threads": float(gateway.threads),
        }
        cpu, began = gateway.cpu_s, time.perf_counter()
        took = await beat(consumers, seconds)
        figures |= {
            "consumers: % of a core, heartbeats to and from them": 100
            * (gateway.cpu_s - cpu)
            / (time.perf_counter() - began),
            "consumers: heartbeat p50 ms": statistics.median(took),
            "consumers: heartbeat p99 ms": p99(took),
        }
        await clients.close()
        gateway.kill()
        return figures


async def measure_loss(server: ServerProcess, count: int) -> Figures:
    """Kill one gateway of two."""
    with (
        GatewayProcess(server.master, "--log-level=WARNING", *_of_many(count)) as lost,
        GatewayProcess(server.master, "--log-level=WARNING", *_of_many(count)) as survivor,
    ):
        from_lost, at_left = Clients(lost.address), Clients(survivor.address)
        others = await opened(at_left, "stay", count // 2)
        moving = await opened(from_lost, "move", count - count // 2)
        lost.kill()
        began = time.perf_counter()
        refusals: Counter[str] = Counter()
        served: list[float] = []

        async def move(client: AsyncCaller) -> None:
            # All notice at once here; otherwise they would within the time between two heartbeats.
            await outcome(client("Heartbeat", timeout=5))
            at_left.move(client)
            await patiently(lambda: client.open("bench"), refusals)
            await patiently(lambda: client("Heartbeat"), refusals)
            served.append(time.perf_counter() - began)

        beside = asyncio.ensure_future(beat(others[:100], 2.0, every_s=1.0))
        await asyncio.gather(*map(move, moving))
        took = await beside
        await from_lost.close()
        await at_left.close()
        return {
            "loss: clients that move at once": float(len(moving)),
            "loss: s until half are served": statistics.median(served),
            "loss: s until all are served": max(served),
            "loss: refusals": float(refusals.total()),
            "loss: heartbeat of the others p99 ms": p99(took),
        }


async def measure_overload(server: ServerProcess, count: int, seconds: float) -> Figures:
    """Offer three times what is served, then stop."""
    with GatewayProcess(server.master, "--log-level=WARNING", *_of_many(count)) as gateway:
        clients = Clients(gateway.address)
        readers = await opened(clients, "reader", 64, None)
        (probe,) = await opened(clients, "probe", 1, "probe")
        for reader in readers:
            await read(reader)
        end = time.perf_counter() + seconds
        answers = 0

        async def again(reader: AsyncCaller) -> None:
            nonlocal answers
            while time.perf_counter() < end:
                answered = await outcome(read(reader)) == "OK"
                answers += answered

        await asyncio.gather(*map(again, readers))
        rate = answers / seconds
        quiet = await timed(lambda: read(probe), 50)

        statuses: Counter[str] = Counter()
        during: list[float] = []

        async def offer(reader: AsyncCaller) -> None:
            statuses[await outcome(read(reader, timeout=10))] += 1

        async def look() -> None:
            while True:
                during.extend(await timed(lambda: probe("Heartbeat"), 1))
                await asyncio.sleep(0.05)

        looking = asyncio.ensure_future(look())
        waiting: set[asyncio.Task[None]] = set()
        began = time.perf_counter()
        for number in range(int(3 * rate * seconds)):
            await asyncio.sleep(max(0.0, began + number / (3 * rate) - time.perf_counter()))
            task = asyncio.ensure_future(offer(readers[number % len(readers)]))
            waiting.add(task)
            task.add_done_callback(waiting.discard)
        offered_s = time.perf_counter() - began
        in_time = statuses["OK"]
        stopped = time.perf_counter()
        looking.cancel()
        # It is as before when a range takes no longer than it did, ten times in a row.
        bound = max(2 * p99(quiet), 50.0)
        good = 0
        while good < 10 and time.perf_counter() - stopped < _LIMIT_S:
            started = time.perf_counter()
            sound = await outcome(read(probe)) == "OK" and (time.perf_counter() - started) * 1000 <= bound
            good = good + 1 if sound else 0
        recovered = time.perf_counter() - stopped
        await asyncio.gather(*waiting)
        after = Counter([await outcome(read(reader)) for reader in readers])
        await clients.close()
        return {
            "overload: ranges served a second, usual": rate,
            "overload: ranges offered a second": int(3 * rate * seconds) / offered_s,
            "overload: ranges served a second": in_time / offered_s,
            "overload: refused": float(statuses.total() - statuses["OK"]),
            "overload: heartbeat p99 ms": p99(during),
            "overload: s until ranges take as long as before": recovered,
            "overload: refused afterwards": float(after.total() - after["OK"]),
        }


async def timed(ask: Callable[[], Awaitable[Any]], count: int) -> list[float]:
    """Return how long calls take, one after the other, in ms."""
    took = []
    for _ in range(count):
        began = time.perf_counter()
        with contextlib.suppress(grpc.aio.AioRpcError):
            await ask()
        took.append((time.perf_counter() - began) * 1000)
    return took


def measure(arguments: argparse.Namespace, folder: Path) -> Figures:
    """Measure the parts."""
    topics = {TOPIC: (1, 1), "large": (1, 1), _CONSUMED: (_STORES, _PARTITIONS)}
    results: Figures = {}
    with ServerProcess(folder / "data", topics, folder / "log") as server:
        fill(server.master, TOPIC, 100, _ROWS)
        fill(server.master, "large", _LARGE_ROW_BYTES, _LARGE_ROWS)
        parts: dict[str, Callable[[], Any]] = {
            "calls": lambda: measure_calls(server, arguments.calls),
            "sessions": lambda: measure_sessions(server, arguments.sessions, arguments.seconds),
            "consumers": lambda: measure_consumers(server, arguments.consumers, arguments.seconds),
            "loss": lambda: measure_loss(server, arguments.sessions),
            "overload": lambda: measure_overload(server, arguments.sessions, arguments.seconds),
        }
        for part in arguments.only:
            screen.print(part)
            results |= asyncio.run(parts[part]())
    return results


def parser() -> argparse.ArgumentParser:
    """Return the arguments."""
    command_line = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command_line.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    command_line.add_argument("--sessions", type=int, default=10_000)
    command_line.add_argument(
        "--consumers", type=int, default=10_000, help="sessions that attach a partition"
    )
    command_line.add_argument("--calls", type=int, default=4_000, help="calls of each kind")
    command_line.add_argument("--seconds", type=float, default=10, help="how long each state lasts")
    return command_line


def main() -> None:
    """Measure and print."""
    arguments = parser().parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = measure(arguments, Path(folder))
    show(results)


if __name__ == "__main__":
    main()
