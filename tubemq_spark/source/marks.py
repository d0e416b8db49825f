"""The marks of a query's logs: taken beside its triggers, looked at before anything is planned behind them.

A mark is a record that a log had (``offsets.marks``). What replaces a log on a broker replaces all logs of
the topic there, so one store of each topic on each broker has a mark, another store with every round.

*Taking.* The mark is the last record before the end of a micro-batch: usually the last one of its store, so
that its fetch brings little else. A round is due when a query plans its first micro-batch, ten minutes after
the last one, and when a run of ``Trigger.AvailableNow`` reaches its end; a place that has no mark is asked
again earlier. Only the first and the last round of a run are waited for, for ``PATIENCE_S``: otherwise marks
that come later go with a later offset.

*Looking.* A mark is *sound* when its record was read again and is the same, and as long as its broker
answers without a pause: while a broker is away, its data may be replaced. A mark that is not sound is looked
at before anything of its topic on its broker is planned. Until that is done, these stores stay where they
are.

Only one thread uses this. Those of its questions use the cluster only.
"""

import collections
import dataclasses
import functools
import itertools
import logging
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from tubemq_spark.cluster.base import Cluster
from tubemq_spark.cluster.peek import record_at
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import INDEX_ENTRY_BYTES, Endpoint, StoreId, TopicPartition, TopicsLayout
from tubemq_spark.net.side_by_side import answers_and_errors
from tubemq_spark.offsets.loss import Evidence
from tubemq_spark.offsets.marks import MOST_MARKS, Mark, Place, newest, passed, place_of
from tubemq_spark.offsets.source_offset import SourceOffset
from tubemq_spark.source.background import PATIENCE_S, BackgroundQuestion, BackgroundQuestions
from tubemq_spark.source.visibility import Snapshot

logger = logging.getLogger(__name__)

_ROUND_SECONDS: Final = 600.0
_AGAIN_SECONDS: Final = 10.0
"""A place without a mark is asked again after so long: its store was empty, or its broker did not answer."""
_PATIENCE_MS: Final = round(PATIENCE_S * 900)
"""How long one record may take: less than a trigger waits, so that the others count in time."""
_PAUSE_SECONDS: Final = 0.5
"""After a look without an answer."""
_UNSEEN_SECONDS: Final = 5.0
"""A broker that was not asked for longer may have been away in between, with other data afterwards: to start
a Java broker, or to delete a topic and create it again, takes longer. Faster triggers pay for no look."""
_UNSEEN_SECONDS_PER_MARK: Final = 0.4
"""A look costs the driver 2 ms of CPU: hundreds are done less often."""


@dataclasses.dataclass(frozen=True, slots=True)
class Findings:
    """What is known of the logs that marks are of."""

    replaced: Mapping[Place, Evidence]
    """Where another record is than the mark's."""
    unknown: Collection[Place]
    """Where no answer has come."""


