"""Threads for what cannot but block while a partition is fetched: a new connection, a lease, code of users.

Each broker has its own, at most ``_MOST`` at a time; more calls stand in its line. So a broker that is away,
or a callback that is slow with its records, fills no thread that others need. A thread ends when its line is
empty. They are daemons: the end of the process waits for no broker.

A forked child has none of its parent's threads, and begins with empty lines.
"""

import collections
import os
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

Value = TypeVar("Value")

_MOST: Final = 2


class BrokerWorkers:
    """The threads of all consumers of a process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._lines: dict[Hashable, collections.deque[tuple[Future[Any], Callable[[], Any]]]] = {}
        self._threads: dict[Hashable, list[threading.Thread]] = {}
        """Those that run; a signal may keep one from being started."""

    def start(self, broker: Hashable, call: Callable[[], Value]) -> Future[Value]:
        """Make a call in a thread of a broker, when its turn has come; return at once."""
        future: Future[Value] = Future()
        with self._lock:
            self._lines.setdefault(broker, collections.deque()).append((future, call))
            threads = self._threads.setdefault(broker, [])
            if len(threads) < _MOST:
                name = f"tubemq-steps-{broker}"
                thread = threading.Thread(target=self._work, args=(broker,), name=name, daemon=True)
                try:
                    thread.start()
                    threads.append(thread)
                except RuntimeError as error:  # no more threads can be started
                    if not threads:
                        self._lines[broker].remove((future, call))
                        future.set_exception(error)
        return future

    def _work(self, broker: Hashable) -> None:
        while (job := self._next(broker)) is not None:
            future, call = job
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 (the caller gets it)
                future.set_exception(error)

    def _next(self, broker: Hashable) -> tuple[Future[Any], Callable[[], Any]] | None:
        """Return what is first in a broker's line; None: the thread ends."""
        with self._lock:
            if line := self._lines.get(broker):
                return line.popleft()
            threads = self._threads.get(broker, [])
            if threading.current_thread() in threads:
                threads.remove(threading.current_thread())
            if not threads:
                self._lines.pop(broker, None)
                self._threads.pop(broker, None)
            return None


_process_workers = BrokerWorkers()


def process_workers() -> BrokerWorkers:
    """Return the workers that the whole process shares."""
    return _process_workers


def _after_fork_in_child() -> None:
    global _process_workers
    _process_workers = BrokerWorkers()


os.register_at_fork(after_in_child=_after_fork_in_child)
