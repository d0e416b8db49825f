"""One partition that the master has given to a group consumer.

Unlike an assigned consumer, a group consumer never sets the group's position, except where a bound group
starts: while its lease was lost, another member may have read on from there. So the way back to a partition
is to register where the group stands.
"""

import logging

from tubemq_spark.client.broker.session import Position
from tubemq_spark.client.consumer.partition import ConsumerPartition
from tubemq_spark.protocol.constants import ReadStatus

logger = logging.getLogger(__name__)


class GroupPartition(ConsumerPartition):
    """A partition of one member of a group."""

    def connect(self, offset: int | None, read_status: ReadStatus) -> Position:
        """Hold the partition for the first time.

        Args:
            offset: where a bound group starts; None: where the group stands.
            read_status: where a group begins that has no position.

        Raises:
            DataLossError: the offset is not in the store, and ``on_loss`` does not tolerate it.
            TubeMQError: as ``BrokerSession.register``.
        """
        if offset is not None:
            self._cursor.position = offset
            return super()._place()
        return self._resume(read_status)

    def _place(self) -> Position:
        wanted = self.position
        found = self._resume(ReadStatus.STORED_OR_EARLIEST)
        if found.current != wanted:
            logger.info(
                "%s continues at offset %d, where the group stands, and not at %d",
                self.partition,
                found.current,
                wanted,
            )
        return found

    def _resume(self, read_status: ReadStatus) -> Position:
        found = self._holder.resume(read_status)
        self._cursor.position, self._cursor.unconfirmed = found.current, None
        self._placed = True
        return found
