"""Committed and in flight: the table of TubeMQ's DefaultOffsetManager, and its file."""

import gc
import itertools
import json

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tubemq_spark.embedded.broker.groups import NO_OFFSET, GroupPosition, OffsetKey, OffsetTable
from tubemq_spark.embedded.log.records import LogBounds

STEP = 28
PARTITION = OffsetKey("group", "demo", 0)


def bounds(earliest, latest):
    return LogBounds(earliest, latest, latest, 0, 0)


def standing(committed, in_flight=0):
    position = GroupPosition(committed)
    position.in_flight = in_flight
    return position


def state(position):
    return position.committed, position.in_flight


@pytest.mark.parametrize(
    ("status", "wish", "committed"),
    [
        (0, NO_OFFSET, 280),
        (1, NO_OFFSET, 280),
        (2, NO_OFFSET, 560),
        (0, 0, 56),
        (0, 55, 56),
        (0, 56, 56),
        (0, 83, 56),
        (0, 84, 84),
        (1, 559, 532),
        (1, 560, 560),
        (1, 10_000, 560),
        (2, 84, 560),
        (0, -28, 280),
    ],
)
def test_register_decides_the_start(status, wish, committed):
    position = standing(280, in_flight=28)
    assert position.register(status, wish, bounds(56, 560)) == committed
    assert state(position) == (committed, 0)


@pytest.mark.parametrize("empty", [False, True])
def test_a_read_that_passes_nothing_changes_nothing(empty):
    position = standing(84, in_flight=56)
    position.end_read(0, manual=False, empty=empty)
    assert state(position) == (84, 56)


@pytest.mark.parametrize(
    ("committed", "latest", "start", "after"),
    [(0, 0, 0, 0), (28, 56, 28, 28), (56, 56, None, 56), (84, 56, None, 56), (84, 0, None, 0)],
)
def test_reading_at_and_beyond_the_end(committed, latest, start, after):
    """An empty store at 0 is a case of its own, and a position beyond the end moves to it."""
    position = standing(committed)
    assert position.begin_read(manual=False, last_consumed=True, bounds=bounds(0, latest)) == start
    assert position.committed == after


@pytest.mark.parametrize("manual", [False, True])
@pytest.mark.parametrize("committed", [0, 28, 84])
def test_reading_below_the_start_of_a_log_moves_to_the_start(manual, committed):
    position = standing(committed)
    assert position.begin_read(manual=manual, last_consumed=False, bounds=bounds(84, 560)) == 84
    assert state(position) == (84, 0)


class PositionMachine(RuleBasedStateMachine):
    """The table again, as arithmetic on what a consumer has seen and committed."""

    LATEST = 40 * STEP

    def __init__(self):
        super().__init__()
        self.position = GroupPosition(0)
        self.confirmed = 0
        self.unconfirmed = 0

    def _read(self, entries, empty, manual, last_consumed):
        start = self.position.begin_read(
            manual=manual, last_consumed=last_consumed, bounds=bounds(0, self.LATEST)
        )
        if not manual and last_consumed:
            self.confirmed += self.unconfirmed
            self.unconfirmed = 0
        expected = self.confirmed + (self.unconfirmed if manual else 0)
        if expected == self.LATEST:
            assert start is None
            return
        assert start == expected
        distance = min(entries * STEP, self.LATEST - start)
        self.position.end_read(distance, manual=manual, empty=empty)
        if manual:
            self.unconfirmed += distance
        elif empty:
            self.confirmed += distance
            self.unconfirmed = 0
        else:
            self.unconfirmed = distance

    @rule(entries=st.integers(1, 5), empty=st.booleans(), last_consumed=st.booleans())
    def get(self, entries, empty, last_consumed):
        self._read(entries, empty, manual=False, last_consumed=last_consumed)

    @rule(entries=st.integers(1, 5), empty=st.booleans(), last_consumed=st.booleans())
    def get_manually(self, entries, empty, last_consumed):
        self._read(entries, empty, manual=True, last_consumed=last_consumed)

    @rule(consumed=st.booleans())
    def commit_or_leave(self, consumed):
        self.confirmed += self.unconfirmed if consumed else 0
        self.unconfirmed = 0
        assert self.position.commit(consumed=consumed) == self.confirmed

    @rule(entry=st.integers(0, 40))
    def register_at(self, entry):
        self.confirmed, self.unconfirmed = entry * STEP, 0
        assert self.position.register(0, entry * STEP, bounds(0, self.LATEST)) == self.confirmed

    @rule()
    def register_where_it_stands(self):
        self.unconfirmed = 0
        assert self.position.register(1, NO_OFFSET, bounds(0, self.LATEST)) == self.confirmed

    @rule(entry=st.integers(0, 40))
    def reset(self, entry):
        self.confirmed, self.unconfirmed = entry * STEP, 0
        self.position.reset(entry * STEP)

    @invariant()
    def same(self):
        assert state(self.position) == (self.confirmed, self.unconfirmed)


PositionMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestPositionMachine = PositionMachine.TestCase


@pytest.fixture
def path(tmp_path):
    return tmp_path / "offsets.json"


def test_a_table_without_file_is_empty(path):
    table = OffsetTable(path)
    assert table.all() == {}
    assert table.find(PARTITION) is None
    table.save()
    assert not path.exists(), "nothing changed, nothing written"


def test_a_new_position_starts_where_it_is_told_an_old_one_where_it_is(path):
    table = OffsetTable(path)
    position = table.find_or_add(PARTITION, 56)
    assert position.committed == 56
    assert table.find_or_add(PARTITION, 0) is position is table.find(PARTITION)


