"""What a consumer's partitions do, one rule at a time; and in any order: no batch has two users.

Of brokers, one that is silent is asked once, and one that is away takes one attempt at a time.
"""

import collections

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from testkit.examples import examples
from tests.cases import in_one_test
from tubemq_spark.client.broker.session import Position
from tubemq_spark.client.consumer.cache import PATIENCE_S, BrokerHealth, PartitionCache
from tubemq_spark.client.consumer.flow_control import FetchOutcome, FlowControl
from tubemq_spark.client.consumer.values import Booking, ConsumeStatus, PartitionState, parse_context
from tubemq_spark.errors import OptionError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.retry import BROKER_AWAY
from tubemq_spark.protocol.packed_strings import PartitionInfo

FOUND = FetchOutcome(200, 10)
NOTHING = FetchOutcome(404, 0, wait_ms=400)


def info(number, broker_id=1, topic="demo"):
    return PartitionInfo(broker_id, Endpoint(f"10.0.0.{broker_id}", 8123), topic, number)


def partition(number, broker_id=1, topic="demo"):
    return info(number, broker_id, topic).partition


class World:
    """A cache whose clocks a test moves."""

    def __init__(self, count=0, **settings):
        self.now = 50.0
        self.control = FlowControl(self.clock, lambda: 0.0)
        settings = {
            "confirm_timeout_ms": 1000,
            "clock": self.clock,
            "wall_clock": lambda: 7.0,
            "first_number": 1,
            **settings,
        }
        self.cache = PartitionCache(self.control, **settings)
        for number in range(count):
            self.cache.add(info(number), Position(28 * number, 280))

    def clock(self):
        return self.now

    def fetch(self, outcome=FOUND):
        """Select a partition and record an answer; return its booking."""
        booking = self.cache.select()[0]
        self.cache.record(booking, outcome)
        return booking

    def deliver(self):
        booking = self.fetch()
        assert self.cache.deliver(booking)
        return booking

    def state(self, number):
        return self.cache.state(partition(number))


def test_partitions_are_known_everywhere_when_they_are_added():
    world = World()
    for added in (info(0), info(1), info(0, broker_id=2), info(0, topic="other")):
        assert world.cache.add(added, Position(28, 56))
    cache = world.cache

    assert [held.partition for held in cache.infos()] == [
        partition(0),
        partition(1),
        partition(0, 2),
        partition(0, topic="other"),
    ]
    assert cache.positions()[partition(0)].offset == 28
    assert {cache.state(place) for place in cache.positions()} == {PartitionState.IDLE}


def test_what_an_event_names_is_split():
    world = World(2)
    assert world.cache.new_ones([info(1), info(2), info(2), info(3)]) == [info(2), info(3)]


def test_idle_partitions_are_selected_in_turn():
    world = World(3)
    order = []
    for _ in range(7):
        booking = world.deliver()
        order.append(booking.partition.partition_id)
        world.cache.release(booking, consumed=True)
    assert order == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize(
    ("rest_ms", "state"), [(0, "idle"), (10, "idle"), (11, "resting"), (60_000, "resting")]
)
def test_a_short_rest_is_none(rest_ms, state):
    world = World(1)
    world.cache.release(world.fetch(), consumed=False, rest_ms=rest_ms)
    assert world.state(0).value == state


def test_a_rest_ends_when_its_time_has_come():
    world = World(2)
    for rest_ms in (500, 300):
        world.cache.release(world.fetch(), consumed=False, rest_ms=rest_ms)
    assert world.cache.wait_s() == pytest.approx(0.3)

    world.now += 0.3
    assert world.cache.wake()
    assert [world.state(0).value, world.state(1).value] == ["resting", "idle"]
    assert world.cache.wait_s() == pytest.approx(0.2)

    world.now += 5
    assert world.cache.wake()
    assert not world.cache.wake()
    assert world.cache.wait_s() is None
    assert world.cache.select()[0].partition.partition_id == 1, "it has waited longer"


def test_a_rest_ends_with_the_partition():
    world = World(1)
    world.cache.release(world.fetch(), consumed=False, rest_ms=500)
    world.cache.remove(partition(0))
    assert world.cache.wait_s() is None
    world.cache.add(info(0), Position(0, 0))
    world.cache.release(world.fetch(), consumed=False, rest_ms=900)
    world.now += 0.5
    assert not world.cache.wake(), "the first rest does not end the second"
    assert world.state(0) is PartitionState.RESTING


def test_flow_control_says_how_long_a_partition_rests():
    world = World(1)
    world.cache.release(world.fetch(NOTHING), consumed=False)
    assert world.cache.wait_s() == pytest.approx(0.4)


