"""A member of a group, as coroutines; see ``consumer``."""

import asyncio
import logging

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.callbacks import Callbacks, OnChange
from tubemq_spark.client.consumer.engine import EngineCore
from tubemq_spark.client.consumer.group.rebalancing import Rebalancing
from tubemq_spark.client.consumer.group.session import GroupSession
from tubemq_spark.client.consumer.partition import Reader
from tubemq_spark.client.consumer.upkeep import Upkeep
from tubemq_spark.client.consumer.user_code import UserCode
from tubemq_spark.client.metadata.questions import Questions
from tubemq_spark.client.subscription import Subscription
from tubemq_spark.model import TopicPartition
from tubemq_spark.net.connections import Connections
from tubemq_spark.offsets.loss import LossPolicy, fail_on_loss

logger = logging.getLogger(__name__)


class GroupCore(EngineCore):
    """Holds the partitions that the master gives it."""

    def __init__(
        self,
        config: ClientConfig,
        connections: Connections,
        subscription: Subscription,
        user_code: UserCode,
        *,
        questions: Questions,
        on_loss: LossPolicy = fail_on_loss,
        client_id: str | None = None,
        on_assigned: OnChange | None = None,
        on_revoked: OnChange | None = None,
    ) -> None:
        """Reach no server; may be called in any thread.

        A member with the ``client_id`` of one that has gone takes its place.
        """
        super().__init__(config, subscription, user_code, on_loss)
        state = self.state
        self._session = session = GroupSession(
            config,
            connections,
            subscription,
            self.control,
            partitions=state.infos,
            on_event=lambda event: self._rebalancing.put(event),  # noqa: PLW0108 (it is made below)
            client_id=client_id,
        )
        reader = Reader(config, connections, session, self.control, self.tell_loss, state.endpoint_of)
        self.questions = questions
        self._callbacks = Callbacks(state, self.tasks, user_code, on_assigned, on_revoked)
        self._rebalancing = Rebalancing(state, self.tasks, reader, session, self._callbacks)
        self._leases = Upkeep(state, reader, self._give_up_when_refused)
        self._giving_up: asyncio.Task[None] | None = None
        """What gives all partitions up since the master has refused the member."""
        state.client_id = session.client_id
        state.on_loss = self._tell_of_loss
        state.refused = lambda: session.refused

    @property
    def _visit_token(self) -> int:
        return self._session.visit_token

    async def _start(self) -> None:
        try:
            await self._session.open()
        except BaseException:
            await self._session.close()
            raise

    async def _maintain(self) -> None:
        self._rebalancing.begin()
        await self._leases.run()

    async def _give_up(self) -> None:
        self._session.stop_heartbeats()
        await self._rebalancing.ended()
        self._callbacks.revoked(self.state.held())
        await self._callbacks.settled
        await self.state.release_all()

    async def _end(self) -> None:
        await self._session.close()

    async def give_up(self, partition: TopicPartition) -> bool:
        """Give a partition up, which the master plans again; return whether it was held."""
        self.state.check_open()
        if partition not in self.state.connected:
            return False
        await self.carry_out(self.state.release_all([partition]), f"giving {partition} up")
        self._tell_of_loss(partition)
        return True

    def _tell_of_loss(self, partition: TopicPartition) -> None:
        self._session.report()
        self._callbacks.revoked([partition])

    def _give_up_when_refused(self) -> None:
        """Give all partitions up if the master has refused the member, and wake those that wait."""
        state, refused = self.state, self._session.refused
        if refused is None:
            return
        if state.connected and (self._giving_up is None or self._giving_up.done()):
            logger.warning("%s gives up its partitions: %s", state.client_id, refused)
            self._callbacks.revoked(state.held())
            name = f"giving up the partitions of {state.client_id}"
            self._giving_up = self.tasks.start(state.release_all(), name, alone=True)
        state.changes.note()
