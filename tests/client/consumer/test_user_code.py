"""Where functions of a consumer's user are called, and what becomes of what they raise."""

import asyncio
import logging
import threading

import pytest

from testkit.virtual_loop import in_virtual_time
from tests.client.aio.running import coroutine
from tests.threads import refuse_threads
from tests.waiting import until, wait_until
from tubemq_spark.client.consumer.user_code import UserLoop, UserThread
from tubemq_spark.errors import TubeMQConnectionError

ERRORS = [ValueError("no"), SystemExit(1), KeyboardInterrupt(), GeneratorExit()]


def raising(error):
    def fail():
        raise error

    return fail


def threads_of(consumer):
    return sorted(thread.name for thread in threading.enumerate() if thread.name.endswith(consumer))


@pytest.fixture
def user_thread():
    thread = UserThread()
    thread.name = "etl_user"
    yield thread
    asyncio.run(thread.end())
    wait_until(lambda: not threads_of("etl_user"))


@coroutine
async def test_a_thread_is_started_for_the_first_function_and_calls_one_after_the_other(user_thread):
    assert not threads_of("etl_user")
    called = []
    await asyncio.gather(
        *(user_thread.call("on_assigned", lambda number=number: called.append(number)) for number in range(9))
    )
    assert called == list(range(9))
    assert threads_of("etl_user") == ["tubemq-callbacks-etl_user"]


@coroutine
async def test_losses_do_not_wait_for_other_functions(user_thread):
    goes_on = threading.Event()
    waiting = asyncio.ensure_future(user_thread.call("on_assigned", lambda: goes_on.wait(20)))
    await user_thread.call("on_loss", lambda: None)
    assert not waiting.done()
    goes_on.set()
    await waiting


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@coroutine
async def test_what_a_function_raises_is_passed_on(user_thread, error):
    outcomes = await asyncio.gather(passed_on(user_thread, error), user_thread.call("on_loss", lambda: None))
    assert outcomes == [error, None]


async def passed_on(user_code, error):
    try:
        await user_code.call("on_loss", raising(error))
    except BaseException as raised:  # noqa: BLE001
        return raised


@pytest.mark.parametrize("error", [StopIteration("at its end"), StopAsyncIteration()], ids=repr)
@coroutine
async def test_the_end_of_an_iterator_is_an_error_as_others(user_thread, error):
    """A future cannot have it as its outcome."""
    with pytest.raises(Exception) as raised:  # noqa: PT011
        await user_thread.call("on_loss", raising(error))
    assert error in (raised.value, raised.value.__cause__)
    await user_thread.call("on_loss", lambda: None)


@coroutine
async def test_a_function_knows_that_it_is_called_and_others_know_that_they_are_not(user_thread):
    said = []
    await user_thread.call("on_revoked", lambda: said.append(user_thread.is_current()))
    assert said == [True]
    assert not user_thread.is_current()


@coroutine
async def test_a_caller_that_is_cancelled_lets_the_function_end(user_thread):
    goes_on, ended = threading.Event(), threading.Event()

    def work():
        goes_on.wait(20)
        ended.set()

    calling = asyncio.ensure_future(user_thread.call("on_revoked", work))
    await asyncio.sleep(0)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    goes_on.set()
    await user_thread.call("on_revoked", lambda: None)
    assert ended.is_set()


@coroutine
async def test_without_a_thread_the_caller_is_told_and_the_next_one_has_one(user_thread, monkeypatch):
    refuse_threads(monkeypatch, "tubemq-losses", times=1)
    with pytest.raises(TubeMQConnectionError, match="can't start new thread"):
        await user_thread.call("on_loss", lambda: None)
    await user_thread.call("on_loss", lambda: None)


@coroutine
async def test_coroutine_functions_are_called_in_the_loop_one_after_the_other():
    user_loop, called = UserLoop(), []

    async def first():
        await asyncio.sleep(0.01)
        called.append(asyncio.get_running_loop())

    await asyncio.gather(
        user_loop.call("on_assigned", first), user_loop.call("on_revoked", lambda: called.append("next"))
    )
    assert called == [asyncio.get_running_loop(), "next"]
    with pytest.raises(ValueError, match="no"):
        await user_loop.call("on_loss", raising(ValueError("no")))


@coroutine
async def test_a_task_that_a_function_has_begun_counts_as_the_function():
    user_loop, said = UserLoop(), []

    async def look():
        said.append(user_loop.is_current())

    async def begin():
        await asyncio.ensure_future(look())

    await user_loop.call("on_assigned", begin)
    await look()
    assert said == [True, False]


@in_virtual_time
async def test_a_function_that_takes_long_is_named_once(caplog):
    caplog.set_level(logging.WARNING)
    user_loop = UserLoop()
    user_loop.name = "etl_1"
    await user_loop.call("on_loss", lambda: asyncio.sleep(9))
    assert not caplog.records
    await user_loop.call("on_loss", lambda: asyncio.sleep(3_600))
    assert [record.getMessage() for record in caplog.records] == [
        "on_loss of etl_1 has not returned for 10 s, and holds up its consumer"
    ]


@coroutine
async def test_functions_that_wait_are_called_also_when_the_consumer_ends(user_thread):
    goes_on, called = threading.Event(), []
    calls = [
        asyncio.ensure_future(user_thread.call("on_revoked", call))
        for call in (lambda: goes_on.wait(20), lambda: called.append(1))
    ]
    await asyncio.sleep(0)
    await user_thread.end()
    goes_on.set()
    await asyncio.gather(*calls)
    assert called == [1]
    await until(lambda: not threads_of("etl_user"))
