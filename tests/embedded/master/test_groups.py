"""Groups that start at offsets they name."""

import pytest

from tubemq_spark.embedded.dispatch import RefusedError
from tubemq_spark.embedded.master.groups import parse_starts, winners
from tubemq_spark.model import TopicPartition

ZERO = TopicPartition("demo", 1, 0)
ONE = TopicPartition("demo", 1, 10000)


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("", {}),
        ("  ", {}),
        ("1:demo:0=56", {ZERO: 56}),
        (" 1:demo:0=56,1:demo:10000=0 ", {ZERO: 56, ONE: 0}),
        ("1 : demo : 0 = 56", {ZERO: 56}),
        ("1:demo:0=-1", {ZERO: -1}),
    ],
)
def test_starts(text, starts):
    assert parse_starts(text, {"demo"}) == starts


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("1:demo:0", "unformatted Partition-Offset value : 1:demo:0 must be aa:bbb:ccc=val1,ddd:eee:ff=val2"),
        ("demo:0=5", "unformatted Partition-Offset value"),
        ("1:demo:0:1=5", "unformatted Partition-Offset value"),
        ("1:demo:0=5,,", "unformatted Partition-Offset value : "),
        (
            "1:other:0=5",
            "wrong offset reset for unsubscribed topic: reset item is 1:other:0=5, request topicList",
        ),
        ("1:demo:0=x", "required long type value of 1:demo:0=x' Offset!"),
        ("1:demo:x=1", "required long type value"),
    ],
)
def test_what_is_no_start(text, what):
    with pytest.raises(RefusedError) as refused:
        parse_starts(text, {"demo"})
    assert refused.value.code == 400
    assert refused.value.text.startswith(f"[Parameter error] {what}")


@pytest.mark.parametrize(
    ("first", "second", "big", "winner"),
    [
        (28, 56, True, "b"),
        (56, 28, True, "a"),
        (28, 28, True, "b"),
        (28, 56, False, "a"),
        (56, 28, False, "b"),
        (28, 28, False, "a"),
    ],
)
def test_of_two_who_want_a_partition_one_gets_it(first, second, big, winner):
    starts = {"a": {ZERO: first}, "b": {ZERO: second, ONE: 0}}
    assert winners(starts, select_big=big) == {ZERO: winner, ONE: "b"}
