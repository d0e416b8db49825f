"""What the source and the sink need of TubeMQ, in the connector's words and not in RPCs.

The interface is stateless between calls, so that it can be served by a process in between as well as
by a direct connection, with the same results and the same errors.
"""

import dataclasses
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from tubemq_spark.client.producer import Producer
from tubemq_spark.client.range_reader import FetchedBatch, RangeRequest
from tubemq_spark.model import Endpoint, OffsetBounds, StoreId, TopicPartition
from tubemq_spark.net.retry import Wait
from tubemq_spark.offsets.loss import LossPolicy


@dataclasses.dataclass(frozen=True, slots=True)
class TopicsLayout:
    """Where the partitions of some topics are, and the token that proves we asked the master."""

    partitions: Mapping[TopicPartition, Endpoint]
    visit_token: int

    def stores(self) -> dict[StoreId, Endpoint]:
        """Return the stores the partitions live in, with their brokers."""
        return {partition.store_id: endpoint for partition, endpoint in self.partitions.items()}


class Cluster(Protocol):
    """A TubeMQ cluster."""

    def layout(self, topics: Iterable[str]) -> TopicsLayout:
        """Ask the master where the topics' partitions are; it checks the group's rights on the way.

        Raises:
            RpcError: a topic does not exist (431), or the group may not read it (450, 455).
            TubeMQConnectionError: no master answered.
        """

    def bounds(self, layout: TopicsLayout) -> dict[StoreId, OffsetBounds]:
        """Ask the brokers for the earliest and the latest offset of every store of a layout."""

    def read_range(
        self, work: RangeRequest, on_loss: LossPolicy, wait: Wait = time.sleep
    ) -> Iterator[FetchedBatch]:
        """Yield exactly the records of a range, in offset order; what ``wait`` raises ends the reading."""

    def producer(self) -> Producer:
        """Return a new producer; the caller closes it."""
