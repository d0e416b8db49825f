"""One lease: register, renew, release, always under the same name."""

import contextlib

import pytest

from tests.client import model_broker as model
from tests.client.model_broker import BROKER_ID, TOKEN, ModelBroker, Store
from tubemq_spark.client.broker.lease import Lease
from tubemq_spark.client.broker.session import BrokerSession, Claim
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.errors import RpcError, TubeMQConnectionError
from tubemq_spark.model import StoreId, TopicPartition
from tubemq_spark.net.connections import Connections
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.pb import broker_pb2

PARTITION = TopicPartition("demo", BROKER_ID, 0)
HELD = ("etl", "demo", 0)


@contextlib.asynccontextmanager
async def lease_of(**settings):
    store = Store()
    store.append(0, [b"value %d" % number for number in range(5)])
    with ModelBroker({StoreId("demo", BROKER_ID, 0): store}) as broker:
        connections = Connections()
        config = ClientConfig((broker.endpoint,), "etl", rpc_timeout_ms=2_000)

        async def session():
            return BrokerSession(await connections.get(broker.endpoint), config, TOKEN)

        yield broker, session, Lease(await session(), Claim(PARTITION, "etl", "etl_me-1-2-3"), **settings)
        await connections.close()


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
