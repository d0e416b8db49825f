"""A cluster reached through gateways: this process talks to one of them, and that to TubeMQ.

A layout has no visit token here, and no brokers that this process could reach: the gateway knows where
partitions are. gRPC is needed for gateways only, so this is imported where gateways are named.
"""

import dataclasses
import weakref
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.remote import check_access
from tubemq_spark.client.remote.gateways import Gateways
from tubemq_spark.client.remote.ranges import read_remote_range
from tubemq_spark.client.transport.base import Transport
from tubemq_spark.errors import RemoteProtocolError, TubeMQError
from tubemq_spark.model import (
    Endpoint,
    OffsetBounds,
    RangeRequest,
    StoreBounds,
    StoredOffset,
    StoredOffsets,
    StoreId,
    TopicPartition,
    TopicsLayout,
)
from tubemq_spark.net.connections import Connections
from tubemq_spark.offsets.loss import LossRecord
from tubemq_spark.protocol.constants import MAX_TOPICS
from tubemq_spark.protocol.fetch_columns import FetchedBatch
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, values
from tubemq_spark.protocol.gateway.batches import MalformedMessageError
from tubemq_spark.protocol.gateway.service import chunks
from tubemq_spark.settings.fields import bad_setting

if TYPE_CHECKING:
    from tubemq_spark.client.consumer.assigned.core import AssignedCoreBase
    from tubemq_spark.client.consumer.core import ConsumerCore, ConsumerSetup
    from tubemq_spark.client.producer.pipeline import Pipeline, RunUserCode

Result = TypeVar("Result")


