"""The driver's view of a cluster: layout and bounds, asked seldom and asked again when a broker is away.

Spark asks an idle stream for its end some 65 times a second, and an exception in any of its questions ends
the query. So answers are kept for a moment, what may pass is tried again here, and a running query never
ends because a broker does not answer: the stores of that broker stay where they are, the others go on.

Two kinds of question:

- *as far as brokers answer* (``look``): what a running stream needs. Stores without an answer stand still.
- *complete* (``look_complete``): what fixes a position for good, which is a start, the end of a batch read,
  or the target of ``Trigger.AvailableNow``. It waits for every store, up to ``fetchOffset.numRetries`` tries.

Invariant: the layout of a snapshot was asked for after its bounds. So no partition that the layout lacks has
a record below these bounds: producers write to a partition only after the master lists it. This is what
makes it true that a partition that appears in a known store has nothing before the planned position, and
that a store whose only partition is planned holds nothing else.
"""

import collections
import dataclasses
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from tubemq_spark.cluster.base import Cluster
from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.errors import RemoteProtocolError, RpcError, TubeMQConnectionError, TubeMQError
from tubemq_spark.model import OffsetBounds, OffsetRange, StoreBounds, StoreId, TopicPartition, TopicsLayout
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.retry import FixedPauses, with_retries
from tubemq_spark.offsets.audit import removal
from tubemq_spark.offsets.loss import LossPolicy
from tubemq_spark.options import ReadOptions
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.source.grouping import grouped
from tubemq_spark.source.outages import RETRY_TIMEOUT_MS, Outages
from tubemq_spark.source.partition import OffsetRangePartition
from tubemq_spark.source.unlisted import UNLISTED_SECONDS, Unlisted, unlisted

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

_LAYOUT_SECONDS: Final = 10.0
"""How old a layout may be: a new partition is seen that much later."""
_SUSPECT_LAYOUT_SECONDS: Final = 1.0
"""How old it may be when a broker says that it does not have a topic."""
_OLD_LAYOUT_SECONDS: Final = 600.0
"""How old a layout may get while no master answers: its visit token lives about a quarter of an hour."""
_BOUNDS_SECONDS: Final = 0.25
"""How old bounds may be while data flows."""
_IDLE_BOUNDS_SECONDS: Final = 2.0
"""How old bounds may get when nothing has come for a while."""
_IDLE_SHARE: Final = 0.1
"""A stream that has been idle for this many times as long looks that seldom."""
_SECONDS_PER_STORE: Final = 0.0025
"""Looking at a store takes a driver's core some 0.2 ms: hundreds of stores are looked at less often."""

