"""The administration API by coroutines has every call of the one for threads."""

import inspect

import pytest

from tests.client.aio.consuming import client_of
from tubemq_spark.client.aio import AsyncMasterAdmin
from tubemq_spark.client.metadata.admin import MasterAdmin
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.errors import OptionError, TubeMQConnectionError


async def test_calls_are_awaited():
    with EmbeddedTubeMQ(topics={"demo": (1, 1)}) as server:
        async with client_of(server) as client:
            admin = client.admin(server.master_web, token="abc")
            assert await admin.topics() == {"demo"}
            await admin.add_topic("orders", [server.broker_id], stores=1)
            assert await admin.topic_brokers("orders", deleted=False) == {server.broker_id}
            with pytest.raises(OptionError, match="TUBEMQ_ADMIN_NO_TOKEN"):
                await client.admin(server.master_web).delete_topic("orders", [server.broker_id])
        with pytest.raises(TubeMQConnectionError, match="TUBEMQ_CLIENT_CLOSED"):
            await admin.topics()


def test_no_call_is_missing():
    def calls(owner):
        return {
            name: inspect.signature(call)
            for name, call in inspect.getmembers(owner, inspect.isfunction)
            if not name.startswith("_")
        }

    assert calls(AsyncMasterAdmin) == calls(MasterAdmin)
    assert all(inspect.iscoroutinefunction(getattr(AsyncMasterAdmin, name)) for name in calls(MasterAdmin))
