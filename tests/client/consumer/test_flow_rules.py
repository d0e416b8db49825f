"""Flow control rules are read as operators write them, and sound ones survive their neighbours' faults."""

import json

import pytest
from hypothesis import given, strategies as st

from tests.cases import in_one_test
from tubemq_spark.client.consumer.flow_control import parse_flow_rules
from tubemq_spark.protocol.flow_rules import (
    UNLIMITED,
    EmptyFetches,
    FlowRules,
    LagLimit,
    Pauses,
    time_of_day,
)

MIB = 1 << 20
LAG = {"start": "08:00", "end": "17:59", "dltInM": 1024, "limitInM": 20, "freqInMs": 1000}
EMPTY = {"zeroCnt": 3, "freqInMs": 300}
PAUSES = {"normFreqInMs": 0, "filterFreqInMs": 100, "minDataFilterFreqInMs": 400}


def text(*records):
    return json.dumps(records)


def record(kind, *rules):
    return {"type": kind, "rule": list(rules)}


def test_the_documented_rules():
    rules = parse_flow_rules(text(record(0, LAG), record(1, EMPTY), record(3, PAUSES)))
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
    (limit,) = parse_flow_rules(text(record(0, LAG))).lag_limits
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
    rules = parse_flow_rules(text(record(0, LAG, LAG | change), record(1, EMPTY)))
    assert rules.lag_limits == ()
    assert rules.empty_fetches == (EmptyFetches(3, 300),)
    assert rules.problems[0].startswith(f"record 1: {problem}")


@pytest.mark.parametrize("wrong", [{"zeroCnt": 0}, {"freqInMs": -1}, {"zeroCnt": None}])
def test_a_wrong_rule_about_empty_fetches(wrong):
    rules = parse_flow_rules(text(record(1, EMPTY | wrong), record(3, PAUSES)))
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
    rules = parse_flow_rules(text(record(3, wrong)))
    assert rules.pauses is None
    assert rules.problems


def test_pauses_may_name_only_some():
    assert parse_flow_rules(text(record(3, {"normFreqInMs": 300_000}))).pauses == Pauses(usual_ms=300_000)
    filtered = {"filterFreqInMs": 0, "minDataFilterFreqInMs": 0}
    assert parse_flow_rules(text(record(3, filtered))).pauses == Pauses(filtered_ms=0, slow_ms=0)


def test_several_rules_of_type_3_are_refused_and_not_chosen_from():
    """TubeMQ's C++ client takes the last one without a word."""
    rules = parse_flow_rules(text(record(3, PAUSES, PAUSES | {"normFreqInMs": 5})))
    assert rules.pauses is None
    assert "more than one" in rules.problems[0]


def test_what_is_no_object_is_passed_over():
    rules = parse_flow_rules(text("x", 3, record(1, EMPTY), {"type": 1}, {"type": 1, "rule": 3}))
    assert rules.empty_fetches == (EmptyFetches(3, 300),)
    assert len(rules.problems) == 4


@pytest.mark.parametrize("kind", [4, -1, "0", None, 1.5, True])
def test_a_wrong_type_ends_the_text_and_keeps_what_came_before(kind):
    rules = parse_flow_rules(text(record(1, EMPTY), record(kind, LAG), record(0, LAG)))
    assert rules.empty_fetches == (EmptyFetches(3, 300),)
    assert rules.lag_limits == ()
    assert "record 2 and what follows it" in rules.problems[0]


def test_the_last_record_of_a_type_counts():
    rules = parse_flow_rules(text(record(1, EMPTY), record(1, EMPTY | {"zeroCnt": 9})))
    assert rules.empty_fetches == (EmptyFetches(9, 300),)


def test_rules_about_ssds_are_accepted_and_ignored():
    assert parse_flow_rules(text(record(2, {"anything": [1]}))) == FlowRules()


def test_the_first_lag_limit_to_begin_applies_whatever_their_order():
    late, early = LAG | {"start": "12:00", "limitInM": 1}, LAG | {"start": "09:00", "limitInM": 2}
    same_time = LAG | {"start": "09:00", "limitInM": 3}
    rules = parse_flow_rules(text(record(0, late, early, same_time)))
    assert rules.limit(UNLIMITED, 1300).bytes_per_minute == 2 * MIB
    assert rules.limit(UNLIMITED, 800) is None


@pytest.mark.parametrize(
    ("now", "applies"), [(759, False), (800, True), (1200, True), (1759, True), (1800, False)]
)
def test_windows_include_both_ends(now, applies):
    rules = parse_flow_rules(text(record(0, LAG)))
    assert (rules.limit(UNLIMITED, now) is not None) is applies


def test_a_window_may_be_one_minute_or_a_whole_day():
    minute = parse_flow_rules(text(record(0, LAG | {"start": "08:00", "end": "08:00"})))
    assert minute.limit(UNLIMITED, 800) is not None
    day = parse_flow_rules(text(record(0, LAG | {"start": "00:00", "end": "24:00"})))
    assert all(day.limit(UNLIMITED, now) is not None for now in (0, 1200, 2359))


def test_of_the_counts_that_were_reached_the_largest_applies():
    """The C++ client takes the smallest."""
    rules = parse_flow_rules(text(record(1, *({"zeroCnt": n, "freqInMs": 100 * n} for n in (3, 10, 5)))))
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
            st.sampled_from(["type", "rule", *LAG, *EMPTY, *PAUSES]),
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
    found = parse_flow_rules(text(record(0, *given_rules))).limit(lag, moment)

    def start(rule):
        return int(rule["start"].replace(":", ""))

    fits = [
        rule
        for rule in given_rules
        if lag > rule["dltInM"] * MIB and start(rule) <= moment <= int(rule["end"].replace(":", ""))
    ]
    first = min(fits, key=start, default=None)
    assert (found is None) == (first is None)
    if first is not None:
        assert (found.bytes_per_minute, found.wait_ms) == (first["limitInM"] * MIB, first["freqInMs"])
