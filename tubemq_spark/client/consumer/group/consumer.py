"""A member of a group whose partitions the master shares out, anew whenever a member comes or goes."""

import logging
import time

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.consumer import Consumer
from tubemq_spark.client.consumer.group.rebalancing import Rebalancing
from tubemq_spark.client.consumer.group.session import GroupSession
from tubemq_spark.client.consumer.partition import Reader
from tubemq_spark.client.consumer.state import ConsumerState
from tubemq_spark.client.consumer.upkeep import LeaseUpkeep
from tubemq_spark.client.subscription import Subscription
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.net.retry import Wait
from tubemq_spark.offsets.loss import LossPolicy, fail_on_loss
from tubemq_spark.protocol.partition_strings import PartitionInfo
from tubemq_spark.protocol.rebalance import RebalanceEvent

logger = logging.getLogger(__name__)


class GroupConsumer(Consumer):
    """Reads the partitions that the master gives it; threads may share it.

    The first partitions come with the master's next balancing, up to a minute after ``open``; then they come
    and go with the other members of the group. Batches come from all partitions in turn (``fetch``), one at a
    time from each, and are confirmed (``confirm``).

    **At least once**: what was not confirmed comes again, to this member or to another. Before a partition
    goes to another member its batch has ``rebalance_wait_ms`` to be confirmed.

    **Errors** of one partition do not hold up the others. A partition whose broker is away rests and comes
    back; one that another member has taken is given up, and the master is told.

    As a context manager it opens and closes itself.
    """

    kind = "group consumer"

    def __init__(
        self,
        config: ClientConfig,
        pool: ChannelPool,
        subscription: Subscription,
        *,
        on_loss: LossPolicy = fail_on_loss,
        wait: Wait = time.sleep,
    ) -> None:
        """Ask nothing of any server yet; ``TubeMQClient.group_consumer`` makes consumers.

        Args:
            config: the settings.
            pool: the channels.
            subscription: the topics, with the message types that are wanted, and where a bound group starts.
            on_loss: what to do about records that are gone or damaged.
            wait: how to wait between attempts to register.
        """
        super().__init__(config, subscription)
        self._session = GroupSession(
            config,
            pool,
            subscription,
            self._control,
            held=self._held,
            on_event=self._take_event,
            wait=wait,
        )
        reader = Reader(config, pool, self._session, self._control, on_loss, self._endpoint_of)
        self._rebalancing = Rebalancing(self._state, reader, self._session)
        self._upkeep = _Upkeep(self._state, reader, self._session)
        self._state.on_loss = self._session.report

    @property
    def client_id(self) -> str:
        """The name under which servers know this consumer."""
        return self._session.client_id

    def _check_fetch(self) -> None:
        super()._check_fetch()
        if self._session.refused is not None:
            raise self._session.refused

    def _start(self) -> None:
        self._session.open()
        self._state.refusal = None
        self._rebalancing.start()
        self._upkeep.start()

    def _stop(self) -> None:
        self._rebalancing.stop()
        self._upkeep.stop()
        self._state.release_all()
        self._session.close()

    def _take_event(self, event: RebalanceEvent) -> None:
        self._rebalancing.put(event)

    def _held(self) -> tuple[PartitionInfo, ...]:
        with self._state.changed:
            return self._state.cache.infos()

    def _endpoint_of(self, partition: TopicPartition) -> Endpoint | None:
        """Return a partition's broker; the master has told it with the partition."""
        held = self._state.connected.get(partition)
        return None if held is None else held.endpoint


class _Upkeep(LeaseUpkeep):
    def __init__(self, state: ConsumerState, reader: Reader, session: GroupSession) -> None:
        super().__init__(state, reader)
        self._session = session

    def _after_leases(self) -> None:
        """Hold nothing that the master does not want us to hold, and tell whoever waits for a message."""
        if self._session.refused is None:
            return
        if self._state.connected:
            logger.warning("%s gives up its partitions: %s", self._session.client_id, self._session.refused)
            self._state.release_all()
        with self._state.changed:
            self._state.changed.notify_all()
