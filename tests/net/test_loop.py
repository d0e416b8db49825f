"""Coroutines in the process's loop, for threads: results, interrupts, children, the exit, reading ahead."""

import asyncio
import contextlib
import gc
import signal
import subprocess
import sys
import threading
import weakref

import pytest

from testkit.children import forks, in_child
from tests.waiting import wait_until
from tubemq_spark.errors import LocalProtocolError
from tubemq_spark.net import loop
from tubemq_spark.net.retry import Sleep


class NotWantedError(Exception):
    pass


class Endless:
    """A coroutine that waits until it is cancelled, and notes that it has begun, and how it ended."""

    def __init__(self, last_words_s=0.0):
        self.begun, self.cancelled = threading.Event(), threading.Event()
        self._last_words_s = last_words_s

    async def __call__(self):
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            if self._last_words_s:
                await asyncio.sleep(self._last_words_s)
            self.cancelled.set()


async def same(value):
    await asyncio.sleep(0)
    return value


async def fail():
    await asyncio.sleep(0)
    raise NotWantedError("so it is")


def test_a_coroutine_runs_in_the_loops_thread_and_its_result_comes_back():
    async def name():
        assert loop.in_loop()
        return threading.current_thread().name, threading.current_thread().daemon

    assert loop.run(name()) == ("tubemq-loop", True)
    assert loop.run(same(3), Sleep(check=lambda: None)) == 3
    assert not loop.in_loop()


def test_all_that_run_at_once_share_one_thread():
    first, second = [loop.submit(same(number)) for number in (1, 2)]
    assert (first.result(5), second.result(5)) == (1, 2)
    assert [thread.name for thread in threading.enumerate()].count("tubemq-loop") == 1


async def fail_at_once():
    await asyncio.sleep(0)
    raise NotWantedError("so it is")
    yield


@pytest.mark.parametrize("raises", [lambda: loop.run(fail()), lambda: list(loop.iterate(fail_at_once()))])
def test_what_a_coroutine_or_a_generator_raises_is_raised_and_keeps_nothing_alive(raises):
    gc.disable()
    try:
        with pytest.raises(NotWantedError, match="so it is") as caught:
            raises()
        error = weakref.ref(caught.value)
        del caught
        assert error() is None, "something refers to it"
    finally:
        gc.enable()


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_what_would_end_a_program_ends_one_coroutine(error, caplog):
    async def fail():
        raise error

    async def go_on():
        await released

    async def wait():
        nonlocal released
        released = asyncio.get_running_loop().create_future()
        return released

    released = loop.run(wait())
    other = loop.submit(go_on())
    with pytest.raises(error):
        loop.run(fail())
    assert not other.done()
    loop.call_soon(released.set_result, None)
    other.result(20)
    assert "raised what ends others" in caplog.text


def test_a_time_out_of_the_coroutine_is_not_that_of_the_caller():
    async def time_out():
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        loop.run(time_out(), Sleep(check=lambda: None))
    endless = Endless()
    submitted = loop.submit(endless())
    with pytest.raises(TimeoutError):
        submitted.result(0.01)
    submitted.end()
    assert endless.cancelled.is_set()


def test_what_a_check_raises_cancels_the_coroutine_and_its_end_is_waited_for():
    endless = Endless(last_words_s=0.01)

    def check():
        if endless.begun.is_set():
            raise NotWantedError

    with pytest.raises(NotWantedError):
        loop.run(endless(), Sleep(check=check))
    assert endless.cancelled.is_set()
    assert loop.task_count() == 0


def interrupt_when(event):
    def interrupt():
        assert event.wait(60)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread


def test_an_interrupt_cancels_the_coroutine_and_waits_for_its_end():
    endless = Endless(last_words_s=0.01)
    other = interrupt_when(endless.begun)
    with pytest.raises(KeyboardInterrupt):
        loop.run(endless())
    other.join()
    assert endless.cancelled.is_set()


