"""The layout of what a query reads, asked for rarely, and kept while no master answers.

Brokers serve without a master; only the visit token needs one, now and then. And no partition is added
without a master. So while no master answers, the layout there is remains right, and a running query continues
with it for up to ten minutes.

A layout is *recent* until it is due (``_due_at``): ten seconds after it was asked for, or one second if a
broker has cast doubt on it (``suspect``). While ``_masters_away``, even callers that want a new one get the
old one until it is due, so that every question does not wait for masters that are away.
"""

import logging
import time
from collections.abc import Collection
from typing import Final

from tubemq_spark.cluster.base import Cluster
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import TopicsLayout
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.retry import FixedPauses, Sleep, with_retries
from tubemq_spark.offsets.subscription import Subscription
from tubemq_spark.protocol.constants import UNDEFINED

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

    def __init__(self, cluster: Cluster, subscription: Subscription) -> None:
        self._cluster = cluster
        self._subscription = subscription
        self._existing: Collection[str] | None = None
        self._existing_unknown = False
        self._asked_at = 0.0
        self._due_at = 0.0
        self._masters_away = False
        self.last: TopicsLayout | None = None
        """The last layout, however old."""
        self.suspect = False
        """Whether a broker's answer says that the layout may be wrong."""

    def recent(self, *, missing_ok: bool) -> TopicsLayout:
        """Return the layout, asked for again only when it is due; see ``ask``."""
        now = time.monotonic()
        suspect = self.suspect and now >= self._asked_at + _SUSPECT_MAX_AGE_SECONDS
        if self.last is None or suspect or now >= self._due_at:
            return self.ask(missing_ok=missing_ok)
        return self.last

    def ask(self, *, missing_ok: bool) -> TopicsLayout:
        """Ask for the layout; while no master answers, return the last one.

        Args:
            missing_ok: see ``Cluster.layout``.

        Raises:
            TubeMQError: the master refuses, or no master answers and the last layout is too old.
        """
        if self._masters_away and self.last is not None and time.monotonic() < self._due_at:
            return self.last
        try:
            self.last = self._subscription.of(self._ask(missing_ok=missing_ok))
        except TubeMQError as error:
            age = time.monotonic() - self._asked_at
            if self.last is None or not error.retriable or age > _MASTERS_AWAY_MAX_AGE_SECONDS:
                raise
            self._note_masters_away(error)
        else:
            self._note_masters_answer()
        self._due_at = time.monotonic() + _MAX_AGE_SECONDS
        return self.last

    def _ask(self, *, missing_ok: bool) -> TopicsLayout:
        topics = self._subscription.topics(self._ask_for_topics)
        if not topics:
            return TopicsLayout({}, UNDEFINED)
        # A topic that was found may be gone by now.
        missing_ok = missing_ok or self._subscription.finds_topics
        return self._cluster.layout(topics, missing_ok=missing_ok)

    def _ask_for_topics(self) -> Collection[str]:
        """Return which topics exist; the last answer where there is none now.

        Without one, masters are asked again for some seconds, as they are for a layout: one that restarts
        answers here as late as there.

        Raises:
            TubeMQError: there has been no answer yet.
        """
        if self._existing is None:
            deadline = Deadline.after_ms(_FIRST_LIST_ATTEMPTS * _FIRST_LIST_PAUSE_MS, time.monotonic)
            pauses = FixedPauses(_FIRST_LIST_PAUSE_MS, _FIRST_LIST_ATTEMPTS, Sleep(time.sleep))
            self._existing = with_retries(self._cluster.topics, pauses, deadline)
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

    def _note_masters_away(self, error: TubeMQError) -> None:
        if not self._masters_away:
            logger.warning("no master answers; continuing with the last layout: %s", error)
        self._masters_away = True

    def _note_masters_answer(self) -> None:
        if self._masters_away:
            age = time.monotonic() - self._asked_at
            logger.warning("a master answers again; the last layout was %.0f s old", age)
        self._masters_away = False
        self._asked_at = time.monotonic()
