import collections
import dataclasses

import pytest
from hypothesis import assume, given, settings, strategies as st

from tubemq_spark.client.producer.partitioner import Partitioner
from tubemq_spark.model import TopicPartition


@dataclasses.dataclass(frozen=True)
class Target:
    partition: TopicPartition


def targets(*ids: tuple[int, int]) -> list[Target]:
    return [Target(TopicPartition("demo", broker, partition)) for broker, partition in ids]


PARTITIONS = targets((2, 0), (1, 10_000), (1, 0), (1, 1))
IN_ORDER = targets((1, 0), (1, 1), (1, 10_000), (2, 0))
IN_TURN = targets((1, 0), (2, 0), (1, 1), (1, 10_000))
IDS = st.tuples(st.integers(1, 9), st.integers(0, 30_000))
KEYS = [b"key %d" % number for number in range(100)]


def owners(ids) -> dict[bytes, TopicPartition]:
    partitioner = Partitioner(targets(*ids), 0)
    return {key: partitioner.by_key(key).partition for key in KEYS}


def test_partitions_are_in_order_of_broker_and_id():
    assert list(Partitioner(PARTITIONS, 0).targets) == IN_ORDER


@pytest.mark.parametrize("first", [0, 1, 3, 4, 1_000_003])
def test_turns_go_round_from_a_given_beginning_and_alternate_between_brokers(first):
    partitioner = Partitioner(PARTITIONS, first)
    expected = [(IN_TURN[(first + turn) % 4], 1) for turn in range(9)]
    assert [partitioner.round_robin(5, 1) for _ in range(9)] == expected


@settings(deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 20))
def test_a_turn_has_so_many_messages_however_they_come(pieces, longest):
    partitioner = Partitioner(PARTITIONS, 0)
    chosen = []
    for piece in pieces:
        left = piece
        while left:
            target, count = partitioner.round_robin(left, longest)
            assert 1 <= count <= left
            chosen += [target] * count
            left -= count
    assert chosen == [IN_TURN[number // longest % 4] for number in range(sum(pieces))]


def test_the_only_partition_gets_all_at_once():
    partitioner = Partitioner(targets((1, 0)), 0)
    assert [partitioner.round_robin(100, 32, {1}) for _ in range(2)] == [(*targets((1, 0)), 100)] * 2


def test_a_turn_ends_when_its_broker_is_avoided():
    partitioner = Partitioner(PARTITIONS, 0)
    taken = [
        partitioner.round_robin(2, 8),
        partitioner.round_robin(3, 8, {1}),
        partitioner.round_robin(9, 8, {1}),
    ]
    assert [(target.partition.broker_id, count) for target, count in taken] == [(1, 2), (2, 3), (2, 5)]


def test_a_turn_ends_when_its_partition_is_to_be_left():
    partitioner = Partitioner(PARTITIONS, 0)
    first, _ = partitioner.round_robin(1, 8)
    partitioner.leave(first)
    second, _ = partitioner.round_robin(1, 8)
    partitioner.leave(first)
    assert (first, second, partitioner.round_robin(1, 8)[0]) == (IN_TURN[0], IN_TURN[1], IN_TURN[1])


@settings(deadline=None)
@given(st.sets(IDS, min_size=1, max_size=30), st.integers(0))
def test_turns_are_fair(ids, first):
    partitioner = Partitioner(targets(*ids), first)
    taken = [partitioner.round_robin(1, 1)[0] for _ in range(3 * len(ids))]
    assert all(taken.count(target) == 3 for target in partitioner.targets)


@pytest.mark.parametrize("avoided", [({1},), ({1, 2}, {1})], ids=["those avoided", "fewer when none is left"])
def test_turns_pass_over_avoided_brokers(avoided):
    partitioner = Partitioner(PARTITIONS, 0)
    assert [partitioner.round_robin(1, 1, *avoided)[0].partition.broker_id for _ in range(3)] == [2, 2, 2]


def test_turns_go_on_when_all_brokers_are_avoided():
    partitioner = Partitioner(PARTITIONS, 0)
    assert {partitioner.round_robin(1, 1, {1, 2})[0] for _ in range(8)} == set(PARTITIONS)


@settings(deadline=None)
@given(st.sets(IDS, min_size=1, max_size=30), st.permutations(range(30)), st.integers(0, 100))
def test_all_producers_choose_the_same_partition_for_a_key(ids, order, first):
    shuffled = sorted(ids, key=lambda one: order[hash(one) % 30])
    other = Partitioner(targets(*shuffled), first)
    other.round_robin(1, 1)
    assert {key: other.by_key(key).partition for key in KEYS} == owners(ids)


@settings(deadline=None, max_examples=50)
@given(st.sets(IDS, min_size=2, max_size=40), st.data())
def test_only_the_keys_of_partitions_that_leave_move(ids, data):
    gone = data.draw(st.sets(st.sampled_from(sorted(ids)), min_size=1))
    assume(gone != ids)
    before, after = owners(ids), owners(ids - gone)
    left = {target.partition for target in targets(*gone)}
    assert [key for key in KEYS if before[key] != after[key]] == [key for key in KEYS if before[key] in left]


@settings(deadline=None, max_examples=50)
@given(st.sets(IDS, min_size=1, max_size=40), st.sets(IDS, min_size=1, max_size=10))
def test_keys_move_only_to_partitions_that_join(ids, joining):
    before, after = owners(ids), owners(ids | joining)
    joined = {target.partition for target in targets(*joining)}
    assert all(after[key] in joined for key in KEYS if before[key] != after[key])


def test_the_hash_of_keys_never_changes():
    """A fixed table: another hash would move the keys of running pipelines."""
    partitioner = Partitioner(PARTITIONS, 0)
    keys = [b"", b"a", b"b", b"customer-17", b"\x00\xff"]
    assert [IN_ORDER.index(partitioner.by_key(key)) for key in keys] == [0, 1, 2, 1, 2]


def test_keys_spread_over_the_partitions_of_a_large_topic():
    ids = [
        (broker, 10_000 * store + index) for broker in range(1, 11) for store in range(5) for index in (0, 1)
    ]
    partitioner = Partitioner(targets(*ids), 0)
    chosen = collections.Counter(
        partitioner.by_key(b"key %d" % number).partition for number in range(100_000)
    )
    assert len(chosen) == 100
    assert all(800 < count < 1_200 for count in chosen.values())


def test_keys_spread_over_all_partitions():
    partitioner = Partitioner(PARTITIONS, 0)
    chosen = [partitioner.by_key(b"key %d" % number) for number in range(4_000)]
    assert all(900 < chosen.count(target) < 1_100 for target in IN_ORDER)


def test_a_named_partition_is_taken():
    assert Partitioner(PARTITIONS, 0).by_id(1, 10_000) == IN_ORDER[2]


@pytest.mark.parametrize("wrong", [(1, 2), (3, 0), (2, 10_000), (0, 1), (-1, -1)])
def test_a_named_partition_that_is_not_there_is_none_of_these(wrong):
    assert Partitioner(PARTITIONS, 0).by_id(*wrong) is None


def test_the_partitions_are_listed_in_order():
    assert Partitioner(PARTITIONS, 0).listed() == "1:0, 1:1, 1:10000, 2:0"


def test_a_long_list_of_partitions_is_cut():
    many = Partitioner(targets(*((1, number) for number in range(41))), 0)
    assert many.listed().endswith("1:38, 1:39 and 1 more")
