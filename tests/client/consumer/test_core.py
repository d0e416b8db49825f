"""The life of a consumer as its core has it, whatever its kind."""

import asyncio
import contextlib

import pytest

from testkit.virtual_loop import in_virtual_time
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.engine import EngineCore
from tubemq_spark.client.consumer.life import Changes
from tubemq_spark.client.consumer.user_code import UserLoop
from tubemq_spark.client.consumer_config import Subscription
from tubemq_spark.errors import ConsumeError
from tubemq_spark.model import Endpoint


class Core(EngineCore):
    """A consumer whose start takes a second, and begins a task that does not end by itself."""

    def __init__(self):
        config = ClientConfig((Endpoint("127.0.0.1", 1),), "etl")
        super().__init__(config, Subscription.of("demo"), UserLoop())
        self.left = False

    async def _start(self):
        self.tasks.start(asyncio.sleep(3_600), "news")
        await asyncio.sleep(1)

    async def _maintain(self):
        await asyncio.sleep(3_600)

    async def _give_up(self):
        pass

    async def _end(self):
        assert not len(self.tasks)
        self.left = True


@in_virtual_time
async def test_what_an_opening_has_begun_ends_when_the_consumer_was_closed_in_between():
    core = Core()
    opening = asyncio.create_task(core.open())
    await asyncio.sleep(0.5)
    assert await core.close() is True
    with pytest.raises(ConsumeError, match="TUBEMQ_CONSUMER_CLOSED"):
        await opening
    assert core.left
    assert not len(core.tasks)


@in_virtual_time
async def test_closing_ends_all_tasks_and_then_leaves():
    core = Core()
    await core.open()
    assert await core.close() is True
    assert core.left
    assert not len(core.tasks)


@in_virtual_time
async def test_waits_whose_time_is_over_leave_nothing_while_nothing_changes():
    changes = Changes()
    for _ in range(3):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await changes.until(lambda: False)
    assert not changes._waiting
