"""Where logs begin and end, where groups stand, and where records can be read."""

import contextlib
import dataclasses
import socket
import threading

import pytest

from testkit.connections import opened_connections
from tests.client import model_broker as model
from tests.client.model_broker import BROKER_ID, TOKEN, Limits, ModelBroker, Store, swallow, swallow_answer
from tests.waiting import wait_until
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.metadata.positions import first_readable, group_positions, move_group, store_bounds
from tubemq_spark.errors import RemoteProtocolError, RpcError, TubeMQConnectionError, TubeMQTimeoutError
from tubemq_spark.model import (
    Endpoint,
    OffsetBounds,
    Route,
    StoreBounds,
    StoreId,
    TopicPartition,
    TopicsLayout,
)
from tubemq_spark.net import loop
from tubemq_spark.net.retry import Sleep
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.pb import broker_pb2


def store_id(number, broker_id=BROKER_ID):
    return StoreId("demo", broker_id, number)


def store_of(count, first=0, flushed=0):
    store = Store(first=first, flushed=flushed)
    store.append(0, [b"x"] * count)
    return store


def config(**changes):
    return ClientConfig((Endpoint("127.0.0.1", 1),), "etl", **{"rpc_timeout_ms": 2_000, **changes})


def ask(broker, stores, token=TOKEN, flushed=False, **changes):
    """Return the answers, when the broker has got the leases back; no other client holds one."""
    with opened_connections() as connections:
        places = dict.fromkeys(stores, broker.endpoint)
        found = loop.run(store_bounds(config(**changes), connections, places, token, flushed=flushed))
        wait_until(lambda: not held_by_us(broker))
        return found


def held_by_us(broker):
    return [held for held in broker.holdings.values() if held.owner not in (None, "somebody else")]


def known(broker, stores, **arguments):
    """Return the bounds when every broker has answered."""
    return ask(broker, stores, **arguments).complete()


def test_no_store_no_question():
    with opened_connections() as connections:
        assert loop.run(store_bounds(config(), connections, {}, TOKEN)) == StoreBounds({}, {})


def test_begin_and_end_of_every_store():
    stores = {store_id(0): store_of(10, first=3), store_id(1): store_of(0), store_id(2): store_of(5)}
    with ModelBroker(stores, partitions=3) as broker:
        assert known(broker, stores) == {
            store_id(0): OffsetBounds(84, 280),
            store_id(1): OffsetBounds(0, 0),
            store_id(2): OffsetBounds(0, 140),
        }
        assert broker.leases() == []
        assert {group for group, _, _ in broker.holdings} == {"etl_probe"}


@pytest.mark.parametrize(("first", "flushed", "end"), [(0, 4, 112), (0, 0, 0), (5, 4, 140), (4, 4, 112)])
def test_the_end_of_what_is_safe_on_disk(first, flushed, end):
    stores = {store_id(0): store_of(10, first, flushed)}
    with ModelBroker(stores) as broker:
        assert known(broker, stores, flushed=True) == {store_id(0): OffsetBounds(first * 28, end)}
        assert known(broker, stores) == {store_id(0): OffsetBounds(first * 28, 280)}


def test_several_brokers_are_asked_at_once():
    together = threading.Barrier(2)

    def meet(broker, exchange):
        together.wait(5)
        return False

    first = ModelBroker({store_id(0): store_of(1)})
    second = ModelBroker({store_id(0): store_of(2)})
    with first, second, opened_connections() as connections:
        for broker in (first, second):
            broker.fault_of_method[Method.PARTITION_REGISTER] = [meet]
        # The model knows its stores under one broker id; what counts is whom the question reaches.
        places = {store_id(0, 1): first.endpoint, store_id(0, 2): second.endpoint}

        assert loop.run(store_bounds(config(), connections, places, TOKEN)).complete() == {
            store_id(0, 1): OffsetBounds(0, 28),
            store_id(0, 2): OffsetBounds(0, 56),
        }


def test_readers_do_not_keep_a_driver_from_asking():
    stores = {store_id(0): store_of(1)}
    with ModelBroker(stores) as broker:
        for group in config().reader_groups:
            broker.holdings[group, "demo", 0].owner = "somebody else"
        assert known(broker, stores) == {store_id(0): OffsetBounds(0, 28)}


