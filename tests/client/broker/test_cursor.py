"""Steps through a partition, each with a known begin and end."""

import contextlib

import pytest

from tests.client import model_broker as model
from tests.client.model_broker import BROKER_ID, TOKEN, Limits, ModelBroker, Store
from tubemq_spark.client.broker.cursor import Cursor, ReadAhead
from tubemq_spark.client.broker.lease import Lease
from tubemq_spark.client.broker.reader_groups import ReaderGroupHolder
from tubemq_spark.client.broker.session import BrokerSession, Claim
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.steps import run
from tubemq_spark.errors import LocalProtocolError, RemoteProtocolError, RpcError
from tubemq_spark.model import Route, StoreId, TopicPartition
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.protocol.constants import Method

PARTITION = TopicPartition("demo", BROKER_ID, 0)
END = 9 * 28


@contextlib.contextmanager
def broker_and_pool(count=9, partitions=1):
    store = Store()
    for number in range(count):
        store.append(number % partitions, [b"value %d" % number])
    broker = ModelBroker({StoreId("demo", BROKER_ID, 0): store}, partitions, Limits(memory_entries=3))
    with broker, ChannelPool() as pool:
        yield broker, pool, ClientConfig((broker.endpoint,), "etl", rpc_timeout_ms=2_000)


@contextlib.contextmanager
def reading_ahead(count=9, partitions=1, *, own_store=False):
    """A reader that confirms what has arrived, under the reader groups."""
    with (
        broker_and_pool(count, partitions) as (broker, pool, config),
        ReaderGroupHolder(config, pool, PARTITION, Route(broker.endpoint, TOKEN)) as holder,
    ):
        yield broker, ReadAhead(Cursor(holder, PARTITION), own_store=own_store)


class OneName:
    """Holds a partition under the user's group and always the same client id, as a group's consumer does."""

    def __init__(self, session):
        self.lease = Lease(session, Claim(PARTITION, "etl", "etl_me-1-2-3"))

    def acquire(self, offset):
        return self.lease.register(offset)


@contextlib.contextmanager
def processing(count=9, partitions=1):
    """A consumer that processes records, then confirms them."""
    with broker_and_pool(count, partitions) as (broker, pool, config):
        holder = OneName(BrokerSession(pool.get(broker.endpoint), config, TOKEN))
        yield broker, Cursor(holder, PARTITION)
        holder.lease.release()
        assert broker.leases() == []


def span(step):
    return step.start, step.next


def test_steps_follow_each_other():
    with reading_ahead() as (_, cursor):
        assert cursor.seek(28).current == 28
        assert [span(cursor.step(END)) for _ in range(3)] == [(28, 112), (112, 196), (196, 252)]
        assert cursor.position == 252

        nothing = cursor.step(END)
        assert span(nothing) == (252, 252)
        assert nothing.fetched.count == 0


def test_seeking_drops_what_was_fetched_ahead():
    with reading_ahead() as (_, cursor):
        cursor.seek(0)
        cursor.step(END)
        cursor.seek(140)

        assert span(cursor.step(END)) == (140, 224)


@pytest.mark.parametrize(("until", "fetches"), [(84, 1), (85, 2), (END, 2)])
def test_nothing_is_fetched_ahead_beyond_the_end(until, fetches):
    with reading_ahead() as (broker, cursor):
        cursor.seek(0)
        assert span(cursor.step(until)) == (0, 84)
        cursor.seek(0)

        assert broker.counts()[Method.GET_MESSAGE] == fetches


def test_an_answer_that_moves_without_records_is_a_step():
    with reading_ahead(partitions=3) as (broker, cursor):
        broker.limits.memory_entries = 2
        cursor.seek(28)
        moved = cursor.step(END)

        assert span(moved) == (28, 84)
        assert moved.fetched.count == 0
        assert span(cursor.step(END)) == (84, 140)


def test_only_a_step_of_nothing_but_its_records_is_dense():
    with reading_ahead(partitions=2) as (_, cursor):
        cursor.seek(0)
        assert not cursor.step(END).dense

    with reading_ahead() as (_, cursor):
        cursor.seek(0)
        assert cursor.step(END).dense


def test_flow_control_is_a_step_with_a_pause():
    with reading_ahead() as (broker, cursor):
        cursor.seek(0)
        broker.fault_of_method[Method.GET_MESSAGE] = [model.refuse(452, wait_ms=700)]
        step = cursor.step(END)

        assert span(step) == (0, 0)
        assert step.pause_ms == 700


def test_another_refusal_is_an_error():
    with reading_ahead() as (broker, cursor):
        cursor.seek(0)
        broker.fault_of_method[Method.GET_MESSAGE] = [model.refuse(301)]
        with pytest.raises(RpcError) as caught:
            cursor.step(END)
        assert caught.value.code == 301


