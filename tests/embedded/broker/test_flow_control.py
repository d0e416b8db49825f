"""TubeMQ's flow control rules: their text, when they apply, and what a consumer may still read."""

import contextlib
import json

import pytest
from hypothesis import given, strategies as st

from tests.cases import in_one_test
from tubemq_spark.embedded.broker.flow_control import (
    Allowance,
    RuleError,
    parse_rules,
)
from tubemq_spark.protocol.flow_rules import NO_LIMIT, EmptyFetches, FlowRules, LagLimit, Pauses

MIB = 1 << 20
TRANSFER = 512 << 10
MINUTE_MS = 60_000
WINDOW_MS = 5_000

# 2026-01-01 00:00 in GMT+8, where TubeMQ reads its clock.
MIDNIGHT_MS = 1_767_196_800_000


def at(hour, minute=0):
    return MIDNIGHT_MS + (hour * 60 + minute) * MINUTE_MS


def limit_rule(**fields):
    return {"start": "00:00", "end": "24:00", "dltInM": 1024, "limitInM": 1, "freqInMs": 700, **fields}


def text_of(*rules, kind=0):
    return json.dumps([{"type": kind, "rule": list(rules)}])


def refusal(text):
    with pytest.raises(RuleError) as raised:
        parse_rules(text)
    return str(raised.value)


# --- the text


@pytest.mark.parametrize("text", ["", "  ", "[]", '[{"type":2}]', '[{"type":2,"rule":1}]'])
def test_texts_without_rules(text):
    assert parse_rules(text) == FlowRules()


def test_a_rule():
    rules = parse_rules(text_of(limit_rule(start="08:30", end="17:59", limitInM=20, freqInMs=1000)))
    assert rules.lag_limits == (LagLimit(830, 1759, 1024, 20 * MIB, 1000),)


def test_rules_are_sorted_by_their_start_and_of_two_records_the_last_counts():
    first = {"type": 0, "rule": [limit_rule()]}
    second = {"type": 0, "rule": [limit_rule(start="12:00"), limit_rule(start="6:05")]}
    assert [limit.start for limit in parse_rules(json.dumps([first, second])).lag_limits] == [605, 1200]


def test_numbers_may_be_texts_as_for_java():
    rules = parse_rules('[{"type":"0","rule":[' + json.dumps(limit_rule(dltInM="30", limitInM=2.0)) + "]}]")
    assert rules.lag_limits == (LagLimit(0, 2400, 30, 2 * MIB, 700),)


def test_rules_of_other_types_are_read_and_do_not_limit():
    frequency = text_of({"zeroCnt": 1, "freqInMs": 0}, {"zeroCnt": 3, "freqInMs": 300}, kind=1)
    assert parse_rules(frequency) == FlowRules(empty_fetches=(EmptyFetches(3, 300), EmptyFetches(1, 0)))
    low = {"normFreqInMs": 0, "filterFreqInMs": 100, "minDataFilterFreqInMs": 100}
    assert parse_rules(text_of(low, kind=3)) == FlowRules(pauses=Pauses(0, 100, 100))
    assert parse_rules(text_of({}, kind=3)) == FlowRules(pauses=Pauses())


@in_one_test(
    ("text", "refused"),
    [
        ("x", ""),
        ("{}", ""),
        ("[1]", "Not a JSON Object: 1"),
        ('[{"rule":[]}]', "FIELD type is required in record(1) of flowCtrlInfo value!"),
        ('[{"type":4}]', "the value of FIELD type must in [0,1,3] in record(1) of flowCtrlInfo value!"),
        ('[{"type":"x"}]', 'For input string: "x"'),
        ('[{"type":true}]', 'For input string: "True"'),
        ('[{"type":0}]', "FIELD rule is required in data_limit record(1) of flowCtrlInfo value!"),
        (text_of(), "not found valid rule define in data_limit record(1) of flowCtrlInfo value!"),
        ('[{"type":1,"rule":1}]', "Not a JSON Array: 1"),
        ('[{"type":1,"rule":[3]}]', "Not a JSON Object: 3"),
        (
            text_of({}, {}, kind=3),
            "only allow set one rule in low_fetch_limit record(1) of flowCtrlInfo value!",
        ),
    ],
)
def test_refused_texts(text, refused):
    expected = "Parse flowCtrlInfo value failure"
    assert refusal(text) == (f"{expected}, {refused}" if refused else expected)


FORMAT = "illegal format, the value of FIELD {} must be 'aa:bb' and {} must be int value"
RANGE = "illegal value, the value of FIELD {} value must in [0,{}]"
MIN_DATA = "the value of FIELD minDataFilterFreqInMs"
LOW_FETCH = {"filterFreqInMs": 2, "minDataFilterFreqInMs": 1}