def test_an_interrupt_is_not_held_up_by_a_coroutine_that_does_not_end(monkeypatch):
    monkeypatch.setattr(loop, "_CANCEL_S", 0.01)
    endless = Endless(last_words_s=0.5)
    other = interrupt_when(endless.begun)
    with pytest.raises(KeyboardInterrupt):
        loop.run(endless())
    assert not endless.cancelled.is_set()
    other.join()
    assert endless.cancelled.wait(60)


@pytest.mark.parametrize("line", range(1, 40))
def test_an_interrupt_in_any_line_harms_neither_the_loop_nor_others(line):
    """A trace function raises, as the handler of a signal might, behind so many lines of this module."""
    left = line
    assert loop.run(same(0)) == 0  # an interrupt of its start leaves objects to the garbage collector

    def trace(frame, event, _):
        nonlocal left
        if frame.f_globals.get("__name__") not in (loop.__name__, "threading", "asyncio.base_events"):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    previous, coroutine = sys.gettrace(), same(1)
    sys.settrace(trace)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            loop.run(coroutine)
    finally:
        sys.settrace(previous)
        coroutine.close()  # the first lines have not taken it over
    assert loop.run(same(2)) == 2


def test_a_blocking_call_in_the_loops_thread_is_refused_at_once():
    async def numbers():
        yield 1

    async def calls():
        for blocking in (
            lambda: loop.run(same(1)),
            lambda: next(loop.iterate(numbers())),
            lambda: loop.submit(same(1)).result(),
        ):
            with pytest.raises(LocalProtocolError, match="in the thread of the event loop"):
                blocking()

    loop.run(calls())


def test_a_listener_is_called_before_and_after_the_end():
    release, ends = threading.Event(), []

    async def wait():
        await loop.in_thread(release.wait, "test-release")

    submitted = loop.submit(wait())
    submitted.when_done(lambda: ends.append("early"))
    assert ends == []
    release.set()
    submitted.wait()
    wait_until(lambda: ends)
    submitted.when_done(lambda: ends.append("late"))
    assert ends == ["early", "late"]


@forks
def test_a_child_has_a_loop_of_its_own_and_waits_for_nothing_of_its_parent():
    endless, read = Endless(), []
    parents = loop.submit(endless())
    assert endless.begun.wait(60)

    async def numbers():
        for number in range(5):
            yield number

    items = loop.iterate(numbers(), ahead=0)
    assert next(items) == 0

    def check():
        nonlocal items
        assert loop.task_count() == 0
        with pytest.raises(LocalProtocolError, match="in the parent process"):
            parents.result()
        parents.end()
        with pytest.raises(LocalProtocolError, match="in the parent process"):
            next(items)
        del items
        assert loop.run(same(1)) == 1

    in_child(check)
    assert not endless.cancelled.is_set()
    read.extend(items)
    assert read == [1, 2, 3, 4]
    parents.end()


@forks
def test_a_child_is_not_held_up_by_a_lock_that_a_thread_of_its_parent_had():
    with loop._lock:
        in_child(lambda: loop.run(same(1)))


