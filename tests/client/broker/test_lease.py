"""One lease: register, renew, release, always under the same name; readers take names of reader groups."""

import contextlib
import gc
import itertools
import threading

import pytest

from testkit.connections import opened_connections
from tests.client import model_broker as model
from tests.client.model_broker import BROKER_ID, TOKEN
from tests.client.ranges import (
    ROW,
    SMALL,
    TOPIC,
    batches,
    broker_and_connections,
    broker_of,
    config,
    partition,
    read,
    request,
    values_of,
)
from tests.waiting import wait_until
from tubemq_spark.client.broker import lease
from tubemq_spark.client.broker.lease import Lease, ReaderGroupHolder
from tubemq_spark.client.broker.session import BrokerSession, Claim
from tubemq_spark.client.reader.range_reader import read_range
from tubemq_spark.client.reader.topic_reader import read_in_thread
from tubemq_spark.errors import DataLossError, RpcError, TubeMQConnectionError, TubeMQTimeoutError
from tubemq_spark.model import Route, TopicPartition
from tubemq_spark.net import loop
from tubemq_spark.offsets.loss import fail_on_loss
from tubemq_spark.protocol.constants import Method, OpType
from tubemq_spark.protocol.pb import broker_pb2

PARTITION = TopicPartition("demo", BROKER_ID, 0)
HELD = ("etl", "demo", 0)


@contextlib.asynccontextmanager
async def lease_of(**settings):
    async with broker_and_connections() as (broker, connections, config):

        async def session():
            return BrokerSession(await connections.get(broker.endpoint), config, TOKEN)

        yield broker, session, Lease(await session(), Claim(PARTITION, "etl", "etl_me-1-2-3"), **settings)


def registers(broker):
    return [
        exchange.parse(broker_pb2.RegisterRequestC2B)
        for method, exchange in broker.requests
        if method == Method.PARTITION_REGISTER
    ]


async def test_a_lease_is_made_and_released():
    async with lease_of() as (broker, _, lease):
        assert (await lease.register(28)).current == 28
        assert broker.leases() == [HELD]

        await lease.release()
        assert broker.leases() == []


async def test_renewing_keeps_the_position_and_drops_what_is_in_flight():
    async with lease_of() as (broker, _, lease):
        await lease.register(28)
        await lease.session.start_fetch(lease.claim)
        assert broker.holdings[HELD].in_flight

        assert (await lease.register(None)).current == 28
        assert not broker.holdings[HELD].in_flight


async def test_every_register_says_the_same():
    async with lease_of(query_priority=303) as (broker, _, lease):
        await lease.register(28)
        await lease.register(None)
        await lease.register(56)

        assert {(item.clientId, item.groupName, item.qryPriorityId) for item in registers(broker)} == {
            ("etl_me-1-2-3", "etl", 303)
        }


@pytest.mark.parametrize("fault", [model.refuse_after(500), model.hang_up_after])
async def test_a_register_that_failed_is_released_since_it_may_have_been_carried_out(fault):
    async with lease_of() as (broker, session, lease):
        broker.fault_of_method[Method.PARTITION_REGISTER] = [fault]
        with pytest.raises((RpcError, TubeMQConnectionError)):
            await lease.register(0)
        assert broker.leases() == [HELD]

        lease.session = await session()
        await lease.release()
        assert broker.leases() == []


async def test_a_release_that_fails_is_no_error():
    async with lease_of() as (broker, _, lease):
        await lease.register(0)
        broker.fault_of_method[Method.PARTITION_REGISTER] = [model.hang_up]
        await lease.release()

        assert broker.leases() == [HELD]


pytestmark = pytest.mark.usefixtures("quick_retries")


def take_all_groups(broker, but=0):
    for group in config(broker).reader_groups[but:]:
        broker.holdings[group, TOPIC, 0].owner = "somebody else"


def test_a_reader_takes_the_one_group_that_is_free():
    with broker_of() as broker:
        take_all_groups(broker, but=1)

        assert len(read(broker, 0, 280)) == 10
        assert len(broker.leases()) == 15


def test_a_reader_waits_for_a_lease_that_times_out():
    with broker_of() as broker:
        take_all_groups(broker)
        broker.fault_of_method[Method.PARTITION_REGISTER] = [model.nothing] * 16 + [model.time_out_leases]

        assert len(read(broker, 0, 280)) == 10


def test_groups_that_others_use_are_waited_for_as_a_broker_is():
    """Longer than for a dead reader's lease: those that live may read for minutes."""
    with broker_of() as broker:
        take_all_groups(broker)
        rounds = [model.nothing] * (16 * 20) + [model.time_out_leases]
        broker.fault_of_method[Method.PARTITION_REGISTER] = rounds

        assert len(read(broker, 0, 280, lease_wait_ms=1)) == 10


