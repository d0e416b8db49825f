"""A group whose other members read other topics at this moment."""

import asyncio

import pytest

from testkit.connections import opened_connections
from tests.client.scripted_master import ScriptedMaster, config_for, partition, registered
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.transport.direct import DirectTransport
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.errors import RpcError
from tubemq_spark.model import Endpoint
from tubemq_spark.net import loop
from tubemq_spark.protocol.constants import Method

OTHER_TOPICS = registered(425, "the group reads other topics", brokers=())


def layout(master, **settings):
    with opened_connections() as connections:
        return loop.run(DirectTransport(config_for(master, **settings), connections).layout(["demo"]))


def test_a_killed_driver_s_membership_is_waited_for_though_answers_come_quickly():
    with ScriptedMaster(balance_register=[*[OTHER_TOPICS] * 5, registered()]) as master:
        found = layout(master, rpc_timeout_ms=250, lease_wait_ms=20_000)

        assert list(found.partitions) == [partition(1, 0)]
        assert len(master.of(Method.BALANCE_REGISTER)) == 6


def test_a_group_that_stays_busy_is_an_error():
    with ScriptedMaster(balance_register=OTHER_TOPICS) as master:
        with pytest.raises(RpcError) as refused:
            layout(master, lease_wait_ms=60)

        assert refused.value.code == 425


def test_a_question_that_is_cancelled_as_it_registers_leaves_no_member():
    """A member that is not there would keep the group from other topics for 30 s."""
    with (
        EmbeddedTubeMQ(topics={"demo": (1, 1), "other": (1, 1)}) as server,
        opened_connections() as connections,
    ):
        config = ClientConfig((Endpoint.parse(server.master),), "busy", lease_wait_ms=1)
        transport = DirectTransport(config, connections)
        registering = server.faults.hold(Method.BALANCE_REGISTER, carried_out=True)

        async def cancelled():
            question = asyncio.create_task(transport.layout(["demo"]))
            while not registering.hits:
                await asyncio.sleep(0.01)
            question.cancel()
            asyncio.get_running_loop().call_later(0.05, registering.release)
            await asyncio.wait([question])
            assert question.cancelled()

        loop.run(cancelled())
        assert len(loop.run(transport.layout(["other"])).partitions) == 1
