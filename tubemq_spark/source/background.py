"""Questions that a stream's trigger does not wait for: threads of their own ask them.

Everything that a query reads waits for its trigger, so no single broker and no absent master may hold it up.
A trigger waits ``PATIENCE_S`` for a peer that has answered so far. An answer that comes later belongs to the
next look, and until the peer answers in time again, no trigger waits for it.

A thread ends with its question, which has a bound of its own. It is a daemon: Spark ends the driver's process
of a stream without a word (``stop`` is called after an exception only), and what a question leaves behind at
a server ends there by itself.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final, Generic, TypeVar

from tubemq_spark.cluster.base import Cluster
from tubemq_spark.model import TopicPartition, TopicsLayout

logger = logging.getLogger(__name__)


Answer = TypeVar("Answer")

PATIENCE_S: Final = 1.0
"""How long a trigger waits for a peer that has answered so far."""


class BackgroundQuestion(Generic[Answer]):
    """A question that is being asked; for use by one thread."""

    def __init__(self, ask: Callable[[], Answer], name: str) -> None:
        """Call ``ask`` in a thread of this name; other threads may use what it uses at the same time."""
        self._ask = ask
        self._begun_at = time.monotonic()
        self._ended = threading.Event()
        self._answers: list[Answer] = []
        self._error: BaseException | None = None
        self.took_s = 0.0
        """How long ``ask`` took, once it has ended."""
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def ended_within(self, seconds: float) -> bool:
        """Wait so long for an answer or an error; return whether there is one."""
        return self._ended.wait(seconds)

    def answer(self) -> Answer:
        """Return the answer of a question that has ended; raise its error instead if it has one."""
        if self._error is not None:
            raise self._error
        return self._answers[0]

    def _run(self) -> None:
        try:
            self._answers.append(self._ask())
        except BaseException as error:  # noqa: BLE001 - raised where the answer is taken
            self._error = error
        self.took_s = time.monotonic() - self._begun_at
        self._ended.set()


class BackgroundQuestions(Generic[Answer]):
    """Questions, one after the other. A trigger waits for a question if the last one was answered in time."""

    def __init__(self, thread_name: str) -> None:
        self._thread_name = thread_name
        self._begun: BackgroundQuestion[Answer] | None = None
        self._is_new = False
        self._prompt = True

    @property
    def under_way(self) -> bool:
        """Whether a question has begun, and ``ended`` has not returned it."""
        return self._begun is not None

    def begin(self, ask: Callable[[], Answer]) -> None:
        """Ask a question; none may be under way."""
        self._begun = BackgroundQuestion(ask, self._thread_name)
        self._is_new = True

    def ended(self) -> BackgroundQuestion[Answer] | None:
        """Return the question under way if it has ended; the first call after ``begin`` may wait for that."""
        begun = self._begun
        if begun is None:
            return None
        seconds = PATIENCE_S if self._is_new and self._prompt else 0
        self._is_new = False
        if not begun.ended_within(seconds):
            self._prompt = False
            return None
        self._begun = None
        self._prompt = begun.took_s <= PATIENCE_S
        return begun

    def forget(self) -> None:
        """Ignore the answer of the question under way, if there is one."""
        self._begun = None


class GroupProgress:
    """Moves the user's group to where a stream stands, and never reads it there; failures end no query.

    A thread moves it, so that no micro-batch waits for a broker that does not answer. While it is busy, only
    the newest positions are kept for it; it ends when the group is there. So the group may lag behind, by as
    long as brokers take to answer, and never stands at a micro-batch that is not finished.

    ``_shown`` is where the group is known to stand; a partition that could not be moved is missing there, so
    it is tried again. One warning tells that some could not be moved, and one that all could again.

    ``_newest`` and ``_moving`` change under the lock; what else there is belongs to the thread, of which
    there is at most one.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._newest: tuple[TopicsLayout, Mapping[TopicPartition, int], bool] | None = None
        """A layout, positions there, and whether there are partitions that are not to be moved now."""
        self._moving = False
        self._shown: dict[TopicPartition, int] = {}
        self._failing = False

    def show(
        self, layout: TopicsLayout, positions: Mapping[TopicPartition, int], away: Collection[int]
    ) -> None:
        """Move the group in the partitions whose positions have changed; return at once."""
        movable = {place: offset for place, offset in positions.items() if place.broker_id not in away}
        with self._lock:
            self._newest = layout, movable, len(movable) < len(positions)
            if self._moving:
                return
            self._moving = True
        BackgroundQuestion(self._follow, "tubemq-group")

    def _follow(self) -> None:
        """Move the group to the newest positions, until there are no newer ones."""
        while True:
            with self._lock:
                newest, self._newest = self._newest, None
                self._moving = newest is not None
            if newest is None:
                return
            self._move(*newest)

    def _move(self, layout: TopicsLayout, positions: Mapping[TopicPartition, int], left_out: bool) -> None:
        """Move the group to some positions; ``left_out``: other partitions are not to be moved now."""
        changed = {place: offset for place, offset in positions.items() if self._shown.get(place) != offset}
        if not changed:
            return
        failures: Mapping[TopicPartition, Exception]
        try:
            failures = self._cluster.move_group(layout, changed)
        except Exception as error:  # noqa: BLE001 (failures never end the query, nor what comes later)
            failures = dict.fromkeys(changed, error)
        self._shown = {place: offset for place, offset in positions.items() if place not in failures}
        first = next(iter(failures.values()), None)
        if first is not None and not self._failing:
            logger.warning(
                "the group's position is not moved in %d partitions; the first: %s", len(failures), first
            )
        if first is None and self._failing and not left_out:
            logger.warning("the group's position is moved in all partitions again")
        self._failing = first is not None or (self._failing and left_out)
