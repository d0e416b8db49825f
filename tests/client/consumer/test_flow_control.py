"""How long a partition rests after a fetch, with both clocks in the test's hand.

Flow control rules are read as operators write them, and sound ones survive their neighbours' faults.
"""

import json
import logging

import pytest
from hypothesis import given, strategies as st

from tests.cases import in_one_test
from tubemq_spark.client.consumer.flow_control import (
    FetchOutcome,
    FlowControl,
    PartitionFlow,
    parse_flow_rules,
)
from tubemq_spark.protocol.flow_rules import (
    UNLIMITED,
    EmptyFetches,
    FlowRules,
    LagLimit,
    Pauses,
    time_of_day,
)

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
    assert (world.control.default.check_id, world.control.group.check_id) == (5, -2)


@pytest.mark.parametrize("nothing", ["", " ", "garbage"])
def test_rules_end_when_the_master_has_none(nothing):
    """Java's client and the Go client keep the old ones."""
    world = World(default=[(3, [PAUSES])])
    world.control.update_default(-2, nothing)
    assert world.rest() == 0
    assert world.control.default.check_id == -2


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


LAG = {"start": "08:00", "end": "17:59", "dltInM": 1024, "limitInM": 20, "freqInMs": 1000}
EMPTY_RULE = {"zeroCnt": 3, "freqInMs": 300}
PAUSES_RULE = {"normFreqInMs": 0, "filterFreqInMs": 100, "minDataFilterFreqInMs": 400}


def text_of(*records):
    return json.dumps(records)


def record(kind, *rules):
    return {"type": kind, "rule": list(rules)}


def test_the_documented_rules():
    rules = parse_flow_rules(text_of(record(0, LAG), record(1, EMPTY_RULE), record(3, PAUSES_RULE)))
    assert rules == FlowRules(
        (LagLimit(800, 1759, 1024 * MIB, 20 * MIB, 1000),),
        (EmptyFetches(3, 300),),
        Pauses(usual_ms=0, filtered_ms=100, slow_ms=400),
    )


@pytest.mark.parametrize("blank", ["", " ", "\n\t "])
def test_a_blank_text_has_no_rules(blank):
    """Masters send one blank for: no rules, or none that are new."""
    assert parse_flow_rules(blank) == FlowRules()


@pytest.mark.parametrize("broken", ["[", "{}", "7", "null", '"[]"'])
def test_a_text_that_is_no_array_has_no_rules_and_says_why(broken):
    rules = parse_flow_rules(broken)
    assert (rules.lag_limits, rules.empty_fetches, rules.pauses) == ((), (), None)
    assert len(rules.problems) == 1


def test_the_lag_is_in_mib():
    """Java compares the number with bytes, Go multiplies it by 208896; the key says MiB."""
    (limit,) = parse_flow_rules(text_of(record(0, LAG))).lag_limits
    assert not limit.applies_to(1024 * MIB, 1200)
    assert limit.applies_to(1024 * MIB + 1, 1200)


@in_one_test(
    ("change", "problem"),
    [
        ({"dltInM": 20}, "dltInM is 20 and not a number at least 21"),
        ({"dltInM": "1024"}, "dltInM is '1024'"),
        ({"dltInM": True}, "dltInM is True"),
        ({"limitInM": -1}, "limitInM is -1 and not a number at least 0"),
        ({"freqInMs": 199}, "freqInMs is 199 and not a number at least 200"),
        ({"freqInMs": None}, "freqInMs is None"),
        ({"start": "25:00"}, "start is '25:00'; hours go to 24 and minutes to 59"),
        ({"end": "17:60"}, "end is '17:60'"),
        ({"start": "8"}, "start is '8' and not a time HH:MM"),
        ({"start": "a:b"}, "start is 'a:b'"),
        ({"start": "-1:00"}, "start is '-1:00'"),
        ({"start": 800}, "start is 800"),
        ({"start": "18:00"}, "start 1800 is after end 1759"),
    ],
)
def test_a_wrong_lag_limit_drops_its_type_and_is_named(change, problem):
    rules = parse_flow_rules(text_of(record(0, LAG, LAG | change), record(1, EMPTY_RULE)))
    assert rules.lag_limits == ()
    assert rules.empty_fetches == (EmptyFetches(3, 300),)
    assert rules.problems[0].startswith(f"record 1: {problem}")


@pytest.mark.parametrize("wrong", [{"zeroCnt": 0}, {"freqInMs": -1}, {"zeroCnt": None}])
def test_a_wrong_rule_about_empty_fetches(wrong):
    rules = parse_flow_rules(text_of(record(1, EMPTY_RULE | wrong), record(3, PAUSES_RULE)))
    assert rules.empty_fetches == ()
    assert rules.pauses is not None
    assert "record 1: " in rules.problems[0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"filterFreqInMs": 100},
        {"minDataFilterFreqInMs": 100},
        {"filterFreqInMs": 100, "minDataFilterFreqInMs": 99},
        {"filterFreqInMs": -1, "minDataFilterFreqInMs": 99},
        {"filterFreqInMs": 1, "minDataFilterFreqInMs": 300_001},
        {"normFreqInMs": 300_001},
    ],
)
def test_wrong_pauses(wrong):
    rules = parse_flow_rules(text_of(record(3, wrong)))
    assert rules.pauses is None
    assert rules.problems


