"""The engine of consumers: which partitions are fetched for those that wait for batches.

A partition's *turn* is carried out for all that wait, and for none in particular: what it brings goes to the
one that has waited longest. So each may stop waiting at any time, and nothing is lost. Threads wait in
``waiting``, coroutines in ``client/aio/turns.py``. A turn is a rule (``rules``), which goes on at the
consumer's *home*, so no thread waits for one broker.

=========  ==================================================================================================
what       where
=========  ==================================================================================================
*seat*     a thread or a coroutine that waits for a batch: in ``_seats``, in their order, from ``join`` on
*turn*     a partition that is being fetched: in ``_turns``, with the moment when it began
*outcome*  a batch, or the error of a partition that was given up, that none has taken: ``_outcomes``
=========  ==================================================================================================

Invariants:

- ``guard`` guards everything here; rules begin and go on without it.
- Nothing waits in ``_outcomes`` while a seat has no outcome.
- A seat without outcome has a turn of its own under way, if any partition can be fetched. A turn that takes
  longer than ``PATIENCE_S`` does not count any more, nor does one that tries a broker that was away.
- Without a seat no turn begins. So there is at most one batch of a partition that none waited for, and its
  partition is booked until one takes it.
- A batch is *handed out* (``Fetching.hand_out``) only when it is really taken: from then on its time to be
  confirmed runs.
- A booking whose partition is being fetched belongs to a turn, an outcome or a seat. An exception that a
  signal raises between any two lines may part them; then ``recover`` puts the booking back.
"""

import collections
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from tubemq_spark.client.consumer.fetching import Booked, Fetching, Turn
from tubemq_spark.client.consumer.rules import Home, Rule, Timer
from tubemq_spark.client.steps import Steps
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import TopicPartition
from tubemq_spark.net.deadline import Clock

Value = TypeVar("Value")
Outcome = Booked | BaseException

_NEVER: Final = float("inf")
_A_TRIAL: Final = -_NEVER
"""When a turn has begun for which none waits."""


class Seat:
    """A thread or a coroutine that waits for a batch."""

    def __init__(self, tell: Callable[[], object]) -> None:
        """Wait; ``tell`` is called once there is an outcome, in the thread or the loop that has it."""
        self.outcome: Outcome | None = None
        self.tell = tell
        self.since = 0
        """How many turns had ended before."""


