"""The master refuses all topics when one of them does not exist; a running query goes on with the others."""

import pytest

from tests.client.scripted_master import ScriptedMaster, config_for, meta, partition, registered, token
from tubemq_spark.cluster.direct import DirectCluster
from tubemq_spark.errors import RpcError
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.protocol.constants import Method


def master_without(*removed):
    """Return a master that knows every topic but these."""

    def register(request):
        if set(removed) & set(request.topicList):
            return registered(431, "topic not exist", brokers=())
        return registered(authorizedInfo=token(len(request.topicList)))

    def partition_meta(request):
        return meta(*(f"{topic}#1:1:1:1" for topic in sessions[request.clientId]))

    sessions = {}

    def remember(request):
        sessions[request.clientId] = request.topicList
        return register(request)

    return ScriptedMaster(balance_register=remember, balance_partition_meta=partition_meta)


def layout(master, *topics, missing_ok):
    with ChannelPool() as pool:
        return DirectCluster(config_for(master), pool).layout(topics, missing_ok=missing_ok)


def test_topics_that_exist_are_asked_for_at_once():
    with master_without() as master:
        found = layout(master, "one", "two", missing_ok=True)

        assert list(found.partitions) == [partition(1, 0, "one"), partition(1, 0, "two")]
        assert found.missing_topics == frozenset()
        assert len(master.of(Method.BALANCE_REGISTER)) == 1


def test_the_topics_that_are_left_are_found():
    with master_without("two") as master:
        found = layout(master, "one", "two", "three", missing_ok=True)

        assert list(found.partitions) == [partition(1, 0, "one"), partition(1, 0, "three")]
        assert found.missing_topics == {"two"}
        assert found.visit_token == 1


def test_a_missing_topic_among_many_is_found_by_halves():
    names = [f"topic_{number}" for number in range(64)]
    with master_without("topic_20") as master:
        found = layout(master, *names, missing_ok=True)

        assert len(found.partitions) == 63
        assert list(found.partitions) == sorted(found.partitions)
        assert found.missing_topics == {"topic_20"}
        assert len(master.of(Method.BALANCE_REGISTER)) == 1 + 2 * 6


def test_more_topics_than_a_master_takes_at_once_are_asked_for_in_turn():
    names = [f"topic_{number}" for number in range(2_500)]
    with master_without() as master:
        found = layout(master, *names, missing_ok=False)

        assert len(found.partitions) == 2_500
        assert list(found.partitions) == sorted(found.partitions)
        sizes = [len(register.topicList) for register in master.of(Method.BALANCE_REGISTER)]
        assert sizes == [1024, 1024, 452]


def test_an_error_lists_few_of_many_topics():
    names = [f"topic_{number}" for number in range(1_000)]
    with master_without("topic_0") as master, pytest.raises(RpcError) as refused:
        layout(master, *names, missing_ok=False)
    assert " and 990 more" in str(refused.value)
    assert len(str(refused.value)) < 1_000


def test_nothing_may_be_left():
    with master_without("one") as master:
        found = layout(master, "one", missing_ok=True)

        assert (found.partitions, found.missing_topics) == ({}, {"one"})


def test_a_query_that_starts_is_told():
    with master_without("two") as master, pytest.raises(RpcError) as refused:
        layout(master, "one", "two", missing_ok=False)
    assert refused.value.code == 431
