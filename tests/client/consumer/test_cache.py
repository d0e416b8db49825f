"""What a consumer's partitions do, one rule at a time; ``test_cache_law`` tries all at once."""

import pytest

from tests.cases import in_one_test
from tubemq_spark.client.broker.session import Position
from tubemq_spark.client.consumer.cache import PartitionCache
from tubemq_spark.client.consumer.flow_control import FetchOutcome, FlowControl
from tubemq_spark.client.consumer.values import Booking, ConsumeStatus, PartitionState, parse_context
from tubemq_spark.errors import OptionError
from tubemq_spark.model import Endpoint, TopicPartition
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


def test_a_partition_that_is_held_is_not_added_again():
    world = World(1)
    booking = world.deliver()
    assert not world.cache.add(info(0), Position(999, 999))
    assert world.cache.is_current(booking)
    assert world.cache.positions()[partition(0)].offset == 0


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


def test_a_partition_that_is_booked_is_not_selected():
    world = World(2)
    world.deliver()
    world.fetch()
    assert world.cache.select() is None


def test_a_new_partition_goes_to_the_end():
    world = World(2)
    world.cache.add(info(2), Position(0, 0))
    assert [world.cache.select()[0].partition.partition_id for _ in range(3)] == [0, 1, 2]


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


def test_a_batch_is_delivered_once():
    world = World(1)
    booking = world.deliver()
    assert not world.cache.deliver(booking)


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


def test_the_time_to_confirm_begins_with_the_delivery():
    world = World(1)
    booking = world.fetch()
    world.now += 5
    assert world.cache.expire() == []
    world.cache.deliver(booking)
    world.now += 0.9
    assert world.cache.expire() == []


def test_paused_partitions_are_not_fetched_until_they_are_resumed():
    world = World(3)
    world.cache.pause([partition(0)])
    assert world.state(0) is PartitionState.PAUSED
    assert [world.cache.select()[0].partition.partition_id for _ in range(2)] == [1, 2]
    assert world.cache.select() is None

    world.cache.resume([partition(0)])
    assert world.cache.select()[0].partition.partition_id == 0


def test_what_is_under_way_when_a_partition_is_paused_may_end():
    world = World(1)
    booking = world.deliver()
    world.cache.pause([partition(0)])
    assert not world.cache.is_wanted(partition(0))
    assert world.cache.release(booking, consumed=True, rest_ms=100)
    assert world.state(0) is PartitionState.RESTING
    world.now += 1
    world.cache.wake()
    assert world.state(0) is PartitionState.PAUSED
    world.cache.resume()
    assert world.cache.select()[1]


def test_a_partition_that_comes_later_may_be_paused_already():
    world = World()
    world.cache.pause([partition(0)])
    world.cache.add(info(0), Position(0, 0))
    assert world.cache.select() is None
    assert world.cache.paused == {partition(0)}
    world.cache.remove(partition(0))
    assert world.cache.paused == {partition(0)}, "its user paused it, wherever it is"


def test_what_is_about_to_be_given_up_is_not_fetched_any_more():
    world = World(3)
    booking = world.deliver()
    assert world.cache.hold_back([partition(0), partition(1), partition(9)]) == [partition(0)]
    world.cache.resume()
    assert world.cache.select()[0].partition.partition_id == 2
    assert world.cache.select() is None

    world.cache.release(booking, consumed=True)
    assert world.cache.hold_back([]) == []
    for number in (0, 1):
        world.cache.remove(partition(number))
    world.cache.add(info(1), Position(0, 0))
    assert world.cache.select()[0].partition.partition_id == 1, "it came back"


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