class Turns:
    """The turns of one consumer's partitions."""

    def __init__(self, fetching: Fetching, home: Home, clock: Clock = time.monotonic) -> None:
        self._fetching = fetching
        self._state = fetching.state
        self._guard = fetching.state.guard
        self._home = home
        self._clock = clock
        self._seats: dict[Seat, None] = {}
        self._turns: dict[Rule[Booked | None], tuple[Turn, float]] = {}
        self._others: dict[Rule[Any], None] = {}
        """Rules that are no turns: those that confirm."""
        self._outcomes: collections.deque[Outcome] = collections.deque()
        self._timer: Timer | None = None
        self._ended = 0
        """How many turns have ended."""
        fetching.state.abandon = self.abandon
        fetching.state.abandon_orphans = self.abandon_orphans
        fetching.state.tell = self.take_back

    # Those who wait.

    def join(self, seat: Seat) -> None:
        """Take a seat, and begin a turn for it."""
        with self._guard:
            seat.since = self._ended
            self._seats[seat] = None
        self.move_on()

    def leave(self, seat: Seat) -> Outcome | None:
        """Give a seat up; return what it was given."""
        with self._guard:
            self._seats.pop(seat, None)
            outcome, seat.outcome = seat.outcome, None
            return outcome

    def take_back(self, outcome: Outcome | None) -> None:
        """Keep for others what a seat was given whose owner waits no more."""
        if isinstance(outcome, Booked | TubeMQError):
            with self._guard:
                self._outcomes.appendleft(outcome)
            self._home.post(self.move_on)

    def wake(self) -> None:
        """See what can be fetched; any thread may call this, also in a signal handler."""
        if self._seats:
            self._home.post(self.move_on)

    def expects_more(self, seat: Seat) -> bool:
        """Whether a turn may soon bring something, and not each partition had one since the seat came."""
        with self._guard:
            is_round = self._ended - seat.since >= len(self._state.connected)
            return not is_round and self._fresh(self._clock()) > 0

    @property
    def at_rest(self) -> bool:
        """Whether no partition is being fetched, and no outcome waits to be taken."""
        with self._guard:
            return not self._turns and not self._outcomes

    # At home.

    def move_on(self) -> None:
        """Give outcomes to those that wait, and begin turns for the others."""
        with self._guard:
            try:
                self._state.check_fetch()
                self._give()
                begun = self._book_turns()
            except TubeMQError as error:
                # It was closed, or the master refuses it, for a while perhaps: what was not handed out comes
                # again, then or to others.
                while self._outcomes:
                    if isinstance(outcome := self._outcomes.popleft(), Booked):
                        self._fetching.put_back(outcome.booking)
                for seat in self._seats:
                    self._settle(seat, error)
                begun = []
            self._set_timer()
        for rule in begun:
            rule.begin()

    def carry_out(
        self,
        steps: Steps[Value],
        partition: TopicPartition,
        tell: Callable[[Value | BaseException | None], object],
    ) -> None:
        """Carry out a rule that is no turn; ``tell`` is given what it returned or raised. None: abandoned."""

        def end(rule: Rule[Value], outcome: Value | BaseException | None) -> None:
            with self._guard:
                self._others.pop(rule, None)
            tell(outcome)

        rule = Rule(self._home, self._guard, steps, self._state.endpoint_of(partition), end)
        with self._guard:
            self._others[rule] = None
        rule.begin()

    # Those who give partitions up.

    def abandon(self, partition: TopicPartition) -> None:
        """End a fetch of a partition that is under way; its messages come again, to others."""
        with self._guard:
            rules = [rule for rule, (turn, _) in self._turns.items() if turn.booking.partition == partition]
        for rule in rules:
            rule.abandon()

    def abandon_orphans(self) -> None:
        """End all rules where they are, and so give back what they hold, if none goes on with them."""
        if self._home.idle:
            with self._guard:
                rules = [*self._turns, *self._others]
            for rule in rules:
                rule.abandon()

    def recover(self, seat: Seat) -> None:
        """Put in order what an exception has left behind that a signal raised anywhere in this thread."""
        me = threading.get_ident()
        with self._guard:
            outcome = self.leave(seat)
            interrupted = [(rule, turn) for rule, (turn, _) in self._turns.items() if rule.runner == me]
        for rule, turn in interrupted:
            rule.end_at_once()
            turn.partition.lock.release(turn.booking)
        with self._guard:
            if isinstance(outcome, TubeMQError):
                self._outcomes.appendleft(outcome)
            if isinstance(outcome, Booked):
                self._fetching.put_back(outcome.booking)
            for rule, _ in interrupted:
                self._turns.pop(rule, None)
            known = [one.booking for one in self._given() if isinstance(one, Booked)]
            known += [turn.booking for turn, _ in self._turns.values()]
            for booking in self._state.cache.being_fetched():
                if booking not in known:
                    self._fetching.put_back(booking)
            late = list(self._turns)
        for rule in late:
            rule.look_again()
        self._home.post(self.move_on)

    # Inside; the lock is held.

    def _given(self) -> list[Outcome | None]:
        return [*self._outcomes, *(seat.outcome for seat in self._seats)]

    def _give(self) -> None:
        for seat in self._seats:
            if not self._outcomes:
                return
            if seat.outcome is None:
                self._settle(seat, self._outcomes.popleft())

    def _settle(self, seat: Seat, outcome: Outcome) -> None:
        if seat.outcome is None:
            seat.outcome = outcome
            seat.tell()

    def _book_turns(self) -> list[Rule[Booked | None]]:
        now, begun = self._clock(), list[Rule[Booked | None]]()
        missing = sum(seat.outcome is None for seat in self._seats) - self._fresh(now)
        while missing > 0 and (turn := self._fetching.select_now()) is not None:
            steps = self._fetching.take_turn(turn)
            rule = Rule(self._home, self._guard, steps, turn.partition.endpoint, self._end_turn)
            is_trial = self._fetching.state.cache.is_trial(turn.booking)
            # Behind what ``Brokers`` notes: a turn that is not fresh any more is at a broker that is silent.
            self._turns[rule] = turn, _A_TRIAL if is_trial else self._clock()
            missing -= not is_trial
            begun.append(rule)
        return begun

    def _fresh(self, now: float) -> int:
        return sum(until > now for until in self._fresh_until())

    def _fresh_until(self) -> list[float]:
        return [self._fetching.fresh_until(turn, began) for turn, began in self._turns.values()]

    def _end_turn(self, rule: Rule[Booked | None], outcome: Outcome | None) -> None:
        with self._guard:
            self._turns.pop(rule, None)
            self._ended += 1
            if outcome is not None:
                self._outcomes.append(outcome)
        if rule.abandoned:  # in any thread
            self._home.post(self.move_on)
        else:
            self.move_on()

    def _set_timer(self) -> None:
        """Look again when a rest ends, or when patience with a broker is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if all(seat.outcome is not None for seat in self._seats):
            return
        now = self._clock()
        waits = [until - now for until in self._fresh_until() if now < until < _NEVER]
        if (rest := self._fetching.wait_s()) is not None:
            waits.append(rest)
        if waits:
            self._timer = self._home.call_later(min(waits), self.move_on)
