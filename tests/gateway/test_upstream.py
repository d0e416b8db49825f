"""Routes of all groups are refreshed beside each other: one that takes long holds up none of the others.

The masters are looked for in a gateway that has enough to do.
"""

import asyncio
import logging
from types import SimpleNamespace

from tubemq_spark.errors import TubeMQConnectionError
from tubemq_spark.gateway.admission import WorkLimit
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.gateway.upstream import _REFRESHED_AT_ONCE, Discovery, RouteRefresh
from tubemq_spark.model import Endpoint
from tubemq_spark.net.fair_quota import FairQuota, Owner


class Access:
    """Counts how often its routes were refreshed; may take for ever, or fail."""

    def __init__(self, group):
        self.config = SimpleNamespace(group=group)
        self.routes = SimpleNamespace(refresh=self.refresh)
        self.begun = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure = None

    async def refresh(self):
        self.begun += 1
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure


async def settled():
    for _ in range(50):
        await asyncio.sleep(0)


def test_a_group_whose_master_hangs_holds_up_no_other_group():
    async def rounds():
        refresh = RouteRefresh()
        slow, *quick = [Access(f"group{number}") for number in range(5)]
        slow.gate.clear()
        for number in range(1, 4):
            refresh.begin([slow, *quick])
            await settled()
            assert [access.begun for access in quick] == [number] * 4
        assert slow.begun == 1
        slow.gate.set()
        await settled()
        refresh.begin([slow])
        await settled()
        assert slow.begun == 2
        await refresh.stop()

    asyncio.run(rounds())


def test_only_so_many_are_asked_for_at_once():
    async def one_round():
        refresh = RouteRefresh()
        groups = [Access(f"group{number}") for number in range(3 * _REFRESHED_AT_ONCE)]
        for access in groups:
            access.gate.clear()
        refresh.begin(groups)
        await settled()
        assert sum(access.begun for access in groups) == _REFRESHED_AT_ONCE
        await refresh.stop()
        assert not refresh._under_way

    asyncio.run(one_round())


def test_a_group_that_cannot_be_refreshed_is_logged_and_tried_again(caplog):
    caplog.set_level(logging.WARNING, "tubemq_spark.gateway")

    async def rounds():
        refresh = RouteRefresh()
        refused, broken = Access("refused"), Access("broken")
        refused.failure = TubeMQConnectionError("TUBEMQ_NO_MASTER", during="asking", tried="m:1")
        broken.failure = ZeroDivisionError()
        for _ in range(2):
            refresh.begin([refused, broken])
            await settled()
        assert (refused.begun, broken.begun) == (2, 2)
        await refresh.stop()

    asyncio.run(rounds())
    assert any("group refused were not refreshed" in one.getMessage() for one in caplog.records)
    assert any(one.exc_info for one in caplog.records)


def test_the_masters_stay_while_too_many_wait_to_ask_over_http(caplog):
    async def refreshed():
        line = FairQuota(1)
        administration = WorkLimit("questions over HTTP", 1, line, 10, "g")
        assert administration.quota.take(Owner("client"))
        assert line.take(Owner("client"))
        masters = (Endpoint("localhost", 8715),)
        settings = GatewaySettings(master_servers=masters, master_discovery="dns").validate()
        await Discovery(settings, administration).refresh()

    asyncio.run(refreshed())
    assert "the masters stay localhost:8715, since others cannot be found" in caplog.text
    assert "1 calls wait already" in caplog.text
