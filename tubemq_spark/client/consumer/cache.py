"""The partitions that a consumer holds and their brokers, and what each of them is doing.

This is a state machine without lock, thread or network. A broker is in one of these states
(``BrokerHealth``):

========  ====================================================================================================
state     meaning
========  ====================================================================================================
sound     any number of its partitions may be asked at once
silent    sound, but what was asked first has no answer for ``PATIENCE_S``: nothing else is asked before one
          comes, so a broker that stands still costs those that wait one fetch and not one per partition
away      it did not answer, or could not be reached: all of its partitions rest together. After a pause,
          which doubles with each failure in a row, one partition is tried. Any answer makes it sound
========  ====================================================================================================

A request counts as a failure only if it began after the last one: several that were under way together are
one failure.

A partition is in exactly one state (``PartitionCache``):

========  ====================================================================================================
state     meaning
========  ====================================================================================================
absent    not held. ``add`` makes it idle
idle      waits for its turn to be fetched; those that have waited longest come first
fetching  *booked*: a fetch is under way, or its answer waits to be taken by the user
in use    *booked*: the user has its batch, until ``release``, or until the time to confirm has passed
resting   nothing is fetched until a moment that flow control or an error has set
paused    would be idle, but its user paused it, it is about to be given up (``hold_back``), it is being
          moved to another offset (``begin_seek``), or its user was not told of it (``hold``)
========  ====================================================================================================

::

    absent --add--> idle --select--> fetching --deliver--> in use --release, expire--> resting --wake--> idle
                     ^ |pause,           |release             ^                            (or idle at once)
                     | v hold_back       v
                    paused            resting or idle

``remove`` leads from every state to absent. ``begin_seek`` leads from fetching and in use to paused, and ends
the booking; ``end_seek`` leads from paused, and from a rest at the end of the log, to idle.

Invariants:

- A held partition is in one state, and so in one of the sets below; only ``_move`` changes them.
- A *booking* has a number that is used once, and as far as chance allows by one consumer only. To release or
  deliver one has to show the booking: one that has expired, whose partition was given up, or that is another
  consumer's, is refused, so that two users never share a batch.
- At the broker, a fetch may confirm what was fetched before it. That is asked for only if the last batch
  counts as consumed, and never again before the next one does: what an answer that was lost has brought is
  served again. ``rollback`` decides in one place, ``deliver``, what a batch counts as until its user says it.
- While a partition is being moved nothing of it is selected, and no batch of it is out. Behind that, nothing
  that was fetched before counts as consumed: the broker has forgotten it.
- The sets keep the order of arrival, so every idle partition is selected before any is selected twice, unless
  its broker is not to be asked now.
- ``registered`` only grows: a partition that comes back resumes at the group's position, wherever new ones
  start.
"""

import collections
import dataclasses
import heapq
import itertools
import random
import secrets
import time
from collections.abc import Callable, Collection, Iterable
from typing import Final

from tubemq_spark.client.broker.session import Position
from tubemq_spark.client.consumer.flow_control import FetchOutcome, FlowControl, PartitionFlow
from tubemq_spark.client.consumer.values import (
    Booking,
    ConsumedPosition,
    ConsumeStatus,
    PartitionState,
)
from tubemq_spark.model import TopicPartition
from tubemq_spark.net.deadline import Clock, monotonic
from tubemq_spark.net.retry import BROKER_AWAY
from tubemq_spark.protocol.packed_strings import PartitionInfo

PATIENCE_S: Final = 0.2
"""A sound broker answers within a few milliseconds, whether it has messages or not."""
_NUMBER_BITS: Final = 48
_SHORTEST_REST_MS: Final = 10
"""A rest that is not longer is not worth waiting for."""
_BOOKED: Final = frozenset({PartitionState.FETCHING, PartitionState.IN_USE})


