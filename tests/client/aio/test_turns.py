"""Turns of partitions for coroutines that come, give up and are cancelled: a model, step by step.

Requests are answered when the model says so. What was found is handed out once, nothing waits while a
coroutine does, and no more partitions are asked than somebody has waited for.
"""

import asyncio
from concurrent.futures import Future

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tubemq_spark.client.aio.carrying_out import CarryingOut
from tubemq_spark.client.aio.home import HomeLoop
from tubemq_spark.client.aio.turns import Turns
from tubemq_spark.client.consumer.fetching import Booked
from tubemq_spark.client.steps import wait_for
from tubemq_spark.errors import ConsumeError, RpcError
from tubemq_spark.protocol.errcodes import rpc_error

PARTITIONS = 5
PATIENCE_S = 0.2


class Partitions:
    """In place of ``Fetching``: partitions that are idle, being fetched, or with the user."""

    def __init__(self):
        self.state = self
        self.idle = list(range(PARTITIONS))
        self.asked = {}
        """The answers that partitions wait for."""
        self.out = []
        """What was handed out, until it is confirmed."""
        self.unwanted = set()
        self.number = 0
        self.closed = False
        self.is_wanted = None

    def check_fetch(self):
        if self.closed:
            raise ConsumeError("TUBEMQ_CONSUMER_CLOSED", code=420, group="g", state="closed", advice="-")

    def select_now(self):
        self.check_fetch()
        assert self.is_wanted()
        return self.idle.pop(0) if self.idle else None

    def take_turn(self, partition):
        answer = self.asked[partition] = Future()
        try:
            found = yield from wait_for(answer)
        finally:
            del self.asked[partition]
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

    def wait_s(self):
        return None


class TurnsAgree(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.partitions = Partitions()
        self.now = 0.0
        self.fetches = []
        self.given = []
        """What partitions have found, in that order."""
        self.taken = []
        self.loop.run_until_complete(self._begin())

    async def _begin(self):
        home = HomeLoop(lambda: AssertionError("another loop"))
        home.enter()
        self.turns = Turns(home, CarryingOut(home, None), self.partitions, lambda: self.now)
        self.partitions.is_wanted = lambda: self._fresh() < sum(not one.done() for one in self.turns._waiting)

    def _fresh(self):
        return sum(began + PATIENCE_S > self.now for began in self.turns._turns.values())

    def _settle(self, cancel=None):
        """Let everything happen; cancel a coroutine in the moment in which it is given something."""
        waiting = next(iter(self.turns._waiting), None)

        async def enough():
            for _ in range(12):
                await asyncio.sleep(0)
                if cancel is not None and waiting is not None and waiting.done():
                    cancel.cancel()

        self.loop.run_until_complete(enough())
        for fetch in [one for one in self.fetches if one.done()]:
            self.fetches.remove(fetch)
            if not fetch.cancelled():
                self._take(fetch)

    def _take(self, fetch):
        error = fetch.exception()
        if isinstance(error, ConsumeError):
            assert self.partitions.closed
        elif error is not None:
            self.taken.append(error)
        else:
            assert fetch.result() is not None
            self.taken.append(fetch.result())

    @rule()
    def fetch(self):
        self.fetches.append(self.loop.create_task(self.turns.next(None)))
        self._settle()

    @precondition(lambda self: self.fetches)
    @rule(data=st.data())
    def cancel(self, data):
        data.draw(st.sampled_from(self.fetches)).cancel()
        self._settle()

    @precondition(lambda self: self.partitions.asked)
    @rule(data=st.data(), what=st.sampled_from(["nothing", "batch", "batch", "error"]), cancel=st.booleans())
    def answer(self, data, what, cancel):
        """And a coroutine may be cancelled in the moment in which it gets the batch."""
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
        self._settle(self.fetches[0] if cancel and self.fetches else None)

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

    @rule()
    def lose_patience(self):
        self.now += PATIENCE_S
        self.turns.wake()
        self._settle()

    @precondition(lambda self: not self.partitions.closed)
    @rule()
    def close(self):
        self.partitions.closed = True
        self.turns.wake()
        self._settle()
        assert not self.fetches

    @invariant()
    def nothing_waits_for_a_coroutine_that_waits(self):
        assert not (self.fetches and self.turns._outcomes)

    @invariant()
    def whoever_waits_has_a_turn_if_there_is_one(self):
        if self.fetches:
            assert self._fresh() >= len(self.fetches) or not self.partitions.idle

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

    def teardown(self):
        self.partitions.closed = True
        for fetch in self.fetches:
            fetch.cancel()
        self._settle()
        self.loop.close()


TurnsAgree.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_turns = TurnsAgree.TestCase
