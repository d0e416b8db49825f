"""Kinds of values: what is shown is parsed, and what does not fit is refused."""

import dataclasses
import enum

import pytest
from hypothesis import given, strategies as st

from tests.cases import in_one_test
from tubemq_spark.model import Endpoint
from tubemq_spark.settings import kinds
from tubemq_spark.settings.fields import setting, settings_of
from tubemq_spark.settings.kinds import did_you_mean

topics = st.from_regex(r"\A[a-zA-Z][a-zA-Z0-9_]{1,20}\Z")
groups = st.from_regex(r"\A[a-zA-Z][a-zA-Z0-9_-]{1,20}\Z")
servers = st.builds(
    Endpoint, st.sampled_from(["localhost", "10.1.2.3", "tubemq-0.example.org"]), st.integers(1, 65535)
)


def lists(items, fewest=1):
    return st.lists(items, min_size=fewest, max_size=4, unique=True).map(tuple)


@given(
    st.one_of(
        st.integers(-5, 7).map(lambda value: (kinds.integer(-5, 7), value)),
        st.booleans().map(lambda value: (kinds.BOOLEAN, value)),
        st.text(min_size=1).map(lambda value: (kinds.VERBATIM, value)),
        topics.map(lambda value: (kinds.TOPIC, value)),
        lists(topics, 0).map(lambda value: (kinds.TOPICS, value)),
        groups.map(lambda value: (kinds.GROUP, value)),
        lists(groups).map(lambda value: (kinds.GROUPS, value)),
        lists(servers).map(lambda value: (kinds.MASTERS, value)),
        lists(st.from_regex(r"\A[a-z_0-9]{1,9}\Z")).map(lambda value: (kinds.MESSAGE_TYPES, value)),
    )
)
def test_a_value_that_is_shown_is_parsed_and_fits(pair):
    kind, value = pair
    assert kind.parse(kind.show(value)) == value
    assert kind.fits(value)


@in_one_test(
    ("kind", "value"),
    [
        (kinds.MILLISECONDS, 0),
        (kinds.MILLISECONDS, 2.0),
        (kinds.MILLISECONDS, "5"),
        (kinds.MILLISECONDS, True),
        (kinds.MILLISECONDS, None),
        (kinds.BOOLEAN, 1),
        (kinds.BOOLEAN, "true"),
        (kinds.one_of("dns", "http"), "DNS"),
        (kinds.GROUPS, ("a,b",)),
    ],
)
def test_a_value_that_its_text_does_not_stand_for_does_not_fit(kind, value):
    assert not kind.fits(value)


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1), (" 7\n", 7), ("+3", 3), ("007", 7), ("8", None), ("0", None)]
)
def test_integers_have_bounds(text, value):
    assert kinds.integer(1, 7).parse(text) == value


@in_one_test("text", ["", "x", "1.0", "1e3", "1_000", "0x10", "- 1", "\u0661", "9" * 21, "9" * 5000])
def test_other_texts_are_no_integers(text):
    assert kinds.integer(-(10**30), 10**30).parse(text) is None


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), (" FALSE ", False), ("yes", None), ("1", None), ("", None)]
)
def test_booleans(text, value):
    assert kinds.BOOLEAN.parse(text) is value


def test_text_is_taken_as_it_is():
    assert kinds.VERBATIM.parse(" s p\t") == " s p\t"
    assert kinds.VERBATIM.parse("") is None


@in_one_test(
    ("text", "value"),
    [
        ("demo", "demo"),
        (" demo ", "demo"),
        ("x" * 64, "x" * 64),
        ("__offset_history__", "__offset_history__"),
        ("x" * 65, None),
        ("a", None),
        ("", None),
        ("_a", None),
        ("a-b", None),
        ("a\u00e4", None),
        ("ab\nc", None),
    ],
)
def test_topics(text, value):
    assert kinds.TOPIC.parse(text) == value
    assert kinds.TOPICS.parse(text) == ((value,) if value else () if text == "" else None)


