"""A member of a group whose partitions the master shares out again whenever a member comes or goes."""

import functools
import logging

from tubemq_spark.client.background import InBackground
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.callbacks import Callbacks, OnChange
from tubemq_spark.client.consumer.consumer import Consumer
from tubemq_spark.client.consumer.group.rebalancing import Rebalancing
from tubemq_spark.client.consumer.group.session import GroupSession
from tubemq_spark.client.consumer.partition import Reader
from tubemq_spark.client.consumer.questions import BrokerQuestions
from tubemq_spark.client.consumer.state import ConsumerState, Life
from tubemq_spark.client.consumer.upkeep import Upkeep
from tubemq_spark.client.subscription import Subscription
from tubemq_spark.model import TopicPartition
from tubemq_spark.net import loop
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.offsets.loss import LossPolicy, fail_on_loss

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
        client_id: str | None = None,
        on_assigned: OnChange | None = None,
        on_revoked: OnChange | None = None,
    ) -> None:
        """Reach no server; ``TubeMQClient.group_consumer`` makes consumers.

        Args:
            config: the settings.
            pool: the channels.
            subscription: the topics, with the message types that are wanted, and where a bound group starts.
            on_loss: what to do about records that are gone or damaged.
            client_id: the name under which servers know it; by default a new one. A member with the name of
                one that has gone takes its place.
            on_assigned: told of partitions that have come; see ``TubeMQClient.group_consumer``.
            on_revoked: told of partitions that go.
        """
        super().__init__(config, subscription)
        state = self._state
        self._session = session = GroupSession(
            config,
            pool.connections,
            subscription,
            self._control,
            partitions=state.infos,
            on_event=lambda event: rebalancing.put(event),  # noqa: PLW0108 (it is made below)
            client_id=client_id,
        )
        reader = Reader(config, pool, session, self._control, on_loss, state.endpoint_of)
        self._questions = BrokerQuestions(config, pool, lambda: session.visit_token)
        callbacks = Callbacks(state, on_assigned, on_revoked)
        self._rebalancing = rebalancing = Rebalancing(state, reader, session, callbacks)
        give_up = functools.partial(_give_up_when_refused, state, session, callbacks)
        self._upkeep = Upkeep(state, reader, give_up, rebalancing.stopping)
        state.client_id = session.client_id
        state.on_loss = functools.partial(_tell_of_loss, session, callbacks)
        state.refused = lambda: session.refused

    def _start(self) -> None:
        loop.run(self._session.open())
        self._state.life = Life.OPEN
        self._rebalancing.start()
        self._upkeep.start()


def _tell_of_loss(session: GroupSession, callbacks: Callbacks, partition: TopicPartition) -> None:
    session.report()
    callbacks.revoked([partition])


def _give_up_when_refused(state: ConsumerState, session: GroupSession, callbacks: Callbacks) -> None:
    """Give all partitions up if the master has refused the member, and wake the threads that wait."""
    if session.refused is None:
        return
    if state.connected:
        logger.warning("%s gives up its partitions: %s", session.client_id, session.refused)
        callbacks.revoked(state.held())
        InBackground(state.releasing_all(), f"giving up the partitions of {session.client_id}").start()
    with state.changed:
        state.changed.notify_all()
