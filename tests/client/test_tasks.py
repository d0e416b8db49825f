"""The tasks of one owner: they end before it does, and what they raise is seen."""

import asyncio
import logging

import pytest

from testkit.virtual_loop import in_virtual_time
from tubemq_spark.client.tasks import OwnedTasks


async def fail():
    raise KeyError("of the task")


@in_virtual_time
async def test_what_is_carried_out_goes_on_when_its_caller_is_cancelled():
    tasks, ended = OwnedTasks(), []

    async def work():
        await asyncio.sleep(1)
        ended.append("work")
        return 7

    assert await tasks.carry_out(work(), "work") == 7
    caller = asyncio.ensure_future(tasks.carry_out(work(), "work"))
    await asyncio.sleep(0.5)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert len(tasks) == 1
    await tasks.ended()
    assert ended == ["work"] * 2
    assert not len(tasks)


@in_virtual_time
async def test_cancelling_waits_for_all_ends():
    tasks, ended = OwnedTasks(), []

    async def end_slowly(seconds):
        try:
            await asyncio.sleep(3_600)
        finally:
            await asyncio.sleep(seconds)
            ended.append(seconds)

    for seconds in (2, 1):
        tasks.start(end_slowly(seconds), "slowly")
    await asyncio.sleep(0)
    await tasks.cancel()
    assert ended == [1, 2]


@in_virtual_time
async def test_a_task_that_another_one_begins_at_its_end_is_waited_for_too():
    tasks, ended = OwnedTasks(), []

    async def last():
        await asyncio.sleep(1)
        ended.append("last")

    async def first():
        tasks.start(last(), "last")

    tasks.start(first(), "first")
    await tasks.ended()
    assert ended == ["last"]


@pytest.mark.parametrize("alone", [True, False])
@in_virtual_time
async def test_an_error_that_none_awaits_is_a_warning(alone, caplog):
    caplog.set_level(logging.DEBUG)
    tasks = OwnedTasks()
    tasks.start(fail(), "what fails", alone=alone)
    await tasks.ended()
    await asyncio.sleep(0)
    (record,) = (one for one in caplog.records if one.name == "tubemq_spark.client.tasks")
    assert record.getMessage() == "what fails failed"
    assert record.levelno == (logging.WARNING if alone else logging.DEBUG)
    assert "of the task" in str(record.exc_info[1])


@in_virtual_time
async def test_what_a_task_raises_reaches_its_caller():
    with pytest.raises(KeyError, match="of the task"):
        await OwnedTasks().carry_out(fail(), "what fails")