class GatewayTransport(Transport):
    """A cluster over gateways, which any of them may serve; coroutines of any event loop may use it."""

    def __init__(self, gateways: Gateways) -> None:
        """Ask these gateways; ``close`` is not for those that are shared with others."""
        self.config = gateways.config
        self._gateways = gateways
        self._closed = False
        self._of_config: dict[ClientConfig, Self] = {}
        self._own: weakref.WeakSet[Gateways] = weakref.WeakSet()
        """Those with a session of their own, of producers and consumers."""

    def with_config(
        self,
        config: ClientConfig,
        web: Sequence[Endpoint] = (),  # noqa: ARG002 (the gateway knows)
    ) -> Self:
        """See ``Transport``; equal settings have one session."""
        if config == self.config:
            return self
        if config not in self._of_config:
            self._of_config[config] = type(self)(self._own_gateways(config))
        return self._of_config[config]

    def with_connections(self, connections: Connections) -> Self:  # noqa: ARG002 (it uses none)
        """Return this transport, which coroutines of any loop may use."""
        return self

    def close(self) -> None:
        """Close all sessions and connections; what uses them is refused from now on."""
        self._closed = True
        for transport in self._of_config.values():
            transport.close()
        for gateways in (*self._own, self._gateways):
            gateways.refuse_calls()
            gateways.close()

    def _own_gateways(self, config: ClientConfig, kind: str = "Pull") -> Gateways:
        """Return gateways with a session of their own."""
        check_access(config, self._gateways.token)
        gateways = self._gateways.for_config(config, kind)
        self._own.add(gateways)
        if self._closed:
            gateways.refuse_calls()
        return gateways

    # Topics.

    async def layout(self, topics: Iterable[str], *, missing_ok: bool = False) -> TopicsLayout:
        """See ``Transport``."""
        parts = chunks(topics, MAX_TOPICS)
        return TopicsLayout.joined([await self._layout(part, missing_ok=missing_ok) for part in parts])

    async def topics(self) -> Collection[str]:
        """See ``Transport``."""
        request, topics = pb.ListTopicsRequest(), set[str]()
        while True:
            answer = await self._gateways.calling(
                "ListTopics", request, pb.ListTopicsResponse, "listing the topics"
            )
            topics.update(answer.topics)
            request.page_token = answer.next_page_token
            if not request.page_token:
                return topics

    async def publishable(self, topic: str) -> tuple[TopicPartition, ...]:
        """See ``Transport``."""
        answer = await self._check_topic(topic, publishable=False)
        return tuple(sorted(map(values.partition_from_proto, answer.partitions)))

    async def await_publishable(self, topic: str) -> None:
        """See ``Transport``."""
        await self._check_topic(topic, publishable=True)

    async def _layout(self, topics: list[str], *, missing_ok: bool) -> TopicsLayout:
        request = pb.QueryRouteRequest(topics=topics, missing_ok=missing_ok)
        answer = await self._gateways.calling(
            "QueryRoute", request, pb.QueryRouteResponse, "asking for a layout"
        )
        return sound(lambda: values.layout_from_proto(answer))

    async def _check_topic(self, topic: str, *, publishable: bool) -> pb.CheckTopicResponse:
        request = pb.CheckTopicRequest(topic=topic, publishable=publishable)
        extra_ms = self.config.delivery_timeout_ms if publishable else 0
        return await self._gateways.calling(
            "CheckTopic", request, pb.CheckTopicResponse, f"asking for topic {topic}", extra_ms
        )

    # Offsets.

    async def bounds(
        self,
        layout: TopicsLayout,
        stores: Collection[StoreId] | None = None,
        *,
        flushed: bool = False,
        timeout_ms: int | None = None,
    ) -> StoreBounds:
        """See ``Transport``."""
        bounds = StoreBounds({}, {})
        for to_ask in chunks(layout.stores if stores is None else stores):
            request = pb.QueryBoundsRequest(
                stores=values.stores_to_proto(to_ask), flushed=flushed, timeout_ms=timeout_ms
            )
            answer = await self._gateways.calling(
                "QueryBounds", request, pb.QueryBoundsResponse, "asking for bounds"
            )
            part = sound(partial(values.store_bounds_from_proto, answer, to_ask))
            bounds = StoreBounds({**bounds.by_store, **part.by_store}, {**bounds.failures, **part.failures})
        return bounds

    async def first_readable(
        self,
        layout: TopicsLayout,  # noqa: ARG002 (the gateway knows where partitions are)
        begins: Mapping[TopicPartition, OffsetBounds],
    ) -> dict[TopicPartition, int]:
        """See ``Transport``."""
        offsets: dict[TopicPartition, int] = {}
        for part in chunks(begins):
            request = pb.QueryFirstReadableRequest()
            for partition in part:
                request.begins.add(
                    partition=values.partition_to_proto(partition),
                    bounds=values.bounds_to_proto(begins[partition]),
                )
            answer = await self._gateways.calling(
                "QueryFirstReadable",
                request,
                pb.QueryFirstReadableResponse,
                "looking for the first records",
                self.config.lease_wait_ms,
            )
            offsets |= values.offsets_from_proto(answer.offsets)
        return offsets

    async def group_positions(self, layout: TopicsLayout) -> Mapping[TopicPartition, int]:
        """See ``Transport``."""
        during = f"asking where the group {self.config.group} stands"
        positions: dict[TopicPartition, int] = {}
        for part in chunks(layout.partitions):
            request = pb.QueryGroupPositionsRequest(partitions=map(values.partition_to_proto, part))
            answer = await self._gateways.calling(
                "QueryGroupPositions", request, pb.QueryGroupPositionsResponse, during
            )
            positions |= values.offsets_from_proto(answer.offsets)
        return positions

    async def move_group(
        self,
        layout: TopicsLayout,  # noqa: ARG002 (the gateway knows where partitions are)
        positions: Mapping[TopicPartition, int],
    ) -> Mapping[TopicPartition, TubeMQError]:
        """See ``Transport``."""
        during = f"moving the group {self.config.group}"
        failures: dict[TopicPartition, TubeMQError] = {}
        for part in chunks(positions):
            request = pb.ResetOffsetsRequest(
                positions=values.offsets_to_proto({place: positions[place] for place in part})
            )
            answer = await self._gateways.calling("ResetOffsets", request, pb.ResetOffsetsResponse, during)
            failures |= values.reset_failures_from_proto(answer)
        return failures

    async def stored_offsets(self, group: str | None = None, topics: Collection[str] = ()) -> StoredOffsets:
        """See ``Transport``."""
        offsets: list[StoredOffset] = []
        failures: dict[int, TubeMQError] = {}
        for part in chunks(topics, MAX_TOPICS):
            request = pb.QueryStoredOffsetsRequest(group=group, topics=part)
            while True:
                answer = await self._gateways.calling(
                    "QueryStoredOffsets", request, pb.QueryStoredOffsetsResponse, "asking where groups stand"
                )
                page = values.stored_offsets_from_proto(answer)
                offsets += page.offsets
                failures |= page.failures
                request.page_token = answer.next_page_token
                if not request.page_token:
                    break
        return StoredOffsets(tuple(offsets), failures)

    # Messages.

    def read_range(
        self,
        request: RangeRequest,
        *,
        private: bool = False,  # noqa: ARG002 (a gateway's connections are its own)
    ) -> AsyncGenerator[FetchedBatch | LossRecord, None]:
        """Read through a gateway, and through another one when that is lost."""
        return read_remote_range(self._gateways, request)

    def pipeline(
        self,
        config: ClientConfig,
        name: str = "",
        *,
        per_message: bool,
        run_user_code: "RunUserCode",  # noqa: ARG002 (only the partitioners of gateways are used)
    ) -> "Pipeline":
        """See ``Transport``; the pipeline is a window of batches on their way to gateways."""
        from tubemq_spark.client.remote.pipeline import GatewayPipeline

        if config == self.config:
            return GatewayPipeline(self._gateways, name, per_message=per_message)
        return GatewayPipeline(self._own_gateways(config), name, per_message=per_message, own=True)

    def group_consumer(self, setup: "ConsumerSetup") -> "ConsumerCore":
        """See ``Transport``; the gateway is the member."""
        from tubemq_spark.client.remote.consumers import RemoteGroupCore

        gateways = self._own_gateways(setup.config, "Balance")
        return RemoteGroupCore(setup, gateways, self._for_other_group(setup.config))

    def assigned_consumer(self, setup: "ConsumerSetup") -> "AssignedCoreBase":
        """See ``Transport``; gateways do not tell of resets."""
        from tubemq_spark.client.remote.consumers import RemoteAssignedCore

        if setup.follow_resets:
            raise bad_setting("follow_resets", True, "False through gateways, which do not tell of resets")
        gateways = self._own_gateways(setup.config, "Balance")
        # A question without a number would not fit the group's members.
        questions = type(self)(gateways) if setup.node is None else self._for_other_group(setup.config)
        return RemoteAssignedCore(setup, gateways, questions)

    def _for_other_group(self, config: ClientConfig) -> Self:
        """Return a transport of another group than a consumer's: its questions need not fit the members."""
        probing = dataclasses.replace(config, group=config.probe_groups[0], reader_groups=())
        return self.with_config(probing)


def sound(convert: Callable[[], Result]) -> Result:
    """Return what a gateway's answer says."""
    try:
        return convert()
    except MalformedMessageError as error:
        raise RemoteProtocolError("TUBEMQ_GATEWAY_ANSWER", what=str(error)) from error