@in_one_test(
    ("text", "value"),
    [
        ("spark", "spark"),
        (" a-b_9 ", "a-b_9"),
        ("g" * 1024, "g" * 1024),
        ("g" * 1025, None),
        ("g", None),
        ("", None),
        ("-a", None),
        ("a:b", None),
    ],
)
def test_groups(text, value):
    assert kinds.GROUP.parse(text) == value
    assert kinds.GROUPS.parse(text) == ((value,) if value else None)


def test_hosts():
    assert kinds.HOST.parse(" gw-1.example.org ") == "gw-1.example.org"
    assert kinds.HOSTS.parse("gw-1, [::1],") is None
    assert kinds.HOSTS.parse("gw-1, 10.1.2.3,") == ("gw-1", "10.1.2.3")
    assert kinds.HOSTS.parse(",") is None


def test_settings_are_shown_unless_they_are_secret():
    @dataclasses.dataclass
    class Settings:
        name: str = setting(kinds.TEXT, "a name")
        password: str = setting(kinds.VERBATIM, "a password", "none", secret=True)

    assert repr(Settings("me")).endswith("Settings(name='me')")
    assert Settings("me").password == "none"
    assert [declared.default for declared in settings_of(Settings).values()] == [None, "none"]


def test_lists_drop_blanks_and_repetitions_and_keep_the_order():
    assert kinds.TOPICS.parse(" orders, demo ,,orders ") == ("orders", "demo")
    assert kinds.TOPICS.parse(" , ") == ()
    assert kinds.TOPICS.parse("demo,no-topic") is None


@in_one_test(
    ("text", "value"),
    [
        ("localhost:8000", (Endpoint("localhost", 8000),)),
        ("a1, b1:1 ,,a1:8715", (Endpoint("a1", 8715), Endpoint("b1", 1), Endpoint("a1", 8715))),
        ("", None),
        (" ,", None),
        ("a1:x", None),
        ("a1:0", None),
        (":8715", None),
    ],
)
def test_servers(text, value):
    assert kinds.MASTERS.parse(text) == value


class Fruit(enum.Enum):
    APPLE = "apple"
    PEAR = "pear"
    PLUM = "plum"


@pytest.mark.parametrize("text", ["pear", " Pear", "PEAR "])
def test_a_choice_is_one_of_some_words_in_any_case(text):
    assert kinds.choice(Fruit).parse(text) is Fruit.PEAR


@pytest.mark.parametrize("text", ["", "peach", "apple, pear"])
def test_a_text_that_is_not_among_the_words_is_no_choice(text):
    assert kinds.choice(Fruit).parse(text) is None


def test_a_choice_names_its_words():
    kind = kinds.choice(Fruit)
    assert kind.expected == "apple, pear or plum"
    assert kind.show(Fruit.PLUM) == "plum"


def test_a_choice_may_have_capitals():
    loud = enum.Enum("loud", {"FAST": "FAST", "SLOW": "SLOW"})
    assert kinds.choice(loud).parse("fast") is loud.FAST
    assert kinds.choice(loud).expected == "FAST or SLOW"


KNOWN = ("value", "messageId", "startingOffsets")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("values", "value"),
        ("VALUE", "value"),
        ("messageid", "messageId"),
        ("startingOffset", "startingOffsets"),
    ],
)
def test_the_closest_name_is_suggested(name, meant):
    assert did_you_mean(name, KNOWN) == f"did you mean '{meant}'?"


@pytest.mark.parametrize("name", ["", "x", "checkpointLocation"])
def test_no_name_is_suggested_where_none_is_close(name):
    assert did_you_mean(name, KNOWN) == ""


@given(name=st.text(), known=st.lists(st.text(min_size=1), unique_by=str.lower))
def test_only_known_names_are_suggested(name, known):
    suggestion = did_you_mean(name, known)
    assert suggestion == "" or suggestion in {f"did you mean '{candidate}'?" for candidate in known}
