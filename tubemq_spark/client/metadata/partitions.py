"""Where a partition is now, and whether it has been removed.

A broker answers 403 for a topic that it does not have, but also while it starts and has not loaded its
configuration, and when a topic is closed. So nothing counts as removed before the master says so too.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master.balance import BalanceSession
from tubemq_spark.errors import RpcError, TubeMQError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.connections import Connections
from tubemq_spark.offsets.loss import Loss
from tubemq_spark.protocol.errcodes import ErrCode

logger = logging.getLogger(__name__)

_NO_SUCH_PARTITION: Final = "Wrong partition value"
"""How a broker says that a topic has fewer partitions; the code is 500, as with any internal error."""

Locate: TypeAlias = Callable[[TopicPartition], Awaitable[Endpoint | Loss]]
"""Returns the partition's broker, or that the topic or the partition does not exist; raises TubeMQError when
that cannot be found out."""


async def find_partition(
    config: ClientConfig, connections: Connections, partition: TopicPartition
) -> Endpoint | Loss:
    """Ask the master where a partition is.

    Raises:
        TubeMQError: no master answered, or it refused for another reason.
    """
    try:
        async with BalanceSession(config, connections, (partition.topic,)) as session:
            partitions = (await session.layout()).partitions
    except RpcError as error:
        if error.code == ErrCode.TOPIC_NOT_DEPLOYED:
            return Loss.TOPIC_REMOVED
        raise
    # The master drops the partitions of a topic that is being removed before the topic itself.
    return partitions.get(partition) or (Loss.PARTITION_REMOVED if partitions else Loss.TOPIC_REMOVED)


def tells_of_removal(error: TubeMQError) -> bool:
    """Tell whether a broker says that it does not have the topic or the partition."""
    if not isinstance(error, RpcError):
        return False
    wrong_partition = error.code == ErrCode.INTERNAL_SERVER_ERROR and _NO_SUCH_PARTITION in str(error)
    return wrong_partition or error.code == ErrCode.FORBIDDEN


async def what_is_gone(locate: Locate, partition: TopicPartition) -> Loss | None:
    """Return what has been removed, or None when the partition exists or the master does not say."""
    place = await _locate_if_possible(locate, partition)
    return place if isinstance(place, Loss) else None


async def where_it_is(locate: Locate, partition: TopicPartition) -> Endpoint | None:
    """Return a partition's broker, or None when the master does not say."""
    place = await _locate_if_possible(locate, partition)
    return place if isinstance(place, Endpoint) else None


async def _locate_if_possible(locate: Locate, partition: TopicPartition) -> Endpoint | Loss | None:
    try:
        return await locate(partition)
    except TubeMQError as error:
        logger.info("no master says where %s is: %s", partition, error)
        return None
