"""How long a partition rests after a fetch, with both clocks in the test's hand."""

import json
import logging

import pytest
from hypothesis import given, strategies as st

from tubemq_spark.client.consumer.flow_control import FetchOutcome, FlowControl, PartitionFlow

MIB = 1 << 20
NOON = 4 * 3600
"""12:00 in UTC+8, as seconds since 1970."""
ALL_DAY = {"start": "00:00", "end": "24:00", "dltInM": 100, "limitInM": 12, "freqInMs": 900}
EMPTY = [{"zeroCnt": 2, "freqInMs": 600}, {"zeroCnt": 4, "freqInMs": 5000}]
PAUSES = {"normFreqInMs": 7, "filterFreqInMs": 100, "minDataFilterFreqInMs": 400}
BEHIND = 101 * MIB


class World:
    """One consumer and one partition of it."""

    def __init__(self, default=(), group=(), hour_s=NOON):
        self.now = 1000.0
        self.epoch_s = hour_s
        self.control = FlowControl(lambda: self.now, lambda: self.epoch_s)
        if default:
            self.control.update_default(1, text(*default))
        if group:
            self.control.update_group(2, text(*group))
        self.flow = PartitionFlow(self.control, lambda: self.now)

    def rest(self, code=200, size=1, *, filtered=False, **more):
        self.flow.record(FetchOutcome(code, size, **more))
        return self.flow.rest_ms(filtered=filtered)


def text(*records):
    return json.dumps([{"type": kind, "rule": rules} for kind, rules in records])


@pytest.mark.parametrize(
    ("code", "wait_ms"), [(200, 0), (404, 400), (403, 2000), (503, 300), (301, 200), (452, 1500), (500, 300)]
)
def test_without_rules_the_broker_or_the_code_says_it(code, wait_ms):
    world = World()
    assert world.flow.rest_ms(filtered=False) == 0, "nothing was fetched"
    assert world.rest(code, size=0, wait_ms=wait_ms) == wait_ms


def test_empty_fetches_are_counted_until_one_finds_something():
    world = World(default=[(1, EMPTY)])
    assert [world.rest(404, 0, wait_ms=400) for _ in range(5)] == [400, 600, 600, 5000, 5000]
    assert world.flow.empty_fetches == 5
    assert world.rest(200, 0) == 0, "passed over records of others, which is not empty"
    assert world.rest(404, 0, wait_ms=400) == 400


@pytest.mark.parametrize("code", [301, 403, 452, 500, 503])
def test_other_troubles_neither_count_nor_end_the_count(code):
    world = World(default=[(1, EMPTY)])
    assert [world.rest(404, 0, wait_ms=400) for _ in range(2)] == [400, 600]
    assert world.rest(code, 0, wait_ms=77) == 77
    assert [world.rest(404, 0, wait_ms=400) for _ in range(2)] == [600, 5000]


def test_rules_of_the_group_replace_the_default_ones():
    default = [(0, [{**ALL_DAY, "freqInMs": 1000}]), (1, EMPTY), (3, [PAUSES])]
    group = [(0, [ALL_DAY]), (1, [{"zeroCnt": 3, "freqInMs": 10}]), (3, [{"normFreqInMs": 8}])]
    world = World(default, group)
    assert world.control.limit(BEHIND).wait_ms == 900
    assert [world.rest(404, 0, wait_ms=400) for _ in range(5)] == [400, 400, 10, 10, 10]
    assert world.rest() == 8


def test_the_default_rules_count_where_the_group_has_none():
    world = World(default=[(1, EMPTY), (3, [PAUSES])], group=[(0, [ALL_DAY])])
    assert [world.rest(404, 0, wait_ms=400) for _ in range(2)] == [400, 600]
    assert world.rest() == 7
    world = World(default=[(0, [ALL_DAY])], group=[(1, EMPTY)])
    assert world.control.limit(BEHIND).wait_ms == 900


@pytest.mark.parametrize(
    ("filtered", "slow", "expected"),
    [(False, False, 7), (False, True, 7), (True, False, 100), (True, True, 400)],
)
def test_pauses_after_a_fetch_that_found_something(filtered, slow, expected):
    assert World(default=[(3, [PAUSES])]).rest(filtered=filtered, slow=slow, wait_ms=50) == expected
    if not slow:
        assert World(default=[(3, [PAUSES])]).rest(filtered=filtered, wait_ms=50) == expected


