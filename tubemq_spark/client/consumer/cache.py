"""The partitions that a group consumer holds, and what each of them is doing.

This is a state machine without lock, thread or network; its owner does the locking. A partition is in exactly
one state:

========  ====================================================================================================
state     meaning
========  ====================================================================================================
absent    not held. ``add`` makes it idle
idle      waits for its turn to be fetched; those that have waited longest come first
fetching  *booked*: a fetch is under way, or its answer waits to be taken by the user
in use    *booked*: the user has its batch, until ``release``, or until the time to confirm has passed
resting   nothing is fetched until a moment that flow control or an error has set
paused    would be idle, but its user paused it, or it is about to be given up (``hold_back``)
========  ====================================================================================================

::

    absent --add--> idle --select--> fetching --deliver--> in use --release, expire--> resting --wake--> idle
                     ^ |pause,           |release             ^                            (or idle at once)
                     | v hold_back       v
                    paused            resting or idle

``remove`` leads from every state to absent.

Invariants:

- A held partition is in one state, and so in one of the sets below; only ``_move`` changes them.
- A *booking* has a number that is used once. Whoever releases or delivers shows the booking: one that has
  expired, or whose partition was given up meanwhile, is refused, so that two users never share a batch.
- At the broker, a fetch may confirm what was fetched before it. That is asked for only if the last batch was
  confirmed, and never again before the next one is: what an answer that was lost has brought is served again.
- The sets keep the order of arrival, so every idle partition is selected before any is selected twice.
- ``registered`` only grows: a partition that comes back resumes at the group's position, wherever new ones
  start.
"""

import dataclasses
import heapq
import itertools
import time
from collections.abc import Collection, Iterable
from typing import Final

from tubemq_spark.client.broker.session import Position
from tubemq_spark.client.consumer.flow_control import FetchOutcome, FlowControl, PartitionFlow
from tubemq_spark.client.consumer.states import (
    Booking,
    ConsumedPosition,
    ConsumeStatus,
    GivenUp,
    PartitionState,
    Selection,
)
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.deadline import Clock
from tubemq_spark.protocol.partition_strings import PartitionInfo

_SHORTEST_REST_MS: Final = 10
"""A rest that is not longer is not worth waiting for."""


_BOOKED: Final = frozenset({PartitionState.FETCHING, PartitionState.IN_USE})


@dataclasses.dataclass(slots=True)
class _Held:
    """One held partition."""

    info: PartitionInfo
    flow: PartitionFlow
    position: ConsumedPosition
    expected: int | None
    """Where the next fetch must begin; None: nobody can tell."""
    state: PartitionState = PartitionState.IDLE
    number: int = 0
    """That of the booking."""
    until: float = 0.0
    """When the rest, or the time to confirm, ends."""
    consumed: bool = False
    """Whether the last batch was confirmed here, and the broker may not know it yet."""