@dataclasses.dataclass(slots=True)
class _Broker:
    """One broker."""

    under_way: dict[int, float] = dataclasses.field(default_factory=dict)
    """When the requests without an answer began, by the number of their booking."""
    failures: int = 0
    failed_at: float = float("-inf")
    until: float = 0.0
    """When the pause ends, after a failure."""


class BrokerHealth:
    """The brokers of one consumer, by their numbers."""

    def __init__(self, clock: Clock = monotonic, random: Callable[[], float] = random.random) -> None:
        """Take ``random`` as a function to [0, 1): it shortens pauses by up to a half."""
        self._clock = clock
        self._random = random
        self._brokers: dict[int, _Broker] = {}

    def may_be_asked(self, broker_id: int) -> bool:
        """Whether one more partition of a broker may be fetched."""
        broker = self._brokers.get(broker_id)
        if broker is None:
            return True
        now = self._clock()
        if broker.failures:
            return not broker.under_way and now >= broker.until
        return all(began + PATIENCE_S > now for began in broker.under_way.values())

    def is_away(self, broker_id: int) -> bool:
        """Whether a broker failed last, so that none should wait for its answer."""
        broker = self._brokers.get(broker_id)
        return broker is not None and broker.failures > 0

    def ask(self, broker_id: int, number: int) -> None:
        """Note that a request begins."""
        self._brokers.setdefault(broker_id, _Broker()).under_way[number] = self._clock()

    def end(self, broker_id: int, number: int) -> None:
        """Note that a request has ended, if that is not known; it says nothing about the broker."""
        if (broker := self._brokers.get(broker_id)) is not None:
            broker.under_way.pop(number, None)

    def answer(self, broker_id: int) -> bool:
        """Note that a broker answers; return whether that ends a pause."""
        was_away = self.is_away(broker_id)
        if was_away:
            self._brokers[broker_id].failures = 0
        return was_away

    def fail(self, broker_id: int, number: int) -> None:
        """Note that a request had no answer: the broker's partitions rest together."""
        broker = self._brokers.setdefault(broker_id, _Broker())
        now = self._clock()
        if broker.under_way.pop(number, now) < broker.failed_at:
            return
        broker.failures += 1
        broker.failed_at = now
        pause_ms = BROKER_AWAY.after_ms(broker.failures) * (1 - self._random() / 2)
        broker.until = now + pause_ms / 1000

    def next_attempt(self) -> float | None:
        """Return the next moment of the clock at which a pause ends."""
        now = self._clock()
        moments = [one.until for one in self._brokers.values() if one.failures and one.until > now]
        return min(moments, default=None)


@dataclasses.dataclass(slots=True)
class _Entry:
    """One held partition."""

    info: PartitionInfo
    flow: PartitionFlow
    position: ConsumedPosition
    state: PartitionState = PartitionState.IDLE
    number: int = 0
    """That of the booking."""
    until: float = 0.0
    """When the rest, or the time to confirm, ends."""
    consumed: bool = False
    """Whether the last batch counts as consumed, and the broker may not know that."""
    sought: int = 0
    """The number of the last booking that a move to another offset has ended."""


