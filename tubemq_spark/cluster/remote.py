"""The cluster reached through gateways: this process talks to one of them, and that to TubeMQ."""

from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Final

from tubemq_spark.client.producer.batch_sender import BatchSender
from tubemq_spark.client.remote.gateways import Gateways
from tubemq_spark.client.remote.pipeline import GatewayPipeline
from tubemq_spark.client.remote.queries import Queries
from tubemq_spark.client.remote.ranges import read_remote_range_in_thread
from tubemq_spark.cluster.base import Cluster, Sender
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import (
    OffsetBounds,
    RangeRequest,
    StoreBounds,
    StoredOffset,
    StoredOffsets,
    StoreId,
    TopicPartition,
    TopicsLayout,
)
from tubemq_spark.net import loop
from tubemq_spark.net.retry import SLEEP, Wait
from tubemq_spark.offsets.loss import LossPolicy
from tubemq_spark.protocol.constants import MAX_TOPICS
from tubemq_spark.protocol.fetch_columns import FetchedBatch
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, values
from tubemq_spark.protocol.gateway.limits import chunks

_READ_AHEAD: Final = 2
"""How many batches a task's reader is ahead."""


class RemoteCluster(Cluster):
    """A cluster over gateways, which it shares with others and does not close.

    A cluster ``for_task`` reads a few batches of a range ahead.
    """

    def __init__(self, gateways: Gateways, *, for_task: bool = False) -> None:
        self._gateways = gateways
        self._for_task = for_task
        self._queries = Queries(gateways)

    def layout(self, topics: Iterable[str], *, missing_ok: bool = False) -> TopicsLayout:
        """Ask a master; the layout has no visit token, which the gateway keeps."""
        return loop.run(self._queries.layout(topics, missing_ok=missing_ok))

    def topics(self) -> Collection[str]:
        """Ask the masters' administration API."""
        return loop.run(self._queries.topics())

    def bounds(
        self,
        layout: TopicsLayout,
        stores: Collection[StoreId] | None = None,
        *,
        flushed: bool = False,
        timeout_ms: int | None = None,
    ) -> StoreBounds:
        """Ask the brokers of all these stores at once."""
        to_ask = layout.stores if stores is None else stores
        return loop.run(self._queries.bounds(to_ask, flushed=flushed, timeout_ms=timeout_ms))

    def first_readable(
        self,
        layout: TopicsLayout,  # noqa: ARG002 (the gateway knows where partitions are)
        begins: Mapping[TopicPartition, OffsetBounds],
        wait: Wait = SLEEP,  # noqa: ARG002 (the call has a deadline)
    ) -> dict[TopicPartition, int]:
        """Read the first records of several partitions at once."""
        offsets: dict[TopicPartition, int] = {}
        for part in chunks(begins):
            request = pb.QueryFirstReadableRequest()
            for partition in part:
                request.begins.add(
                    partition=values.partition_to_proto(partition),
                    bounds=values.bounds_to_proto(begins[partition]),
                )
            answer = self._gateways.call(
                "QueryFirstReadable",
                request,
                pb.QueryFirstReadableResponse,
                "looking for the first records",
                self._gateways.config.lease_wait_ms,
            )
            offsets |= values.offsets_from_proto(answer.offsets)
        return offsets

    def group_positions(self, layout: TopicsLayout) -> Mapping[TopicPartition, int]:
        """Register the group in each partition for a moment."""
        during = f"asking where the group {self._gateways.config.group} stands"
        positions: dict[TopicPartition, int] = {}
        for part in chunks(layout.partitions):
            request = pb.QueryGroupPositionsRequest(partitions=map(values.partition_to_proto, part))
            answer = self._gateways.call(
                "QueryGroupPositions", request, pb.QueryGroupPositionsResponse, during
            )
            positions |= values.offsets_from_proto(answer.offsets)
        return positions

    def stored_offsets(self, group: str | None = None, topics: Collection[str] = ()) -> StoredOffsets:
        """Ask the brokers' administration API."""
        offsets: list[StoredOffset] = []
        failures: dict[int, TubeMQError] = {}
        for part in chunks(topics, MAX_TOPICS):
            request = pb.QueryStoredOffsetsRequest(group=group, topics=part)
            while True:
                answer = self._gateways.call(
                    "QueryStoredOffsets", request, pb.QueryStoredOffsetsResponse, "asking where groups stand"
                )
                page = values.stored_offsets_from_proto(answer)
                offsets += page.offsets
                failures |= page.failures
                request.page_token = answer.next_page_token
                if not request.page_token:
                    break
        return StoredOffsets(tuple(offsets), failures)

    def move_group(
        self,
        layout: TopicsLayout,  # noqa: ARG002 (the gateway knows where partitions are)
        positions: Mapping[TopicPartition, int],
    ) -> Mapping[TopicPartition, TubeMQError]:
        """Register the group in each partition at its offset, for a moment."""
        during = f"moving the group {self._gateways.config.group}"
        failures: dict[TopicPartition, TubeMQError] = {}
        for part in chunks(positions):
            request = pb.ResetOffsetsRequest(
                positions=values.offsets_to_proto({place: positions[place] for place in part})
            )
            answer = self._gateways.call("ResetOffsets", request, pb.ResetOffsetsResponse, during)
            failures |= values.reset_failures_from_proto(answer)
        return failures

    def read_range(
        self, request: RangeRequest, on_loss: LossPolicy, wait: Wait = SLEEP
    ) -> Generator[FetchedBatch, None, None]:
        """Read through a gateway, and through another one when that is lost."""
        return read_remote_range_in_thread(
            self._gateways,
            request,
            on_loss,
            wait,
            ahead=_READ_AHEAD if self._for_task else 0,
            tells_idle=self._for_task,
        )

    def refuse_unknown_topic(self, topic: str) -> None:
        """Ask a master."""
        loop.run(self._queries.publishable(topic))

    def await_publishable(self, topic: str) -> None:
        """Ask a master, again and again for ``delivery_timeout_ms``."""
        loop.run(self._queries.await_publishable(topic))

    def sender(self, name: str = "") -> AbstractContextManager[Sender]:
        """Return a sender that begins a publish stream when it is first used."""
        return BatchSender(GatewayPipeline(self._gateways, name, per_message=False))
