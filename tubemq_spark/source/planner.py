"""The driver's view of a cluster: layout and bounds, asked for rarely, and again while brokers are away.

Spark asks an idle stream for its end about 65 times per second, and an exception in any of its questions ends
the query. So answers are kept for a moment, transient errors are retried here, and a running query never ends
because a broker does not answer: the stores of that broker stay where they are, the others continue.

There are two kinds of snapshot:

- *as far as brokers answer* (``snapshot``): what a running stream needs. Stores without an answer stay put.
  It waits a moment for a peer that has answered so far, and then no more: such a peer is asked beside the
  look (``background``), and what it answers belongs to the look that finds it.
- *complete* (``complete_snapshot``): what fixes an offset permanently: a start, the end of a batch
  read, or the target of ``Trigger.AvailableNow``. It waits for every store, up to ``fetchOffset.numRetries``
  attempts.

Each piece of state belongs to one class: the layout to ``LayoutCache``, brokers that are away to ``Outages``.
The planner owns the last snapshot and its age.

A partition that the master does not list is gone: a master that has just started lists all partitions at
once, also those of brokers that are down (``integration_tests/test_restarted_master.py``). But the removal
of a topic takes some seconds and several steps, see ``_settled``.

Invariants:

- The layout of a snapshot was asked for after its bounds, or the snapshot is ``partial``. So no partition
  that the layout lacks has a record below these bounds: producers write to a partition only after the master
  lists it. That is why a partition that appears in a known store has nothing before the planned offset, and
  why a store whose only partition is planned holds nothing else. After a partial snapshot neither counts.
- A snapshot is immutable, and the same object as long as nothing has changed: callers keep what they have
  computed from it.
- Only one thread uses a planner: Spark asks one question at a time. Threads of ``_late_questions`` and
  of ``_readable`` ask the cluster and use nothing of the planner.
"""

import collections
import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from tubemq_spark.cluster.base import Cluster
from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.cluster.time_search import TimeSearch
from tubemq_spark.errors import OptionError, TlsError, TubeMQError
from tubemq_spark.model import (
    OffsetBounds,
    OffsetRange,
    StoreId,
    TopicPartition,
    TopicsLayout,
    alone_in_store,
    rows_between,
)
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.retry import Result, with_retries
from tubemq_spark.offsets.audit import removal
from tubemq_spark.offsets.loss import LossPolicy
from tubemq_spark.offsets.offset_spec import (
    Edge,
    OffsetSpec,
    Stored,
    option_of,
    refuse_other_partitions,
    specific_offsets,
    timestamps,
    with_timestamps_resolved,
)
from tubemq_spark.offsets.ranges import grouped, split_ranges
from tubemq_spark.options import ReadOptions, TimestampSearch
from tubemq_spark.source.background import PATIENCE_S, BackgroundQuestion, BackgroundQuestions
from tubemq_spark.source.layout_cache import LayoutCache
from tubemq_spark.source.loss_ledger import Work
from tubemq_spark.source.outages import Outages, brokers_away, brokers_late, may_be_gone
from tubemq_spark.source.visibility import Snapshot, VisibleBounds, ask_bounds, visible

logger = logging.getLogger(__name__)

_MAX_AGE_SECONDS: Final = 0.02
"""How old a snapshot may be while data flows: every micro-batch asks again, as it takes longer than this."""
_IDLE_SHARE: Final = 0.1
"""A snapshot may be as old as this share of the time for which nothing has changed."""
_REMOVAL_PAUSE_SECONDS: Final = 0.25
"""The least pause before the master is asked again whether it has removed a topic."""
_MAX_AGE_SECONDS_PER_STORE: Final = 0.0025
"""Asking for a store costs the driver about 0.2 ms of CPU: hundreds of stores are asked less often."""

_ADVICE_ON_TIMES: Final = (
    "leave out the former with where() on the column timestamp, and set timestampSearch=exact in a batch "
    "read that must lack none"
)

