"""Who should have which partitions: evenly, each once, and with as few moves as possible."""

from hypothesis import given, strategies as st

from tests.cases import in_one_test
from tubemq_spark.embedded.master.balancing import assign_named, members_needed, spread
from tubemq_spark.model import TopicPartition


def parts(*numbers, topic="demo"):
    return frozenset(TopicPartition(topic, 1, number) for number in numbers)


partition_sets = st.frozensets(
    st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.just(1), st.integers(0, 12)), max_size=20
)
holdings = st.dictionaries(st.sampled_from("abcdefg"), partition_sets, max_size=7)


@given(holdings, partition_sets)
def test_every_partition_goes_to_one_member_and_the_numbers_are_even(held, partitions):
    wanted = spread(held, partitions)
    assert wanted.keys() == held.keys()
    given_out = [partition for parts_of in wanted.values() for partition in parts_of]
    assert len(given_out) == len(set(given_out))
    assert set(given_out) == (partitions if held else frozenset())
    numbers = [len(parts_of) for parts_of in wanted.values()]
    assert not numbers or max(numbers) - min(numbers) <= 1


@given(st.integers(1, 6), st.lists(st.integers(0, 5), max_size=24))
def test_no_more_moves_than_needed(count, owners):
    """Each member keeps what it may keep, and loses only what it has beyond its share."""
    names = [f"m{number}" for number in range(count)]
    partitions = parts(*range(len(owners)))
    held = {
        name: parts(*(number for number, owner in enumerate(owners) if owner == place))
        for place, name in enumerate(names)
    }
    wanted = spread(held, partitions)
    lost = sum(len(held[name] - wanted[name]) for name in names)
    share, extra = divmod(len(partitions), count)
    by_load = sorted((len(mine) for mine in held.values()), reverse=True)
    least = sum(max(0, load - share - (place < extra)) for place, load in enumerate(by_load))
    assert lost == least
    assert spread(wanted, partitions) == wanted, "an even group is left alone"


@in_one_test(
    ("held", "partitions", "shares"),
    [
        ({"a": parts(), "b": parts()}, parts(*range(5)), {"a": parts(0, 1, 2), "b": parts(3, 4)}),
        ({"a": parts(0, 1, 2), "b": parts()}, parts(*range(6)), {"a": parts(0, 1, 2), "b": parts(3, 4, 5)}),
        ({"a": parts(*range(4)), "b": parts()}, parts(*range(4)), {"a": parts(0, 1), "b": parts(2, 3)}),
        ({"a": parts(0), "b": parts(0)}, parts(0), {"a": parts(0), "b": parts()}),
        ({"a": parts(0, 7)}, parts(0), {"a": parts(0)}),
        ({"a": parts(0, 7)}, parts(), {"a": parts()}),
    ],
)
def test_who_gets_free_partitions_and_those_that_others_have(held, partitions, shares):
    assert spread(held, partitions) == shares


def test_listed_partitions_go_to_who_listed_them():
    listed = (
        dict.fromkeys(parts(0, 1), "a") | dict.fromkeys(parts(2, 9), "b") | dict.fromkeys(parts(3), "gone")
    )
    assert assign_named(listed, ["a", "b", "c"], parts(0, 1, 2, 3)) == {
        "a": parts(0, 1),
        "b": parts(2),
        "c": frozenset(),
    }


@in_one_test(
    ("brokers", "members", "rate", "needed"),
    [
        (1, 1, 1000, None),
        (1000, 1, 1000, None),
        (1001, 1, 1000, 2),
        (2000, 1, 1000, 2),
        (2001, 2, 1000, None),
        (7, 1, 3, 3),
        (7, 2, 3, None),
        (8, 2, 3, 3),
        (9, 2, 3, 3),
    ],
)
def test_how_many_members_a_group_needs(brokers, members, rate, needed):
    assert members_needed(brokers, members, rate) == needed