def test_a_pause_that_no_rule_names_is_the_brokers():
    only_usual = [(3, [{"normFreqInMs": 7}])]
    assert World(default=only_usual).rest(filtered=True, wait_ms=50) == 50
    assert World(default=only_usual).rest(filtered=False, wait_ms=50) == 7


def test_bytes_of_a_slice_are_a_twelfth_of_those_of_a_minute():
    world = World(default=[(0, [ALL_DAY])])
    assert world.rest(size=MIB - 1, lag=BEHIND) == 0
    assert world.rest(size=1, lag=BEHIND) == 900
    assert world.rest(size=0, lag=BEHIND, wait_ms=1000) == 1000, "the broker asks for more"

    world.now += 4.9
    assert world.rest(size=0, lag=BEHIND) == 900
    world.now += 0.1
    assert world.rest(size=0, lag=BEHIND) == 0


def test_bytes_of_a_minute_last_for_the_minute():
    world = World(default=[(0, [ALL_DAY])])
    for _ in range(11):
        assert world.rest(size=MIB + 1, lag=BEHIND) == 900
        world.now += 5
    assert world.rest(size=0, lag=BEHIND) == 0
    assert world.rest(size=MIB - 11, lag=BEHIND) == 900, "the minute's bytes are used up, the slice's are not"
    world.now += 4.9
    assert world.rest(size=0, lag=BEHIND) == 900
    world.now += 0.1
    assert world.rest(size=0, lag=BEHIND) == 0, "a minute has passed"


def test_an_empty_fetch_is_paused_by_its_own_rule_even_when_bytes_are_used_up():
    world = World(default=[(0, [ALL_DAY])])
    world.rest(size=12 * MIB, lag=BEHIND)
    assert world.rest(404, 0, wait_ms=400) == 400


def test_a_consumer_that_keeps_up_has_no_limit():
    world = World(default=[(0, [ALL_DAY])])
    assert world.rest(size=500 * MIB, lag=100 * MIB) == 0


def test_a_lag_that_is_not_known_limits_nothing():
    assert World(default=[(0, [ALL_DAY])]).rest(size=500 * MIB) == 0


def test_a_lag_that_is_not_told_again_is_the_last_one():
    """The C++ client keeps the limits of the minute before."""
    world = World(default=[(0, [ALL_DAY])])
    world.rest(size=0, lag=BEHIND)
    world.now += 60
    world.control.update_default(3, text((0, [ALL_DAY | {"freqInMs": 1234}])))
    assert world.rest(size=MIB, lag=-1) == 1234


def test_the_rule_of_a_minute_is_chosen_at_its_beginning():
    world = World(default=[(0, [ALL_DAY])])
    assert world.rest(size=0, lag=0) == 0
    assert world.rest(size=500 * MIB, lag=BEHIND) == 0, "until the minute has passed"
    world.now += 60
    assert world.rest(size=MIB, lag=BEHIND) == 900


@pytest.mark.parametrize(("hour", "limited"), [(7, False), (8, True), (17, True), (18, False)])
def test_limits_apply_at_their_time_of_day_in_utc_8(hour, limited):
    office = ALL_DAY | {"start": "08:00", "end": "17:59"}
    world = World(default=[(0, [office])], hour_s=(hour - 8) * 3600)
    assert (world.rest(size=500 * MIB, lag=BEHIND) == 900) is limited


def test_a_limit_of_nothing_lets_the_partition_rest_always():
    world = World(default=[(0, [ALL_DAY | {"limitInM": 0}])])
    assert world.rest(size=0, lag=BEHIND) == 900


def test_time_that_has_passed_shortens_the_rest():
    world = World(default=[(3, [PAUSES])])
    world.rest(filtered=True, slow=True)
    for passed_s, left_ms in [(0.15, 250), (0.25, 0), (10, 0)]:
        world.now += passed_s
        assert world.flow.rest_ms(filtered=True) == left_ms


