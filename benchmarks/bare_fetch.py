"""A reader that looks into no message: it fetches and confirms, for the bound of what a server gives."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from tubemq_spark.client import ClientConfig
from tubemq_spark.client.broker.reader_groups import ReaderGroupHolder
from tubemq_spark.client.broker.session import MEMORY_TOO
from tubemq_spark.cluster.config import ClusterConfig
from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.model import Endpoint, Route, TopicPartition
from tubemq_spark.net.call import Call
from tubemq_spark.net.connection import Connection
from tubemq_spark.net.connections import Connections
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.constants import Method, ServiceType
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.pb import broker_pb2 as pb

_TIMEOUT_MS: Final = 10_000
_LARGEST_REFUSAL: Final = 4096
"""An answer without messages is shorter than that, in bytes."""


@dataclass(frozen=True, slots=True)
class OnlyPartition:
    """A topic's only partition, and where it ends."""

    partition: TopicPartition
    endpoint: Endpoint
    visit_token: int
    end: int
    """In bytes of the index."""


def only_partition(config: ClientConfig, topic: str) -> OnlyPartition:
    """Ask the cluster for the only partition of a topic."""
    cluster = open_cluster(ClusterConfig(config))
    layout = cluster.layout([topic])
    ((partition, endpoint),) = layout.partitions.items()
    end = cluster.bounds(layout).by_store[partition.store_id].latest
    return OnlyPartition(partition, endpoint, layout.visit_token, end)


@contextlib.asynccontextmanager
async def fetching(
    config: ClientConfig, only: OnlyPartition
) -> AsyncIterator[tuple[Callable[[], Call], Callable[[], Awaitable[int]]]]:
    """Lease a partition from its start.

    Gives what starts a fetch, which confirms the one before, and what commits it and returns the position.
    """
    connections = Connections(config.connect_timeout_ms)
    route = Route(only.endpoint, only.visit_token)
    holder = ReaderGroupHolder(config, connections, only.partition, route, query_priority=MEMORY_TOO)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(connections.close)
        await stack.enter_async_context(holder)
        await holder.acquire(0)
        session, claim = holder.lease.session, holder.lease.claim
        connection: Connection = await connections.get(only.endpoint)
        request = pb.GetMessageRequestC2B(
            clientId=claim.client_id,
            groupName=claim.group,
            topicName=claim.partition.topic,
            partitionId=claim.partition.partition_id,
            lastPackConsumed=True,
        )

        def start() -> Call:
            return connection.start(
                ServiceType.BROKER_READ,
                Method.GET_MESSAGE,
                request,
                timeout_ms=_TIMEOUT_MS,
                during="reading",
            )

        async def commit() -> int:
            return (await session.start_commit(claim, consumed=True)).current

        yield start, commit


async def body_of(call: Call) -> bytes | memoryview:
    """Return the answer to a fetch."""
    await call
    return call.body("reading")


def fetch_all(config: ClientConfig, topic: str) -> int:
    """Fetch a topic to its end, one request per fetch and one under way; return the bytes of all answers.

    Raises:
        RuntimeError: the broker refused for another reason than the topic's end.
    """
    return asyncio.run(_fetch_all(config, only_partition(config, topic)))


async def _fetch_all(config: ClientConfig, only: OnlyPartition) -> int:
    total = 0
    async with fetching(config, only) as (start, _):
        while not _is_end(body := await body_of(start())):
            total += len(body)
    return total


def _is_end(body: bytes | memoryview) -> bool:
    if len(body) >= _LARGEST_REFUSAL:
        return False
    answer = rpc.parse_message(pb.GetMessageResponseB2C, body)
    if answer.success:
        return False
    if answer.errCode != ErrCode.NOT_FOUND:
        raise RuntimeError(f"the broker refused a fetch with {answer.errCode}: {answer.errMsg}")
    return True
