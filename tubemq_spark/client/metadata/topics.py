"""Which topics exist: the administration API lists them; of a single one, readers are told."""

import asyncio
from collections.abc import Collection, Sequence
from typing import Final

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master.balance import BalanceSession
from tubemq_spark.client.master.producers import ProducerSession
from tubemq_spark.client.metadata.admin import MasterAdmin
from tubemq_spark.client.metadata.any_master import ask_a_master
from tubemq_spark.errors import ProduceError, RemoteProtocolError, RpcError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.retry import PUBLISHABLE_TOPIC, Backoff
from tubemq_spark.protocol.constants import OFFSET_HISTORY_TOPIC, is_encodable
from tubemq_spark.protocol.errcodes import ErrCode

_LONGEST_NAME: Final = 64


def existing_topics(web_servers: Sequence[Endpoint], timeout_s: float) -> Collection[str]:
    """Ask the masters' administration API, one after the other, until one lists the topics.

    A topic counts from its creation until it is deleted on every broker, also while its brokers are away.

    Raises:
        TubeMQConnectionError: none of them answered.
        AdminError: one refused.
    """
    return ask_a_master(web_servers, timeout_s, MasterAdmin.topics, "TUBEMQ_TOPICS_NOT_LISTED")


async def configured_partitions(
    config: ClientConfig, connections: Connections, topic: str, until: Deadline | None = None
) -> frozenset[TopicPartition] | None:
    """Return the partitions a topic has, those included that cannot be published to just now.

    A master lists a producer only what can be published to at this moment, and says nothing of the rest.
    A reader that registers, however, is refused with 431 when the topic does not exist, and is told of all
    partitions otherwise. That takes no longer than ``until``.

    Returns:
        The partitions, or None when they cannot be found out: the group may not read, or is busy.

    Raises:
        ProduceError: the topic does not exist (``TUBEMQ_TOPIC_UNKNOWN``).
        TubeMQConnectionError: no master answered.
    """
    try:
        async with BalanceSession(config, connections, (topic,), until=until) as session:
            return frozenset((await session.layout()).partitions)
    except RpcError as error:
        if error.code == ErrCode.TOPIC_NOT_DEPLOYED:
            raise ProduceError("TUBEMQ_TOPIC_UNKNOWN", topic=topic) from error
        return None
    except RemoteProtocolError:  # its list of brokers lags behind its list of partitions
        return None


async def publishable(
    config: ClientConfig, connections: Connections, topic: str
) -> tuple[TopicPartition, ...]:
    """Return the partitions to which a topic can be published now, in order; perhaps none.

    Raises:
        ProduceError: the topic does not exist, or its name cannot be one.
        RpcError: the master refuses this client.
        TubeMQConnectionError: no master answered.
    """
    refuse_impossible_name(topic)
    async with ProducerSession(config, connections) as session:
        await session.publish([topic])
        partitions = session.routes(topic).partitions
    if not partitions:
        await configured_partitions(config, connections, topic)
    return tuple(sorted(partitions))


async def refuse_unknown_topic(config: ClientConfig, connections: Connections, topic: str) -> None:
    """Return when a topic exists, or when that cannot be known.

    Raises:
        ProduceError: the topic does not exist, or its name cannot be one.
        TubeMQConnectionError: no master answered.
    """
    await publishable(config, connections, topic)


async def await_publishable(config: ClientConfig, connections: Connections, topic: str) -> None:
    """Return when a topic can be published to; wait while it is closed, or its brokers restart.

    Raises:
        ProduceError: the topic does not exist, or could not be published to for ``delivery_timeout_ms``.
        TubeMQConnectionError: no master answered.
    """
    deadline = Deadline.after_ms(config.delivery_timeout_ms, asyncio.get_running_loop().time)
    backoff = Backoff(PUBLISHABLE_TOPIC)
    while not await publishable(config, connections, topic):
        if (pause_s := backoff.next_s(deadline)) is None:
            waited_ms = config.delivery_timeout_ms
            raise ProduceError("TUBEMQ_TOPIC_UNPUBLISHABLE", topic=topic, waited_ms=waited_ms)
        await asyncio.sleep(pause_s)


def refuse_impossible_name(topic: str) -> None:
    """Return when a topic could have this name.

    Raises:
        ProduceError: no topic that can be published to has it. A master refuses every later heartbeat of a
            producer that names such a topic once.
    """
    fits = 0 < len(topic) <= _LONGEST_NAME and is_encodable(topic)
    if not fits or topic == OFFSET_HISTORY_TOPIC:
        raise ProduceError("TUBEMQ_TOPIC_NAME", topic=topic)
