"""The layout of what a query reads, asked for rarely, and kept while no master answers.

Brokers serve without a master; only the visit token needs one, now and then. And no partition is added
without a master. So while no master answers, the layout there is remains right, and a running query continues
with it for up to ten minutes. Nonsense is no answer: the addresses were right before, so something else
answers there now.

A layout is *recent* until it is due (``_due_at``): ten seconds after it was asked for, or one second if a
broker has cast doubt on it (``suspect``).

Two kinds of callers ask. What fixes an offset permanently waits for the masters (``ask``). A running stream
waits for them once (``recent``, ``newest``): the layout is asked for beside it (``background``), and a
refresh that is late is taken over when it has come. While ``_masters_away``, none begins before it is due.

One thread uses a cache. The thread of a refresh uses ``_existing...`` and ``_missing...`` only, and there is
one refresh at a time.
"""

import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Collection
from typing import Final

from tubemq_spark.cluster.base import NOT_OF_A_MASTER, Cluster
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import Endpoint, TopicsLayout
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.retry import with_retries
from tubemq_spark.offsets.subscription import TopicPattern, TopicSubscription
from tubemq_spark.protocol.constants import UNDEFINED
from tubemq_spark.settings.kinds import nearest_names
from tubemq_spark.source.background import BackgroundQuestions

logger = logging.getLogger(__name__)

_MAX_AGE_SECONDS: Final = 10.0
"""How old a layout may be: a new partition is seen that much later."""
_SUSPECT_MAX_AGE_SECONDS: Final = 1.0
"""How old it may be when a broker says that it does not have a topic."""
_MASTERS_AWAY_MAX_AGE_SECONDS: Final = 600.0
"""How old it may get while no master answers: its visit token is valid for about a quarter of an hour."""
_FIRST_LIST_ATTEMPTS: Final = 5
_FIRST_LIST_PAUSE_MS: Final = 1_000