def test_all_groups_taken_for_too_long_is_an_error_that_names_them():
    with broker_of() as broker:
        take_all_groups(broker)
        with pytest.raises(TubeMQTimeoutError) as failed:
            read(broker, 0, 280, lease_wait_ms=20, fetch_timeout_ms=100)

        assert failed.value.condition == "TUBEMQ_NO_PROGRESS"
        assert "All 16 reader groups (etl_r00, etl_r01" in str(failed.value)
        assert "were in use for demo/1:0 for 20 ms" in str(failed.value)
        asked = [exchange.parse(broker_pb2.RegisterRequestC2B).opType for _, exchange in broker.requests]
        assert set(asked) == {OpType.REGISTER}


def test_readers_of_one_partition_do_not_disturb_each_other():
    with broker_of(40, partitions=2, flushed=20, limits=SMALL) as broker:
        truth = broker.truth(partition(), 0, 40 * ROW)
        readers = [batches(broker, 0, 40 * ROW) for _ in range(8)]
        seen = [[] for _ in readers]
        for rounds in itertools.zip_longest(*readers):
            for values, batch in zip(seen, rounds, strict=True):
                values.extend(values_of(batch) if batch is not None else [])

        assert seen == [truth] * 8


def test_an_abandoned_reader_gives_its_lease_back_at_once():
    with broker_of(40, limits=SMALL) as broker:
        reading = batches(broker, 0, 40 * ROW)
        next(reading)
        assert len(broker.leases()) == 1

        reading.close()
        assert broker.leases() == []


def test_an_abandoned_reader_waits_for_no_fetch():
    with broker_of(40, limits=SMALL) as broker, opened_connections() as connections:
        broker.fault_of_method[Method.GET_MESSAGE] = [model.nothing, model.swallow]
        work = request(broker, 0, 40 * ROW)
        reading = read_in_thread(read_range(config(broker), connections, work), work.range, fail_on_loss)
        next(reading)
        reading.close()

        (connection,) = connections.shared()
        assert not connection.in_use


@pytest.mark.parametrize("reads", [True, False], ids=["fetching", "idle"])
def test_an_abandoned_reader_waits_for_no_broker_that_is_frozen(monkeypatch, reads):
    monkeypatch.setattr(lease, "_RELEASE_TIMEOUT_MS", 600_000)
    with broker_of(40, limits=SMALL) as broker, opened_connections() as connections:
        broker.fault_of_method[Method.GET_MESSAGE] = [model.nothing, model.swallow]
        broker.fault_of_method[Method.PARTITION_REGISTER] = [model.nothing, model.swallow]
        settings, work = config(broker, rpc_timeout_ms=600_000), request(broker, 0, 40 * ROW)
        reader = read_range(settings, connections, work)
        reading = read_in_thread(reader, work.range, fail_on_loss, ahead=3 if reads else 0)
        next(reading)
        closing = threading.Thread(target=reading.close)
        closing.start()
        closing.join(10)
        assert not closing.is_alive()

        asked = [exchange.parse(broker_pb2.RegisterRequestC2B) for _, exchange in broker.requests[-1:]]
        assert [request.opType for request in asked] == [OpType.UNREGISTER]


def test_a_reader_that_the_loop_s_own_thread_collects_gives_its_lease_back():
    with broker_of(40, limits=SMALL) as broker, opened_connections() as connections:
        work = request(broker, 0, 40 * ROW)
        reading = read_in_thread(read_range(config(broker), connections, work), work.range, fail_on_loss)
        next(reading)
        cycle = [reading]
        cycle.append(cycle)
        del reading, cycle
        loop.call_soon(gc.collect)

        wait_until(lambda: not broker.leases())


def test_a_dropped_reader_gives_its_lease_back():
    with broker_of(40, limits=SMALL) as broker:
        reading = batches(broker, 0, 40 * ROW)
        next(reading)
        del reading
        gc.collect()

        assert broker.leases() == []


def test_a_reader_that_was_never_asked_holds_nothing():
    with broker_of() as broker:
        batches(broker, 0, 280).close()

        assert broker.requests == []


def test_a_policy_that_raises_gives_the_lease_back():
    with broker_of(10) as broker:
        with pytest.raises(DataLossError):
            read(broker, 140, 336)

        assert broker.leases() == []


def test_an_old_visit_token_is_renewed_once():
    with broker_of() as broker:
        broker.valid_tokens = {TOKEN + 5}

        assert len(read(broker, 0, 280, token=TOKEN)) == 10
        assert broker.leases() == []


async def test_a_group_found_taken_with_a_renewed_token_is_passed_over():
    async with broker_and_connections(10) as (broker, connections, _):
        broker.valid_tokens = {TOKEN + 5}
        take_all_groups(broker, but=1)
        of_broker = config(broker, reader_groups=config(broker).reader_groups[:2])
        for _ in range(8):  # the groups come in a random order
            route = Route(broker.endpoint, TOKEN)
            async with ReaderGroupHolder(of_broker, connections, partition(), route) as holder:
                assert (await holder.acquire(28)).current == 28


def test_a_token_that_stays_wrong_is_an_error():
    with broker_of() as broker:
        broker.fault_of_method[Method.PARTITION_REGISTER] = [model.refuse(415)] * 2
        with pytest.raises(RpcError) as caught:
            read(broker, 0, 280)
        assert caught.value.code == 415
