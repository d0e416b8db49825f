"""What a client asks a cluster through gateways; ``cluster/remote.py`` stands on it too."""

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TypeVar

from tubemq_spark.client.remote.gateways import Gateways
from tubemq_spark.errors import RemoteProtocolError
from tubemq_spark.model import StoreBounds, StoreId, TopicPartition, TopicsLayout
from tubemq_spark.protocol.constants import MAX_TOPICS
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, values
from tubemq_spark.protocol.gateway.limits import chunks
from tubemq_spark.protocol.gateway.packed import MalformedMessageError

Result = TypeVar("Result")


class Queries:
    """Questions that any of some gateways answers; each raises what the gateways or TubeMQ say.

    They are coroutines; threads have the process's loop carry them out.
    """

    def __init__(self, gateways: Gateways) -> None:
        self.gateways = gateways

    async def layout(self, topics: Iterable[str], *, missing_ok: bool = False) -> TopicsLayout:
        """Return where partitions are; the layout has no visit token, which the gateway keeps."""
        parts = chunks(topics, MAX_TOPICS)
        return TopicsLayout.joined([await self._layout(part, missing_ok=missing_ok) for part in parts])

    async def topics(self) -> Collection[str]:
        """Return which topics there are."""
        request, topics = pb.ListTopicsRequest(), set[str]()
        while True:
            answer = await self.gateways.calling(
                "ListTopics", request, pb.ListTopicsResponse, "listing the topics"
            )
            topics.update(answer.topics)
            request.page_token = answer.next_page_token
            if not request.page_token:
                return topics

    async def bounds(
        self, stores: Collection[StoreId], *, flushed: bool = False, timeout_ms: int | None = None
    ) -> StoreBounds:
        """Return where stores begin and end; brokers that are away are part of it."""
        bounds = StoreBounds({}, {})
        for to_ask in chunks(stores):
            request = pb.QueryBoundsRequest(
                stores=values.stores_to_proto(to_ask), flushed=flushed, timeout_ms=timeout_ms
            )
            answer = await self.gateways.calling(
                "QueryBounds", request, pb.QueryBoundsResponse, "asking for bounds"
            )
            part = sound(partial(values.store_bounds_from_proto, answer, to_ask))
            bounds = StoreBounds({**bounds.by_store, **part.by_store}, {**bounds.failures, **part.failures})
        return bounds

    async def publishable(self, topic: str) -> tuple[TopicPartition, ...]:
        """Return the partitions to which a topic can be published now, in order."""
        answer = await self._check_topic(topic, publishable=False)
        return tuple(sorted(map(values.partition_from_proto, answer.partitions)))

    async def await_publishable(self, topic: str) -> None:
        """Return when a topic can be published to, for ``delivery_timeout_ms``."""
        await self._check_topic(topic, publishable=True)

    async def _layout(self, topics: list[str], *, missing_ok: bool) -> TopicsLayout:
        request = pb.QueryRouteRequest(topics=topics, missing_ok=missing_ok)
        answer = await self.gateways.calling(
            "QueryRoute", request, pb.QueryRouteResponse, "asking for a layout"
        )
        return sound(lambda: values.layout_from_proto(answer))

    async def _check_topic(self, topic: str, *, publishable: bool) -> pb.CheckTopicResponse:
        request = pb.CheckTopicRequest(topic=topic, publishable=publishable)
        extra_ms = self.gateways.config.delivery_timeout_ms if publishable else 0
        return await self.gateways.calling(
            "CheckTopic", request, pb.CheckTopicResponse, f"asking for topic {topic}", extra_ms
        )


def sound(convert: Callable[[], Result]) -> Result:
    """Return what a gateway's answer says.

    Raises:
        RemoteProtocolError: it contradicts itself.
    """
    try:
        return convert()
    except MalformedMessageError as error:
        raise RemoteProtocolError("TUBEMQ_GATEWAY_ANSWER", what=str(error)) from error
