"""Where partitions are, as a master said a moment ago.

Clients of a gateway name partitions and never addresses, so it cannot be made to connect to anything else
than the brokers of its cluster. What a master said of a topic is used for ``refresh_s``; then it is asked
again, as a rule by ``refresh``, so that no call waits for that. While no master answers, it is used for up to
``expiry_s``, so reading goes on. That a topic has no partitions is used for a moment only: it may be about
to come.

A topic not used for ``expiry_s`` is forgotten, and so is the one that was not used for longest
when there are too many. Of those without partitions few are too many.

Only one call asks at a time, and those that waited for it use its answer, or fail as it did. Two at a time
would hinder each other: while one asks, a master refuses the group other topics (425). A call that is
cancelled takes its question with it, and the next one asks.
"""

import asyncio
import dataclasses
import heapq
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from tubemq_spark.client.metadata.questions import Questions
from tubemq_spark.errors import OptionError, RemoteProtocolError, TubeMQConnectionError, TubeMQError
from tubemq_spark.model import Endpoint, TopicPartition, TopicsLayout
from tubemq_spark.net.deadline import Clock, monotonic

logger = logging.getLogger(__name__)

_MISSING_S: Final = 5.0
"""For how long a topic without partitions is taken to have none."""
_MOST_TOPICS: Final = 20_000
_MOST_MISSING: Final = 1_024
"""Of topics without partitions, whose names are what clients make up."""
_NO_MASTER: Final = (TubeMQConnectionError, OptionError, RemoteProtocolError)
"""Errors that say that no master answers, or that something else does."""


@dataclasses.dataclass(frozen=True, slots=True)
class _TopicRoute:
    """What a master said of one topic."""

    partitions: Mapping[TopicPartition, Endpoint]
    token: int
    at: float