class PartitionCache:
    """The partitions of one consumer."""

    def __init__(
        self,
        control: FlowControl,
        *,
        filtered_topics: Collection[str] = (),
        confirm_timeout_ms: int = 60_000,
        rollback: bool = True,
        clock: Clock = monotonic,
        wall_clock: Clock = time.time,
        first_number: int | None = None,
    ) -> None:
        """With ``rollback`` a batch that was not confirmed comes again; otherwise it counts as consumed."""
        self._control = control
        self._filtered = frozenset(filtered_topics)
        self._confirm_timeout_s = confirm_timeout_ms / 1000
        self._rollback = rollback
        self._clock = clock
        self._wall_clock = wall_clock
        self._held: dict[TopicPartition, _Entry] = {}
        self._sets: dict[PartitionState, dict[TopicPartition, None]] = {state: {} for state in PartitionState}
        self._rests: list[tuple[float, int, TopicPartition]] = []
        """A heap of when rests end; entries of partitions that do other things now are void."""
        self.brokers = BrokerHealth(clock)
        # Of one consumer to the next they differ, so that no batch of the last one confirms one of this.
        self._numbers = itertools.count(first_number or secrets.randbits(_NUMBER_BITS))
        self._paused: set[TopicPartition] = set()
        self._leaving: set[TopicPartition] = set()
        self._holds: collections.Counter[TopicPartition] = collections.Counter()
        """How much has to end before something of a partition is selected: moves, and callbacks."""
        self.registered: set[TopicPartition] = set()
        """What this consumer has held before, or holds."""

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._held

    # Holding and giving up.

    def add(self, info: PartitionInfo, position: Position) -> bool:
        """Add a partition that was registered at its broker; return False if it is held already."""
        partition = info.partition
        self.registered.add(partition)
        if partition in self._held:
            return False
        entry = _Entry(info, PartitionFlow(self._control, self._clock), self._consumed_position(position))
        self._held[partition] = entry
        self._sets[entry.state][partition] = None
        self._make_idle(entry)
        return True

    def new_ones(self, infos: Iterable[PartitionInfo]) -> list[PartitionInfo]:
        """Return those that are not held, each once."""
        unique = {info.partition: info for info in infos}
        return [info for partition, info in unique.items() if partition not in self._held]

    def hold_back(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Fetch nothing more of partitions that are about to be given up; return those that are in use."""
        self._leaving.update(partition for partition in partitions if partition in self._held)
        self._sort_out()
        return [p for p in self._leaving if self._held[p].state is PartitionState.IN_USE]

    def remove(self, partition: TopicPartition) -> bool:
        """Give up a partition, if it is held; return whether its broker has to commit the last fetch."""
        entry = self._held.pop(partition, None)
        if entry is None:
            return False
        self._sets[entry.state].pop(partition, None)
        self.brokers.end(partition.broker_id, entry.number)
        self._leaving.discard(partition)
        return entry.consumed

    # The way of a batch.

    def select(self) -> tuple[Booking, bool] | None:
        """Book the partition that has been idle longest and whose broker may be asked; None: there is none.

        Also return whether the fetch confirms what was fetched before it.
        """
        entry = self._next_idle()
        if entry is None:
            return None
        partition = entry.info.partition
        entry.number = next(self._numbers)
        confirms, entry.consumed = entry.consumed, False
        self._change_state(entry, PartitionState.FETCHING)
        self.brokers.ask(partition.broker_id, entry.number)
        return Booking(partition, entry.number), confirms

    def record(self, booking: Booking, outcome: FetchOutcome, position: Position | None = None) -> None:
        """Keep what a fetch brought, for a booking that is current; no ``position``: the broker refused."""
        entry = self._held[booking.partition]
        self.brokers.end(booking.partition.broker_id, booking.number)
        entry.flow.record(outcome)
        if position is not None:
            entry.position = self._consumed_position(position)

    def deliver(self, booking: Booking) -> bool:
        """Hand a batch to the user, who has to confirm it in time; False: the booking is not current."""
        entry = self._current(booking)
        if entry is None or entry.state is not PartitionState.FETCHING:
            return False
        entry.until = self._clock() + self._confirm_timeout_s
        entry.consumed = not self._rollback
        self._change_state(entry, PartitionState.IN_USE)
        return True

    def is_current(self, booking: Booking) -> bool:
        """Whether a booking still counts."""
        return self._current(booking) is not None

    def is_wanted(self, partition: TopicPartition) -> bool:
        """Whether a held partition's batches may be delivered: it is neither paused nor given up."""
        return partition in self and not self._is_held_back(partition)

    def book_position(self, booking: Booking, position: Position) -> None:
        """Keep what the answer to a commit says, if the booking is current."""
        entry = self._current(booking)
        if entry is not None:
            entry.position = self._consumed_position(position)

    def release(self, booking: Booking, *, consumed: bool, rest_ms: int | None = None) -> bool:
        """End a booking, and rest, by default as flow control says; False: it was not current."""
        entry = self._current(booking)
        if entry is None:
            return False
        entry.consumed = consumed
        if rest_ms is None:
            rest_ms = entry.flow.rest_ms(filtered=booking.partition.topic in self._filtered)
        self._let_rest(entry, rest_ms)
        return True

    def expire(self) -> list[Booking]:
        """End the bookings of batches that were not confirmed in time, and return them."""
        now, expired = self._clock(), []
        # They came in this order, and all have the same time.
        for partition in list(self._sets[PartitionState.IN_USE]):
            entry = self._held[partition]
            if entry.until > now:
                break
            expired.append(Booking(partition, entry.number))
            self._make_idle(entry)
        return expired

    def wake(self) -> bool:
        """End the rests whose time has come; return whether there were any."""
        now, woken = self._clock(), False
        while self._rests and self._rests[0][0] <= now:
            rest = heapq.heappop(self._rests)
            if self._is_resting(*rest):
                self._make_idle(self._held[rest[2]])
                woken = True
        return woken

    def wait_s(self) -> float | None:
        """Return in how many seconds ``wake``, ``expire`` or ``select`` will find something; None: never."""
        moments = []
        if self._sets[PartitionState.IDLE] and (attempt := self.brokers.next_attempt()) is not None:
            moments.append(attempt)
        while self._rests and not self._is_resting(*self._rests[0]):
            heapq.heappop(self._rests)
        if self._rests:
            moments.append(self._rests[0][0])
        for partition in self._sets[PartitionState.IN_USE]:
            moments.append(self._held[partition].until)
            break
        return max(0.0, min(moments) - self._clock()) if moments else None

    def hasten(self, partition: TopicPartition) -> bool:
        """End the rest of a partition that waits at its end; return whether it did so.

        Rests that flow control or an error has set go on.
        """
        entry = self._held.get(partition)
        if entry is None or entry.state is not PartitionState.RESTING or not entry.flow.rests_at_end:
            return False
        self._make_idle(entry)
        return True

    # Moving to another offset.

    def begin_seek(self, partition: TopicPartition) -> None:
        """Select nothing of a held partition until ``end_seek``, and end its booking, if there is one."""
        entry = self._held[partition]
        self.hold(partition)
        if entry.state in _BOOKED:
            entry.sought = entry.number
            self._make_idle(entry)

    def end_seek(self, partition: TopicPartition, position: Position | None) -> None:
        """End what one ``begin_seek`` has begun; no ``position``: the partition was not moved.

        It may have been given up.
        """
        entry = self._held.get(partition)
        if entry is not None and position is not None:
            entry.position = self._consumed_position(position)
            entry.consumed = False
            self.hasten(partition)
        self.let_go(partition)

    def hold(self, partition: TopicPartition) -> None:
        """Select nothing of a partition until ``let_go`` was called as often as this."""
        self._holds[partition] += 1
        self._sort_out()

    def let_go(self, partition: TopicPartition) -> None:
        """End one ``hold``."""
        self._holds[partition] -= 1
        self._sort_out()

    def was_sought(self, booking: Booking) -> bool:
        """Whether a booking has ended because its partition was moved to another offset."""
        entry = self._held.get(booking.partition)
        return entry is not None and entry.sought == booking.number

    # Pausing.

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """What the user has paused, held or not."""
        return frozenset(self._paused)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch nothing of partitions until they are resumed, also if they are held only later."""
        self._paused.update(partitions)
        self._sort_out()

    def resume(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Fetch partitions again; by default all that were paused."""
        self._paused.difference_update(list(self._paused) if partitions is None else partitions)
        self._sort_out()

    # What others ask.

    def status(self) -> ConsumeStatus:
        """Return whether messages can be had now."""
        if not self._held:
            return ConsumeStatus.NOTHING_ASSIGNED
        if self._next_idle() is not None:
            return ConsumeStatus.READY
        for state, status in _STATUSES:
            if self._sets[state]:
                return status
        return ConsumeStatus.ALL_PAUSED

    def state(self, partition: TopicPartition) -> PartitionState | None:
        """Return the state of a partition; None: it is not connected."""
        entry = self._held.get(partition)
        return None if entry is None else entry.state

    def being_fetched(self) -> list[Booking]:
        """Return the bookings of which the user has no batch."""
        return [Booking(one, self._held[one].number) for one in self._sets[PartitionState.FETCHING]]

    def infos(self) -> tuple[PartitionInfo, ...]:
        """Return the partitions, in the order in which they arrived."""
        return tuple(entry.info for entry in self._held.values())

    def position(self, partition: TopicPartition) -> ConsumedPosition:
        """Return where the group stands in a partition that is held."""
        return self._held[partition].position

    def positions(self) -> dict[TopicPartition, ConsumedPosition]:
        """Return where the group stands in the partitions that are held."""
        return {partition: entry.position for partition, entry in self._held.items()}

    def _next_idle(self) -> _Entry | None:
        asked: dict[int, bool] = {}
        for partition in self._sets[PartitionState.IDLE]:
            broker_id = partition.broker_id
            if broker_id not in asked:
                asked[broker_id] = self.brokers.may_be_asked(broker_id)
            if asked[broker_id]:
                return self._held[partition]
        return None

    # The only places that change states.

    def _change_state(self, entry: _Entry, state: PartitionState) -> None:
        """Change the state of a partition."""
        partition = entry.info.partition
        if entry.state is PartitionState.FETCHING:
            self.brokers.end(partition.broker_id, entry.number)
        self._sets[entry.state].pop(partition, None)
        entry.state = state
        self._sets[state][partition] = None

    def _make_idle(self, entry: _Entry) -> None:
        back = self._is_held_back(entry.info.partition)
        self._change_state(entry, PartitionState.PAUSED if back else PartitionState.IDLE)

    def _let_rest(self, entry: _Entry, rest_ms: int) -> None:
        if rest_ms <= _SHORTEST_REST_MS:
            self._make_idle(entry)
            return
        entry.until = self._clock() + rest_ms / 1000
        heapq.heappush(self._rests, (entry.until, entry.number, entry.info.partition))
        self._change_state(entry, PartitionState.RESTING)

    def _is_resting(self, until: float, number: int, partition: TopicPartition) -> bool:
        """Whether an entry of the heap still counts."""
        entry = self._held.get(partition)
        if entry is None or entry.state is not PartitionState.RESTING:
            return False
        return (entry.until, entry.number) == (until, number)

    def _sort_out(self) -> None:
        """Move partitions between idle and paused as their user wants it now."""
        for state in (PartitionState.IDLE, PartitionState.PAUSED):
            for partition in list(self._sets[state]):
                if (state is PartitionState.PAUSED) is not self._is_held_back(partition):
                    self._make_idle(self._held[partition])

    def _is_held_back(self, partition: TopicPartition) -> bool:
        return partition in self._paused or partition in self._leaving or self._holds[partition] > 0

    def _current(self, booking: Booking) -> _Entry | None:
        entry = self._held.get(booking.partition)
        if entry is None or entry.number != booking.number or entry.state not in _BOOKED:
            return None
        return entry

    def _consumed_position(self, position: Position) -> ConsumedPosition:
        return ConsumedPosition(position.current, position.latest, self._wall_clock())


_STATUSES: Final = (
    (PartitionState.FETCHING, ConsumeStatus.READY),
    (PartitionState.IDLE, ConsumeStatus.ALL_RESTING),
    (PartitionState.RESTING, ConsumeStatus.ALL_RESTING),
    (PartitionState.IN_USE, ConsumeStatus.ALL_IN_USE),
)
"""Which status holds when a partition is in a state and none is in one before it."""
