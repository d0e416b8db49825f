"""Senders are shared by what has equal settings, and closed when they are broken or not used any more."""

import asyncio

import pytest

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.errors import GatewayError, ProduceError
from tubemq_spark.gateway.admission import Admission, Owner
from tubemq_spark.gateway.data import publishing
from tubemq_spark.gateway.data.publishing import Senders
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import Endpoint
from tubemq_spark.net.pool import ChannelPool

MASTERS = (Endpoint("127.0.0.1", 9),)
ANN, BOB = Owner("ann", "1"), Owner("bob", "1")


def config(**settings):
    return ClientConfig(MASTERS, "group", **settings)


def run(scenario, **changes):
    """Run a scenario with senders, which reach no server, and the room that they take."""
    settings = GatewaySettings(master_servers=MASTERS, node_name="g1", publishes=2, **changes)

    async def whole():
        admission, pool = Admission(settings), ChannelPool()
        senders = Senders(settings, pool, admission)
        try:
            await scenario(senders, admission.publishes)
        finally:
            await senders.close(5)
            assert admission.publishes.used == 0
            assert await admission.close(5) == 0
            pool.close()

    asyncio.run(whole())


def test_equal_settings_share_a_sender():
    async def scenario(senders, room):
        first = senders.take(config(), ANN, detailed=False)
        assert senders.take(config(), BOB, detailed=False) is first
        assert senders.take(config(), BOB, detailed=True) is not first
        assert room.used == 2

    run(scenario)


def test_one_that_is_not_used_gives_way_to_other_settings_and_one_in_use_does_not():
    async def scenario(senders, room):
        idle = senders.take(config(), ANN, detailed=False)
        used = senders.take(config(max_in_flight=7), ANN, detailed=False)
        senders.give(idle)
        assert senders.take(config(), ANN, detailed=False) is idle
        with pytest.raises(GatewayError, match="publish with 2 different settings"):
            senders.take(config(max_in_flight=8), BOB, detailed=False)
        senders.give(idle)
        senders.take(config(max_in_flight=8), BOB, detailed=False)
        assert senders.take(config(max_in_flight=7), BOB, detailed=False) is used
        assert room.used == 2

    run(scenario)


def test_a_broken_one_is_taken_by_no_other_and_closed_when_its_last_user_leaves():
    async def scenario(senders, room):
        broken = senders.take(config(), ANN, detailed=False)
        assert senders.take(config(), BOB, detailed=False) is broken
        broken.sender._end(ProduceError("TUBEMQ_PRODUCER_CLOSED", unacknowledged=0))
        other = senders.take(config(), BOB, detailed=False)
        assert other is not broken
        senders.give(broken)
        assert room.used == 2
        senders.give(broken)
        assert room.used == 1
        assert senders.take(config(), ANN, detailed=False) is other

    run(scenario)


def test_one_that_is_not_used_for_a_while_is_closed(monkeypatch):
    monkeypatch.setattr(publishing, "_IDLE_S", 0.02)

    async def scenario(senders, room):
        first = senders.take(config(), ANN, detailed=False)
        senders.give(first)
        assert senders.take(config(), ANN, detailed=False) is first
        await asyncio.sleep(0.03)
        assert room.used == 1, "it is in use again"
        senders.give(first)
        async with asyncio.timeout(5):
            while room.used:
                await asyncio.sleep(0.001)
        assert senders.take(config(), ANN, detailed=False) is not first

    run(scenario)
