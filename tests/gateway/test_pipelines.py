"""Pipelines are shared by what has equal settings, and closed when they are broken or not used any more."""

import asyncio

import pytest

from testkit.virtual_loop import in_virtual_time
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.errors import GatewayError, ProduceError
from tubemq_spark.gateway import pipelines as module
from tubemq_spark.gateway.pipelines import Pipelines
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import Endpoint
from tubemq_spark.net.fair_quota import FairQuota, Owner

MASTERS = (Endpoint("127.0.0.1", 9),)
ANN, BOB = Owner("ann", "1"), Owner("bob", "1")


def config(**settings):
    return ClientConfig(MASTERS, "group", **settings)


def run(scenario, **changes):
    """Run a scenario, in virtual time, with pipelines that reach no server, and their quota."""
    settings = GatewaySettings(master_servers=MASTERS, node_name="g1", **changes)

    @in_virtual_time
    async def whole():
        quota = FairQuota(2)
        pipelines = Pipelines(settings, quota)
        try:
            await scenario(pipelines, quota)
        finally:
            await pipelines.close(5)
            assert quota.used == 0
            assert pipelines.closing == 0

    whole()


def test_equal_settings_share_a_pipeline():
    async def scenario(pipelines, quota):
        first = pipelines.take(config(), ANN, detailed=False)
        assert pipelines.take(config(), BOB, detailed=False) is first
        assert pipelines.take(config(), BOB, detailed=True) is not first
        assert quota.used == 2

    run(scenario)


def test_one_that_is_not_used_gives_way_to_other_settings_and_one_in_use_does_not():
    async def scenario(pipelines, quota):
        idle = pipelines.take(config(), ANN, detailed=False)
        used = pipelines.take(config(max_in_flight=7), ANN, detailed=False)
        pipelines.give_back(idle)
        assert pipelines.take(config(), ANN, detailed=False) is idle
        with pytest.raises(GatewayError, match="publish with 2 different settings"):
            pipelines.take(config(max_in_flight=8), BOB, detailed=False)
        pipelines.give_back(idle)
        pipelines.take(config(max_in_flight=8), BOB, detailed=False)
        assert pipelines.take(config(max_in_flight=7), BOB, detailed=False) is used
        assert quota.used == 2

    run(scenario)


def test_a_broken_one_is_taken_by_no_other_and_closed_when_its_last_user_leaves():
    async def scenario(pipelines, quota):
        broken = pipelines.take(config(), ANN, detailed=False)
        assert pipelines.take(config(), BOB, detailed=False) is broken
        broken.pipeline.break_off(ProduceError("TUBEMQ_PRODUCER_CLOSED", unacknowledged=0))
        other = pipelines.take(config(), BOB, detailed=False)
        assert other is not broken
        pipelines.give_back(broken)
        assert quota.used == 2
        pipelines.give_back(broken)
        assert quota.used == 1
        assert pipelines.take(config(), ANN, detailed=False) is other

    run(scenario)


def test_one_that_is_not_used_for_a_while_is_closed():
    async def scenario(pipelines, quota):
        first = pipelines.take(config(), ANN, detailed=False)
        pipelines.give_back(first)
        assert pipelines.take(config(), ANN, detailed=False) is first
        await asyncio.sleep(module._IDLE_S + 1)
        assert quota.used == 1, "it is in use again"
        pipelines.give_back(first)
        await asyncio.sleep(module._IDLE_S - 1)
        assert quota.used == 1
        await asyncio.sleep(2)
        assert quota.used == 0
        assert pipelines.take(config(), ANN, detailed=False) is not first

    run(scenario)