_NOT_READY: Final = frozenset({ErrCode.FORBIDDEN, ErrCode.INTERNAL_SERVER_ERROR})
"""What a broker answers that does not have a topic or a store yet, or any more: the layout tells which."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """What the cluster held at one moment; the same object as long as nothing has changed."""

    layout: TopicsLayout
    bounds: Mapping[StoreId, OffsetBounds]
    """Of the stores whose brokers answered."""
    unlisted: frozenset[TopicPartition] = frozenset()
    """Partitions that the layout lacks and that may be there all the same."""

    def holds(self, answer: StoreBounds, layout: TopicsLayout, expected: frozenset[TopicPartition]) -> bool:
        """Tell whether a look has found nothing new."""
        return (
            answer.known == self.bounds
            and layout.partitions == self.layout.partitions
            and expected == self.unlisted
        )

    @property
    def partitions(self) -> Collection[TopicPartition]:
        """All partitions that exist, or may exist."""
        listed = self.layout.partitions.keys()
        return listed | self.unlisted if self.unlisted else listed


class Planner:
    """Answers a reader's questions about its topics; lives in the driver, is never pickled."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        retries_ms = options.offset_fetch_attempts * options.offset_fetch_retry_ms
        self._patience_ms = retries_ms + options.cluster.client.rpc_timeout_ms
        self._cluster: Cluster = open_cluster(options.cluster)
        self._layout: TopicsLayout | None = None
        self._layout_time = 0.0
        self._ask_layout_at = 0.0
        self._layout_suspect = False
        self._masters_away = False
        self._outages = Outages()
        self._unlisted = Unlisted()
        self._looked_at = 0.0
        self._changed_at = 0.0
        self._latest: dict[StoreId, int] = {}
        self.last: Snapshot | None = None
        """What was seen last, however old."""

    @property
    def latest_known(self) -> Mapping[StoreId, int]:
        """Where every store ended when its broker last answered, in index bytes."""
        return self._latest

    def look(self, positions: Mapping[TopicPartition, int]) -> Snapshot:
        """Return layout and bounds as far as brokers answer, at most a moment old.

        Args:
            positions: where a running stream stands. A topic that no longer exists is not an error then.

        Raises:
            TubeMQError: the master refuses, or no master has answered for ten minutes.
        """
        if self.last is None or time.monotonic() - self._looked_at > self._look_every():
            self.last = self._look_as_far_as_brokers_answer(positions)
            self._looked_at = time.monotonic()
        return self.last

    def look_complete(self, *, resumed: bool = False) -> Snapshot:
        """Return layout and bounds of all stores, asked now.

        Args:
            resumed: whether this may be a query with a checkpoint. Then masters that never answered are asked
                again, too (they are not by default, since the address may be wrong), and a topic that does
                not exist is left out instead of being an error.

        Raises:
            RpcError: a topic does not exist, or the group may not read it.
            TubeMQConnectionError: ``TUBEMQ_BROKERS_AWAY``: a store had no answer for
                ``fetchOffset.numRetries`` tries.
            TubeMQError: a broker refuses for good, or no master answers.
        """
        if self._layout is None and not resumed:
            self._ask_layout(missing_ok=False)
        self.last = self._until_answered(lambda: self._look_at_all(missing_ok=resumed))
        self._looked_at = time.monotonic()
        return self.last

    def readable_bounds(
        self, snapshot: Snapshot, stores: Collection[StoreId], *, patient: bool
    ) -> Mapping[StoreId, OffsetBounds]:
        """Return bounds in which these stores begin at the first record that can still be read.

        Stores that several partitions share are left as they are: what is missing there cannot be told.

        Args:
            snapshot: the bounds to begin with.
            stores: some of its stores.
            patient: whether brokers are asked again for ``fetchOffset.numRetries`` tries.

        Raises:
            TubeMQError: a broker did not answer.
        """
        alone = _partitions_alone(snapshot.layout.partitions)
        begins = {
            alone[store]: snapshot.bounds[store]
            for store in stores
            if store in alone and snapshot.bounds[store].earliest < snapshot.bounds[store].latest
        }
        if not begins:
            return snapshot.bounds

        def ask() -> dict[TopicPartition, int]:
            return self._cluster.first_readable(snapshot.layout, begins)

        found = self._until_answered(ask) if patient else ask()
        lifted = {
            partition.store_id: held._replace(earliest=found[partition]) for partition, held in begins.items()
        }
        return {**snapshot.bounds, **lifted}

    def partitions(
        self, ranges: Iterable[OffsetRange], planned: Collection[TopicPartition], on_loss: LossPolicy
    ) -> list[OffsetRangePartition]:
        """Return the tasks of some ranges, with the addresses of their brokers; brokers are not asked.

        Args:
            ranges: what is to be read.
            planned: all partitions that were there when the ranges were planned. Not those of now: the
                replay of a micro-batch must give the same rows after a partition was added.
            on_loss: hears of partitions that do not exist any more.

        Raises:
            DataLossError: by the policy.
            TubeMQError: as ``look``.
        """
        ranges, requests = list(ranges), []
        layout = self._layout_listing([range_.partition for range_ in ranges])
        alone = _partitions_alone(planned)
        for range_ in ranges:
            if range_.partition not in layout.partitions:
                on_loss(removal(range_.partition, range_.start, range_.end, layout.partitions))
                continue
            own_store = range_.partition.store_id in alone
            requests.append(layout.request(range_, own_store=own_store))
        return [OffsetRangePartition(task) for task in grouped(requests)]

    def _look_every(self) -> float:
        """Return how many seconds a look is good for: longer when there is little to see or much to ask."""
        idle = (time.monotonic() - self._changed_at) * _IDLE_SHARE
        stores = 0 if self._layout is None else len(self._layout.stores)
        return min(max(_BOUNDS_SECONDS, idle, stores * _SECONDS_PER_STORE), _IDLE_BOUNDS_SECONDS)

    def _look_as_far_as_brokers_answer(self, positions: Mapping[TopicPartition, int]) -> Snapshot:
        layout = self._until_answered(lambda: self._recent_layout(missing_ok=True))
        answer = self._ask_brokers(layout, positions)
        last, expected = self.last, self._unlisted.expected(positions.keys(), layout, time.monotonic())
        if last is not None and last.holds(answer, layout, expected):
            return last
        self._changed_at = time.monotonic()
        layout = self._ask_layout(missing_ok=True)
        expected = self._unlisted.expected(positions.keys(), layout, time.monotonic())
        return self._snapshot(answer, layout, expected)

    def _look_at_all(self, *, missing_ok: bool) -> Snapshot:
        layout = self._ask_layout(missing_ok=missing_ok)
        answer = self._cluster.bounds(layout)
        self._outages.hear(answer, layout, {}, time.monotonic())
        later = self._ask_layout(missing_ok=missing_ok)
        unanswered = [store for store in later.stores if store not in answer.known]
        if unanswered:
            raise _brokers_away(unanswered, answer.failures, len(later.stores), self._patience_ms)
        self._changed_at = time.monotonic()
        return self._snapshot(answer, later)

    def _ask_brokers(self, layout: TopicsLayout, positions: Mapping[TopicPartition, int]) -> StoreBounds:
        """Ask the brokers that answered last, and now and then, with less patience, those that did not."""
        trusted, others = self._outages.split(layout, time.monotonic())
        answer = self._cluster.bounds(layout, trusted)
        if others:
            again = self._cluster.bounds(layout, others, timeout_ms=RETRY_TIMEOUT_MS)
            answer = StoreBounds({**answer.known, **again.known}, {**answer.failures, **again.failures})
        self._outages.hear(answer, layout, positions, time.monotonic())
        self._layout_suspect = any(_may_be_gone(error) for error in answer.failures.values())
        return answer

    def _snapshot(
        self,
        answer: StoreBounds,
        layout: TopicsLayout,
        expected: frozenset[TopicPartition] = frozenset(),
    ) -> Snapshot:
        self._latest = {
            **{store: end for store, end in self._latest.items() if store in layout.stores},
            **{store: held.latest for store, held in answer.known.items()},
        }
        return Snapshot(layout, answer.known, expected)

    def _until_answered(self, ask: Callable[[], Answer]) -> Answer:
        options = self._options
        # Attempts and time-outs must not multiply.
        deadline = Deadline.after_ms(self._patience_ms, time.monotonic)
        pauses = FixedPauses(options.offset_fetch_retry_ms, options.offset_fetch_attempts, time.sleep)
        return with_retries(ask, pauses, deadline, on_retry=_warn_once)

    def _layout_listing(self, partitions: Collection[TopicPartition]) -> TopicsLayout:
        """Return a layout that lists these partitions, or has lacked some for so long that they are gone."""
        deadline = Deadline.after_ms(UNLISTED_SECONDS * 1000, time.monotonic)
        layout = self._until_answered(lambda: self._recent_layout(missing_ok=True))
        while unlisted(partitions, layout) and not deadline.expired:
            time.sleep(max(_BOUNDS_SECONDS, self._options.offset_fetch_retry_ms / 1000))
            layout = self._until_answered(lambda: self._ask_layout(missing_ok=True))
        return layout

    def _recent_layout(self, *, missing_ok: bool) -> TopicsLayout:
        now = time.monotonic()
        suspect = self._layout_suspect and now >= self._layout_time + _SUSPECT_LAYOUT_SECONDS
        if self._layout is None or suspect or now >= self._ask_layout_at:
            return self._ask_layout(missing_ok=missing_ok)
        return self._layout

    def _ask_layout(self, *, missing_ok: bool) -> TopicsLayout:
        """Ask for the layout; while no master answers, go on with the one there is.

        Brokers serve without a master; only the visit token needs one, now and then. And nobody adds a
        partition without one, so an old layout lacks none.
        """
        if self._masters_away and self._layout is not None and time.monotonic() < self._ask_layout_at:
            return self._layout
        try:
            self._layout = self._cluster.layout(self._options.topics, missing_ok=missing_ok)
        except TubeMQError as error:
            age = time.monotonic() - self._layout_time
            if self._layout is None or not error.retriable or age > _OLD_LAYOUT_SECONDS:
                raise
            if not self._masters_away:
                logger.warning("no master tells where partitions are; going on as before: %s", error)
            self._masters_away = True
        else:
            if self._masters_away:
                away_s = time.monotonic() - self._layout_time
                logger.warning("a master answers again; the layout was %.0f s old", away_s)
            self._masters_away = False
            self._layout_time = time.monotonic()
        self._ask_layout_at = time.monotonic() + _LAYOUT_SECONDS
        return self._layout


