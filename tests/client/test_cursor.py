"""Steps through a partition, each with a known begin and end."""

import contextlib

import pytest

from tests.client import model_broker as model
from tests.client.model_broker import BROKER_ID, TOKEN, Limits, ModelBroker, Store
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.cursor import Cursor
from tubemq_spark.client.lease import Lease
from tubemq_spark.errors import LocalProtocolError, RemoteProtocolError, RpcError
from tubemq_spark.model import StoreId, TopicPartition
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.protocol.constants import Method

PARTITION = TopicPartition("demo", BROKER_ID, 0)
END = 9 * 28


@contextlib.contextmanager
def cursor_over(count=9, partitions=1):
    store = Store()
    for number in range(count):
        store.append(number % partitions, [b"value %d" % number])
    broker = ModelBroker({StoreId("demo", BROKER_ID, 0): store}, partitions, Limits(memory_entries=3))
    with broker, ChannelPool() as pool:
        config = ClientConfig((broker.endpoint,), "etl", rpc_timeout_ms=2_000)
        with Lease(config, pool, PARTITION, broker.endpoint, TOKEN) as lease:
            yield broker, Cursor(lease, PARTITION)


def span(step):
    return step.start, step.next


def test_steps_follow_each_other():
    with cursor_over() as (_, cursor):
        assert cursor.seek(28).current == 28
        assert [span(cursor.step(END)) for _ in range(3)] == [(28, 112), (112, 196), (196, 252)]
        assert cursor.position == 252

        nothing = cursor.step(END)
        assert span(nothing) == (252, 252)
        assert nothing.fetched.count == 0


def test_seeking_drops_what_was_fetched_ahead():
    with cursor_over() as (_, cursor):
        cursor.seek(0)
        cursor.step(END)
        cursor.seek(140)

        assert span(cursor.step(END)) == (140, 224)


@pytest.mark.parametrize(("until", "fetches"), [(84, 1), (85, 2), (END, 2)])
def test_nothing_is_fetched_ahead_beyond_the_end(until, fetches):
    with cursor_over() as (broker, cursor):
        cursor.seek(0)
        assert span(cursor.step(until)) == (0, 84)
        cursor.seek(0)

        assert broker.counts()[Method.GET_MESSAGE] == fetches


def test_an_answer_that_moves_without_records_is_a_step():
    with cursor_over(partitions=3) as (broker, cursor):
        broker.limits.memory_entries = 2
        cursor.seek(28)
        moved = cursor.step(END)

        assert span(moved) == (28, 84)
        assert moved.fetched.count == 0
        assert span(cursor.step(END)) == (84, 140)


def test_only_a_step_of_nothing_but_its_records_is_dense():
    with cursor_over(partitions=2) as (_, cursor):
        cursor.seek(0)
        assert not cursor.step(END).dense

    with cursor_over() as (_, cursor):
        cursor.seek(0)
        assert cursor.step(END).dense


def test_flow_control_is_a_step_with_a_pause():
    with cursor_over() as (broker, cursor):
        cursor.seek(0)
        broker.fault_of_method[Method.GET_MESSAGE] = [model.refuse(452, wait_ms=700)]
        step = cursor.step(END)

        assert span(step) == (0, 0)
        assert step.pause_ms == 700


def test_another_refusal_is_an_error():
    with cursor_over() as (broker, cursor):
        cursor.seek(0)
        broker.fault_of_method[Method.GET_MESSAGE] = [model.refuse(301)]
        with pytest.raises(RpcError) as caught:
            cursor.step(END)
        assert caught.value.code == 301


def test_a_batch_from_elsewhere_is_an_error():
    with cursor_over() as (broker, cursor):
        cursor.seek(0)
        broker.stores[StoreId("demo", BROKER_ID, 0)].first = 2
        with pytest.raises(RemoteProtocolError, match="position of demo/1:0 is 56 where 0 was expected"):
            cursor.step(END)


def test_a_commit_that_does_not_reach_the_records_is_an_error():
    with cursor_over() as (broker, cursor):
        cursor.seek(0)
        broker.fault_of_method[Method.COMMIT_OFFSET] = [model.forget_in_flight]
        with pytest.raises(RemoteProtocolError, match="position of demo/1:0 is 0 where 84 was expected"):
            cursor.step(END)


def test_a_cursor_that_was_never_placed_is_a_bug():
    with cursor_over() as (_, cursor), pytest.raises(LocalProtocolError, match="demo/1:0 is not leased"):
        cursor.step(END)
