"""Whether a topic exists, and which partitions it has, before anything is published."""

import pytest

from testkit.connections import opened_connections
from tests.client.scripted_master import (
    ScriptedMaster,
    config_for,
    meta,
    partition,
    producer_beat,
    registered,
)
from tubemq_spark.client.metadata.topics import configured_partitions, refuse_unknown_topic
from tubemq_spark.errors import ProduceError
from tubemq_spark.net.loop import run
from tubemq_spark.protocol.constants import Method


@pytest.fixture
def connections():
    with opened_connections(1_000) as connections:
        yield connections


@pytest.mark.parametrize(
    ("register", "meta_answer", "expected"),
    [
        (registered(), meta("demo#1:1:2:1"), frozenset({partition(1, 0), partition(1, 1)})),
        (registered(425, "other topics"), None, None),
        (registered(455, "barred"), None, None),
    ],
)
def test_readers_are_told_which_partitions_a_topic_has(connections, register, meta_answer, expected):
    with ScriptedMaster(balance_register=register, balance_partition_meta=meta_answer) as master:
        assert run(configured_partitions(config_for(master), connections, "demo")) == expected


def test_readers_are_told_that_a_topic_does_not_exist(connections):
    with (
        ScriptedMaster(balance_register=registered(431, "no such topic")) as master,
        pytest.raises(ProduceError, match="Topic 'demo' does not exist"),
    ):
        run(refuse_unknown_topic(config_for(master), connections, "demo"))


def test_a_topic_that_can_be_published_to_is_not_looked_at_as_a_reader(connections):
    with ScriptedMaster(producer_heartbeat=producer_beat("demo#1:1:1#")) as master:
        run(refuse_unknown_topic(config_for(master), connections, "demo"))
        assert not master.of(Method.BALANCE_REGISTER)
