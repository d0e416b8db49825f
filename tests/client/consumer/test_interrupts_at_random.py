"""Ctrl-C at any moment of what a thread does with its consumer: no message is lost, and nothing is left."""

import contextlib
import gc
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from testkit.examples import examples
from tests.client.assigned import TOPIC, numbered, produce
from tests.client.members import PARTITIONS, client_of, member, shares
from tests.client.ways import WAYS, served
from tests.waiting import wait_until
from tubemq_spark.errors import ConsumeError
from tubemq_spark.net import loop

FEW = 500
# One that an interrupt has kept from the event loop.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")


class Interrupted(BaseException):
    """What a handler raises, as that of Ctrl-C does."""


class Keyboard:
    """Presses Ctrl-C, at a random moment of what the main thread does."""

    def __init__(self, random):
        self._random = random
        self._is_armed = False
        self._thread = ThreadPoolExecutor(1)
        self.count = 0
        """How often something was interrupted."""

    def __enter__(self):
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_):
        self._thread.shutdown()
        signal.signal(signal.SIGINT, self._before)

    def interrupt(self, work, seconds):
        """Do some work that takes about so long, and interrupt it unless it ends before."""
        pressed = self._thread.submit(self._press, self._random.uniform(0, seconds))
        with contextlib.suppress(Interrupted):
            self._is_armed = True
            work()
            self._is_armed = False
        pressed.result(20)

    def _press(self, seconds):
        time.sleep(seconds)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    def _handle(self, *_):
        if self._is_armed:
            self._is_armed = False
            self.count += 1
            raise Interrupted


class User:
    """Reads with a consumer in several ways, and remembers what it has seen."""

    def __init__(self, consumer):
        self.consumer = consumer
        self.out = []
        """Batches that may be confirmed."""
        self.seen = set()
        self.confirmed = set()
        """What came with batches of which a confirmation has returned."""

    def fetch(self):
        if (batch := self.consumer.fetch(200)) is not None:
            self._see(batch)
            self.out.append(batch)

    def confirm(self):
        while self.out:
            batch = self.out[-1]
            with contextlib.suppress(ConsumeError):  # its time may be over, and it may have been confirmed
                self.consumer.confirm(batch)
                self.confirmed.update(record.value for record in batch)
            self.out.pop()

    def seek(self):
        for partition, offset in self.consumer.committed().items():
            self.consumer.seek(partition, offset)

    def pause(self):
        self.consumer.pause(self.consumer.connected)
        self.consumer.resume()

    def run(self):
        batches = []

        def handle(batch):
            self._see(batch)
            batches.append(batch)
            if len(batches) == 5:
                raise EOFError

        with contextlib.suppress(EOFError):
            self.consumer.run(handle)

    def messages(self):
        with contextlib.closing(self.consumer.messages()) as records:
            for number, record in enumerate(records):
                self._see([record])
                if number == 50:
                    break

    def _see(self, batch):
        values = {record.value for record in batch}
        assert not values & self.confirmed, "it was confirmed"
        self.seen |= values


server = served(stores=4, ways=WAYS, balance_period_ms=50, max_entries=20)


def duration_of(work):
    began = time.monotonic()
    work()
    return time.monotonic() - began


def test_no_message_is_lost_and_none_that_was_confirmed_comes_again(server):
    chance, sent = random.Random(46), []

    def send_more():
        """Produce messages unless there are enough to read."""
        if len(sent) - len(user.seen) < FEW:
            more = numbered(2 * FEW, len(sent))
            sent.extend(more)
            produce(server, more)

    with member(server, confirm_timeout_ms=300, rebalance_wait_ms=100) as consumer:
        shares(consumer)
        user = User(consumer)
        send_more()
        works = [user.fetch, user.confirm, user.pause, user.run, user.messages]
        if not getattr(server, "gateways", ()):  # whose protocol moves no member of a group
            works.append(user.seek)
        seconds = {work: duration_of(work) for work in works}
        with Keyboard(chance) as keyboard:
            while keyboard.count < examples(150, by_night=2_000):
                send_more()
                work = chance.choice(works)
                keyboard.interrupt(work, seconds[work])
        assert len(consumer.connected) == PARTITIONS
        assert consumer.close(20)
    with member(server) as other:
        rest = User(other)
        rest.confirmed, rest.seen = user.confirmed, user.seen
        while len(rest.seen) < len(sent):
            rest.fetch()
            rest.confirm()
    assert rest.seen == set(sent)


@pytest.mark.parametrize(
    ("server", "what"),
    [
        ("direct", "open"),
        ("direct", "close"),
        ("gateways", "open"),
        pytest.param("gateways", "close", marks=pytest.mark.nightly),
    ],
    indirect=["server"],
)
def test_opening_and_closing_end_and_leave_nothing(server, what):
    produce(server, numbered(100))
    chance = random.Random(47)
    before = loop.task_count()
    with client_of(server, "life", rebalance_wait_ms=0) as client, Keyboard(chance) as keyboard:
        consumer = client.group_consumer(TOPIC)
        seconds = {"open": duration_of(consumer.open)}
        consumer.wait_until_ready(20_000)
        seconds["close"] = duration_of(consumer.close)
        while keyboard.count < examples(20, by_night=200):
            consumer = client.group_consumer(TOPIC)
            if what == "close":
                consumer.open()
                consumer.wait_until_ready(20_000)
            keyboard.interrupt(getattr(consumer, what), seconds[what] / 2)
            assert consumer.close(20)
    gc.collect()
    wait_until(lambda: loop.task_count() <= before)
    with member(server, "life") as other:
        shares(other)