@in_one_test(
    ("kind", "rule", "refused"),
    [
        (0, {}, "FIELD start is required"),
        (0, limit_rule(start=" "), "the value of FIELD start is null or blank"),
        (0, limit_rule(start="1"), FORMAT.format("start", "'aa','bb'")),
        (0, limit_rule(end="x:00"), FORMAT.format("end", "'aa'")),
        (0, limit_rule(end="1:y"), FORMAT.format("end", "'bb'")),
        (0, limit_rule(end="25:00"), RANGE.format("end-hour", 23)),
        (0, limit_rule(end="23:60"), RANGE.format("end-minute", 59)),
        (
            0,
            limit_rule(start="8:00", end="8:00"),
            "the value of FIELD start must lower than the value FIELD end",
        ),
        (0, limit_rule(dltInM=20), "the value of FIELD dltInM must be greater than 20"),
        (0, limit_rule(limitInM=-1), "the value of FIELD limitInM must be greater than or equal to 0"),
        (0, limit_rule(freqInMs=199), "the value of FIELD freqInMs must be greater than or equal to 200"),
        (1, {"zeroCnt": 0, "freqInMs": 1}, "the value of FIELD zeroCnt must be greater than or equal to 1"),
        (1, {"zeroCnt": 1, "freqInMs": -1}, "the value of FIELD freqInMs must be greater than or equal to 0"),
        (3, {"filterFreqInMs": 1}, "FIELD minDataFilterFreqInMs is required"),
        (3, LOW_FETCH, f"{MIN_DATA} must be greater than or equal to the value of FIELD filterFreqInMs"),
        (3, {"normFreqInMs": 300_001}, "the value of FIELD normFreqInMs must in [0, 300000]"),
    ],
)
def test_refused_rules(kind, rule, refused):
    where = {0: "data_limit", 1: "freq_limit", 3: "low_fetch_limit"}[kind]
    expected = f"{refused} in {where} item(1).record(1) of flowCtrlInfo value!"
    assert refusal(text_of(rule, kind=kind)) == f"Parse flowCtrlInfo value failure, {expected}"


@pytest.mark.parametrize(
    "fields",
    [
        {"dltInM": 21},
        {"limitInM": 0},
        {"freqInMs": 200},
        {"start": "0:0", "end": "24:59"},
        {"start": "08:00", "end": "08:01"},
    ],
)
def test_bounds_that_are_allowed(fields):
    assert len(parse_rules(text_of(limit_rule(**fields))).lag_limits) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["type", "rule", "start", "x"]), inner),
)


@given(JSON)
def test_any_json_is_read_or_refused(value):
    with contextlib.suppress(RuleError):
        parse_rules(json.dumps(value))


# --- what a consumer may read


RULES = parse_rules(text_of(limit_rule()))


def ask(allowance, now_ms, *, rules=RULES, latest=10 * MIB, escape=False):
    return allowance.wait_ms(rules, latest, TRANSFER, now_ms, clock_ms=now_ms, escape=escape)


def test_a_clock_that_is_set_back_makes_no_consumer_wait():
    allowance = Allowance()
    allowance.count(0, 1)

    def ask_at(now_ms, clock_ms):
        return allowance.wait_ms(RULES, 100 * MIB, TRANSFER, now_ms, clock_ms=clock_ms, escape=False)

    assert ask_at(1_000, at(12)) is None
    allowance.count(0, 100 * MIB)
    assert ask_at(2_000, at(12)) is not None
    assert ask_at(62_000, at(11)) is None, "a minute has passed, and the clock went back by an hour"


def test_the_first_read_is_free():
    allowance = Allowance()
    assert (ask(allowance, at(3)), allowance.read_bytes) == (None, 320 << 10)


def test_without_rule_reads_are_as_large_as_they_may_be():
    allowance = Allowance()
    allowance.count(0, 1)
    for _ in range(100):
        assert ask(allowance, at(3), rules=FlowRules()) is None
        allowance.count(0, TRANSFER)
    assert (allowance.read_bytes, allowance.limit) == (TRANSFER, NO_LIMIT)


def test_a_twelfth_in_five_seconds_and_the_whole_in_a_minute():
    allowance = Allowance()
    allowance.count(0, 1)
    now, read = at(3), 0
    assert ask(allowance, now) is None
    assert allowance.read_bytes == MIB // 12
    allowance.count(0, MIB // 12 - 1)
    assert ask(allowance, now) is None, "one byte is left of the window"
    allowance.count(0, 1)
    assert ask(allowance, now) == 700
    assert ask(allowance, now, escape=True) is None
    assert ask(allowance, now + WINDOW_MS) == 700
    assert ask(allowance, now + WINDOW_MS + 1) is None
    allowance.count(0, MIB)
    read = now + 2 * WINDOW_MS + 2
    assert ask(allowance, read) == 700, "the minute is used up"
    assert ask(allowance, now + MINUTE_MS + 1) is None


def test_the_rule_is_chosen_once_a_minute():
    allowance = Allowance()
    allowance.count(10 * MIB, 1)
    assert ask(allowance, at(3)) is None
    assert allowance.limit is NO_LIMIT, "no lag"
    allowance.count(0, TRANSFER)
    assert ask(allowance, at(3) + MINUTE_MS) is None
    assert ask(allowance, at(3) + MINUTE_MS + 1) is None
    assert allowance.limit.wait_ms == 700


def test_a_limit_of_nothing_holds_even_for_those_that_limit_themselves():
    nothing = parse_rules(text_of(limit_rule(limitInM=0)))
    allowance = Allowance()
    allowance.count(0, 1)
    assert ask(allowance, at(3), rules=nothing) == 700
    assert ask(allowance, at(3), rules=nothing, escape=True) == 0


@given(
    st.integers(1, 50),
    st.lists(st.tuples(st.integers(0, 20_000), st.integers(1, TRANSFER)), min_size=1, max_size=60),
)
def test_no_more_than_the_limit_and_one_read_in_a_minute(limit_mib, reads):
    """Whatever a consumer does, in one minute of the broker it gets at most the limit and one read."""
    rules = parse_rules(text_of(limit_rule(limitInM=limit_mib)))
    allowance = Allowance()
    allowance.count(0, 1)
    now, minute_start, in_minute = at(3), None, 0
    for pause_ms, size in reads:
        now += pause_ms
        wait_ms = ask(allowance, now, rules=rules, latest=1 << 40)
        if minute_start is None or now > minute_start + MINUTE_MS:
            minute_start, in_minute = now, 0
        if wait_ms is None:
            read = min(size, allowance.read_bytes)
            allowance.count(0, read)
            in_minute += read
        else:
            assert wait_ms == 700
        assert in_minute < limit_mib * MIB + TRANSFER
