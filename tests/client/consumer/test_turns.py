"""Turns of partitions for those that come, give up and are given something: a model, step by step.

Requests are answered when the model says so. What was found is handed out once, nothing waits while somebody
does, and no more partitions are asked than somebody has waited for.
"""

import threading
from concurrent.futures import Future
from types import SimpleNamespace

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.client.consumer.virtual_home import VirtualHome
from tubemq_spark.client.consumer.brokers import PATIENCE_S, Brokers
from tubemq_spark.client.consumer.fetching import Booked, Turn
from tubemq_spark.client.consumer.turns import Seat, Turns
from tubemq_spark.client.steps import PartitionLock, wait_for
from tubemq_spark.errors import ConsumeError, RpcError
from tubemq_spark.protocol.errcodes import rpc_error

PARTITIONS = 5


class Partitions:
    """In place of ``Fetching``: partitions that are idle, being fetched, or with the user."""

    def __init__(self):
        self.state = self
        self.cache = self
        self.guard = threading.RLock()
        self.connected = range(PARTITIONS)
        self.idle = list(range(PARTITIONS))
        self.asked = {}
        """The answers that partitions wait for."""
        self.out = []
        """What was handed out, until it is confirmed."""
        self.unwanted = set()
        self.trials = set()
        """Partitions whose broker was away."""
        self.number = 0
        self.closed = False
        self.is_wanted = None

    def check_fetch(self):
        if self.closed:
            raise ConsumeError("TUBEMQ_CONSUMER_CLOSED", code=420, group="g", state="closed", advice="-")

    def fresh_until(self, turn, began):
        return began + PATIENCE_S

    def select_now(self):
        self.check_fetch()
        assert self.is_wanted()
        if not self.idle:
            return None
        number = self.idle.pop(0)
        booking = SimpleNamespace(partition=number)
        return Turn(booking, False, SimpleNamespace(endpoint="b", lock=PartitionLock()))

    def is_trial(self, booking):
        return booking.partition in self.trials

    def take_turn(self, turn):
        partition = turn.booking.partition
        answer = self.asked[partition] = Future()
        abandoned = True
        try:
            found = yield from wait_for(answer)
            abandoned = False
        except RpcError:
            abandoned = False
            raise
        finally:
            del self.asked[partition]
            if abandoned:
                self.idle.append(partition)
        if found is None:
            self.idle.append(partition)
        return found

    def hand_out(self, found):
        if found.booking in self.unwanted:
            self.unwanted.remove(found.booking)
            self.idle.append(found.booking)
            return None
        self.out.append(found)
        return found.batch

    def put_back(self, booking):
        self.unwanted.discard(booking)
        self.idle.append(booking)

    def wait_s(self):
        return None