@pytest.mark.parametrize("named", [(), ("mine", "yours", "ours")], ids=["default", "named"])
def test_groups_that_are_taken_are_passed_over(named):
    """Of groups that the user has named no other one is used."""
    stores = {store_id(0): store_of(1)}
    groups = config(reader_groups=named).probe_groups
    assert groups[-1] == (named or config().reader_groups)[-1]
    with ModelBroker(stores) as broker:
        for group in groups[:-1]:
            broker.holdings[group, "demo", 0].owner = "somebody else"
        assert known(broker, stores, reader_groups=named) == {store_id(0): OffsetBounds(0, 28)}

        broker.holdings[groups[-1], "demo", 0].owner = "somebody else"
        taken = ask(broker, stores, reader_groups=named).failures[store_id(0)]
        assert taken.condition == "TUBEMQ_LEASES_TAKEN"
        assert taken.retriable


def test_an_old_token_is_renewed():
    stores = {store_id(0): store_of(1)}
    with ModelBroker(stores) as broker:
        broker.valid_tokens = {TOKEN + 1}
        with opened_connections() as connections:
            settings = ClientConfig((broker.endpoint,), "etl", rpc_timeout_ms=2_000)
            places = dict.fromkeys(stores, broker.endpoint)
            found = loop.run(store_bounds(settings, connections, places, TOKEN))
            assert found.complete() == {store_id(0): OffsetBounds(0, 28)}


def test_a_broker_that_does_not_have_the_topic_refuses():
    with ModelBroker({store_id(0): store_of(1)}) as broker:
        found = ask(broker, [store_id(0), StoreId("other", BROKER_ID, 0)])

    assert found.by_store == {store_id(0): OffsetBounds(0, 28)}
    assert found.failures[StoreId("other", BROKER_ID, 0)].code == 403
    with pytest.raises(RpcError):
        found.complete()


def test_brokers_that_are_not_there_or_silent_do_not_hold_up_the_others():
    with ModelBroker({}) as gone:
        pass
    stores = {store_id(0): store_of(3)}
    with ModelBroker(stores) as broker, ModelBroker(stores) as silent, opened_connections() as connections:
        silent.fault_of_method[Method.PARTITION_REGISTER] = [model.swallow_answer]
        places = {
            store_id(0, 1): broker.endpoint,
            store_id(0, 2): gone.endpoint,
            store_id(0, 3): silent.endpoint,
        }
        found = loop.run(store_bounds(config(), connections, places, TOKEN, timeout_ms=100))

    assert found.by_store == {store_id(0, 1): OffsetBounds(0, 84)}
    assert {store: error.condition for store, error in found.failures.items()} == {
        store_id(0, 2): "TUBEMQ_CONNECT_FAILED",
        store_id(0, 3): "TUBEMQ_TIMEOUT",
    }


def test_all_stores_of_a_broker_are_asked_before_the_first_answer_is_waited_for():
    """One round trip for hundreds of stores instead of one for each."""
    stores = {store_id(number): store_of(number) for number in range(20)}
    held_back = []

    def hold_back(broker, exchange):
        held_back.append(exchange)
        return True

    def let_go():
        with ModelBroker(stores, partitions=20) as broker:
            broker.fault_of_method[Method.PARTITION_REGISTER] = [hold_back] * 20
            found = ask(broker, stores, rpc_timeout_ms=300)
            return found, len(held_back)

    found, asked = let_go()
    assert asked >= 20
    assert len(found.failures) == 20


def test_a_broker_that_does_not_tell_the_end_is_a_failure():
    def no_end(broker, exchange):
        answer = broker_pb2.RegisterResponseB2C(success=True, errCode=200, errMsg="OK!", currOffset=0)
        exchange.answer(answer)
        return True

    with ModelBroker({store_id(0): store_of(1)}) as broker:
        broker.fault_of_method[Method.PARTITION_REGISTER] = [no_end]
        failure = ask(broker, [store_id(0)]).failures[store_id(0)]

    assert isinstance(failure, RemoteProtocolError)
    assert "did not say where demo/1 store 0 ends" in str(failure)


def test_a_lost_answer_leaves_no_lease_behind():
    stores = {store_id(0): store_of(1)}
    with ModelBroker(stores) as broker:
        broker.fault_of_method[Method.PARTITION_REGISTER] = [model.swallow_answer]
        assert ask(broker, stores, rpc_timeout_ms=30).failures[store_id(0)].condition == "TUBEMQ_TIMEOUT"
        assert broker.leases() == []