class LayoutCache:
    """The layout of what one query reads."""

    def __init__(self, cluster: Cluster, subscription: TopicSubscription) -> None:
        self._cluster = cluster
        self._subscription = subscription
        self._existing: Collection[str] | None = None
        self._existing_unknown = False
        self._missing: frozenset[str] = frozenset()
        """Topics that did not exist when they were last asked for."""
        self._missing_due_at = 0.0
        self._asked_at = 0.0
        self._due_at = 0.0
        self._masters_away = False
        self._told_of_other_brokers = False
        self._no_match_told = False
        self._refreshes: BackgroundQuestions[TopicsLayout] = BackgroundQuestions("tubemq-layout")
        self.last: TopicsLayout | None = None
        """The last layout, however old."""
        self.suspect = False
        """Whether a broker's answer says that the layout may be wrong."""

    def recent(self) -> TopicsLayout:
        """Return the layout, without topics that do not exist; asked for again only when it is due."""
        last = self._last_if_useful()
        if last is None:
            return self.ask(missing_ok=True)
        self._take_over()
        now = time.monotonic()
        suspect = self.suspect and now >= self._asked_at + _SUSPECT_MAX_AGE_SECONDS
        if suspect or now >= self._due_at:
            self._begin_refresh()
        return self.last or last

    def newest(self) -> tuple[TopicsLayout, bool]:
        """Return the layout, without topics that do not exist, and whether it was asked for now.

        It was not if the masters are away or late.
        """
        last = self._last_if_useful()
        if last is None:
            return self.ask(missing_ok=True), not self._masters_away
        self._take_over()
        asked_now = self._begin_refresh()
        return self.last or last, asked_now

    def ask(self, *, missing_ok: bool) -> TopicsLayout:
        """Ask for the layout; while no master answers, return the last one."""
        if self._masters_away and self.last is not None and time.monotonic() < self._due_at:
            return self.last
        self._refreshes.forget()  # what it brings would be older
        return self._take(lambda: self._ask(missing_ok=missing_ok))[0]

    def _last_if_useful(self) -> TopicsLayout | None:
        too_old = time.monotonic() - self._asked_at > _MASTERS_AWAY_MAX_AGE_SECONDS
        return None if too_old else self.last

    def _begin_refresh(self) -> bool:
        """Begin one if none is under way and masters answer; tell whether it has brought a layout already."""
        if self._refreshes.under_way or (self._masters_away and time.monotonic() < self._due_at):
            return False
        self._refreshes.begin(functools.partial(self._ask, missing_ok=True))
        return self._take_over()

    def _take_over(self) -> bool:
        """Take what the refresh under way has brought; tell whether that is a layout."""
        refresh = self._refreshes.ended()
        return refresh is not None and self._take(refresh.answer)[1]

    def _take(self, answer: Callable[[], TopicsLayout]) -> tuple[TopicsLayout, bool]:
        """Return the answer, or the last layout while no master answers, and whether it is the answer."""
        last = self._last_if_useful()
        try:
            layout = answer()
        except TubeMQError as error:
            if last is None or not (error.retriable or isinstance(error, NOT_OF_A_MASTER)):
                raise
            if not self._masters_away:
                logger.warning("no master answers; continuing with the last layout: %s", error)
            self._masters_away = True
            layout = last
        else:
            if self._masters_away:
                age = time.monotonic() - self._asked_at
                logger.warning("a master answers again; the last layout was %.0f s old", age)
            self._masters_away = False
            self._asked_at = time.monotonic()
            self._warn_of_other_brokers(layout)
        self.last = layout
        self._due_at = time.monotonic() + _MAX_AGE_SECONDS
        return layout, not self._masters_away

    def _ask(self, *, missing_ok: bool) -> TopicsLayout:
        topics = self._subscription.topics(self._ask_for_topics)
        if not topics:
            self._warn_of_no_match()
            return TopicsLayout({}, UNDEFINED)
        # A topic that was found may be gone by now.
        missing_ok = missing_ok or self._subscription.finds_topics
        # A master refuses all topics where one is missing, so it is asked for these with every refresh only
        # that would be due by itself.
        missing = frozenset(topics) & self._missing
        if not missing_ok or time.monotonic() >= self._missing_due_at:
            missing = frozenset()
            self._missing_due_at = time.monotonic() + _MAX_AGE_SECONDS
        rest = [topic for topic in topics if topic not in missing]
        layout = TopicsLayout({}, UNDEFINED)
        if rest:
            layout = self._cluster.layout(rest, missing_ok=missing_ok)
        self._missing = missing | layout.missing_topics
        return self._subscription.of(dataclasses.replace(layout, missing_topics=self._missing))

    def _warn_of_no_match(self) -> None:
        """Say once that a pattern matches no topic, and which topics there are."""
        if self._no_match_told or not isinstance(self._subscription, TopicPattern):
            return
        self._no_match_told = True
        pattern = self._subscription.expression
        letters = "".join(each for each in pattern if each.isalnum() or each == "_")
        near = nearest_names(letters, self._existing or ())
        others = "there are no topics" if not near else f"there is {', '.join(near)}"
        logger.warning("no topic matches %s='%s' as a whole; %s", self._subscription.option, pattern, others)

    def _ask_for_topics(self) -> Collection[str]:
        """Return which topics exist; the last answer where there is none now.

        Without one, masters are asked again for some seconds, as they are for a layout: one that restarts
        answers here as late as there.
        """
        if self._existing is None:
            deadline = Deadline.after_ms(_FIRST_LIST_ATTEMPTS * _FIRST_LIST_PAUSE_MS, time.monotonic)
            self._existing = with_retries(
                self._cluster.topics, _FIRST_LIST_PAUSE_MS, _FIRST_LIST_ATTEMPTS, deadline, time.sleep
            )
            return self._existing
        try:
            self._existing = self._cluster.topics()
        except TubeMQError as error:
            if not self._existing_unknown:
                logger.warning("new topics are not found as long as no master lists them: %s", error)
            self._existing_unknown = True
        else:
            self._existing_unknown = False
        return self._existing

    def _warn_of_other_brokers(self, layout: TopicsLayout) -> None:
        """Warn, once, when no broker is where it was: the masters may be those of two clusters."""
        before, now = _addresses(self.last), _addresses(layout)
        moved = [broker for broker, endpoint in before.items() if now.get(broker, endpoint) != endpoint]
        if self._told_of_other_brokers or not moved or len(moved) < len(before):
            return
        self._told_of_other_brokers = True
        logger.warning(
            "the masters list each broker at another address than before, for example broker %d at %s, "
            "not at %s; if that is another cluster, the query goes on there at offsets of the first one: "
            "name the masters of one cluster only",
            moved[0],
            now[moved[0]],
            before[moved[0]],
        )


def _addresses(layout: TopicsLayout | None) -> dict[int, Endpoint]:
    partitions = {} if layout is None else layout.partitions
    return {partition.broker_id: endpoint for partition, endpoint in partitions.items()}