def test_a_partition_at_its_end_can_be_hastened():
    world = World(2)
    booking = world.fetch(NOTHING)
    assert not world.cache.hasten(booking.partition), "it is being fetched"
    world.cache.release(booking, consumed=False)
    assert (world.state(0), world.state(1)) == (PartitionState.RESTING, PartitionState.IDLE)
    assert world.cache.hasten(booking.partition)
    assert world.state(0) is PartitionState.IDLE
    assert not world.cache.hasten(booking.partition), "it rests no more"
    assert not world.cache.hasten(partition(7)), "it is not held"
    assert world.cache.wait_s() is None


@pytest.mark.parametrize("outcome", [FetchOutcome(403, 0, 2_000), FetchOutcome(452, 0, 1_500)])
def test_rests_that_a_broker_or_an_error_has_set_go_on(outcome):
    world = World(1)
    world.cache.release(world.fetch(NOTHING), consumed=False)
    world.cache.hasten(partition(0))
    world.cache.release(world.fetch(outcome), consumed=False)
    assert not world.cache.hasten(partition(0))
    assert world.state(0) is PartitionState.RESTING


def test_rests_that_a_rule_has_set_go_on():
    world = World(1)
    world.control.update_group(1, '[{"type":1,"rule":[{"zeroCnt":1,"freqInMs":5000}]}]')
    world.cache.release(world.fetch(NOTHING), consumed=False)
    assert not world.cache.hasten(partition(0))


def test_filtered_topics_have_rules_of_their_own():
    pauses = '[{"type":3,"rule":[{"normFreqInMs":0,"filterFreqInMs":100,"minDataFilterFreqInMs":400}]}]'
    world = World(1, filtered_topics={"demo"})
    world.control.update_group(1, pauses)
    world.cache.add(info(0, topic="other"), Position(0, 0))
    for number, rest in ((0, "resting"), (1, "idle")):
        booking = world.fetch()
        world.cache.release(booking, consumed=True)
        assert world.cache.state(booking.partition).value == rest, number


def test_a_fetch_confirms_only_what_was_confirmed_and_only_once():
    world = World(1)
    assert not world.cache.select()[1]
    world.cache.release(Booking(partition(0), 1), consumed=True)
    assert world.cache.select()[1]

    # No answer came: what that fetch may have brought must not be confirmed by the next one.
    world.cache.release(Booking(partition(0), 2), consumed=False)
    assert not world.cache.select()[1]

    world.cache.release(Booking(partition(0), 3), consumed=True)
    assert world.cache.select()[1]
    assert not world.cache.remove(partition(0)), "the fetch that is under way confirms it"


def test_a_booking_is_used_once():
    world = World(1)
    booking = world.deliver()
    assert world.cache.release(booking, consumed=True)
    assert not world.cache.release(booking, consumed=True)
    assert not world.cache.deliver(booking)
    assert not world.cache.is_current(booking)

    later = world.deliver()
    assert later.partition == booking.partition
    assert not world.cache.release(booking, consumed=False)
    assert world.cache.is_current(later)


@pytest.mark.parametrize("rollback", [True, False])
def test_a_batch_that_is_not_confirmed_in_time_is_served_again_or_counts_as_consumed(rollback):
    world = World(2, rollback=rollback)
    first = world.deliver()
    world.now += 0.5
    second = world.deliver()
    assert world.cache.wait_s() == pytest.approx(0.5)

    world.now += 0.5
    assert world.cache.expire() == [first]
    assert not world.cache.is_current(first)
    assert world.cache.is_current(second)
    assert world.cache.expire() == []
    again, confirms = world.cache.select()
    assert again.partition == first.partition
    assert confirms is not rollback


@pytest.mark.parametrize("rollback", [True, False])
def test_what_is_given_up_says_whether_its_last_batch_is_committed(rollback):
    world = World(4, rollback=rollback)
    in_use, fetched, confirmed = world.deliver(), world.fetch(), world.deliver()
    world.cache.release(confirmed, consumed=True)

    commits = [world.cache.remove(partition(number)) for number in (0, 1, 2, 3, 9)]

    assert commits == [not rollback, False, True, False, False], "in use, fetching, confirmed, idle, not held"
    assert not world.cache.positions()
    for booking in (in_use, fetched):
        assert not world.cache.release(booking, consumed=True)


def test_a_partition_that_comes_back_is_known():
    world = World(1)
    world.cache.remove(partition(0))
    assert world.cache.registered == {partition(0)}


def test_a_booking_of_an_earlier_time_does_not_count_when_the_partition_comes_back():
    world = World(1)
    booking = world.deliver()
    world.cache.remove(partition(0))
    world.cache.add(info(0), Position(0, 0))
    assert not world.cache.release(booking, consumed=True)
    later = world.deliver()
    assert later.number != booking.number
    assert not world.cache.is_current(booking)


