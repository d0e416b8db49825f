"""A group over minutes: members leave, join, are killed and paused, and no message is lost.

Our members are processes, which note what they read and what they have confirmed. A message comes again only
when its batch was not confirmed, and that happens only to the members that are killed or paused.
"""

import concurrent.futures
import contextlib
import itertools
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from integration_tests.real.java_client import Subscription
from integration_tests.real.processes import wait_until
from integration_tests.rig.messages import client_config
from integration_tests.rig.runs import form
from tubemq_spark.client import TubeMQClient

pytestmark = pytest.mark.timeout(1_200)

PROGRAM = Path(__file__).parent / "programs" / "group_member.py"
TOPIC, GROUP = "grouped_over_time", "members_over_time"
OURS = 3
MESSAGES = form(short=100_000, long=2_000_000)
SECONDS = form(short=150, long=600)
BETWEEN_EVENTS = form(short=3, long=60)
PAUSE = 40
"""Longer than the time after which brokers and the master take a silent member for gone."""
BURSTS_PER_SECOND = 10
PATIENCE = 180


class Member:
    """One of our members, and its notes."""

    def __init__(self, master, folder, name):
        self.name = name
        self.notes = folder / name
        command = [sys.executable, str(PROGRAM), master, TOPIC, GROUP, str(self.notes)]
        self.process = subprocess.Popen(command)

    def has_read(self):
        assert self.process.poll() is None, f"{self.name} ended by itself"
        return self.notes.exists() and self.notes.stat().st_size > 0

    def has_read_beyond(self, size):
        return lambda: b"\nread " in self.notes.read_bytes()[size - 1 :]

    def hold_a_batch(self):
        self.process.send_signal(signal.SIGUSR1)
        wait_until(self._holds, timeout_s=PATIENCE, what=f"{self.name} to hold a batch")

    def _holds(self):
        before = self.notes.read_bytes()
        time.sleep(0.5)
        return self.notes.read_bytes() == before and self.batches()[2] == "read"

    def leave(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=60) == 0

    def kill(self):
        self.process.kill()
        self.process.wait(timeout=60)

    def batches(self):
        """Return the numbers of each batch, what became of the batches, and the last note."""
        read, outcomes, last = {}, {}, ""
        for line in self.notes.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                continue  # it was killed while it wrote, so before it confirmed
            last, *rest = line.split()
            if last == "read":
                assert rest[0] not in read, "a context names one batch"
                read[rest[0]] = [int(number) for number in rest[1:]]
            elif last in ("confirmed", "refused"):
                outcomes[rest[0]] = last
        return read, outcomes, last


class Load:
    """Sends the numbers at a steady pace."""

    def __init__(self, master):
        self._master = master
        self.stop = threading.Event()

    def run(self):
        burst = MESSAGES // (SECONDS * BURSTS_PER_SECOND) + 1
        begin = time.monotonic()
        with TubeMQClient(client_config(self._master)) as client, client.producer() as producer:
            for start in range(0, MESSAGES, burst):
                due = begin + start / burst / BURSTS_PER_SECOND
                if self.stop.wait(max(0.0, due - time.monotonic())):
                    return
                for number in range(start, min(start + burst, MESSAGES)):
                    producer.send(TOPIC, b"%d" % number)
                producer.flush()


def read_java(consumer, numbers, stopped, notes):
    """Read with the Java consumer, which confirms what it takes."""
    with notes.open("w") as log:
        while not stopped.is_set():
            taken = [int(message.body) for message in consumer.take()]
            print(*taken, file=log, flush=True)
            numbers.extend(taken)


def readings(members, java):
    """Return how often each number was read in a confirmed batch, and by whom in one that was not."""
    confirmed, unconfirmed = Counter(java), defaultdict(list)
    for member in members:
        read, outcomes, _ = member.batches()
        for context, numbers in read.items():
            if outcomes.get(context) == "confirmed":
                confirmed.update(numbers)
            else:
                for number in numbers:
                    unconfirmed[number].append(member.name)
    return confirmed, unconfirmed


def all_confirmed(members, java):
    confirmed, _ = readings(members, java)
    return len(confirmed) == MESSAGES


@pytest.mark.nightly
def test_a_group_loses_nothing_and_repeats_only_what_was_not_confirmed(
    real_brokers, java_client, tmp_path, record_property
):
    members, java = [], []
    numbers = itertools.count()
    stopped = threading.Event()
    load = Load(real_brokers.master)

    with contextlib.ExitStack() as opened:
        threads = opened.enter_context(concurrent.futures.ThreadPoolExecutor(2))
        opened.callback(stopped.set)
        opened.callback(load.stop.set)

        def join():
            members.append(Member(real_brokers.master, tmp_path, f"member_{next(numbers)}"))
            opened.callback(members[-1].kill)
            return members[-1]

        def await_reading(*who):
            for member in who:
                wait_until(member.has_read, timeout_s=PATIENCE, what=f"{member.name} to read")
            time.sleep(BETWEEN_EVENTS)

        consumer = opened.enter_context(
            java_client.pull_consumer(Subscription(real_brokers.master, TOPIC, GROUP))
        )
        leaving, killed, paused = (join() for _ in range(OURS))
        producing = threads.submit(load.run)
        reading = threads.submit(read_java, consumer, java, stopped, tmp_path / "java")
        await_reading(leaving, killed, paused)

        leaving.leave()
        time.sleep(BETWEEN_EVENTS)
        await_reading(join())
        killed.hold_a_batch()
        killed.kill()
        await_reading(join())
        paused.hold_a_batch()
        paused.process.send_signal(signal.SIGSTOP)
        time.sleep(PAUSE)
        size = paused.notes.stat().st_size
        paused.process.send_signal(signal.SIGCONT)
        paused.process.send_signal(signal.SIGUSR2)
        wait_until(paused.has_read_beyond(size), timeout_s=PATIENCE, what="the paused member to read again")

        producing.result(timeout=SECONDS + PATIENCE)
        wait_until(lambda: all_confirmed(members, java), timeout_s=PATIENCE, what="all to be confirmed")
        time.sleep(BETWEEN_EVENTS)
        stopped.set()
        reading.result(timeout=60)
        ended = [member for member in members if member.process.poll() is None]
        for member in ended:
            member.leave()

    confirmed, unconfirmed = readings(members, java)
    repeated = {number: readers for number, readers in unconfirmed.items() if number in confirmed}
    record_property("messages", len(confirmed))
    record_property("read by the Java consumer", len(java))
    record_property("repeats of unconfirmed batches", sum(map(len, repeated.values())))
    record_property("who had not confirmed them", dict(Counter(itertools.chain(*repeated.values()))))
    record_property("confirmed twice", sum(count > 1 for count in confirmed.values()))
    assert all(member.batches()[2] == "left" for member in [leaving, *ended])
    assert java
    assert confirmed.keys() == set(range(MESSAGES))
    assert not {number: count for number, count in confirmed.items() if count > 1}
    assert {killed.name} <= set(itertools.chain(*repeated.values())) <= {killed.name, paused.name}