class Routes:
    """Where the partitions are that one kind of session may read."""

    def __init__(
        self, transport: Questions, refresh_s: float, expiry_s: float, clock: Clock = monotonic
    ) -> None:
        self._transport = transport
        self._refresh_s = refresh_s
        self._expiry_s = expiry_s
        self._clock = clock
        self._asking_lock = asyncio.Lock()
        self._topics: dict[str, _TopicRoute] = {}
        self._used: dict[str, float] = {}
        """When each topic was used last, in that order."""
        self.on_change: Callable[[str, int], object] = lambda _topic, _partitions: None
        """Called when a topic has other partitions than before, or elsewhere; with how many it has now."""
        self._failure: TubeMQError | None = None
        """Why no master answered when one was asked last; None when one did."""
        self._failed_at = 0.0

    @property
    def degraded(self) -> bool:
        """Whether no master answered when one was asked last."""
        return self._failure is not None

    async def layout(self, topics: Iterable[str], *, missing_ok: bool) -> TopicsLayout:
        """Ask a master, and remember what it says."""
        topics, began = tuple(topics), self._clock()
        async with self._asking_lock:
            layout = await self._layout(topics, began, missing_ok=missing_ok)
            self._remember(topics, layout)
        self._use(topics)
        return layout

    async def refresh(self) -> None:
        """Ask a master for all topics that are in use, so that no call has to wait for that."""
        began = self._clock()
        for topic in [topic for topic, used in self._used.items() if used < began - self._expiry_s]:
            self._drop(topic)
        async with self._asking_lock:
            topics = sorted(self._topics)
            if topics:
                self._remember(topics, await self._layout(topics, began, missing_ok=True))

    async def find(self, partitions: Collection[TopicPartition]) -> TopicsLayout:
        """Return where some partitions are."""
        layout = await self.known({partition.topic for partition in partitions})
        unknown = [partition for partition in partitions if partition not in layout.partitions]
        if unknown:
            raise OptionError("TUBEMQ_PARTITION_NOT_LISTED", partition=unknown[0])
        return dataclasses.replace(
            layout, partitions={partition: layout.partitions[partition] for partition in partitions}
        )

    async def known(self, topics: Collection[str]) -> TopicsLayout:
        """Return where all partitions of some topics are; topics that do not exist have none."""
        began = self._clock()
        if self._any_older(topics, began - self._refresh_s):
            async with self._asking_lock:
                # Another call may have asked in between.
                if self._any_older(topics, began - self._refresh_s):
                    await self._ask(topics, began)
        self._use(topics)
        answers = [answer for topic in sorted(topics) if (answer := self._topics.get(topic)) is not None]
        partitions = {
            partition: endpoint for answer in answers for partition, endpoint in answer.partitions.items()
        }
        newest = max(answers, key=lambda answer: answer.at, default=None)
        return TopicsLayout(partitions, 0 if newest is None else newest.token)

    def forget(self, topics: Iterable[str]) -> None:
        """Ask a master before these topics are used again: what it said last has proved wrong."""
        for topic in topics:
            self._topics.pop(topic, None)

    def age_ms(self, topics: Iterable[str]) -> int:
        """Return how long ago a master spoke of these topics, of the oldest answer."""
        oldest = min((self._topics[topic].at for topic in topics if topic in self._topics), default=None)
        return 0 if oldest is None else int((self._clock() - oldest) * 1000)

    def shown(self, most: int) -> list[tuple[str, int, int, int]]:
        """Return the first topics, how many partitions and brokers each has, and how old that is, in ms."""
        now = self._clock()
        return [
            (
                topic,
                len(answer.partitions),
                len(set(answer.partitions.values())),
                int((now - answer.at) * 1000),
            )
            for topic, answer in heapq.nsmallest(most, self._topics.items())
        ]

    async def _ask(self, topics: Collection[str], began: float) -> None:
        try:
            self._remember(topics, await self._layout(sorted(topics), began, missing_ok=True))
        except _NO_MASTER as error:
            if self._any_older(topics, self._clock() - self._expiry_s):
                raise
            logger.warning("no master answers; what one said before is used: %s", error)

    async def _layout(self, topics: Collection[str], began: float, *, missing_ok: bool) -> TopicsLayout:
        """Ask a master, unless none answered another call since ``began``; ``_asking_lock`` is held."""
        if self._failure is not None and self._failed_at > began:
            raise type(self._failure)(self._failure.condition, **self._failure.parameters)
        try:
            layout = await self._transport.layout(topics, missing_ok=missing_ok)
        except _NO_MASTER as error:
            self._failure, self._failed_at = error, self._clock()
            raise
        self._failure = None
        return layout

    def _any_older(self, topics: Collection[str], moment: float) -> bool:
        return any(self._is_older(topic, moment) for topic in topics)

    def _is_older(self, topic: str, moment: float) -> bool:
        answer = self._topics.get(topic)
        if answer is None:
            return True
        return answer.at < (moment if answer.partitions else max(moment, self._clock() - _MISSING_S))

    def _use(self, topics: Iterable[str]) -> None:
        now = self._clock()
        before = len(self._used)
        for topic in topics:
            self._used.pop(topic, None)
            self._used[topic] = now
        if len(self._used) > before:
            missing = [topic for topic in self._used if not self._has_partitions(topic)]
            for topic in missing[: max(0, len(missing) - _MOST_MISSING)]:
                self._drop(topic)
            for topic in list(self._used)[: max(0, len(self._used) - _MOST_TOPICS)]:
                self._drop(topic)

    def _has_partitions(self, topic: str) -> bool:
        answer = self._topics.get(topic)
        return answer is not None and bool(answer.partitions)

    def _drop(self, topic: str) -> None:
        del self._used[topic]
        self._topics.pop(topic, None)

    def _remember(self, topics: Iterable[str], layout: TopicsLayout) -> None:
        now = self._clock()
        partitions: dict[str, dict[TopicPartition, Endpoint]] = {topic: {} for topic in topics}
        for partition, endpoint in layout.partitions.items():
            partitions.setdefault(partition.topic, {})[partition] = endpoint
        for topic, places in partitions.items():
            before = self._topics.get(topic)
            self._topics[topic] = _TopicRoute(places, layout.visit_token, now)
            if before is not None and before.partitions != places:
                self.on_change(topic, len(places))


def with_missing(layout: TopicsLayout, topics: Iterable[str]) -> TopicsLayout:
    """Return a layout that names the topics of which it has no partition."""
    there = {partition.topic for partition in layout.partitions}
    return dataclasses.replace(layout, missing_topics=frozenset(topics) - there)
