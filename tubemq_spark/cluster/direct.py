"""The cluster reached directly: this process talks to the master and the brokers."""

import concurrent.futures
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from tubemq_spark.client.bounds import store_bounds
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.first_readable import first_readable
from tubemq_spark.client.master import BalanceSession
from tubemq_spark.client.producer import Producer
from tubemq_spark.client.range_reader import read_range
from tubemq_spark.client.topics import refuse_unknown_topic
from tubemq_spark.cluster.base import Cluster
from tubemq_spark.errors import RpcError
from tubemq_spark.model import (
    Endpoint,
    OffsetBounds,
    RangeRequest,
    StoreBounds,
    StoreId,
    TopicPartition,
    TopicsLayout,
)
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.net.retry import Backoff, Wait
from tubemq_spark.offsets.loss import LossPolicy
from tubemq_spark.protocol.columns import FetchedBatch
from tubemq_spark.protocol.constants import UNDEFINED
from tubemq_spark.protocol.errcodes import ErrCode

_MOST_THREADS: Final = 16
_GROUP_BUSY = frozenset({ErrCode.CLIENT_INCONSISTENT_TOPICSET, ErrCode.CLIENT_INCONSISTENT_FILTERSET})


class DirectCluster(Cluster):
    """A cluster over a pool of channels, which it shares with others and does not close."""

    def __init__(self, config: ClientConfig, pool: ChannelPool) -> None:
        self._config = config
        self._pool = pool

    def layout(self, topics: Iterable[str], *, missing_ok: bool = False) -> TopicsLayout:
        """Register the group at the master, take the layout and leave again.

        A short session instead of one for the life of a query: a master remembers a group's topics
        while a member is there, so a long one would refuse a second query of the group with other
        topics (425), and would show removed topics as long as it lives. A driver killed in the middle of
        one is a member for 30 s more, so it is waited for as long as for a dead reader's lease.
        """
        wanted = tuple(topics)
        try:
            return self._layout_of(wanted)
        except RpcError as error:
            if error.code != ErrCode.TOPIC_NOT_DEPLOYED or not missing_ok:
                raise
        return self._layout_of_existing(wanted)

    def _layout_of_existing(self, topics: tuple[str, ...]) -> TopicsLayout:
        """Ask topic by topic: the master refuses all topics when one of them does not exist."""
        partitions: dict[TopicPartition, Endpoint] = {}
        visit_token, missing = UNDEFINED, set()
        for topic in topics:
            try:
                found = self._layout_of((topic,))
            except RpcError as error:
                if error.code != ErrCode.TOPIC_NOT_DEPLOYED:
                    raise
                missing.add(topic)
            else:
                partitions |= found.partitions
                visit_token = found.visit_token
        return TopicsLayout(partitions, visit_token, frozenset(missing))

    def _layout_of(self, topics: tuple[str, ...]) -> TopicsLayout:
        deadline = Deadline.after_ms(self._config.lease_wait_ms)
        backoff = Backoff(50, 1_000)
        while True:
            try:
                with BalanceSession(self._config, self._pool, topics) as session:
                    partitions = session.layout().partitions
                    return TopicsLayout(partitions, session.visit_token)
            except RpcError as error:
                # Another query of the group is asking for other topics at this very moment.
                if error.code not in _GROUP_BUSY or not backoff.wait(deadline):
                    raise

    def bounds(
        self,
        layout: TopicsLayout,
        stores: Collection[StoreId] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> StoreBounds:
        """Ask the brokers of all these stores at once."""
        asked = layout.stores if stores is None else {store: layout.stores[store] for store in stores}
        return store_bounds(self._config, self._pool, asked, layout.visit_token, timeout_ms=timeout_ms)

    def first_readable(
        self, layout: TopicsLayout, begins: Mapping[TopicPartition, OffsetBounds]
    ) -> dict[TopicPartition, int]:
        """Read the first records of several partitions at once."""

        def ask(partition: TopicPartition) -> int:
            endpoint, token = layout.partitions[partition], layout.visit_token
            return first_readable(self._config, self._pool, partition, endpoint, token, begins[partition])

        if len(begins) <= 1:
            return {partition: ask(partition) for partition in begins}
        workers = min(_MOST_THREADS, len(begins))
        with concurrent.futures.ThreadPoolExecutor(workers, thread_name_prefix="tubemq-first") as executor:
            return dict(zip(begins, executor.map(ask, begins), strict=True))

    def read_range(
        self, work: RangeRequest, on_loss: LossPolicy, wait: Wait = time.sleep
    ) -> Iterator[FetchedBatch]:
        """Read under a reader group's lease, straight from the partition's broker."""
        return read_range(self._config, self._pool, work, on_loss, wait)

    def refuse_unknown_topic(self, topic: str) -> None:
        """Ask the master as a producer, and only if it lists no partition as a reader too."""
        refuse_unknown_topic(self._config, self._pool, topic)

    def producer(self, name: str = "") -> Producer:
        """Return a producer of its own connections."""
        return Producer(self._config, self._pool, name=name)
