"""What an assigned consumer does in each period: give up what is closed, and follow resets."""

import logging
from collections.abc import Callable

from tubemq_spark.client.consumer.assigned.connecting import Connecting
from tubemq_spark.client.consumer.assigned.session import AssignedSession
from tubemq_spark.client.consumer.partition import Reader
from tubemq_spark.client.consumer.state import ConsumerState
from tubemq_spark.client.consumer.upkeep import LeaseUpkeep
from tubemq_spark.errors import TubeMQError

logger = logging.getLogger(__name__)


class Upkeep(LeaseUpkeep):
    """That of an assigned consumer."""

    def __init__(
        self,
        state: ConsumerState,
        reader: Reader,
        session: AssignedSession,
        connecting: Connecting,
        refresh: Callable[[], object],
        *,
        follow_resets: bool,
    ) -> None:
        """Belong to a consumer.

        Args:
            state: its partitions.
            reader: what they share.
            session: tells of resets.
            connecting: gives partitions up.
            refresh: asks the master where partitions are.
            follow_resets: whether an administrator may move the group behind the last messages.
        """
        super().__init__(state, reader)
        self._session = session
        self._connecting = connecting
        self._refresh = refresh
        self._follow_resets = follow_resets

    def _after_leases(self) -> None:
        try:
            self._refresh()
        except TubeMQError as error:
            logger.info("no master says where the partitions are: %s", error)
        self._connecting.release_unsubscribable()
        if self._session.take_reset():
            self._reset()

    def _reset(self) -> None:
        """Continue with the latest messages, because an administrator wants that."""
        if not self._follow_resets:
            logger.warning(
                "an administrator wants group %s to continue with the latest messages; ignored, since "
                "follow_resets is not set",
                self._reader.config.group,
            )
            return
        with self._state.changed:
            partitions = list(self._state.connected.values())
        for partition in partitions:
            partition.reset()
