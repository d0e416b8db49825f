"""What bounds rows/s: a loop that fetches and confirms, from the same broker, without Spark or decoding."""

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from benchmarks.kafka.systems import SIZES, topic_of
from benchmarks.meter import SECONDS, SERVER_CPU
from benchmarks.turns import Figures, Key, Line, Section
from tubemq_spark.client import ClientConfig
from tubemq_spark.client.broker.lease import ReaderGroupHolder
from tubemq_spark.client.broker.session import MEMORY_TOO
from tubemq_spark.cluster.config import ClusterConfig
from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.model import Endpoint, Route, TopicPartition
from tubemq_spark.net.connections import Connections
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.constants import Method, ServiceType
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.pb import broker_pb2 as pb

CLIENT_CPU: Final = "client's CPU s"
BARE: Final = "fetch and confirm"


def bound_ways(
    master: str, rows: Mapping[str, int], broker_cpu: Callable[[], float]
) -> dict[Key, Callable[[], Figures]]:
    """Return the measurements by message size."""
    config = ClientConfig((Endpoint.parse(master),), "bench")
    return {
        (label, BARE): functools.partial(_measure, config, label, count, broker_cpu)
        for label, count in rows.items()
    }


def _measure(config: ClientConfig, label: str, rows: int, broker_cpu: Callable[[], float]) -> Figures:
    broker, client, began = broker_cpu(), time.process_time(), time.perf_counter()
    received = fetch_all(config, topic_of(label))
    found = {
        SECONDS: time.perf_counter() - began,
        CLIENT_CPU: time.process_time() - client,
        SERVER_CPU: broker_cpu() - broker,
    }
    if received < rows * SIZES[label]:
        raise RuntimeError(f"the broker gave {received} bytes for {rows} messages of {label}")
    return found


def bound_section(found: Mapping[Key, Sequence[Figures]], rows: Mapping[str, int]) -> Section:
    """Return the table."""
    lines = []
    for (label, what), all_ in found.items():
        count = rows[label]

        def line(unit: str, values: Sequence[float], what: str = f"{what}, {label}") -> Line:
            return Line(what, unit, {"TubeMQ": values})

        lines += [
            line("rows/s", [count / one[SECONDS] for one in all_]),
            line("client's CPU us/row", [one[CLIENT_CPU] / count * 1e6 for one in all_]),
            line("broker's CPU us/row", [one[SERVER_CPU] / count * 1e6 for one in all_]),
        ]
    return Section(
        "the broker alone: one connection, one request per fetch, nothing decoded", ("TubeMQ",), lines
    )


_TIMEOUT_MS: Final = 10_000
_LARGEST_REFUSAL: Final = 4096
"""An answer without messages is shorter than that, in bytes."""


def fetch_all(config: ClientConfig, topic: str) -> int:
    """Fetch a topic's only partition to its end; return the bytes of all answers.

    Each fetch is a request that confirms the one before; one is under way at a time.
    """
    layout = open_cluster(ClusterConfig(config)).layout([topic])
    ((partition, endpoint),) = layout.partitions.items()
    return asyncio.run(_fetch_all(config, partition, Route(endpoint, layout.visit_token)))


async def _fetch_all(config: ClientConfig, partition: TopicPartition, route: Route) -> int:
    connections = Connections(config.connect_timeout_ms)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(connections.close)
        holder = ReaderGroupHolder(config, connections, partition, route, query_priority=MEMORY_TOO)
        await stack.enter_async_context(holder)
        await holder.acquire(0)
        claim = holder.lease.claim
        connection = await connections.get(route.endpoint)
        request = pb.GetMessageRequestC2B(
            clientId=claim.client_id,
            groupName=claim.group,
            topicName=claim.partition.topic,
            partitionId=claim.partition.partition_id,
            lastPackConsumed=True,
        )
        total = 0
        while True:
            call = connection.start(
                ServiceType.BROKER_READ,
                Method.GET_MESSAGE,
                request,
                timeout_ms=_TIMEOUT_MS,
                during="reading",
            )
            await call
            body = call.body("reading")
            if _is_end(body):
                return total
            total += len(body)


def _is_end(body: bytes | memoryview) -> bool:
    if len(body) >= _LARGEST_REFUSAL:
        return False
    answer = rpc.parse_message(pb.GetMessageResponseB2C, body)
    if answer.success:
        return False
    if answer.errCode != ErrCode.NOT_FOUND:
        raise RuntimeError(f"the broker refused a fetch with {answer.errCode}: {answer.errMsg}")
    return True