ROW = 28
PARTITION = TopicPartition("demo", BROKER_ID, 0)


@pytest.fixture
def broker():
    store = Store()
    store.append(0, [b"x"] * 10)
    with ModelBroker({StoreId("demo", BROKER_ID, 0): store}) as running:
        yield running


@contextlib.contextmanager
def connected(broker):
    """Yield what both functions take first."""
    settings = ClientConfig((broker.endpoint,), "etl", rpc_timeout_ms=500)
    layout = TopicsLayout({PARTITION: broker.endpoint}, TOKEN)
    with opened_connections() as connections:
        yield settings, connections, layout


def test_an_old_token_is_renewed_for_a_group(broker):
    broker.valid_tokens = {TOKEN + 1}
    with connected(broker) as where:
        assert loop.run(move_group(*where, {PARTITION: 3 * ROW})) == {}
        assert loop.run(group_positions(*where)) == {PARTITION: 3 * ROW}


def test_a_consumer_of_the_group_keeps_its_position(broker):
    broker.holdings["etl", "demo", 0].owner = "somebody else"
    with connected(broker) as where:
        with pytest.raises(RpcError, match="410"):
            loop.run(group_positions(*where))
        assert loop.run(move_group(*where, {PARTITION: 3 * ROW}))[PARTITION].code == 410


def test_a_broker_that_is_away_moves_no_group_and_keeps_no_other_from_it(broker):
    away = TopicPartition("demo", BROKER_ID + 1, 0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        closed = Endpoint("127.0.0.1", taken.getsockname()[1])
    with connected(broker) as (settings, connections, layout):
        wider = TopicsLayout({**layout.partitions, away: closed}, TOKEN)
        failures = loop.run(move_group(settings, connections, wider, {PARTITION: 3 * ROW, away: 3 * ROW}))
        assert list(failures) == [away]
        assert isinstance(failures[away], TubeMQConnectionError)
        assert loop.run(group_positions(settings, connections, layout)) == {PARTITION: 3 * ROW}
        with pytest.raises(TubeMQConnectionError):
            loop.run(group_positions(settings, connections, wider))


def test_a_question_that_is_given_up_leaves_no_call_in_flight(broker):
    """Also none that was not awaited: a connection with calls in flight is never closed for being idle."""
    broker.partitions = 2
    broker.fault_of_method[Method.PARTITION_REGISTER] = [swallow] * 4
    with connected(broker) as (settings, connections, layout):
        patient = dataclasses.replace(settings, rpc_timeout_ms=600_000)
        both = TopicsLayout(
            {**layout.partitions, TopicPartition("demo", BROKER_ID, 1): broker.endpoint}, TOKEN
        )

        def give_up():
            if len(broker.requests) == 2:
                raise KeyError

        with pytest.raises(KeyError):
            loop.run(group_positions(patient, connections, both), Sleep(check=give_up))
        (connection,) = connections.shared()
        assert not connection.in_use


def test_a_lease_that_may_have_been_given_is_given_up(broker):
    """The broker registers, and its answer does not come."""
    broker.fault_of_method[Method.PARTITION_REGISTER] = [swallow_answer]
    with connected(broker) as where:
        failures = loop.run(move_group(*where, {PARTITION: 3 * ROW}))
        assert isinstance(failures[PARTITION], TubeMQTimeoutError)
        assert broker.leases() == []


STORE = StoreId("demo", BROKER_ID, 0)
SMALL = Limits(file_entries=4, memory_entries=4)


def broker_that_cannot_read(*numbers, count=12, first=0, partitions=1, **limits):
    store = Store(first=first, flushed=count)
    store.append(0, [f"value {number}".encode() for number in range(count)])
    for number in numbers:
        store.entries[number] = dataclasses.replace(store.entries[number], readable=False)
    return ModelBroker({STORE: store}, limits=dataclasses.replace(SMALL, **limits))


def find(broker, earliest=0, latest=12 * ROW, **settings):
    with opened_connections() as connections:
        held, route = OffsetBounds(earliest, latest), Route(broker.endpoint, TOKEN)
        return loop.run(first_readable(config(**settings), connections, PARTITION, route, held))


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