def test_committed_offsets_come_back_and_those_in_flight_do_not(path):
    table = OffsetTable(path)
    table.find_or_add(PARTITION, 56).in_flight = 28
    table.find_or_add(PARTITION._replace(partition_id=10_001), 84)
    table.save()
    again = OffsetTable(path).all()
    assert {partition: state(position) for partition, position in again.items()} == {
        PARTITION: (56, 0),
        PARTITION._replace(partition_id=10_001): (84, 0),
    }


def test_the_file_is_written_only_after_a_change(path):
    table = OffsetTable(path)
    position = table.find_or_add(PARTITION, 0)
    table.save()
    path.unlink()
    table.save()
    assert not path.exists()
    position.committed = 28
    table.save()
    assert json.loads(path.read_text())["groups"] == {"group": {"demo": {"0": 28}}}


def test_positions_are_listed_while_others_begin(path):
    """The garbage collector lets other threads run in the middle of anything that makes objects."""
    table = OffsetTable(path)
    for number in range(5000):  # more than Python keeps pairs for without asking the collector
        table.find_or_add(PARTITION._replace(partition_id=number), 0)
    numbers = itertools.count(5000)

    def begin_another(phase, _details):
        if phase == "start" and next(numbers) < 6000:
            table.find_or_add(PARTITION._replace(partition_id=next(numbers)), 0)

    limits = gc.get_threshold()
    gc.callbacks.append(begin_another)
    gc.set_threshold(1)
    try:
        listed = [len(table.all()) for _ in range(20)]
    finally:
        gc.callbacks.remove(begin_another)
        gc.set_threshold(*limits)
    assert listed[-1] > 5000
    assert listed == sorted(listed)


def test_a_topic_is_forgotten_alone(path):
    table = OffsetTable(path)
    table.find_or_add(PARTITION, 0)
    other = PARTITION._replace(topic="other")
    table.find_or_add(other, 0)
    table.forget_topic("demo")
    assert set(table.all()) == {other}


# --- places that are not there, and those that are forgotten

DAY_MS = 24 * 3_600_000


@pytest.mark.parametrize(("status", "start"), [(0, 56), (1, 560), (2, 560), (7, 560)])
def test_the_first_register_records_a_place(status, start):
    position = GroupPosition()
    assert position.register(status, NO_OFFSET, bounds(56, 560)) == start
    assert position.recorded


@pytest.mark.parametrize("wish", [0, 84, 10_000])
def test_the_first_register_with_a_wish(wish):
    assert GroupPosition().register(1, wish, bounds(56, 560)) == min(max(wish, 56), 560)


def test_reading_or_committing_without_a_place_stands_at_0():
    for position in (GroupPosition(), GroupPosition()):
        assert not position.recorded
    reading, committing = GroupPosition(), GroupPosition()
    assert reading.begin_read(manual=False, last_consumed=True, bounds=bounds(0, 560)) == 0
    assert committing.commit(consumed=False) == 0
    assert reading.recorded
    assert committing.recorded


def test_beyond_the_end_in_manual_mode_moves_with_the_next_commit():
    position = standing(84)
    assert position.begin_read(manual=True, last_consumed=False, bounds=bounds(0, 56)) is None
    assert state(position) == (84, -28)
    assert position.begin_read(manual=True, last_consumed=False, bounds=bounds(0, 56)) is None
    assert position.commit(consumed=True) == 56


def test_a_forgotten_position_is_not_found_and_starts_again(path):
    table = OffsetTable(path)
    position = table.find_or_add(PARTITION, 84)
    position.in_flight = 28
    table.save()
    table.forget([PARTITION])
    assert (table.find(PARTITION), table.all()) == (None, {})
    with table.locked(PARTITION) as again:
        assert again is position, "its users keep the same one"
    assert position.register(0, NO_OFFSET, bounds(0, 560)) == 0
    table.forget([PARTITION])
    table.save()
    assert OffsetTable(path).all() == {}


def other_group(name):
    return PARTITION._replace(group=name)


def test_groups_that_do_not_move_are_forgotten(path, clock):
    table = OffsetTable(path, clock)
    moving, idle, waiting = (table.find_or_add(other_group(name), 28) for name in ("m", "i", "w"))
    table.save()
    clock.now_ms += DAY_MS
    moving.commit(consumed=True)
    moving.reset(28)
    table.save()
    assert table.forget_idle(DAY_MS, busy={"w"}) == [], "a day, and no more"
    clock.now_ms += 1
    assert table.forget_idle(DAY_MS, busy={"w"}) == ["i"]
    assert [position.recorded for position in (moving, idle, waiting)] == [True, False, True]
    table.save()
    assert set(OffsetTable(path, clock).all()) == {other_group("m"), other_group("w")}
    assert table.forget_idle(DAY_MS, busy={"w"}) == []


def test_the_time_of_the_last_move_outlives_a_restart(path, clock):
    table = OffsetTable(path, clock)
    table.find_or_add(PARTITION, 28)
    table.save()
    clock.now_ms += DAY_MS + 1
    assert OffsetTable(path, clock).forget_idle(DAY_MS, busy=set()) == ["group"]


def test_a_group_that_wishes_for_where_it_stands_has_moved(path, clock):
    table = OffsetTable(path, clock)
    position = table.find_or_add(PARTITION, 28)
    table.save()
    clock.now_ms += DAY_MS
    position.register(0, 28, bounds(0, 560))
    table.save()
    clock.now_ms += DAY_MS
    assert table.forget_idle(DAY_MS, busy=set()) == []


def test_a_file_without_times_is_of_now(path, clock):
    path.write_text('{"version": 1, "groups": {"group": {"demo": {"0": 28}}}}')
    table = OffsetTable(path, clock)
    assert table.find(PARTITION).committed == 28
    assert table.forget_idle(0, busy=set()) == []
    clock.now_ms += 1
    assert table.forget_idle(0, busy=set()) == ["group"]