LEAVES = """
import asyncio, atexit, concurrent.futures, contextlib, threading
{before}
from tubemq_spark.errors import LocalProtocolError
from tubemq_spark.net import loop
begun = threading.Event()
async def endless():
    begun.set()
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        print("ended", flush=True)
def run():
    with contextlib.suppress(concurrent.futures.CancelledError):
        loop.run(endless())
threading.Thread(target=run, daemon=True).start()
assert begun.wait(60)
print("leaves", flush=True)
"""
CALLS_AT_THE_END = """
async def late(): pass
def call():
    try:
        loop.run(late())
    except LocalProtocolError as error:
        print(str(error).partition(":")[0] and "refused", flush=True)
atexit.register(call)
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("before", "words"), [("", []), (CALLS_AT_THE_END, ["refused"])], ids=["alone", "with calls at the end"]
)
def test_a_process_that_exits_ends_what_is_under_way_and_refuses_what_comes_later(before, words):
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", LEAVES.format(before=before)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ended.stdout.split() == ["leaves", "ended", *words]
    assert ended.stderr == ""


class Counted:
    """An asynchronous generator that counts what it yields, and notes its end."""

    def __init__(self, most=100):
        self.asked, self.ended = 0, threading.Event()
        self._most = most

    async def __call__(self):
        try:
            for number in range(self._most):
                self.asked = number + 1
                yield number
        finally:
            await asyncio.sleep(0)
            self.ended.set()


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_a_generator_is_never_further_ahead_than_allowed(ahead):
    items = Counted()
    iterator = loop.iterate(items(), ahead=ahead)
    assert items.asked == 0, "nothing was asked for"
    for number in range(20):
        assert next(iterator) == number
        wait_until(lambda: items.asked == number + 1 + ahead)  # noqa: B023
        loop.run(asyncio.sleep(0))
        loop.run(asyncio.sleep(0))
        assert items.asked == number + 1 + ahead
    iterator.close()
    assert items.ended.is_set()
    assert loop.task_count() == 0


@pytest.mark.parametrize("ahead", [0, 2])
def test_all_items_come_in_order_and_then_the_end(ahead):
    items = Counted(most=1_000)
    assert list(loop.iterate(items(), ahead=ahead)) == list(range(1_000))
    assert items.ended.is_set()


def test_what_a_generator_raises_comes_behind_its_items():
    async def two():
        yield 1
        yield 2
        raise NotWantedError("the third")

    iterator, read = loop.iterate(two(), ahead=2), []
    with pytest.raises(NotWantedError, match="the third"):
        read.extend(iterator)
    assert read == [1, 2]


class Slow:
    """An asynchronous generator whose second item does not come."""

    def __init__(self):
        self.waiting, self.ended = threading.Event(), threading.Event()

    async def __call__(self):
        try:
            yield 1
            self.waiting.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.ended.set()


def test_closing_ends_what_the_generator_waits_for():
    slow = Slow()
    iterator = loop.iterate(slow())
    assert next(iterator) == 1
    assert slow.waiting.wait(60)
    iterator.close()
    assert slow.ended.is_set()


def test_an_interrupt_ends_the_generator():
    slow = Slow()
    iterator = loop.iterate(slow(), ahead=0)
    assert next(iterator) == 1
    other = interrupt_when(slow.waiting)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    other.join()
    assert slow.ended.is_set()


def test_what_a_check_raises_ends_the_generator():
    slow = Slow()

    def check():
        raise NotWantedError

    iterator = loop.iterate(slow(), wait=Sleep(check=check))
    assert next(iterator) == 1
    with pytest.raises(NotWantedError):
        next(iterator)
    assert slow.ended.is_set()


def test_a_caller_may_be_told_that_no_item_has_come():
    slow = Slow()
    iterator = loop.iterate(slow(), idle=0)
    assert [item for item in (next(iterator) for _ in range(3)) if item] == [1]
    iterator.close()


def test_an_iterator_that_is_collected_in_the_loops_thread_does_not_stop_the_loop():
    slow = Slow()
    iterator = loop.iterate(slow())
    assert next(iterator) == 1
    holder = [iterator]
    del iterator

    async def drop():
        holder.clear()

    loop.run(drop())
    assert slow.ended.wait(60)


def test_a_function_that_blocks_holds_up_its_caller_alone():
    release = threading.Event()
    submitted = loop.submit(loop.in_thread(lambda: release.wait(60), "test-blocks"))
    assert loop.run(same(1)) == 1
    assert not submitted.done()
    release.set()
    assert submitted.result(60) is True


def test_what_a_function_in_a_thread_raises_is_raised():
    def fail():
        raise NotWantedError

    with pytest.raises(NotWantedError):
        loop.run(loop.in_thread(fail, "test-fails"))


def test_a_caller_that_leaves_does_not_wait_for_the_function():
    release = threading.Event()
    submitted = loop.submit(loop.in_thread(lambda: release.wait(60), "test-blocks"))
    wait_until(lambda: any(thread.name == "test-blocks" for thread in threading.enumerate()))
    submitted.end()
    assert submitted.done()
    release.set()
