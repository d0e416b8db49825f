"""Signals in any line of a consumer: handlers that stop or close it, and exceptions that handlers raise.

A trace function stands in for the signal: it runs where a handler would run, on top of the line.
"""

import contextlib
import itertools
import linecache
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from testkit.examples import step
from tests.client.assigned import TOPIC, client_of, consumer_of, partition, produce
from tests.client.members import member
from tests.waiting import wait_until
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.errors import ConsumeError
from tubemq_spark.net import loop
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.errcodes import ErrCode

PARTS = ("tubemq_spark.client.", "tubemq_spark.net.loop")
PARTITIONS = [partition(1), partition(1, 10_000)]
# One that an exception has kept from the event loop.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")


@pytest.fixture(scope="module")
def server():
    settings = EmbeddedSettings(balance_period_ms=100)
    with EmbeddedTubeMQ(topics={TOPIC: (2, 1)}, settings=settings) as running:
        for one in PARTITIONS:
            produce(running, [b"message %d" % number for number in range(5)], where=one)
        yield running


def traced(work, line, act):
    """Do some work and call a function at a line of it; return how many lines of the client it had."""
    lines = 0

    def trace(frame, event, _):
        nonlocal lines
        if not frame.f_globals.get("__name__", "").startswith(PARTS):
            return None
        if event == "line":
            lines += 1
            if lines == line:
                act()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


class Interrupted(BaseException):
    """What a handler raises, as that of Ctrl-C does."""


def interrupted(work, line):
    """Do some work and raise at a line of it; return how many lines it had."""

    def interrupt():
        frame = sys._getframe(2)
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        # In these lines the interpreter runs no handlers, but a trace function. The end of a with statement
        # is a line before the call that gives the lock back. The line of a try is an instruction that does
        # nothing, and which the compiler leaves out of the with statement around it.
        if not text.startswith(("with ", "try:")):
            raise Interrupted

    with contextlib.suppress(Interrupted):
        return traced(work, line, interrupt)


def in_a_thread(work):
    """Do some work that must end; return what it raised."""
    raised = []

    def run():
        try:
            work()
        except BaseException as error:  # noqa: BLE001
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it hangs"
    return raised[0] if raised else None


def test_an_exception_in_any_line_of_a_fetch_leaves_no_partition_behind(server):
    with consumer_of(server, confirm_timeout_ms=200) as consumer:
        for one in PARTITIONS:
            consumer.connect(one, 0)

        def fetch():
            batches.append(consumer.fetch(5_000))

        def confirm():
            """Roll the batches back, and return their partitions."""
            confirmed = [batch.partition for batch in batches]
            while batches:
                with contextlib.suppress(ConsumeError):  # its time may be over
                    consumer.confirm(batches.pop(), consumed=False)
            return confirmed

        def comes(one):
            fetch()
            return one in confirm()

        batches = []
        count = interrupted(fetch, 0)
        assert count > 20
        for line in range(1, count):
            confirm()
            interrupted(fetch, line)
            for one in PARTITIONS:  # what the exception took from the user comes when its time is over
                wait_until(lambda: comes(one), 20)  # noqa: B023


def test_a_batch_comes_again_at_once_that_an_exception_kept_from_its_user(server, monkeypatch):
    def interrupt(_):
        raise Interrupted

    with consumer_of(server, confirm_timeout_ms=3_600_000) as consumer:
        consumer.connect(PARTITIONS[0], 0)
        with monkeypatch.context() as patch:
            patch.setattr(loop.Submitted, "result", interrupt)
            with pytest.raises(Interrupted):
                consumer.fetch(5_000)
        assert consumer.fetch(5_000).partition == PARTITIONS[0]


def test_a_consumer_stops_in_any_line(server):
    """In the last of them the thread sleeps, and another one stops the consumer."""
    with consumer_of(server) as consumer:
        for line in itertools.count(1):
            stopped, ended = [], threading.Event()

            def stop(stopped=stopped):
                consumer.stop()
                stopped.append(True)

            def fetch(line=line, stop=stop, ended=ended):
                try:
                    traced(lambda: consumer.fetch(-1), line, stop)
                finally:
                    ended.set()

            consumer._core.state.stopped = False
            fetching = ThreadPoolExecutor(1).submit(fetch)
            wait_until(lambda: ended.is_set() or consumer._core.line.waiting)  # noqa: B023
            if is_last := not stopped and not ended.is_set():
                consumer.stop()
            error = fetching.exception(20)
            assert isinstance(error, ConsumeError)
            assert error.code == ErrCode.CLIENT_SHUTDOWN
            if is_last:
                assert line > 10
                break


WORKS = {
    "open": lambda consumer, _: consumer.open(),
    "connect": lambda consumer, _: consumer.connect(PARTITIONS[1]),
    "fetch": lambda consumer, _: consumer.fetch(200),
    "confirm": lambda consumer, batch: consumer.confirm(batch, consumed=False),
    "positions": lambda consumer, _: consumer.positions(),
}