def test_pauses_may_name_only_some():
    assert parse_flow_rules(text_of(record(3, {"normFreqInMs": 300_000}))).pauses == Pauses(usual_ms=300_000)
    filtered = {"filterFreqInMs": 0, "minDataFilterFreqInMs": 0}
    assert parse_flow_rules(text_of(record(3, filtered))).pauses == Pauses(filtered_ms=0, slow_ms=0)


def test_several_rules_of_type_3_are_refused_and_not_chosen_from():
    """TubeMQ's C++ client takes the last one without a word."""
    rules = parse_flow_rules(text_of(record(3, PAUSES_RULE, PAUSES_RULE | {"normFreqInMs": 5})))
    assert rules.pauses is None
    assert "more than one" in rules.problems[0]


def test_what_is_no_object_is_passed_over():
    rules = parse_flow_rules(text_of("x", 3, record(1, EMPTY_RULE), {"type": 1}, {"type": 1, "rule": 3}))
    assert rules.empty_fetches == (EmptyFetches(3, 300),)
    assert len(rules.problems) == 4


@pytest.mark.parametrize("kind", [4, -1, "0", None, 1.5, True])
def test_a_wrong_type_ends_the_text_and_keeps_what_came_before(kind):
    rules = parse_flow_rules(text_of(record(1, EMPTY_RULE), record(kind, LAG), record(0, LAG)))
    assert rules.empty_fetches == (EmptyFetches(3, 300),)
    assert rules.lag_limits == ()
    assert "record 2 and what follows it" in rules.problems[0]


def test_the_last_record_of_a_type_counts():
    rules = parse_flow_rules(text_of(record(1, EMPTY_RULE), record(1, EMPTY_RULE | {"zeroCnt": 9})))
    assert rules.empty_fetches == (EmptyFetches(9, 300),)


def test_rules_about_ssds_are_accepted_and_ignored():
    assert parse_flow_rules(text_of(record(2, {"anything": [1]}))) == FlowRules()


def test_the_first_lag_limit_to_begin_applies_whatever_their_order():
    late, early = LAG | {"start": "12:00", "limitInM": 1}, LAG | {"start": "09:00", "limitInM": 2}
    same_time = LAG | {"start": "09:00", "limitInM": 3}
    rules = parse_flow_rules(text_of(record(0, late, early, same_time)))
    assert rules.limit(UNLIMITED, 1300).bytes_per_minute == 2 * MIB
    assert rules.limit(UNLIMITED, 800) is None


@pytest.mark.parametrize(
    ("now", "applies"), [(759, False), (800, True), (1200, True), (1759, True), (1800, False)]
)
def test_windows_include_both_ends(now, applies):
    rules = parse_flow_rules(text_of(record(0, LAG)))
    assert (rules.limit(UNLIMITED, now) is not None) is applies


def test_a_window_may_be_one_minute_or_a_whole_day():
    minute = parse_flow_rules(text_of(record(0, LAG | {"start": "08:00", "end": "08:00"})))
    assert minute.limit(UNLIMITED, 800) is not None
    day = parse_flow_rules(text_of(record(0, LAG | {"start": "00:00", "end": "24:00"})))
    assert all(day.limit(UNLIMITED, now) is not None for now in (0, 1200, 2359))


def test_of_the_counts_that_were_reached_the_largest_applies():
    """The C++ client takes the smallest."""
    rules = parse_flow_rules(text_of(record(1, *({"zeroCnt": n, "freqInMs": 100 * n} for n in (3, 10, 5)))))
    paused = [rules.pause_after_empty(count) for count in (0, 2, 3, 4, 5, 9, 10, 99)]
    assert paused == [None, None, 300, 300, 500, 500, 1000, 1000]


@pytest.mark.parametrize(
    ("epoch_s", "expected"),
    [(0, 800), (59, 800), (60, 801), (16 * 3600 - 1, 2359), (16 * 3600, 0), (1_700_000_000, 613)],
)
def test_times_of_day_are_those_of_utc_8(epoch_s, expected):
    assert time_of_day(epoch_s) == expected


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 400_000) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "rule", *LAG, *EMPTY_RULE, *PAUSES_RULE]),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(json_values | st.text())
def test_whatever_the_text_is_there_are_rules_or_reasons(value):
    rules = parse_flow_rules(value if isinstance(value, str) else json.dumps(value))
    assert all(isinstance(problem, str) for problem in rules.problems)


times = st.tuples(st.integers(0, 23), st.integers(0, 59))
lag_limits = st.builds(
    lambda bounds, lag, limit, wait: {
        "start": "{:02}:{:02}".format(*min(bounds)),
        "end": "{:02}:{:02}".format(*max(bounds)),
        "dltInM": lag,
        "limitInM": limit,
        "freqInMs": wait,
    },
    st.tuples(times, times),
    st.integers(21, 1 << 20),
    st.integers(0, 1 << 20),
    st.integers(200, 1 << 20),
)


@given(st.lists(lag_limits, max_size=4), st.integers(0, 1 << 42), times)
def test_a_lookup_is_what_the_rules_say(given_rules, lag, now):
    moment = now[0] * 100 + now[1]
    limit = parse_flow_rules(text_of(record(0, *given_rules))).limit(lag, moment)

    def start(rule):
        return int(rule["start"].replace(":", ""))

    fits = [
        rule
        for rule in given_rules
        if lag > rule["dltInM"] * MIB and start(rule) <= moment <= int(rule["end"].replace(":", ""))
    ]
    first = min(fits, key=start, default=None)
    assert (limit is None) == (first is None)
    if first is not None:
        assert (limit.bytes_per_minute, limit.wait_ms) == (first["limitInM"] * MIB, first["freqInMs"])