def test_the_status_tells_why_nothing_comes():
    world = World()
    assert world.cache.status() is ConsumeStatus.NOTHING_ASSIGNED
    for number in range(3):
        world.cache.add(info(number), Position(0, 0))
    assert world.cache.status() is ConsumeStatus.READY
    world.cache.pause([partition(2)])
    in_use, resting = world.deliver(), world.fetch(NOTHING)
    assert world.cache.status() is ConsumeStatus.READY, "an answer is under way"
    world.cache.release(resting, consumed=False)
    assert world.cache.status() is ConsumeStatus.ALL_RESTING
    world.cache.remove(resting.partition)
    assert world.cache.status() is ConsumeStatus.ALL_IN_USE
    world.cache.remove(in_use.partition)
    assert world.cache.status() is ConsumeStatus.ALL_PAUSED
    assert [int(status) for status in ConsumeStatus] == [200, 405, 406, 407, 408]


def test_positions_follow_registers_fetches_and_commits():
    world = World(1)

    def position():
        where = world.cache.position(partition(0))
        return where.offset, where.latest, where.heard_at

    assert position() == (0, 280, 7.0)
    booking = world.cache.select()[0]
    world.cache.record(booking, FOUND, Position(28, 308))
    assert position() == (28, 308, 7.0)
    world.cache.deliver(booking)
    world.cache.book_position(booking, Position(56, 336))
    assert position() == (56, 336, 7.0)
    world.cache.release(booking, consumed=True)
    world.cache.book_position(booking, Position(0, 0))
    assert position() == (56, 336, 7.0), "the booking has ended"


def test_contexts_are_read_back():
    booking = Booking(TopicPartition("demo", 3, 10001), 42)
    assert booking.context == "3:demo:10001@42"
    assert parse_context(booking.context) == booking


@in_one_test(
    "text",
    [
        "",
        "x",
        "3:demo:1",
        "3:demo:1@",
        "3:demo@7",
        "a:demo:1@7",
        "3::1@7",
        "3:demo:x@7",
        "3:demo:1@-7",
        "3:d:e:1@7",
    ],
)
def test_what_is_no_context_is_refused(text):
    """The C++ client reads beyond the end of such a text."""
    with pytest.raises(OptionError, match="TUBEMQ_CONFIRM_CONTEXT"):
        parse_context(text)


class Clock:
    now = 1_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def brokers(clock):
    return BrokerHealth(clock, lambda: 0.0)


def fail(brokers, number):
    brokers.ask(1, number)
    brokers.fail(1, number)


def test_partitions_of_a_sound_broker_are_asked_at_once(brokers):
    for number in range(10):
        assert brokers.may_be_asked(1)
        brokers.ask(1, number)


def test_a_silent_broker_is_asked_no_more_until_it_answers(brokers, clock):
    brokers.ask(1, 1)
    clock.now += PATIENCE_S
    assert not brokers.may_be_asked(1)
    assert brokers.may_be_asked(2)
    brokers.end(1, 1)
    assert brokers.may_be_asked(1)


def test_pauses_double_and_one_partition_is_tried_after_each(brokers, clock):
    for number, pause_ms in enumerate((300, 600, 1_200, 2_400, 4_800, 9_600, 10_000, 10_000), 1):
        fail(brokers, number)
        assert brokers.next_attempt() == pytest.approx(clock.now + pause_ms / 1_000)
        clock.now += pause_ms / 1_000 - 0.001
        assert not brokers.may_be_asked(1)
        clock.now += 0.002
        assert brokers.may_be_asked(1)
        brokers.ask(1, 100)
        assert not brokers.may_be_asked(1), "one at a time"
        brokers.end(1, 100)


def test_pauses_are_shortened_at_random_by_up_to_a_half(clock):
    brokers = BrokerHealth(clock, lambda: 1.0)
    fail(brokers, 1)
    assert brokers.next_attempt() == pytest.approx(clock.now + BROKER_AWAY.first_ms / 2_000)


def test_requests_that_were_under_way_together_are_one_failure(brokers, clock):
    for number in range(5):
        brokers.ask(1, number)
    clock.now += 10
    for number in range(5):
        brokers.fail(1, number)
    assert brokers.next_attempt() == pytest.approx(clock.now + 0.3)


def test_an_answer_makes_a_broker_sound(brokers):
    fail(brokers, 1)
    assert brokers.is_away(1)
    brokers.answer(1)
    assert not brokers.is_away(1)
    assert brokers.may_be_asked(1)
    assert brokers.next_attempt() is None


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


def test_a_partition_is_in_one_place_whatever_happens_in_whatever_order():
    steps = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
    run_state_machine_as_test(CacheMachine, settings=steps)
