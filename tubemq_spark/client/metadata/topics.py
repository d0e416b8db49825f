"""Which topics and partitions there are, and where, as masters tell; asked in short sessions with them.

A broker answers 403 for a topic that it does not have, but also while it starts and has not loaded its
configuration, and when a topic is closed. So nothing counts as removed before the master says so too.
"""

import asyncio
import contextlib
import functools
import itertools
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final, TypeAlias

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master.balance import BalanceSession
from tubemq_spark.client.master.producers import ProducerSession
from tubemq_spark.errors import ProduceError, RemoteProtocolError, RpcError, TubeMQError
from tubemq_spark.model import Endpoint, TopicPartition, TopicsLayout
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.loop import in_thread
from tubemq_spark.net.retry import PUBLISHABLE_TOPIC, Backoff
from tubemq_spark.offsets.loss import Loss
from tubemq_spark.protocol.constants import MAX_TOPICS, OFFSET_HISTORY_TOPIC, UNDEFINED, is_encodable
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.settings.kinds import did_you_mean

_LONGEST_NAME: Final = 64


def existing_topics(web_servers: Sequence[Endpoint], timeout_s: float) -> Collection[str]:
    """Ask the masters' administration API, one after the other, until one lists the topics.

    A topic counts from its creation until it is deleted on every broker, also while its brokers are away.
    """
    # What speaks HTTP takes longer to import than all the rest, and most processes never ask this.
    from tubemq_spark.client.metadata.admin import MasterAdmin
    from tubemq_spark.client.metadata.admin_questions import ask_a_master

    return ask_a_master(web_servers, timeout_s, MasterAdmin.topics, "TUBEMQ_TOPICS_NOT_LISTED")


async def configured_partitions(
    config: ClientConfig, connections: Connections, topic: str, until: Deadline | None = None
) -> frozenset[TopicPartition] | None:
    """Return the partitions a topic has, those included that cannot be published to just now.

    A master lists a producer only what can be published to at this moment, and says nothing of the rest.
    A reader that registers, however, is refused with 431 when the topic does not exist, and is told of all
    partitions otherwise. That takes no longer than ``until``.

    None: they cannot be found out, since the group may not read, or is busy.
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
    """Return the partitions to which a topic can be published now, in order; perhaps none."""
    refuse_impossible_name(topic)
    async with ProducerSession(config, connections) as session:
        await session.publish([topic])
        partitions = session.routes(topic).partitions
    if not partitions:
        await configured_partitions(config, connections, topic)
    return tuple(sorted(partitions))


async def refuse_unknown_topic(config: ClientConfig, connections: Connections, topic: str) -> None:
    """Raise ``ProduceError`` if a topic does not exist, as far as that can be known."""
    await publishable(config, connections, topic)


async def await_publishable(config: ClientConfig, connections: Connections, topic: str) -> None:
    """Wait until a topic can be published to: it may be closed, or its brokers may restart."""
    deadline = Deadline.after_ms(config.delivery_timeout_ms, asyncio.get_running_loop().time)
    backoff = Backoff(PUBLISHABLE_TOPIC)
    while not await publishable(config, connections, topic):
        if (pause_s := backoff.next_s(deadline)) is None:
            waited_ms = config.delivery_timeout_ms
            raise ProduceError("TUBEMQ_TOPIC_UNPUBLISHABLE", topic=topic, waited_ms=waited_ms)
        await asyncio.sleep(pause_s)


def refuse_impossible_name(topic: str) -> None:
    """Raise ``ProduceError`` if no topic can have this name.

    A master refuses every later heartbeat of a producer that names an impossible topic once.
    """
    fits = 0 < len(topic) <= _LONGEST_NAME and is_encodable(topic)
    if not fits or topic == OFFSET_HISTORY_TOPIC:
        raise ProduceError("TUBEMQ_TOPIC_NAME", topic=topic)


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

    ``web`` returns where masters list the topics there are, for the error about a topic that does not
    exist: it names those that were perhaps meant. It is called in a thread of its own.
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


logger = logging.getLogger(__name__)

_NO_SUCH_PARTITION: Final = "Wrong partition value"
"""How a broker says that a topic has fewer partitions; the code is 500, as with any internal error."""

Locate: TypeAlias = Callable[[TopicPartition], Awaitable[Endpoint | Loss]]
"""Returns the partition's broker, or that the topic or the partition does not exist; raises TubeMQError when
that cannot be found out."""


async def find_partition(
    config: ClientConfig, connections: Connections, partition: TopicPartition
) -> Endpoint | Loss:
    """Ask the master where a partition is."""
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


async def place_of(locate: Locate, partition: TopicPartition) -> Endpoint | Loss | None:
    """Return a partition's broker, or what has been removed, or None when the master does not say."""
    try:
        return await locate(partition)
    except TubeMQError as error:
        logger.info("no master says where %s is: %s", partition, error)
        return None
