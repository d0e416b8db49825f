"""Where the partitions of topics are, asked in a short session with the masters."""

import asyncio
import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master.balance import BalanceSession
from tubemq_spark.errors import RpcError, TubeMQError
from tubemq_spark.model import Endpoint, TopicsLayout
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.loop import in_thread
from tubemq_spark.net.retry import Backoff
from tubemq_spark.protocol.constants import MAX_TOPICS, UNDEFINED
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.settings.suggest import did_you_mean

_GROUP_BUSY: Final = frozenset({ErrCode.CLIENT_INCONSISTENT_TOPICSET, ErrCode.CLIENT_INCONSISTENT_FILTERSET})
_MOST_LISTS: Final = 4
_LISTING_S: Final = 0.5
_MOST_QUESTIONS: Final = 3
"""How many servers are asked for names, for how long each, and for how many topics an error suggests one."""


async def topics_layout(
    config: ClientConfig,
    connections: Connections,
    topics: Iterable[str],
    *,
    missing_ok: bool = False,
    web: Callable[[], Sequence[Endpoint]] | None = None,
) -> TopicsLayout:
    """Register the group at the master, ask for the layout and leave again.

    The session is short instead of lasting as long as a query: a master remembers a group's topics while the
    group has a member, so it would refuse a second query of the group with other topics (425), and would
    continue to list removed topics. A driver that is killed during a session stays a member for 30 s; it is
    waited for as long as for a dead reader's lease.

    A master takes a limited number of topics in a session, so there is one after the other for more.

    Args:
        config: the settings; its group must be allowed to read the topics.
        connections: those of the caller.
        topics: the topics' names.
        missing_ok: whether topics that do not exist are left out; otherwise they are an error (431).
        web: returns where masters list the topics there are, for the error: it names those that were perhaps
            meant. Called in a thread of its own.

    Raises:
        RpcError: a topic does not exist (431), or the group may not read it (450, 455).
        TubeMQConnectionError: no master answered.
    """
    names = tuple(topics)
    chunks = [names[first : first + MAX_TOPICS] for first in range(0, max(1, len(names)), MAX_TOPICS)]
    ask = _ask_for_those_that_exist if missing_ok else _ask
    try:
        return TopicsLayout.joined([await ask(config, connections, chunk) for chunk in chunks])
    except RpcError as error:
        meant = ""
        if error.code == ErrCode.TOPIC_NOT_DEPLOYED and web is not None:
            with contextlib.suppress(RuntimeError):  # no thread is left
                meant = await in_thread(functools.partial(_perhaps_meant, names, web), "tubemq-topics")
        if not meant:
            raise
        hint = f"{error.parameters['hint']} ({meant})"
        raise RpcError(error.condition, **{**error.parameters, "hint": hint}) from None


def _perhaps_meant(topics: Iterable[str], web: Callable[[], Sequence[Endpoint]]) -> str:
    """Ask which topics are named like those that do not exist; "" if none is, or the masters list none."""
    from tubemq_spark.client.metadata.topics import existing_topics

    try:
        servers = web()[:_MOST_LISTS]
        known = existing_topics(servers, _LISTING_S) if servers else ()
    except TubeMQError:
        return ""
    # Each is compared with every name there is, so only the first ones are.
    missing = itertools.islice((topic for topic in topics if topic not in known), _MOST_QUESTIONS)
    return " ".join(filter(None, (did_you_mean(topic, known) for topic in missing)))


async def _ask_for_those_that_exist(
    config: ClientConfig, connections: Connections, topics: tuple[str, ...]
) -> TopicsLayout:
    """Ask for halves as long as the master refuses: it does when one of the topics does not exist."""
    try:
        return await _ask(config, connections, topics)
    except RpcError as error:
        if error.code != ErrCode.TOPIC_NOT_DEPLOYED:
            raise
    if len(topics) == 1:
        return TopicsLayout({}, UNDEFINED, frozenset(topics))
    half = len(topics) // 2
    halves = topics[:half], topics[half:]
    return TopicsLayout.joined(
        [await _ask_for_those_that_exist(config, connections, some) for some in halves]
    )


async def _ask(config: ClientConfig, connections: Connections, topics: tuple[str, ...]) -> TopicsLayout:
    backoff = Backoff()
    deadline = Deadline.after_ms(config.lease_wait_ms, asyncio.get_running_loop().time)
    while True:
        try:
            async with BalanceSession(config, connections, topics) as session:
                partitions = (await session.layout()).partitions
                return TopicsLayout(partitions, session.visit_token)
        except RpcError as error:
            # Another query of the group may be asking for other topics at this very moment.
            if error.code not in _GROUP_BUSY or (pause_s := backoff.next_s(deadline)) is None:
                raise
        await asyncio.sleep(pause_s)