class Marks:
    """The marks of one query; lives in the driver."""

    def __init__(self, cluster: Callable[[], Cluster], patience_ms: int) -> None:
        self._cluster = cluster
        self._patience_ms = patience_ms
        self._seen: dict[int, tuple[Endpoint, float]] = {}
        """Where a broker was when it was last asked, and when that was, by broker id."""
        self._asked_at = 0.0
        self._sound: set[Mark] = set()
        self._replaced: dict[Mark, Evidence] = {}
        self._failed: Collection[Mark] = ()
        """Those whose last look had no answer."""
        self._looks: BackgroundQuestions[tuple[dict[Mark, Mark | None], dict[Mark, TubeMQError]]] = (
            BackgroundQuestions("tubemq-look")
        )
        self._look_at = 0.0
        self._taken: dict[Place, Mark] = {}
        """The newest marks, in the order in which they were taken."""
        self._taking: BackgroundQuestion[None] | None = None
        self._arrived: collections.deque[Mark] = collections.deque()
        """Those of the round under way, put there by its threads."""
        self._take_at: dict[Place, float] = {}
        """When a place that has one is due."""
        self._look_for_due_at = 0.0
        self._round = 0

    def notice(self, snapshot: Snapshot, asked_at: float, away: Collection[int]) -> None:
        """Learn which brokers have answered; the marks of others are sound no longer."""
        if asked_at == self._asked_at:
            return
        self._asked_at = asked_at
        answered = {
            store.broker_id: snapshot.layout.stores[store]
            for store in snapshot.bounds
            if store.broker_id not in away
        }
        longest = max(_UNSEEN_SECONDS, _UNSEEN_SECONDS_PER_MARK * len(self._sound))
        doubtful = {
            broker_id
            for broker_id, (endpoint, at) in self._seen.items()
            if answered.get(broker_id) != endpoint or asked_at - at > longest
        }
        self._seen = {broker_id: (endpoint, asked_at) for broker_id, endpoint in answered.items()}
        if doubtful:
            self._sound = {mark for mark in self._sound if mark.partition.broker_id not in doubtful}
            # What is under way was asked before.
            self._looks.forget()
            self._forget_round()

    def look(self, marks: Iterable[Mark], layout: TopicsLayout, *, patient: bool = False) -> Findings:
        """Return the findings about the logs of some marks, after a look at those that are not sound."""
        marks = tuple(marks)
        waiting = [mark for mark in marks if mark not in self._sound and mark not in self._replaced]
        if waiting and patient:
            records, errors = records_of(self._cluster(), layout, waiting, self._patience_ms)
            for error in errors.values():
                raise error
            self._take_in(records, {})
        elif waiting or self._looks.under_way:
            if waiting and not self._looks.under_way and time.monotonic() >= self._look_at:
                cluster = self._cluster()
                self._looks.begin(functools.partial(records_of, cluster, layout, waiting, _PATIENCE_MS))
            ended = self._looks.ended()
            if ended is not None:
                self._take_in(*ended.answer())
        return Findings(
            {mark.place: self._replaced[mark] for mark in marks if mark in self._replaced},
            [mark.place for mark in waiting if mark not in self._sound and mark not in self._replaced],
        )

    def take(self, snapshot: Snapshot, end: SourceOffset, *, last: bool) -> None:
        """Begin a round if one is due."""
        self._take_over(0)
        now = time.monotonic()
        if self._taking is not None or (now < self._look_for_due_at and not last):
            return
        # To see what is due takes long where partitions are many.
        self._look_for_due_at = now + _AGAIN_SECONDS
        stores = _stores_of(snapshot, end, self._round)
        due = [place for place in stores if last or place not in self._taken or now >= self._take_at[place]]
        if not due:
            return
        # Of more than there may be, the next ones come with the next one.
        due = sorted(due, key=lambda place: (self._take_at.get(place, 0.0), place))[:MOST_MARKS]
        self._round += 1
        chosen = [stores[place] for place in due]
        question = functools.partial(self._read_last, snapshot.layout, end, chosen, self._arrived)
        self._taking = BackgroundQuestion(question, "tubemq-marks")

    def newest_for(
        self, end: SourceOffset, before: Collection[Mark], *, wait: bool = False
    ) -> tuple[Mark, ...]:
        """Return the marks that go with an offset."""
        replaced = {place_of(partition) for partition in end.replaced}
        self._take_over(PATIENCE_S if wait else 0)
        # Of a log that moved back, and may come to the same offset again, older marks say nothing.
        self._taken = {mark.place: mark for mark in passed(self._taken.values(), end.next_offsets)}
        kept = [mark for mark in passed(before, end.next_offsets) if mark.place not in replaced]
        marks = newest([*kept, *self._taken.values()])
        self._sound &= {*before, *marks}
        return marks

    def begin_again(self, places: Collection[Place]) -> None:
        """Forget what was taken of logs that have been replaced; new marks are due."""
        self._forget_round()
        self._taken = {place: mark for place, mark in self._taken.items() if place not in places}
        self._look_for_due_at = 0.0

    def _take_in(self, records: Mapping[Mark, Mark | None], errors: Mapping[Mark, TubeMQError]) -> None:
        """Take over what a look has shown."""
        for mark, record in records.items():
            if record is None or record == mark:
                self._sound.add(mark)
        self._replaced |= evidence_in(records)
        for mark, error in errors.items():
            if mark not in self._failed:
                logger.warning(
                    "%s waits until it is known whether its log is the one that was read: %s",
                    mark.partition.store_id,
                    error,
                )
        self._failed = errors.keys()
        self._look_at = time.monotonic() + (_PAUSE_SECONDS if errors else 0)

    def _read_last(
        self,
        layout: TopicsLayout,
        end: SourceOffset,
        stores: Sequence[StoreId],
        arrived: collections.deque[Mark],
    ) -> None:
        """Read the last record before an offset in some stores."""
        of_store = _partitions_of(set(stores), layout)

        def ask(store: StoreId) -> None:
            reached = {one: end.next_offsets[one] for one in of_store[store] if one in end.next_offsets}
            offset = min(reached.values()) - INDEX_ENTRY_BYTES
            # Of which partition it is can only be tried.
            partitions = random.sample(list(reached), len(reached))
            mark = record_at(self._cluster(), layout, offset, partitions, _PATIENCE_MS)
            if mark is not None:
                arrived.append(mark)

        _, errors = answers_and_errors(ask, stores)
        for store, error in errors.items():
            logger.info("there is no new mark of %s: %s", store, error)

    def _forget_round(self) -> None:
        """Drop the round under way, with the marks that it has brought."""
        self._taking, self._arrived = None, collections.deque()

    def _take_over(self, seconds: float) -> None:
        """Take the marks of the round under way that come within some seconds."""
        taking = self._taking
        if taking is None:
            return
        if taking.ended_within(seconds):
            self._taking = None
            taking.answer()
        due_at = time.monotonic() + _ROUND_SECONDS
        while self._arrived:
            mark = self._arrived.popleft()
            self._taken.pop(mark.place, None)
            self._taken[mark.place] = mark
            self._sound.add(mark)
            self._take_at[mark.place] = due_at


