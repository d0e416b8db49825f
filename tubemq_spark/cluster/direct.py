"""The cluster reached directly: this process talks to the master and the brokers."""

import time
from collections.abc import Iterable, Iterator

from tubemq_spark.client.bounds import store_bounds
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master import BalanceSession
from tubemq_spark.client.producer import Producer
from tubemq_spark.client.range_reader import FetchedBatch, RangeRequest, read_range
from tubemq_spark.cluster.base import Cluster, TopicsLayout
from tubemq_spark.errors import RpcError
from tubemq_spark.model import OffsetBounds, StoreId
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.net.retry import Backoff, Wait
from tubemq_spark.offsets.loss import LossPolicy
from tubemq_spark.protocol.errcodes import ErrCode

_GROUP_BUSY = frozenset({ErrCode.CLIENT_INCONSISTENT_TOPICSET, ErrCode.CLIENT_INCONSISTENT_FILTERSET})


class DirectCluster(Cluster):
    """A cluster over a pool of channels, which it shares with others and does not close."""

    def __init__(self, config: ClientConfig, pool: ChannelPool) -> None:
        self._config = config
        self._pool = pool

    def layout(self, topics: Iterable[str]) -> TopicsLayout:
        """Register the group at the master, take the layout and leave again.

        A short session instead of one for the life of a query: a master remembers a group's topics
        while a member is there, so a long one would refuse a second query of the group with other
        topics (425), and would show removed topics as long as it lives. A driver killed in the middle of
        one is a member for 30 s more, so it is waited for as long as for a dead reader's lease.
        """
        wanted = tuple(topics)
        deadline = Deadline.after_ms(self._config.lease_wait_ms)
        backoff = Backoff(50, 1_000)
        while True:
            try:
                with BalanceSession(self._config, self._pool, wanted) as session:
                    partitions = session.layout().partitions
                    return TopicsLayout(partitions, session.visit_token)
            except RpcError as error:
                # Another query of the group is asking for other topics at this very moment.
                if error.code not in _GROUP_BUSY or not backoff.wait(deadline):
                    raise

    def bounds(self, layout: TopicsLayout) -> dict[StoreId, OffsetBounds]:
        """Ask every store's broker, several brokers at once."""
        return store_bounds(self._config, self._pool, layout.stores(), layout.visit_token)

    def read_range(
        self, work: RangeRequest, on_loss: LossPolicy, wait: Wait = time.sleep
    ) -> Iterator[FetchedBatch]:
        """Read under a reader group's lease, straight from the partition's broker."""
        return read_range(self._config, self._pool, work, on_loss, wait)

    def producer(self) -> Producer:
        """Return a producer of its own connections."""
        return Producer(self._config, self._pool)