@pytest.mark.parametrize("what", WORKS)
def test_a_consumer_is_closed_in_any_line(server, what):
    """The handler waits until that has ended, on top of the line."""

    def close_at(line):
        """Return how many lines the work has."""
        lines = []

        def work():
            batch = None
            if what != "open":
                consumer.open()
                consumer.connect(PARTITIONS[0], 0)
                batch = consumer.fetch(5_000) if what == "confirm" else None
            lines.append(traced(lambda: WORKS[what](consumer, batch), line, close))

        def close():
            closed.append(consumer.close())

        closed = []
        with client_of(server) as client:
            consumer = client.assigned_consumer(TOPIC)
            error = in_a_thread(work)
            assert error is None or isinstance(error, ConsumeError), f"at line {line}"
            assert all(closed)
            assert in_a_thread(consumer.close) is None
            assert consumer.closed
        return lines

    (count,) = close_at(0)
    for line in range(1, count, max(1, count // 30 * step())):
        close_at(line)


def test_stopping_waits_for_nothing(server):
    """A handler of a signal may interrupt a thread for which the event loop waits."""
    with consumer_of(server) as consumer:
        goes_on = threading.Event()
        loop.call_soon(goes_on.wait)
        assert in_a_thread(consumer.stop) is None
        goes_on.set()
        with pytest.raises(ConsumeError, match="is stopped; close it"):
            consumer.fetch(0)


def test_a_handler_stops_a_consumer_that_runs(server):
    seen = []
    with consumer_of(server) as consumer:
        for one in PARTITIONS:
            consumer.connect(one, 0)

        def handle(batch):
            seen.append(batch)
            if len(seen) == 2:
                consumer.stop()

        assert in_a_thread(lambda: consumer.run(handle)) is None
        assert [consumer.positions()[batch.partition].offset for batch in seen] == [140, 140], "confirmed"
        assert in_a_thread(lambda: list(consumer.messages())) is None
        with pytest.raises(ConsumeError, match="is stopped; close it"):
            consumer.fetch(0)


def test_a_member_is_closed_by_its_loss_policy(server):
    server.faults.corrupt(Method.GET_MESSAGE, b"message 4", times=1)
    # A group that has read nothing: others may have confirmed the message.
    closing = []

    def close(_):
        closing.append((consumer.close(), consumer._core.state.stopped))

    with member(server, "losing", on_loss=close) as consumer:
        wait_until(lambda: len(consumer.connected) == 2, 20)
        error = in_a_thread(lambda: [consumer.fetch(10_000) for _ in range(3)])
        assert isinstance(error, ConsumeError)
        wait_until(lambda: closing)  # the fetch may hear of it first
        assert closing == [(False, True)], "it stops at once, and closes in the background"
        wait_until(consumer._core._closing.done)


def test_a_close_that_has_no_more_time_goes_on_by_itself(server):
    with client_of(server, rpc_timeout_ms=60_000) as client:
        consumer = client.assigned_consumer(TOPIC).open()
        consumer.connect(PARTITIONS[0])
        held = server.faults.hold(Method.PARTITION_REGISTER)
        assert consumer.close(0.05) is False
        assert consumer.closed
        held.release()
        assert consumer.close(20) is True


@contextlib.contextmanager
def ctrl_c(handler):
    """Make a function handle SIGINT in the main thread, which runs the test."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def press_ctrl_c():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def interrupt(*_):
    raise Interrupted


@pytest.mark.parametrize("closes", [True, False])
def test_a_connect_that_is_interrupted_gives_its_partition_back(server, closes):
    """The broker has carried it out, and its answer has not come."""
    with client_of(server, "interrupted") as client, ctrl_c(interrupt), ThreadPoolExecutor(1) as keyboard:
        consumer = client.assigned_consumer(TOPIC).open()
        held = server.faults.hold(Method.PARTITION_REGISTER, carried_out=True, times=1)

        def press():
            wait_until(lambda: held.hits)
            press_ctrl_c()

        pressed = keyboard.submit(press)
        with pytest.raises(Interrupted):
            consumer.connect(PARTITIONS[0])
        pressed.result(20)
        held.release()
        assert consumer.connected == ()
        if closes:
            assert consumer.close(20) is True
        with consumer_of(server, group="interrupted") as another:
            another.connect(PARTITIONS[0])
            assert another.connected == (PARTITIONS[0],)


@pytest.mark.parametrize("what", ["stop", "close"])
def test_a_handler_ends_a_fetch_that_waits(server, what):
    said = []
    with (
        client_of(server, "handled") as client,
        client.assigned_consumer(TOPIC) as consumer,
        ctrl_c(lambda *_: said.append(getattr(consumer, what)())),
        ThreadPoolExecutor(1) as keyboard,
    ):

        def press():
            wait_until(lambda: consumer._core.line.waiting)
            press_ctrl_c()

        pressed = keyboard.submit(press)
        with pytest.raises(ConsumeError, match=f"is {what}"):
            consumer.fetch(-1)
        pressed.result(20)
    assert said == [None if what == "stop" else True], "the handler waits until all is closed"


def test_closing_waits_for_a_connect_under_way_and_gives_its_partition_back(server):
    with client_of(server, "waiting", rpc_timeout_ms=60_000) as client:
        consumer = client.assigned_consumer(TOPIC).open()
        held = server.faults.hold(Method.PARTITION_REGISTER, carried_out=True, times=1)
        with ThreadPoolExecutor(1) as thread:
            connecting = thread.submit(consumer.connect, PARTITIONS[0])
            wait_until(lambda: held.hits)
            assert consumer.close(0.05) is False, "its broker has not answered"
            held.release()
            assert isinstance(connecting.exception(20), ConsumeError)
        assert consumer.close(20) is True
    with consumer_of(server, group="waiting") as another:
        another.connect(PARTITIONS[0])
        assert another.connected == (PARTITIONS[0],)
