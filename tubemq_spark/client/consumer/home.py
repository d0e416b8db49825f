"""Where the rules of a consumer for threads are carried out: in whichever thread waits for them.

There is no thread for it. Readers of connections, workers and timers leave *calls*; the threads that fetch
make them while they wait, each for all. While none waits, calls stay: what a broker has answered is looked at
by the next thread that fetches.

Invariants:

- While there are calls, a thread that waits is awake: who leaves a call rings one, and one that stops waiting
  rings another.
- A thread that waits wakes when the next timer is due.
- No lock is taken: a signal handler may interrupt any line, and leave a call. Deques and dictionaries change
  atomically, and a bell that rings twice rings once.
"""

import collections
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final

from tubemq_spark.net.deadline import Clock

_NEVER: Final = float("inf")


class Bell:
    """Wakes one thread."""

    def __init__(self) -> None:
        self._silent = threading.Lock()
        self._silent.acquire()
        self.until = _NEVER
        """When the thread wakes by itself."""

    def ring(self) -> None:
        """Wake the thread, or let it not fall asleep the next time; takes no lock."""
        with contextlib.suppress(RuntimeError):  # it rings already
            self._silent.release()

    def wait(self, seconds: float) -> None:
        """Sleep until it rings."""
        self._silent.acquire(timeout=seconds if seconds < threading.TIMEOUT_MAX else -1)


class _Timer:
    def __init__(self, timers: "dict[_Timer, None]", at: float, call: Callable[[], object]) -> None:
        self.at = at
        self.call = call
        self._timers = timers
        timers[self] = None

    def cancel(self) -> bool:
        """Do not make the call; return whether it was still to be made."""
        try:
            del self._timers[self]
        except KeyError:
            return False
        return True


class ThreadHome:
    """The calls of one consumer; see the module."""

    idle: Final = False

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._calls: collections.deque[Callable[[], object]] = collections.deque()
        self._timers: dict[_Timer, None] = {}
        self._asleep: collections.deque[Bell] = collections.deque()

    def post(self, call: Callable[[], object]) -> None:
        """Leave a call for a thread that waits, now or later; any thread may, also in a signal handler."""
        self._calls.append(call)
        self._ring()

    def call_later(self, seconds: float, call: Callable[[], object]) -> _Timer:
        """Leave a call that is to be made after some seconds, by threads that wait then, or later."""
        timer = _Timer(self._timers, self._clock() + seconds, call)
        if self._asleep and all(bell.until > timer.at for bell in list(self._asleep)):
            self._ring()
        return timer

    def wait(self, bell: Bell, done: Callable[[], object], until: Callable[[], float]) -> None:
        """Make calls until something is done, which rings the bell, or a moment of the clock has come."""
        try:
            while not done():
                if self._make_call() or self._make_due_calls():
                    continue
                limit = until()
                if limit <= self._clock():
                    return
                self._sleep(bell, limit)
        finally:
            if self._calls:
                self._ring()

    def _sleep(self, bell: Bell, limit: float) -> None:
        bell.until = min([limit, *[timer.at for timer in list(self._timers)]])
        self._asleep.append(bell)
        try:
            if not self._calls:
                bell.wait(max(0.0, bell.until - self._clock()))
        finally:
            with contextlib.suppress(ValueError):
                self._asleep.remove(bell)

    def _ring(self) -> None:
        with contextlib.suppress(IndexError):  # all are awake
            self._asleep.popleft().ring()

    def _make_call(self) -> bool:
        try:
            call = self._calls.popleft()
        except IndexError:
            return False
        call()
        return True

    def _make_due_calls(self) -> bool:
        now, made = self._clock(), False
        for timer in list(self._timers):
            if timer.at <= now and timer.cancel():
                made = True
                timer.call()
        return made
