"""Which topics exist: the administration API lists them; of a single one, readers are told."""

from collections.abc import Collection, Sequence

from tubemq_spark.client.admin import MasterAdmin
from tubemq_spark.client.any_master import ask_a_master
from tubemq_spark.client.balance_session import BalanceSession
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.producer_session import ProducerSession
from tubemq_spark.errors import ProduceError, RemoteProtocolError, RpcError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.protocol.errcodes import ErrCode


def existing_topics(web_servers: Sequence[Endpoint], timeout_s: float) -> Collection[str]:
    """Ask the masters' administration API, one after the other, until one lists the topics.

    A topic counts from its creation until it is deleted on every broker, also while its brokers are away.

    Raises:
        TubeMQConnectionError: none of them answered.
        AdminError: one refused.
    """
    return ask_a_master(web_servers, timeout_s, MasterAdmin.topics, "TUBEMQ_TOPICS_NOT_LISTED")


def configured_partitions(
    config: ClientConfig, pool: ChannelPool, topic: str
) -> frozenset[TopicPartition] | None:
    """Return the partitions a topic has, those included that cannot be published to just now.

    A master lists a producer only what can be published to at this moment, and says nothing of the rest.
    A reader that registers, however, is refused with 431 when the topic does not exist, and is told of all
    partitions otherwise.

    Returns:
        The partitions, or None when they cannot be found out: the group may not read, or is busy.

    Raises:
        ProduceError: the topic does not exist (``TUBEMQ_TOPIC_UNKNOWN``).
        TubeMQConnectionError: no master answered.
    """
    try:
        with BalanceSession(config, pool, (topic,)) as session:
            return frozenset(session.layout().partitions)
    except RpcError as error:
        if error.code == ErrCode.TOPIC_NOT_DEPLOYED:
            raise ProduceError("TUBEMQ_TOPIC_UNKNOWN", topic=topic) from error
        return None
    except RemoteProtocolError:  # its list of brokers lags behind its list of partitions
        return None


def refuse_unknown_topic(config: ClientConfig, pool: ChannelPool, topic: str) -> None:
    """Return when a topic exists, or when nobody can tell.

    Raises:
        ProduceError: the topic does not exist.
        TubeMQConnectionError: no master answered.
    """
    with ProducerSession(config, pool) as session:
        session.publish([topic])
        published = session.routes(topic).partitions
    if not published:
        configured_partitions(config, pool, topic)
