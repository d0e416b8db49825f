"""A log may begin with index entries whose data is gone: reading begins behind them, and nothing is lost."""

import dataclasses

import pytest

from testkit.connections import opened_connections
from tests.client.model_broker import BROKER_ID, TOKEN, Limits, ModelBroker, Store
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.metadata.positions import first_readable
from tubemq_spark.errors import RpcError
from tubemq_spark.model import Endpoint, OffsetBounds, Route, StoreId, TopicPartition
from tubemq_spark.net import loop

ROW = 28
STORE = StoreId("demo", BROKER_ID, 0)
SMALL = Limits(file_entries=4, memory_entries=4)


def broker_that_cannot_read(*numbers, count=12, first=0, partitions=1, **limits):
    store = Store(first=first, flushed=count)
    store.append(0, [f"value {number}".encode() for number in range(count)])
    for number in numbers:
        store.entries[number] = dataclasses.replace(store.entries[number], readable=False)
    return ModelBroker({STORE: store}, limits=dataclasses.replace(SMALL, **limits))


def find(broker, earliest=0, latest=12 * ROW, **settings):
    config = ClientConfig((Endpoint("127.0.0.1", 1),), "etl", **{"rpc_timeout_ms": 2_000, **settings})
    partition = TopicPartition("demo", BROKER_ID, 0)
    with opened_connections() as connections:
        held, route = OffsetBounds(earliest, latest), Route(broker.endpoint, TOKEN)
        return loop.run(first_readable(config, connections, partition, route, held))


def test_a_whole_log_begins_where_its_index_does():
    with broker_that_cannot_read() as broker:
        assert find(broker) == 0
        assert broker.leases() == []


def test_an_empty_log_is_not_read():
    with broker_that_cannot_read(count=0) as broker:
        assert find(broker, latest=0) == 0
        assert broker.holdings == {}


@pytest.mark.parametrize("gone", range(1, 12))
def test_entries_at_the_beginning_whose_data_is_gone_are_passed_over(gone):
    with broker_that_cannot_read(*range(gone)) as broker:
        assert find(broker) == gone * ROW


def test_a_log_of_which_nothing_can_be_read_begins_at_its_end():
    with broker_that_cannot_read(*range(12)) as broker:
        assert find(broker) == 12 * ROW


def test_the_index_may_have_expired_as_well():
    with broker_that_cannot_read(5, 6, first=5) as broker:
        assert find(broker, earliest=5 * ROW) == 7 * ROW


@pytest.mark.parametrize("gone", [(0, 2), (0, 1, 3), (1,), (2, 3)])
def test_no_record_between_gaps_is_passed_over(gone):
    """What else is missing is told when it is read."""
    with broker_that_cannot_read(*gone) as broker:
        readable = min(set(range(12)) - set(gone))
        assert find(broker) <= readable * ROW


def test_a_broker_that_refuses_is_an_error():
    with ModelBroker({}) as broker, pytest.raises(RpcError):
        find(broker)