class PartitionCache:
    """The partitions of one consumer."""

    def __init__(
        self,
        control: FlowControl,
        *,
        filtered_topics: Collection[str] = (),
        confirm_timeout_ms: int = 60_000,
        rollback: bool = True,
        clock: Clock = time.monotonic,
        wall_clock: Clock = time.time,
    ) -> None:
        """Hold nothing yet.

        Args:
            control: the flow control rules.
            filtered_topics: the topics that are read with a filter.
            confirm_timeout_ms: how long the user may take to confirm a batch.
            rollback: whether a batch that was not confirmed counts as not consumed, so that it is served
                again; otherwise it counts as consumed.
            clock: for rests and the time to confirm.
            wall_clock: seconds since 1970, for ``ConsumedPosition``.
        """
        self._control = control
        self._filtered = frozenset(filtered_topics)
        self._confirm_timeout_s = confirm_timeout_ms / 1000
        self._rollback = rollback
        self._clock = clock
        self._wall_clock = wall_clock
        self._held: dict[TopicPartition, _Held] = {}
        self._sets: dict[PartitionState, dict[TopicPartition, None]] = {state: {} for state in PartitionState}
        self._rests: list[tuple[float, int, TopicPartition]] = []
        """A heap of when rests end; entries of partitions that do other things now are void."""
        self._numbers = itertools.count(1)
        self._paused: set[TopicPartition] = set()
        self._leaving: set[TopicPartition] = set()
        self._registered: set[TopicPartition] = set()

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._held

    # Holding and giving up.

    def add(self, info: PartitionInfo, found: Position) -> bool:
        """Hold a partition that was registered at its broker; return False if it is held already."""
        partition = info.partition
        self._registered.add(partition)
        if partition in self._held:
            return False
        flow = PartitionFlow(self._control, self._clock)
        held = _Held(info, flow, self._position(found), found.current)
        self._held[partition] = held
        self._sets[held.state][partition] = None
        self._make_idle(held)
        return True

    def registered(self, partition: TopicPartition) -> bool:
        """Whether this consumer has held the partition before, or holds it."""
        return partition in self._registered

    def new_ones(self, infos: Iterable[PartitionInfo]) -> list[PartitionInfo]:
        """Return those that are not held, each once."""
        unique = {info.partition: info for info in infos}
        return [info for partition, info in unique.items() if partition not in self._held]

    def hold_back(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Fetch nothing more of partitions that are about to be given up; return those that are in use."""
        self._leaving.update(partition for partition in partitions if partition in self._held)
        self._sort_out()
        return [p for p in self._leaving if self._held[p].state is PartitionState.IN_USE]

    def remove(self, partitions: Iterable[TopicPartition]) -> list[GivenUp]:
        """Give partitions up; those that are not held are passed over."""
        given_up = []
        for partition in dict.fromkeys(partitions):
            if (held := self._held.pop(partition, None)) is None:
                continue
            del self._sets[held.state][partition]
            self._leaving.discard(partition)
            given_up.append(GivenUp(held.info, held.state, self._confirms(held)))
        return given_up

    # The way of a batch.

    def select(self) -> Selection | None:
        """Book the partition that has been idle longest; None: none is idle."""
        for partition in self._sets[PartitionState.IDLE]:
            held = self._held[partition]
            held.number = next(self._numbers)
            confirms, held.consumed = held.consumed, False
            self._move(held, PartitionState.FETCHING)
            return Selection(Booking(partition, held.number), held.info, confirms)
        return None

    def record(self, booking: Booking, outcome: FetchOutcome, found: Position | None = None) -> int | None:
        """Keep what a fetch brought, for a booking that is current.

        Args:
            booking: the booking.
            outcome: what flow control needs to know.
            found: where the messages begin, and where the store ends; None: the broker refused.

        Returns:
            Where the messages had to begin, if they begin elsewhere; None otherwise.
        """
        held = self._held[booking.partition]
        held.flow.record(outcome)
        expected, held.expected = held.expected, None
        if found is None:
            return None
        held.position = self._position(found)
        return expected if expected is not None and expected != found.current else None

    def deliver(self, booking: Booking) -> bool:
        """Hand a batch to the user, who has to confirm it in time; False: the booking is not current."""
        held = self._current(booking)
        if held is None or held.state is not PartitionState.FETCHING:
            return False
        held.until = self._clock() + self._confirm_timeout_s
        self._move(held, PartitionState.IN_USE)
        return True

    def is_current(self, booking: Booking) -> bool:
        """Whether a booking still counts."""
        return self._current(booking) is not None

    def is_wanted(self, partition: TopicPartition) -> bool:
        """Whether a held partition's batches may be delivered: it is neither paused nor given up."""
        return partition in self and not self._is_held_back(partition)

    def book_position(self, booking: Booking, found: Position) -> None:
        """Keep what the answer to a commit says, if the booking is current."""
        held = self._current(booking)
        if held is not None:
            held.position = self._position(found)
            held.expected = found.current

    def release(self, booking: Booking, *, consumed: bool, rest_ms: int | None = None) -> bool:
        """End a booking.

        Args:
            booking: the booking.
            consumed: whether the batch was confirmed.
            rest_ms: how long the partition rests; by default as flow control says.

        Returns:
            Whether the booking was current; otherwise nothing changes.
        """
        held = self._current(booking)
        if held is None:
            return False
        held.consumed = consumed
        if rest_ms is None:
            rest_ms = held.flow.rest_ms(filtered=booking.partition.topic in self._filtered)
        self._let_rest(held, rest_ms)
        return True

    def expire(self) -> list[Booking]:
        """End the bookings of batches that were not confirmed in time, and return them."""
        now, expired = self._clock(), []
        # They came in this order, and all have the same time.
        for partition in list(self._sets[PartitionState.IN_USE]):
            held = self._held[partition]
            if held.until > now:
                break
            expired.append(Booking(partition, held.number))
            held.consumed = not self._rollback
            self._make_idle(held)
        return expired

    def wake(self) -> bool:
        """End the rests whose time has come; return whether there were any."""
        now, woken = self._clock(), False
        while self._rests and self._rests[0][0] <= now:
            woken |= self._end_rest(*heapq.heappop(self._rests))
        return woken

    def wait_s(self) -> float | None:
        """Return after how many seconds ``wake`` or ``expire`` will find something; None: never."""
        moments = []
        while self._rests and not self._is_resting(*self._rests[0]):
            heapq.heappop(self._rests)
        if self._rests:
            moments.append(self._rests[0][0])
        for partition in self._sets[PartitionState.IN_USE]:
            moments.append(self._held[partition].until)
            break
        return max(0.0, min(moments) - self._clock()) if moments else None

    @property
    def at_rest(self) -> tuple[TopicPartition, ...]:
        """What rests, or would be fetched next."""
        return (*self._sets[PartitionState.RESTING], *self._sets[PartitionState.IDLE])

    def hasten(self, partition: TopicPartition) -> bool:
        """End the rest of a partition that waits at its end; return whether it did so.

        Rests that flow control or an error has set go on.
        """
        held = self._held.get(partition)
        if held is None or held.state is not PartitionState.RESTING or not held.flow.rests_at_end:
            return False
        self._make_idle(held)
        return True

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
        for state, status in _STATUSES:
            if self._sets[state]:
                return status
        return ConsumeStatus.ALL_PAUSED

    def state(self, partition: TopicPartition) -> PartitionState | None:
        """Return what a partition is doing; None: it is not held."""
        held = self._held.get(partition)
        return None if held is None else held.state

    def infos(self) -> tuple[PartitionInfo, ...]:
        """Return what is held, in the order of its arrival."""
        return tuple(held.info for held in self._held.values())

    def by_broker(self) -> dict[Endpoint, list[TopicPartition]]:
        """Return what is held, by broker."""
        found: dict[Endpoint, list[TopicPartition]] = {}
        for partition, held in self._held.items():
            found.setdefault(held.info.endpoint, []).append(partition)
        return found

    def positions(self) -> dict[TopicPartition, ConsumedPosition]:
        """Return where the group stands in the partitions that are held."""
        return {partition: held.position for partition, held in self._held.items()}

    def count(self, state: PartitionState) -> int:
        """Return how many partitions are in a state."""
        return len(self._sets[state])

    # The only places that change states.

    def _move(self, held: _Held, state: PartitionState) -> None:
        partition = held.info.partition
        del self._sets[held.state][partition]
        held.state = state
        self._sets[state][partition] = None

    def _make_idle(self, held: _Held) -> None:
        back = self._is_held_back(held.info.partition)
        self._move(held, PartitionState.PAUSED if back else PartitionState.IDLE)

    def _let_rest(self, held: _Held, rest_ms: int) -> None:
        if rest_ms <= _SHORTEST_REST_MS:
            self._make_idle(held)
            return
        held.until = self._clock() + rest_ms / 1000
        self._move(held, PartitionState.RESTING)
        heapq.heappush(self._rests, (held.until, held.number, held.info.partition))

    def _end_rest(self, until: float, number: int, partition: TopicPartition) -> bool:
        if not self._is_resting(until, number, partition):
            return False
        self._make_idle(self._held[partition])
        return True

    def _is_resting(self, until: float, number: int, partition: TopicPartition) -> bool:
        """Whether an entry of the heap still counts."""
        held = self._held.get(partition)
        if held is None or held.state is not PartitionState.RESTING:
            return False
        return (held.until, held.number) == (until, number)

    def _sort_out(self) -> None:
        """Move partitions between idle and paused as their user wants it now."""
        for state in (PartitionState.IDLE, PartitionState.PAUSED):
            for partition in list(self._sets[state]):
                if (state is PartitionState.PAUSED) is not self._is_held_back(partition):
                    self._make_idle(self._held[partition])

    def _is_held_back(self, partition: TopicPartition) -> bool:
        return partition in self._paused or partition in self._leaving

    def _current(self, booking: Booking) -> _Held | None:
        held = self._held.get(booking.partition)
        if held is None or held.number != booking.number or held.state not in _BOOKED:
            return None
        return held

    def _confirms(self, held: _Held) -> bool:
        """Whether a partition that is given up has to be committed.

        What a fetch under way has brought was seen by nobody.
        """
        if held.state is PartitionState.IN_USE:
            return not self._rollback
        return held.consumed

    def _position(self, found: Position) -> ConsumedPosition:
        return ConsumedPosition(found.current, found.latest, self._wall_clock())


_STATUSES: Final = (
    (PartitionState.IDLE, ConsumeStatus.READY),
    (PartitionState.FETCHING, ConsumeStatus.READY),
    (PartitionState.RESTING, ConsumeStatus.ALL_RESTING),
    (PartitionState.IN_USE, ConsumeStatus.ALL_IN_USE),
)
"""Which status holds when a partition is in a state and none is in one before it."""