def _warn_once(error: TubeMQError, attempt: int) -> None:
    """Warn about the first attempt that fails; the last one ends in an error."""
    if attempt == 1:
        logger.warning("asking for offsets failed; trying again: %s", error)


def _partitions_alone(partitions: Collection[TopicPartition]) -> dict[StoreId, TopicPartition]:
    """Return the stores that hold one partition only, each with it."""
    sharing = collections.Counter(partition.store_id for partition in partitions)
    return {store: partition for partition in partitions if sharing[store := partition.store_id] == 1}


def _may_be_gone(error: TubeMQError) -> bool:
    """Tell whether a broker's answer may mean that a topic or a store is not there any more, or not yet."""
    return isinstance(error, RpcError) and error.code in _NOT_READY


def _brokers_away(
    unanswered: Sequence[StoreId], failures: Mapping[StoreId, TubeMQError], stores: int, waited_ms: int
) -> TubeMQConnectionError:
    cause = failures.get(unanswered[0])
    away = TubeMQConnectionError(
        "TUBEMQ_BROKERS_AWAY",
        count=len(unanswered),
        stores=stores,
        store=unanswered[0],
        waited_ms=waited_ms,
        cause=cause or "its broker was not asked yet",
    )
    # Asking again does not help when a broker refuses for good.
    away.retriable = all(
        error.retriable or _may_be_gone(error) or isinstance(error, RemoteProtocolError)
        for error in failures.values()
    )
    return away