class TurnsAgree(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.partitions = Partitions()
        self.home = VirtualHome()
        self.turns = Turns(self.partitions, self.home, self.home.clock)
        self.partitions.is_wanted = lambda: self._fresh() < sum(one.outcome is None for one in self._seats())
        self.waiting = []
        self.given = []
        """What partitions have found, in that order."""
        self.taken = []

    def _seats(self):
        return list(self.turns._seats)

    def _fresh(self):
        return sum(began + PATIENCE_S > self.home.now for _, began in self.turns._turns.values())

    def _settle(self):
        """Let everything happen; those that have an outcome take it."""
        self.home.settle()
        while told := [seat for seat in self.waiting if seat.outcome is not None]:
            for seat in told:
                self._take(seat)
            self.home.settle()

    def _take(self, seat):
        outcome = self.turns.leave(seat)
        self.waiting.remove(seat)
        if isinstance(outcome, ConsumeError):
            assert self.partitions.closed
        elif isinstance(outcome, RpcError):
            self.taken.append(outcome)
        elif (batch := self.partitions.hand_out(outcome)) is not None:
            self.taken.append(batch)
        else:
            self.fetch()

    @rule()
    def fetch(self):
        seat = Seat(lambda: None)
        self.waiting.append(seat)
        self.turns.join(seat)
        self._settle()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data):
        seat = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(seat)
        self.turns.take_back(self.turns.leave(seat))
        self._settle()

    @precondition(lambda self: self.partitions.asked)
    @rule(
        data=st.data(), what=st.sampled_from(["nothing", "batch", "batch", "error"]), gives_up=st.booleans()
    )
    def answer(self, data, what, gives_up):
        """And somebody may give up in the moment in which the batch is given to them."""
        partition = data.draw(st.sampled_from(sorted(self.partitions.asked)))
        answer = self.partitions.asked[partition]
        if what == "nothing":
            answer.set_result(None)
        elif what == "error":
            error = rpc_error(400, "no", peer="broker", during="fetching")
            self.given.append(error)
            answer.set_exception(error)
        else:
            self.partitions.number += 1
            self.given.append(self.partitions.number)
            answer.set_result(Booked(partition, self.partitions.number))
        self.home.settle()
        if gives_up and self.waiting:
            seat = self.waiting.pop(0)
            self.turns.take_back(self.turns.leave(seat))
        self._settle()

    @precondition(lambda self: self.partitions.out)
    @rule(data=st.data())
    def confirm(self, data):
        found = data.draw(st.sampled_from(self.partitions.out))
        self.partitions.out.remove(found)
        self.partitions.idle.append(found.booking)
        self.turns.wake()
        self._settle()

    @precondition(lambda self: self.turns._outcomes)
    @rule(data=st.data())
    def give_up_what_nobody_has_taken(self, data):
        """A partition was paused or given up: its batch comes again."""
        found = data.draw(st.sampled_from(list(self.turns._outcomes)))
        if isinstance(found, Booked) and found.booking not in self.partitions.unwanted:
            self.partitions.unwanted.add(found.booking)
            self.given.remove(found.batch)

    @precondition(lambda self: self.partitions.asked)
    @rule(data=st.data())
    def abandon(self, data):
        """Who gives a partition up ends its fetch, in any thread."""
        self.turns.abandon(data.draw(st.sampled_from(sorted(self.partitions.asked))))
        self._settle()

    @rule(number=st.integers(0, PARTITIONS - 1))
    def a_broker_goes_away_or_comes_back(self, number):
        self.partitions.trials ^= {number}

    @rule()
    def lose_patience(self):
        self.home.pass_time(PATIENCE_S)
        self._settle()

    @precondition(lambda self: not self.partitions.closed)
    @rule()
    def close(self):
        self.partitions.closed = True
        self.turns.wake()
        self._settle()
        assert not self.waiting

    @invariant()
    def nothing_waits_for_somebody_who_waits(self):
        assert not (self.waiting and self.turns._outcomes)

    @invariant()
    def whoever_waits_has_a_turn_if_there_is_one(self):
        if self.waiting:
            assert self._fresh() >= len(self.waiting) or not self.partitions.idle

    @invariant()
    def everything_is_in_one_place(self):
        found = [one for one in self.turns._outcomes if isinstance(one, Booked)]
        busy = len(self.partitions.asked) + len(found) + len(self.partitions.out) + len(self.partitions.idle)
        errors = sum(isinstance(one, RpcError) for one in self.given)
        if not self.partitions.closed:
            assert busy == PARTITIONS - errors
            waiting = len(self.turns._outcomes) - len(self.partitions.unwanted)
            assert len(self.taken) + waiting == len(self.given)

    @invariant()
    def nothing_comes_twice(self):
        batches = [one for one in self.taken if isinstance(one, int)]
        assert len(set(batches)) == len(batches)


TurnsAgree.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_turns = TurnsAgree.TestCase


class AtOneBroker(Partitions):
    """Partitions of a broker that does not answer, on a machine so busy that booking one takes time."""

    def __init__(self, home):
        super().__init__()
        self.home = home
        self.brokers = Brokers(home.clock)
        self.is_wanted = lambda: True

    def select_now(self):
        turn = super().select_now() if self.brokers.may_be_asked(1) else None
        if turn is not None:
            self.home.now += 0.005
            self.brokers.ask(1, turn.booking.partition)
            self.home.now += 0.005
        return turn


def test_a_second_partition_is_not_asked_in_the_moment_in_which_its_broker_becomes_silent():
    home = VirtualHome()
    partitions = AtOneBroker(home)
    turns = Turns(partitions, home, home.clock)
    turns.join(Seat(lambda: None))
    home.pass_time(2 * PATIENCE_S)
    assert list(partitions.asked) == [0]
