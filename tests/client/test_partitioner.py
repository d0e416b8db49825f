import dataclasses
import zlib

import pytest
from hypothesis import given, settings, strategies as st

from tubemq_spark.client.partitioner import Partitioner
from tubemq_spark.errors import ProduceError
from tubemq_spark.model import TopicPartition


@dataclasses.dataclass(frozen=True)
class Target:
    partition: TopicPartition


def targets(*ids: tuple[int, int]) -> list[Target]:
    return [Target(TopicPartition("demo", broker, partition)) for broker, partition in ids]


PARTITIONS = targets((2, 0), (1, 10_000), (1, 0), (1, 1))
IN_ORDER = targets((1, 0), (1, 1), (1, 10_000), (2, 0))


def test_partitions_are_in_order_of_broker_and_id():
    assert list(Partitioner("demo", PARTITIONS, 0).targets) == IN_ORDER


@pytest.mark.parametrize("first", [0, 1, 3, 4, 1_000_003])
def test_turns_go_round_from_a_given_beginning(first):
    partitioner = Partitioner("demo", PARTITIONS, first)
    expected = [IN_ORDER[(first + turn) % 4] for turn in range(9)]
    assert [partitioner.by_turn() for _ in range(9)] == expected


@settings(deadline=None)
@given(st.sets(st.tuples(st.integers(1, 9), st.integers(0, 30_000)), min_size=1, max_size=30), st.integers(0))
def test_turns_are_fair(ids, first):
    partitioner = Partitioner("demo", targets(*ids), first)
    taken = [partitioner.by_turn() for _ in range(3 * len(ids))]
    assert all(taken.count(target) == 3 for target in partitioner.targets)


def test_turns_pass_over_avoided_brokers():
    partitioner = Partitioner("demo", PARTITIONS, 0)
    assert [partitioner.by_turn({1}).partition.broker_id for _ in range(3)] == [2, 2, 2]


def test_turns_go_on_when_all_brokers_are_avoided():
    partitioner = Partitioner("demo", PARTITIONS, 0)
    assert {partitioner.by_turn({1, 2}) for _ in range(8)} == set(PARTITIONS)


@settings(deadline=None)
@given(st.binary(max_size=40), st.integers(0, 100))
def test_a_key_always_has_the_same_partition(key, first):
    partitioner = Partitioner("demo", PARTITIONS, first)
    partitioner.by_turn()
    assert partitioner.by_key(key) == IN_ORDER[zlib.crc32(key) % 4]


def test_the_hash_of_keys_never_changes():
    """A fixed table: another hash would move the keys of running pipelines."""
    partitioner = Partitioner("demo", PARTITIONS, 0)
    keys = [b"", b"a", b"b", b"customer-17", b"\x00\xff"]
    assert [IN_ORDER.index(partitioner.by_key(key)) for key in keys] == [0, 3, 1, 3, 2]


def test_keys_spread_over_all_partitions():
    partitioner = Partitioner("demo", PARTITIONS, 0)
    chosen = [partitioner.by_key(b"key %d" % number) for number in range(4_000)]
    assert all(900 < chosen.count(target) < 1_100 for target in IN_ORDER)


def test_a_named_partition_is_taken():
    assert Partitioner("demo", PARTITIONS, 0).by_id(1, 10_000) == IN_ORDER[2]


@pytest.mark.parametrize("wrong", [(1, 2), (3, 0), (2, 10_000), (0, 1), (-1, -1)])
def test_a_named_partition_that_does_not_exist_is_refused_with_those_that_do(wrong):
    with pytest.raises(ProduceError, match=r"has no partition .*; choose one of 1:0, 1:1, 1:10000, 2:0\."):
        Partitioner("demo", PARTITIONS, 0).by_id(*wrong)


def test_a_long_list_of_partitions_is_cut():
    many = Partitioner("demo", targets(*((1, number) for number in range(41))), 0)
    with pytest.raises(ProduceError, match=r"1:38, 1:39 and 1 more\."):
        many.by_id(2, 0)
