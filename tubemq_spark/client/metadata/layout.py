"""Where the partitions of topics are, asked in a short session with the masters."""

from collections.abc import Iterable
from typing import Final

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master.balance import BalanceSession
from tubemq_spark.errors import RpcError, TubeMQError
from tubemq_spark.model import Endpoint, TopicPartition, TopicsLayout
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.net.retry import Backoff, with_retries
from tubemq_spark.protocol.constants import UNDEFINED
from tubemq_spark.protocol.errcodes import ErrCode

_GROUP_BUSY: Final = frozenset({ErrCode.CLIENT_INCONSISTENT_TOPICSET, ErrCode.CLIENT_INCONSISTENT_FILTERSET})


def topics_layout(
    config: ClientConfig, pool: ChannelPool, topics: Iterable[str], *, missing_ok: bool = False
) -> TopicsLayout:
    """Register the group at the master, ask for the layout and leave again.

    The session is short instead of lasting as long as a query: a master remembers a group's topics while the
    group has a member, so it would refuse a second query of the group with other topics (425), and would
    continue to list removed topics. A driver that is killed during a session stays a member for 30 s; it is
    waited for as long as for a dead reader's lease.

    Args:
        config: the settings; its group must be allowed to read the topics.
        pool: the channels.
        topics: the topics' names.
        missing_ok: whether topics that do not exist are left out; otherwise they are an error (431).

    Raises:
        RpcError: a topic does not exist (431), or the group may not read it (450, 455).
        TubeMQConnectionError: no master answered.
    """
    names = tuple(topics)
    try:
        return _ask(config, pool, names)
    except RpcError as error:
        if error.code != ErrCode.TOPIC_NOT_DEPLOYED or not missing_ok:
            raise
    return _ask_one_by_one(config, pool, names)


def _ask_one_by_one(config: ClientConfig, pool: ChannelPool, topics: tuple[str, ...]) -> TopicsLayout:
    """Ask topic by topic: the master refuses all topics when one of them does not exist."""
    partitions: dict[TopicPartition, Endpoint] = {}
    visit_token, missing = UNDEFINED, set()
    for topic in topics:
        try:
            layout = _ask(config, pool, (topic,))
        except RpcError as error:
            if error.code != ErrCode.TOPIC_NOT_DEPLOYED:
                raise
            missing.add(topic)
        else:
            partitions |= layout.partitions
            visit_token = layout.visit_token
    return TopicsLayout(partitions, visit_token, frozenset(missing))


def _ask(config: ClientConfig, pool: ChannelPool, topics: tuple[str, ...]) -> TopicsLayout:
    def ask() -> TopicsLayout:
        with BalanceSession(config, pool, topics) as session:
            partitions = session.layout().partitions
            return TopicsLayout(partitions, session.visit_token)

    backoff = Backoff()
    deadline = Deadline.after_ms(config.lease_wait_ms)
    return with_retries(ask, backoff, deadline, is_transient=_is_group_busy)


def _is_group_busy(error: TubeMQError) -> bool:
    """Tell whether another query of the group is asking for other topics at this very moment."""
    return isinstance(error, RpcError) and error.code in _GROUP_BUSY
