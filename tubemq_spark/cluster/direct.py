"""What the gateway still asks by threads: a cluster reached directly, whose questions can be ended early."""

from collections.abc import Callable, Collection, Mapping, Sequence

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.transport.direct import DirectTransport
from tubemq_spark.cluster.of_transport import TransportCluster
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import Endpoint, StoreBounds, StoreId, TopicPartition, TopicsLayout
from tubemq_spark.net import loop
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.retry import SLEEP, Wait


class DirectCluster(TransportCluster):
    """A cluster over connections in the process's loop; what ``wait`` raises ends a question."""

    def __init__(
        self,
        config: ClientConfig,
        connections: Connections,
        web: Callable[[], Sequence[Endpoint]] = tuple,
        *,
        suggests: bool = True,
    ) -> None:
        super().__init__(DirectTransport(config, connections, web, suggests=suggests))

    def bounds(
        self,
        layout: TopicsLayout,
        stores: Collection[StoreId] | None = None,
        *,
        flushed: bool = False,
        timeout_ms: int | None = None,
        wait: Wait = SLEEP,
    ) -> StoreBounds:
        """See ``Cluster``."""
        return loop.run(self._transport.bounds(layout, stores, flushed=flushed, timeout_ms=timeout_ms), wait)

    def group_positions(self, layout: TopicsLayout, wait: Wait = SLEEP) -> Mapping[TopicPartition, int]:
        """See ``Cluster``."""
        return loop.run(self._transport.group_positions(layout), wait)

    def move_group(
        self, layout: TopicsLayout, positions: Mapping[TopicPartition, int], wait: Wait = SLEEP
    ) -> Mapping[TopicPartition, TubeMQError]:
        """See ``Cluster``."""
        return loop.run(self._transport.move_group(layout, positions), wait)

    def publishable(self, topic: str) -> tuple[TopicPartition, ...]:
        """Return the partitions to which a topic can be published now."""
        return loop.run(self._transport.publishable(topic))