def records_of(
    cluster: Cluster, layout: TopicsLayout, marks: Collection[Mark], patience_ms: int
) -> tuple[dict[Mark, Mark | None], dict[Mark, TubeMQError]]:
    """Return which record is at the offset of each mark, and the errors of others."""
    of_store = _partitions_of({mark.partition.store_id for mark in marks}, layout)

    def ask(mark: Mark) -> Mark | None:
        partitions = of_store.get(mark.partition.store_id, [])
        # That of the mark comes first.
        partitions = sorted(partitions, key=lambda partition: partition != mark.partition)
        return record_at(cluster, layout, mark.offset, partitions, patience_ms)

    return answers_and_errors(ask, marks)


def evidence_in(records: Mapping[Mark, Mark | None]) -> dict[Mark, Evidence]:
    """Return the evidence, by marks, that logs were replaced: records that were read again and differ."""
    return {
        mark: Evidence(mark, record)
        for mark, record in records.items()
        if record is not None and record != mark
    }


def _stores_of(snapshot: Snapshot, end: SourceOffset, number: int) -> dict[Place, StoreId]:
    """Return a store for each topic on each broker: one that is read to its end, if there is any."""
    reached: dict[StoreId, int] = {}
    for partition, offset in end.next_offsets.items():
        store = partition.store_id
        reached[store] = min(offset, reached.get(store, offset))
    of_place: dict[Place, tuple[list[StoreId], list[StoreId]]] = {}
    for store, offset in reached.items():
        span = snapshot.bounds.get(store)
        if span is not None and span.earliest < offset <= span.latest:
            at_end, before = of_place.setdefault((store.topic, store.broker_id), ([], []))
            (at_end if offset == span.latest else before).append(store)
    return {
        place: sorted(stores)[number % len(stores)]
        for place, (at_end, before) in of_place.items()
        for stores in [at_end or before]
    }


def _partitions_of(stores: Collection[StoreId], layout: TopicsLayout) -> dict[StoreId, list[TopicPartition]]:
    """Return the partitions of some stores."""
    pairs = sorted((one.store_id, one) for one in layout.partitions if one.store_id in stores)
    return {
        store: [partition for _, partition in group]
        for store, group in itertools.groupby(pairs, key=lambda pair: pair[0])
    }