REMOVAL_SECONDS: Final = 10.0
"""How long the removal of a topic may take from its first step on: a broker tells the master with its next
heartbeat (every 8 s) what it has deleted."""


class Planner:
    """Answers a reader's questions about its topics; lives in the driver and is never pickled."""

    def __init__(self, options: ReadOptions, cluster: Cluster | None = None) -> None:
        """``cluster``: what answers; None: the one that the options name."""
        self._options = options
        retries_ms = options.offset_fetch_attempts * options.offset_fetch_retry_ms
        self._patience_ms = retries_ms + options.cluster.client.rpc_timeout_ms
        self.cluster: Cluster = cluster or open_cluster(options.cluster)
        """What answers."""
        self.layouts = LayoutCache(self.cluster, options.subscription)
        """Where the partitions are."""
        self.outages = Outages()
        """Which brokers are late or away."""
        self._late_questions: dict[int, BackgroundQuestion[VisibleBounds]] = {}
        """What is being asked of brokers that no look waits for, by broker id: one question each."""
        self._last_late: dict[int, VisibleBounds] = {}
        """What a broker that is late has answered last, by broker id."""
        self._readable: BackgroundQuestions[tuple[dict[TopicPartition, int], dict[TopicPartition, int]]] = (
            BackgroundQuestions("tubemq-readable")
        )
        """Where some logs begin, and where they can be read from."""
        self._warned_of_few_groups = False
        self._changed_at = 0.0
        self._latest: dict[StoreId, int] = {}
        self._times: tuple[Snapshot, TimeSearch] | None = None
        self.last_snapshot: Snapshot | None = None
        """The last snapshot, however old."""
        self.asked_at = 0.0
        """When brokers were last asked for it, see ``time.monotonic``."""

    @functools.cached_property
    def of_all_types(self) -> Cluster:
        """The cluster as one who wants messages of all types sees it."""
        config = self._options.cluster
        if not config.client.message_types:
            return self.cluster
        client = dataclasses.replace(config.client, message_types=())
        return open_cluster(dataclasses.replace(config, client=client))

    @property
    def latest_known(self) -> Mapping[StoreId, int]:
        """Where what may be read of every store ended when its broker last answered, in index bytes."""
        return self._latest

    def snapshot(self, positions: Mapping[TopicPartition, int], *, patient: bool = False) -> Snapshot:
        """Return layout and bounds as far as brokers answer, at most a moment old."""
        last = self.last_snapshot
        if last is None or time.monotonic() - self.asked_at > self._max_age(last):
            patient = patient or last is None
            last = self.last_snapshot = self._ask_as_far_as_brokers_answer(positions, patient=patient)
            self.asked_at = time.monotonic()
        return last

    def complete_snapshot(self, *, resumed: bool = False) -> Snapshot:
        """Return layout and bounds of all stores, asked now.

        A query that has ``resumed`` may have a checkpoint. Then masters that never answered are asked again
        too (otherwise the address may be wrong), and what does not exist is left out, not refused.
        """
        missing_ok = resumed or self._options.wait_for_topics
        if not resumed:
            layout = self.layouts.last or self.layouts.ask(missing_ok=missing_ok)
            if not missing_ok:
                self._options.subscription.refuse_missing(layout)
        began = time.monotonic()
        self.last_snapshot = self.with_retries(lambda: self._ask_all(began, missing_ok=missing_ok))
        self.asked_at = time.monotonic()
        return self.last_snapshot

    def readable_bounds(
        self, snapshot: Snapshot, stores: Collection[StoreId], *, patient: bool
    ) -> Mapping[StoreId, OffsetBounds]:
        """Return bounds in which these stores begin at the first record that can still be read.

        Stores that several partitions share are left as they are: there it cannot be known what is missing.
        ``patient``: brokers are asked up to ``fetchOffset.numRetries`` times. Otherwise these stores are left
        out when brokers do not answer in time; their answers belong to the next look.
        """
        alone = snapshot.layout.alone_in_store
        begins = {
            alone[store]: snapshot.bounds[store]
            for store in stores
            if store in alone and snapshot.bounds[store].earliest < snapshot.bounds[store].latest
        }
        if not begins:
            return snapshot.bounds

        def ask() -> dict[TopicPartition, int]:
            return self.cluster.first_readable(snapshot.layout, begins)

        offsets = self.with_retries(ask) if patient else self._readable_in_time(begins, ask)
        if offsets is None:
            return {store: span for store, span in snapshot.bounds.items() if store not in stores}
        lifted = {place.store_id: span._replace(earliest=offsets[place]) for place, span in begins.items()}
        return {**snapshot.bounds, **lifted}

    def with_offsets(
        self, spec: OffsetSpec, snapshot: Snapshot, *, edge: str, option: str | None = None
    ) -> OffsetSpec:
        """Return a spec with offsets in place of times, and of the group's positions; brokers are asked."""
        if spec is Stored.GROUP:
            positions = self.with_retries(lambda: self.cluster.group_positions(snapshot.layout))
            return specific_offsets(positions)
        option = option or option_of(spec, edge)
        if timestamps(spec, ()):
            refuse_other_partitions(spec, snapshot.layout.partitions, option)
        if self._options.timestamp_search is TimestampSearch.EXACT:
            # Messages of a time may be anywhere; tasks leave out the others.
            all_of_it = Edge.EARLIEST if edge == "starting" else Edge.LATEST
            times = timestamps(spec, snapshot.layout.partitions)
            return with_timestamps_resolved(spec, dict.fromkeys(times, all_of_it))
        if self._times is None or self._times[0] is not snapshot:
            zone, bounds = self._options.message_time_zone, visible(snapshot.bounds, snapshot.ends)
            self._times = (
                snapshot,
                TimeSearch(self.cluster, snapshot.layout, bounds, zone, advice=_ADVICE_ON_TIMES),
            )
        search, if_none = self._times[1], self._options.if_no_record
        if edge == "ending":
            return search.end(spec, option=option, if_untimed=if_none)
        return search.begin(spec, option=option, if_none=if_none, if_untimed=if_none)

    def partitions(
        self,
        ranges: Sequence[OffsetRange],
        planned: Collection[TopicPartition],
        on_loss: LossPolicy,
        *,
        partial: bool = False,
    ) -> list[Work]:
        """Return the tasks of some ranges, with the addresses of their brokers; brokers are not asked.

        ``planned`` are all partitions that existed when the ranges were planned, and not those of now: the
        replay of a micro-batch must return the same rows after a partition was added. What is gone goes to
        the ledger by a task: another attempt of the micro-batch may have met the same in its tasks.
        """
        options, listed, gone = self._options, [], []
        layout = self.with_retries(self.layouts.recent)
        layout, _ = self._settled(layout, {range_.partition for range_ in ranges})
        # Of partitions that were left out, those of now: no offset tells which there were. Where messages are
        # passed over for their type, the offsets of the others are unknown, as in a shared store.
        filtered = options.cluster.client.message_types
        left_out = {*layout.unread, *layout.partitions} if partial else layout.unread
        alone = {} if filtered else alone_in_store({*planned, *left_out})
        for range_ in ranges:
            if range_.partition in layout.partitions:
                listed.append(range_)
            else:
                lost = removal(range_.partition, range_.start, range_.end, layout.partitions)
                rows = rows_between(lost.start, lost.end) if lost.partition.store_id in alone else None
                gone.append(dataclasses.replace(lost, rows=rows))
                on_loss(gone[-1])
        parts = split_ranges(
            listed, min_partitions=options.min_partitions, max_records=options.max_records_per_partition
        )
        self._warn_of_few_groups(parts)
        tasks = grouped(
            [layout.request(part, own_store=part.partition.store_id in alone) for part in parts],
            most_ranges=options.max_ranges_per_task,
            most_rows=options.max_records_per_partition,
            fewest_tasks=options.min_partitions,
        )
        planned_tasks = [Work(tuple(task)) for task in tasks]
        if gone and options.loss_ledger is not None:
            planned_tasks.append(Work(lost=tuple(gone)))
        return planned_tasks

    def _warn_of_few_groups(self, parts: Sequence[OffsetRange]) -> None:
        """Warn once if more tasks read a partition than a broker lets read it at once."""
        groups = len(self._options.cluster.client.reader_groups)
        counts = collections.Counter(part.partition for part in parts)
        for partition, count in counts.items():
            if count > groups and not self._warned_of_few_groups:
                self._warned_of_few_groups = True
                logger.warning(
                    "%s is read by %d tasks under %d reader groups; no more than that can read at once, and "
                    "the others wait: raise readerGroups.size, or lower minPartitions",
                    partition,
                    count,
                    groups,
                )

    def _readable_in_time(
        self, begins: Mapping[TopicPartition, OffsetBounds], ask: Callable[[], dict[TopicPartition, int]]
    ) -> dict[TopicPartition, int] | None:
        """Return the offsets of first records; None as long as they are not known."""
        wanted = {place: span.earliest for place, span in begins.items()}
        if not self._readable.under_way:
            self._readable.begin(lambda: (wanted, ask()))
        ended = self._readable.ended()
        try:
            asked, offsets = ended.answer() if ended is not None else ({}, {})
        except TubeMQError as error:
            logger.info("stores wait until it is known where they can be read: %s", error)
            return None
        return offsets if asked == wanted else None

    def _max_age(self, snapshot: Snapshot) -> float:
        """Return how old a snapshot may be, in seconds: older if little changes or there are many stores."""
        idle = (time.monotonic() - self._changed_at) * _IDLE_SHARE
        many = len(snapshot.layout.stores) * _MAX_AGE_SECONDS_PER_STORE
        return min(max(_MAX_AGE_SECONDS, idle, many), self._options.max_idle_interval_ms / 1000)

    def _ask_as_far_as_brokers_answer(
        self, positions: Mapping[TopicPartition, int], *, patient: bool
    ) -> Snapshot:
        layout = self.with_retries(self.layouts.recent)
        answer = self._ask_brokers(layout, positions, patient=patient)
        last = self.last_snapshot
        if last is not None and last.is_unchanged(answer, layout):
            return last
        self._changed_at = time.monotonic()
        layout, asked_now = self.with_retries(self.layouts.newest)
        emptied = _emptied_topics(answer.bounds.by_store, positions)
        layout, asked_since = self._settled(layout, positions.keys(), emptied)
        return self._new_snapshot(answer, layout, partial=not (asked_now or asked_since))

    def _settled(
        self, layout: TopicsLayout, partitions: Collection[TopicPartition], emptied: Collection[str] = ()
    ) -> tuple[TopicsLayout, bool]:
        """Return the layout once topics whose removal has begun are removed, if that happens soon.

        It comes with whether it was asked for again.

        A broker deletes a topic before the master does, and creates an empty store if it is asked in between.
        The master then drops the topic's partitions, one broker after the other, and the topic last.
        """
        missing = set(partitions) - layout.partitions.keys()
        missing.difference_update(self._options.subscription.others(missing))
        leaving = {*emptied, *(partition.topic for partition in missing)}
        deadline, asked_now = Deadline.after_ms(REMOVAL_SECONDS * 1000, time.monotonic), False
        while any(partition.topic in leaving for partition in layout.partitions) and not deadline.expired:
            time.sleep(max(_REMOVAL_PAUSE_SECONDS, self._options.offset_fetch_retry_ms / 1000))
            layout, asked_now = self.with_retries(self.layouts.newest)
        return layout, asked_now

    def _ask_all(self, began: float, *, missing_ok: bool) -> Snapshot:
        layout = self.layouts.ask(missing_ok=missing_ok)
        # Where the query stands is not known: anywhere.
        answer = ask_bounds(self.cluster, self._options.visibility, layout)
        bounds = answer.bounds
        self.outages.update(bounds, layout, {}, time.monotonic())
        later = self.layouts.ask(missing_ok=missing_ok)
        unanswered = [store for store in later.stores if store not in bounds.by_store]
        if unanswered:
            for error in bounds.failures.values():
                if isinstance(error, TlsError | OptionError):
                    raise error  # not a matter of waiting, so not one of brokers that are away
            waited_ms = round(1000 * (time.monotonic() - began))
            raise brokers_away(unanswered, bounds.failures, len(later.stores), waited_ms)
        self._changed_at = time.monotonic()
        return self._new_snapshot(answer, later)

    def _ask_brokers(
        self, layout: TopicsLayout, positions: Mapping[TopicPartition, int], *, patient: bool
    ) -> VisibleBounds:
        """Ask the brokers that answered last time, and take over what the others have answered since."""
        ask = functools.partial(
            ask_bounds, self.cluster, self._options.visibility, layout, positions=positions
        )
        for broker_id, due in self.outages.due(layout, time.monotonic()).items():
            if broker_id not in self._late_questions:
                question = functools.partial(ask, due.stores, timeout_ms=due.timeout_ms)
                self._late_questions[broker_id] = BackgroundQuestion(question, f"tubemq-late-{broker_id}")
        answer = ask(
            self.outages.stores_to_ask(layout), timeout_ms=None if patient else round(PATIENCE_S * 1000)
        )
        late = set() if patient else brokers_late(answer.bounds.failures)
        stores = layout.stores.keys()
        seconds = PATIENCE_S if patient else 0
        for broker_id, begun in list(self._late_questions.items()):
            if not begun.ended_within(seconds):
                continue
            del self._late_questions[broker_id]
            other = begun.answer().of(stores)
            answer = answer.with_others(other)
            if begun.took_s > PATIENCE_S and not other.bounds.failures:
                late.add(broker_id)
                self._last_late[broker_id] = other
        self.outages.update(answer.bounds, layout, positions, time.monotonic(), late)
        # What a broker that is late has said remains true until it says more.
        self._last_late = {one: said for one, said in self._last_late.items() if one in self.outages.late}
        for broker_id, said in self._last_late.items():
            if broker_id not in late:
                answer = said.of(stores).with_others(answer)
        self.layouts.suspect = any(may_be_gone(error) for error in answer.bounds.failures.values())
        return answer

    def _new_snapshot(
        self, answer: VisibleBounds, layout: TopicsLayout, *, partial: bool = False
    ) -> Snapshot:
        """Return a snapshot of the stores that the layout has, which was asked for after the answers.

        A store that the master has stopped listing is being deleted: what it holds says nothing.
        """
        stores = layout.stores
        bounds = {store: span for store, span in answer.bounds.by_store.items() if store in stores}
        ends = {store: answer.ends[store] for store in bounds}
        self._latest = {**{store: end for store, end in self._latest.items() if store in stores}, **ends}
        return Snapshot(layout, bounds, ends, partial)

    def with_retries(self, ask: Callable[[], Result]) -> Result:
        """Return the answer to a question, asked again for up to ``fetchOffset.numRetries`` attempts."""
        options = self._options
        # Attempts and time-outs must not multiply.
        deadline = Deadline.after_ms(self._patience_ms, time.monotonic)
        pause_ms, attempts = options.offset_fetch_retry_ms, options.offset_fetch_attempts
        return with_retries(ask, pause_ms, attempts, deadline, time.sleep, _warn_once)


def _warn_once(error: TubeMQError, attempt: int) -> None:
    """Warn about the first attempt that fails; the last one ends in an error."""
    if attempt == 1:
        logger.warning("asking for offsets failed; trying again: %s", error)


def _emptied_topics(
    bounds: Mapping[StoreId, OffsetBounds], positions: Mapping[TopicPartition, int]
) -> set[str]:
    """Return the topics with a store that was read from and is as if nothing had ever been in it."""
    return {
        partition.topic
        for partition, offset in positions.items()
        if offset > 0 and (span := bounds.get(partition.store_id)) is not None and span.latest == 0
    }