def test_rules_change_only_with_their_id():
    world = World(default=[(3, [PAUSES])])
    world.control.update_default(1, text((3, [{"normFreqInMs": 99}])))
    assert world.rest() == 7
    world.control.update_default(1, " ")
    assert world.rest() == 7, "a master leaves the text out when the id is the same"
    world.control.update_default(5, text((3, [{"normFreqInMs": 99}])))
    assert world.rest() == 99
    assert (world.control.default_id, world.control.group_id) == (5, -2)


@pytest.mark.parametrize("nothing", ["", " ", "garbage"])
def test_rules_end_when_the_master_has_none(nothing):
    """Java's client and the Go client keep the old ones."""
    world = World(default=[(3, [PAUSES])])
    world.control.update_default(-2, nothing)
    assert world.rest() == 0
    assert world.control.default_id == -2


def test_rules_that_are_wrong_are_told(caplog):
    with caplog.at_level(logging.WARNING):
        World(group=[(1, [{"zeroCnt": 0, "freqInMs": 1}])])
    assert "the flow control rules of the group (id 2) are wrong: record 1: zeroCnt is 0" in caplog.text


def test_rules_do_not_touch_the_query_priority():
    """The C++ client clears it together with the rules."""
    world = World()
    world.control.query_priority = 301
    world.control.update_group(2, text((3, [PAUSES])))
    world.control.update_group(-2, " ")
    assert world.control.query_priority == 301


def test_a_group_with_limits_of_its_own_says_so_for_ten_seconds():
    world = World(default=[(0, [ALL_DAY])])
    assert world.control.own_limits is False, "default rules are the broker's business"
    world.control.update_group(2, text((0, [ALL_DAY | {"start": "08:00", "end": "12:00"}])))
    assert world.control.own_limits is True
    world.epoch_s += 60
    world.now += 9.9
    assert world.control.own_limits is True, "looked at every ten seconds"
    world.now += 0.1
    assert world.control.own_limits is False


def test_rules_that_end_are_not_waited_for():
    world = World(group=[(0, [ALL_DAY])])
    assert world.control.own_limits is True
    world.control.update_group(-2, " ")
    assert world.control.own_limits is False


outcomes = st.builds(
    FetchOutcome,
    st.sampled_from([200, 301, 403, 404, 452, 500, 503]),
    st.integers(0, 3 * MIB),
    st.integers(0, 2000),
    st.integers(-1, 2 * BEHIND),
    st.booleans(),
)
steps = st.lists(st.tuples(outcomes, st.integers(0, 30_000), st.booleans()), max_size=40)


@given(steps)
def test_no_more_than_the_limit_and_one_fetch_is_read_per_minute_without_waiting(taken):
    """With a lag that always counts: when a fetch goes over, the next one waits at least the rule's time."""
    world = World(default=[(0, [ALL_DAY])])
    fetched = []
    for outcome, passed_ms, filtered in taken:
        world.now += passed_ms / 1000
        fetched = [item for item in fetched if item[0] > world.now - 5]
        world.flow.record(FetchOutcome(200, outcome.size, outcome.wait_ms, BEHIND, outcome.slow))
        fetched.append((world.now, outcome.size))
        rest_ms = world.flow.rest_ms(filtered=filtered)
        assert rest_ms >= outcome.wait_ms
        if outcome.size >= MIB:
            assert rest_ms == max(900, outcome.wait_ms)
        if sum(size for _, size in fetched) < MIB:
            # Less than a slice's bytes in any five seconds can only be stopped by the minute's.
            assert rest_ms in (outcome.wait_ms, max(900, outcome.wait_ms))


@given(steps)
def test_a_rest_is_never_negative_and_ends(taken):
    world = World(default=[(0, [ALL_DAY]), (1, EMPTY), (3, [PAUSES])])
    for outcome, passed_ms, filtered in taken:
        world.flow.record(outcome)
        rest_ms = world.flow.rest_ms(filtered=filtered)
        assert 0 <= rest_ms <= 5000
        world.now += rest_ms / 1000
        assert world.flow.rest_ms(filtered=filtered) <= 1, "what is left is less than a millisecond"
        world.now += passed_ms / 1000