def test_a_batch_from_elsewhere_is_an_error():
    with reading_ahead() as (broker, cursor):
        cursor.seek(0)
        broker.stores[StoreId("demo", BROKER_ID, 0)].first = 2
        with pytest.raises(RemoteProtocolError, match="position in demo/1:0 is 56, but 0 was expected"):
            cursor.step(END)


def test_a_commit_that_does_not_reach_the_records_is_an_error():
    with reading_ahead() as (broker, cursor):
        cursor.seek(0)
        broker.fault_of_method[Method.COMMIT_OFFSET] = [model.forget_in_flight]
        with pytest.raises(RemoteProtocolError, match="position in demo/1:0 is 0, but 84 was expected"):
            cursor.step(END)


def test_a_cursor_that_was_never_placed_is_a_bug():
    with reading_ahead() as (_, cursor), pytest.raises(LocalProtocolError, match="demo/1:0 is not leased"):
        cursor.step(END)


def committed(broker):
    return broker.holdings["etl", "demo", 0].committed


def values_of(fetched):
    return [fetched.columns.message(row).value for row in range(len(fetched.columns))]


def test_what_was_fetched_is_confirmed_when_it_was_processed():
    with processing() as (broker, cursor):
        cursor.seek(0)
        fetched = cursor.fetch()
        assert values_of(fetched) == [b"value 0", b"value 1", b"value 2"]
        assert (committed(broker), cursor.position) == (0, 0)

        assert span(cursor.confirm()) == (0, 84)
        assert (committed(broker), cursor.position) == (84, 84)
        assert values_of(cursor.fetch()) == [b"value 3", b"value 4", b"value 5"]


def test_what_was_not_confirmed_is_fetched_again():
    with processing() as (broker, cursor):
        cursor.seek(0)
        assert values_of(cursor.fetch()) == values_of(cursor.fetch())
        assert span(cursor.confirm()) == (0, 84)
        assert committed(broker) == 84


def test_a_consumer_reads_to_the_end_with_two_requests_per_step():
    with processing() as (broker, cursor):
        cursor.seek(0)
        seen = []
        while (fetched := cursor.fetch()).count:
            seen += values_of(fetched)
            cursor.confirm()
        assert span(cursor.confirm()) == (END, END)

        assert seen == [b"value %d" % number for number in range(9)]
        assert broker.counts() == {
            Method.PARTITION_REGISTER: 1,
            Method.GET_MESSAGE: 4,
            Method.COMMIT_OFFSET: 4,
        }


def test_in_a_shared_store_a_confirm_tells_where_the_records_end():
    with processing(partitions=2) as (broker, cursor):
        cursor.seek(0)
        assert values_of(cursor.fetch()) == [b"value 0", b"value 2"]
        assert span(cursor.confirm()) == (0, 84)
        assert committed(broker) == 84


def test_a_confirm_can_be_said_with_the_next_fetch():
    with processing() as (broker, cursor):
        cursor.seek(0)
        cursor.fetch()
        assert span(run(cursor.confirming_by(cursor.start_fetch(confirm=True)))) == (0, 84)
        assert values_of(cursor.unconfirmed) == [b"value 3", b"value 4", b"value 5"]
        assert committed(broker) == 84

        assert span(cursor.confirm()) == (84, 168)
        assert broker.counts()[Method.COMMIT_OFFSET] == 1


def test_nothing_can_be_confirmed_twice_or_after_a_seek():
    with processing() as (broker, cursor):
        cursor.seek(0)
        cursor.fetch()
        cursor.confirm()
        with pytest.raises(LocalProtocolError, match="nothing of demo/1:0 was fetched"):
            cursor.confirm()

        cursor.fetch()
        cursor.seek(28)
        with pytest.raises(LocalProtocolError, match="nothing of demo/1:0 was fetched"):
            cursor.confirm()
        assert committed(broker) == 28


def test_a_confirm_that_fails_does_not_move():
    with processing() as (broker, cursor):
        cursor.seek(0)
        cursor.fetch()
        broker.fault_of_method[Method.COMMIT_OFFSET] = [model.refuse(401)]
        with pytest.raises(RpcError):
            cursor.confirm()

        assert cursor.position == 0
        cursor.seek(cursor.position)
        assert values_of(cursor.fetch()) == [b"value 0", b"value 1", b"value 2"]


def test_a_partition_stays_under_one_name_over_seeks():
    with processing() as (broker, cursor):
        for offset in (0, 84, 28):
            assert cursor.seek(offset).current == offset
            cursor.fetch()
        assert broker.counts()[Method.PARTITION_REGISTER] == 3
        assert [group for group, _, _ in broker.leases()] == ["etl"]
