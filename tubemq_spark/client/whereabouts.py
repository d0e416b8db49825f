"""Where a partition is now, and whether it is gone.

A broker answers 403 for a topic that it does not have, but also while it starts and its configuration is
not loaded, and when a topic is closed. So nothing counts as gone before the master says so too.
"""

import logging
from collections.abc import Callable
from typing import Final, TypeAlias

from tubemq_spark.client.balance_session import BalanceSession
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.errors import RpcError, TubeMQError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.net.retry import Wait
from tubemq_spark.offsets.loss import Loss
from tubemq_spark.protocol.errcodes import ErrCode

logger = logging.getLogger(__name__)

_LOOKS: Final = 4
_BETWEEN_LOOKS_S: Final = 5.0
"""A master that has just started lists a broker's partitions when that broker has reported, which brokers
do every 8 s with the settings TubeMQ ships (``heartbeatPeriodMs``)."""

Locate: TypeAlias = Callable[[TopicPartition], Endpoint | Loss]
"""Returns the partition's broker, or that the topic or the partition does not exist; raises TubeMQError when
that cannot be found out."""


def find_partition(config: ClientConfig, pool: ChannelPool, partition: TopicPartition) -> Endpoint | Loss:
    """Ask the master where a partition is.

    Raises:
        TubeMQError: no master answered, or it refused for another reason.
    """
    try:
        with BalanceSession(config, pool, (partition.topic,)) as session:
            partitions = session.layout().partitions
    except RpcError as error:
        if error.code == ErrCode.TOPIC_NOT_DEPLOYED:
            return Loss.TOPIC_REMOVED
        raise
    return partitions.get(partition) or Loss.PARTITION_REMOVED


def what_is_gone(locate: Locate, partition: TopicPartition, wait: Wait) -> Loss | None:
    """Return what the master says is gone, or None when the partition exists or that is not sure.

    A topic that is not deployed is gone at once: that is the master's stored configuration. A partition is
    gone when the master leaves it out for a while.
    """
    for _ in range(_LOOKS):
        found = _look(locate, partition)
        if found is not Loss.PARTITION_REMOVED:
            return found if isinstance(found, Loss) else None
        wait(_BETWEEN_LOOKS_S)
    return Loss.PARTITION_REMOVED


def where_it_is(locate: Locate, partition: TopicPartition) -> Endpoint | None:
    """Return a partition's broker, or None when the master does not tell."""
    found = _look(locate, partition)
    return found if isinstance(found, Endpoint) else None


def _look(locate: Locate, partition: TopicPartition) -> Endpoint | Loss | None:
    try:
        return locate(partition)
    except TubeMQError as error:
        logger.info("the master does not tell where %s is: %s", partition, error)
        return None
