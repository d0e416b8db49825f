"""Where the partitions of topics are, asked in a short session with the masters."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master.balance import BalanceSession
from tubemq_spark.errors import RpcError, TubeMQError
from tubemq_spark.model import Endpoint, TopicsLayout
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.net.retry import Backoff, with_retries
from tubemq_spark.protocol.constants import MAX_TOPICS, UNDEFINED
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.settings.suggest import did_you_mean

_GROUP_BUSY: Final = frozenset({ErrCode.CLIENT_INCONSISTENT_TOPICSET, ErrCode.CLIENT_INCONSISTENT_FILTERSET})
_MOST_LISTS: Final = 4
_LISTING_S: Final = 0.5
_MOST_QUESTIONS: Final = 3
"""How many servers are asked for names, for how long each, and for how many topics an error suggests one."""


def topics_layout(
    config: ClientConfig,
    pool: ChannelPool,
    topics: Iterable[str],
    *,
    missing_ok: bool = False,
    web: Callable[[], Sequence[Endpoint]] = tuple,
) -> TopicsLayout:
    """Register the group at the master, ask for the layout and leave again.

    The session is short instead of lasting as long as a query: a master remembers a group's topics while the
    group has a member, so it would refuse a second query of the group with other topics (425), and would
    continue to list removed topics. A driver that is killed during a session stays a member for 30 s; it is
    waited for as long as for a dead reader's lease.

    A master takes a limited number of topics in a session, so there is one after the other for more.

    Args:
        config: the settings; its group must be allowed to read the topics.
        pool: the channels.
        topics: the topics' names.
        missing_ok: whether topics that do not exist are left out; otherwise they are an error (431).
        web: returns where masters list the topics there are, for the error: it names those that were perhaps
            meant.

    Raises:
        RpcError: a topic does not exist (431), or the group may not read it (450, 455).
        TubeMQConnectionError: no master answered.
    """
    names = tuple(topics)
    chunks = [names[first : first + MAX_TOPICS] for first in range(0, max(1, len(names)), MAX_TOPICS)]
    ask = _ask_for_those_that_exist if missing_ok else _ask
    try:
        return TopicsLayout.joined([ask(config, pool, chunk) for chunk in chunks])
    except RpcError as error:
        if error.code == ErrCode.TOPIC_NOT_DEPLOYED and (meant := _perhaps_meant(names, web())):
            hint = f"{error.parameters['hint']} ({meant})"
            raise RpcError(error.condition, **{**error.parameters, "hint": hint}) from None
        raise


def _perhaps_meant(topics: Iterable[str], web: Sequence[Endpoint]) -> str:
    """Ask which topics are named like those that do not exist; "" if none is, or the masters list none."""
    from tubemq_spark.client.metadata.topics import existing_topics

    try:
        known = existing_topics(web[:_MOST_LISTS], _LISTING_S) if web else ()
    except TubeMQError:
        return ""
    # Each is compared with every name there is, so only the first ones are.
    missing = itertools.islice((topic for topic in topics if topic not in known), _MOST_QUESTIONS)
    return " ".join(filter(None, (did_you_mean(topic, known) for topic in missing)))


def _ask_for_those_that_exist(
    config: ClientConfig, pool: ChannelPool, topics: tuple[str, ...]
) -> TopicsLayout:
    """Ask for halves as long as the master refuses: it does when one of the topics does not exist."""
    try:
        return _ask(config, pool, topics)
    except RpcError as error:
        if error.code != ErrCode.TOPIC_NOT_DEPLOYED:
            raise
    if len(topics) == 1:
        return TopicsLayout({}, UNDEFINED, frozenset(topics))
    half = len(topics) // 2
    halves = topics[:half], topics[half:]
    return TopicsLayout.joined([_ask_for_those_that_exist(config, pool, some) for some in halves])


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
