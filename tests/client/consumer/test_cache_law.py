"""Whatever happens to partitions, in any order: each is in one place, and no batch has two users."""

import collections

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from testkit.examples import examples
from tubemq_spark.client.broker.session import Position
from tubemq_spark.client.consumer.cache import PartitionCache
from tubemq_spark.client.consumer.flow_control import FetchOutcome, FlowControl
from tubemq_spark.client.consumer.values import PartitionState
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.packed_strings import PartitionInfo

INFOS = [PartitionInfo(broker, Endpoint("10.0.0.1", 8123), "demo", 0) for broker in (1, 2, 3)]
infos = st.lists(st.sampled_from(INFOS), min_size=1, max_size=2, unique=True)
outcomes = st.sampled_from([FetchOutcome(200, 9), FetchOutcome(404, 0, 300), FetchOutcome(500, 0, 5)])
picks = st.integers(0, 19)
CONFIRM_S = 1.0


def places(chosen):
    return [info.partition for info in chosen]


class CacheMachine(RuleBasedStateMachine):
    """Compares the cache with what must be true of each partition, kept here in the simplest way."""

    @initialize(rollback=st.booleans(), held=st.booleans())
    def start(self, rollback, held):
        self.now = 0.0
        self.rollback = rollback
        self.cache = PartitionCache(
            FlowControl(lambda: self.now, lambda: 0.0),
            confirm_timeout_ms=int(CONFIRM_S * 1000),
            rollback=rollback,
            clock=lambda: self.now,
            wall_clock=lambda: self.now,
        )
        self.held = set()
        self.paused = set()
        self.leaving = set()
        self.seeking = collections.Counter()
        self.booked = {}
        self.delivered_at = {}
        self.confirmed = collections.defaultdict(bool)
        self.rests = {}
        self.idle_since = {}
        self.step = 0
        self.issued = []
        for info in INFOS if held else ():
            self.add(info)

    def pick(self, number):
        """Return a booking, mostly one that counts."""
        current = sorted(self.booked.values(), key=lambda booking: booking.number)
        chosen = current if current and number < 15 else self.issued
        return chosen[number % len(chosen)] if chosen else None

    @rule(info=st.sampled_from(INFOS))
    def add(self, info):
        new = info.partition not in self.held
        assert self.cache.add(info, Position(0, 28)) is new
        if new:
            self.held.add(info.partition)
            self.confirmed[info.partition] = False

    @rule(chosen=infos)
    def remove(self, chosen):
        for partition in places(chosen):
            self.check_given_up(partition, commits=self.cache.remove(partition))

    def check_given_up(self, partition, *, commits):
        if partition not in self.held:
            assert not commits
        elif partition in self.delivered_at:
            assert commits is not self.rollback
        elif partition in self.booked:
            assert not commits, "no user saw what the fetch has brought"
        else:
            assert commits is self.confirmed[partition]
        self.held.discard(partition)
        self.leaving.discard(partition)
        self.forget(partition)

    def forget(self, partition):
        for kept in (self.booked, self.delivered_at, self.rests):
            kept.pop(partition, None)

    @rule()
    def select(self):
        selection = self.cache.select()
        if selection is None:
            assert not self.idle_since
            return
        booking, confirms = selection
        partition = booking.partition
        assert partition in self.held
        assert partition not in self.booked
        assert partition not in self.held_back()
        assert self.rests.get(partition, 0.0) <= self.now
        assert self.idle_since[partition] == min(self.idle_since.values()), "one has waited longer"
        assert confirms is self.confirmed[partition]
        assert booking.number not in {issued.number for issued in self.issued}
        self.issued.append(booking)
        self.confirmed[partition] = False
        self.rests.pop(partition, None)
        del self.idle_since[partition]
        self.booked[partition] = booking

    @rule(outcome=outcomes, consumed=st.booleans())
    def use(self, outcome, consumed):
        """Go the whole way of a batch at once: the other rules meet partitions that have been used."""
        before = len(self.issued)
        self.select()
        for booking in self.issued[before:]:
            self.cache.record(booking, outcome)
            assert self.cache.deliver(booking)
            assert self.cache.release(booking, consumed=consumed, rest_ms=0)
            self.forget(booking.partition)
            self.confirmed[booking.partition] = consumed

    @rule(number=picks)
    def deliver(self, number):
        if (booking := self.pick(number)) is None:
            return
        partition = booking.partition
        expected = self.booked.get(partition) == booking and partition not in self.delivered_at
        assert self.cache.deliver(booking) is expected
        if expected:
            self.delivered_at[partition] = self.now

    @rule(number=picks, consumed=st.booleans(), rest_ms=st.none() | st.sampled_from([0, 10, 11, 200, 500]))
    def release(self, number, consumed, rest_ms):
        if (booking := self.pick(number)) is None:
            return
        partition = booking.partition
        expected = self.booked.get(partition) == booking
        assert self.cache.release(booking, consumed=consumed, rest_ms=rest_ms) is expected
        if expected:
            self.forget(partition)
            self.confirmed[partition] = consumed
            if rest_ms is not None and rest_ms > 10:
                self.rests[partition] = self.now + rest_ms / 1000

    @rule(seconds=st.sampled_from([0.01, 0.2, 0.45, 0.55]))
    def let_time_pass(self, seconds):
        self.now += seconds

    @rule()
    def expire(self):
        late = {
            p: b for p, b in self.booked.items() if self.delivered_at.get(p, self.now) + CONFIRM_S <= self.now
        }
        assert {booking.partition: booking for booking in self.cache.expire()} == late
        for partition in late:
            self.forget(partition)
            self.confirmed[partition] = not self.rollback

    @rule()
    def wake(self):
        self.cache.wake()
        for partition, until in self.rests.items():
            assert (self.cache.state(partition) is PartitionState.RESTING) is (until > self.now)

    @rule()
    def wait(self):
        """What the cache waits for has come then."""
        wait_s = self.cache.wait_s()
        if wait_s is None:
            assert not self.delivered_at
            assert not self.cache._sets[PartitionState.RESTING]
            return
        self.now += wait_s + 1e-6
        woken = self.cache.wake()
        late = self.cache.expire()
        assert woken or late
        for booking in late:
            self.forget(booking.partition)
            self.confirmed[booking.partition] = not self.rollback

    @rule(chosen=infos)
    def pause(self, chosen):
        self.cache.pause(places(chosen))
        self.paused.update(places(chosen))

    @rule(chosen=st.none() | infos)
    def resume(self, chosen):
        self.cache.resume(None if chosen is None else places(chosen))
        self.paused.difference_update(set(self.paused) if chosen is None else places(chosen))

    @rule(chosen=infos)
    def hold_back(self, chosen):
        in_use = self.cache.hold_back(places(chosen))
        self.leaving |= set(places(chosen)) & self.held
        assert set(in_use) == self.leaving & self.delivered_at.keys()

    def held_back(self):
        return self.paused | self.leaving | {p for p, calls in self.seeking.items() if calls}

    @rule(info=st.sampled_from(INFOS))
    def begin_seek(self, info):
        partition = info.partition
        if partition not in self.held:
            return
        if partition in self.delivered_at:
            self.confirmed[partition] = not self.rollback
        self.cache.begin_seek(partition)
        self.seeking[partition] += 1
        ended = self.booked.get(partition)
        self.forget_booking(partition)
        assert ended is None or self.cache.was_sought(ended)
        assert ended is None or not self.cache.is_current(ended)

    @rule(info=st.sampled_from(INFOS), is_moved=st.booleans())
    def end_seek(self, info, is_moved):
        partition = info.partition
        if not self.seeking[partition]:
            return
        self.cache.end_seek(partition, Position(280, 560) if is_moved else None)
        self.seeking[partition] -= 1
        if is_moved and partition in self.held:
            assert self.cache.position(partition).offset == 280
            self.confirmed[partition] = False
            if self.cache.state(partition) is not PartitionState.RESTING:
                self.rests.pop(partition, None)

    def forget_booking(self, partition):
        for kept in (self.booked, self.delivered_at):
            kept.pop(partition, None)

    @invariant()
    def each_partition_is_in_one_place(self):
        sets = list(self.cache._sets.values())
        together = [partition for group in sets for partition in group]
        assert len(together) == len(set(together))
        assert set(together) == self.held == {info.partition for info in self.cache.infos()}
        for state, group in self.cache._sets.items():
            assert all(self.cache.state(partition) is state for partition in group)

    @invariant()
    def bookings_are_those_of_their_users(self):
        states = {partition: self.cache.state(partition) for partition in self.held}
        for partition in self.held:
            in_use = states[partition] is PartitionState.IN_USE
            assert in_use is (partition in self.delivered_at)
            fetching = states[partition] is PartitionState.FETCHING
            assert fetching is (partition in self.booked and partition not in self.delivered_at)
        assert all(self.cache.is_current(booking) for booking in self.booked.values())

    @invariant()
    def nothing_is_idle_that_is_held_back(self):
        idle = {p for p in self.held if self.cache.state(p) is PartitionState.IDLE}
        paused = {p for p in self.held if self.cache.state(p) is PartitionState.PAUSED}
        assert not idle & self.held_back()
        assert paused <= self.held_back()
        self.step += 1
        self.idle_since = {p: self.idle_since.get(p, self.step) for p in idle}


CacheMachine.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
TestCache = CacheMachine.TestCase
"""250 times 40 steps."""
