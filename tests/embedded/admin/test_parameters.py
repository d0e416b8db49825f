"""Valid parameters of web calls; the texts of refusals are TubeMQ's."""

import pytest

from tubemq_spark.embedded.admin.parameters import Author, Parameters, author_of
from tubemq_spark.embedded.dispatch import RefusedError


def test_texts_are_stripped_and_found_by_their_aliases():
    parameters = Parameters(
        {"topic": " demo ", "modifyUser": "me", "mur": "you", "groupName": "", "group": "gg"}
    )
    assert parameters.text("topicName") == "demo"
    assert parameters.text("modifyUser") == "me"
    assert parameters.text("groupName") == "", "blank is there: the alias does not count"
    assert parameters.text("nosuch", "default") == "default"


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("topicName", ("ab", "a_", "A1", "a" * 64), ("a", "1a", "a-b", "é1", "a" * 65)),
        ("groupName", ("ab", "a-", "g" * 1024), ("a", "-a", "a.b", "g" * 1025)),
        ("brokerIp", ("127.0.0.1", "255.0.10.9"), ("256.0.0.1", "1.2.3", "localhost", "1.2.3.4.5")),
        ("partitionId", ("0", "-1", "007"), ("x", "1.0", "--1", "٣")),
        ("confModAuthToken", ("é!", "t" * 128), ("t" * 129,)),
        ("nosuch", ("anything at all", "x" * 10_000), ()),
    ],
)
def test_what_values_may_be(name, good, bad):
    for value in good:
        assert Parameters({name: value}).text(name) == value
    for value in bad:
        with pytest.raises(RefusedError, match=rf"(illegal value|over max length) for {name}, "):
            Parameters({name: value}).text(name)


def test_lists():
    parameters = Parameters({"topicName": " bb,aa,,bb , ", "brokerId": "10,9,9,-1"})
    assert parameters.items("topicName") == parameters.required_items("topicName") == ["aa", "bb"]
    assert parameters.numbers("brokerId") == parameters.required_numbers("brokerId") == [-1, 9, 10]
    assert parameters.items("groupName") == parameters.numbers("partitionId") == []
    for blank in ({}, {"topicName": ""}, {"topicName": " , "}):
        with pytest.raises(RefusedError, match="Parameter topicName is missing or value is blank!"):
            Parameters(blank).required_items("topicName")
    with pytest.raises(RefusedError, match="Parameter brokerId is missing"):
        Parameters({"brokerId": ","}).required_numbers("brokerId")
    with pytest.raises(RefusedError, match="illegal value for topicName"):
        Parameters({"topicName": "fine,not-fine"}).items("topicName")


def test_a_list_has_a_hundred_items_at_most():
    names = [f"t{number}" for number in range(101)]
    assert len(Parameters({"topicName": ",".join(names[:100])}).items("topicName")) == 100
    assert len(Parameters({"topicName": ",".join([*names[:100], "t0"])}).items("topicName")) == 100
    with pytest.raises(RefusedError, match=r"topicName's item count over max allowed count \(100\)!"):
        Parameters({"topicName": ",".join(names)}).items("topicName")


def test_numbers_at_their_bounds():
    def number(value, **bounds):
        return Parameters({"x": value}).number("x", **bounds)

    assert [number(text) for text in ("0", "-5", "12345678901234")] == [0, -5, 12345678901234]
    assert number("2", least=2, most=2) == 2
    assert number("", default=7) == Parameters({}).number("x", 7) == 7
    assert number("0", default=7) == 0
    assert Parameters({}).optional_number("x") is None
    for value, bounds, text in (
        ("1", {"least": 2}, "Parameter x value must >= 2"),
        ("3", {"most": 2}, "Parameter x value must <= 2"),
        ("1x", {}, "illegal value for x, value must only contain numbers"),
        ("", {}, "Parameter x is missing or value is blank!"),
    ):
        with pytest.raises(RefusedError, match=text):
            number(value, **bounds)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("true", True), ("FALSE", False), ("1", True), ("-2", True), ("0", False), ("yes", None), ("", None)],
)
def test_flags(text, expected):
    parameters = Parameters({"x": text})
    assert parameters.optional_flag("x") is expected
    for default in (True, False):
        assert parameters.flag("x", default=default) is (default if expected is None else expected)


def test_times():
    assert Parameters({"modifyDate": "20240229235959"}).date("modifyDate") == "20240229235959"
    assert Parameters({"mDate": ""}).date("modifyDate") is None
    for text in ("20230229000000", "20200101", "2020010101010x"):
        with pytest.raises(RefusedError, match=f"Parameter modifyDate's value {text} parse error, required"):
            Parameters({"modifyDate": text}).date("modifyDate")
    with pytest.raises(RefusedError, match="over max length for modifyDate, only allow 14 length"):
        Parameters({"modifyDate": "2" * 15}).date("modifyDate")


def test_the_author_of_a_call_comes_from_its_user_parameters():
    both = Parameters({"createUser": "maker", "modifyUser": "changer", "cDate": "20200101000000"})
    assert author_of(both, adding=True) == Author("maker", "20200101000000")
    assert author_of(both, adding=False) == Author("changer", None)
    with pytest.raises(RefusedError, match="Parameter createUser is missing"):
        author_of(Parameters({"modifyUser": "changer"}), adding=True)
    with pytest.raises(RefusedError, match="illegal value for dataVersionId"):
        author_of(Parameters({"modifyUser": "changer", "dataVersionId": "x"}), adding=False)
