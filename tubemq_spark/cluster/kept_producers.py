"""Producers that outlive their task, for the next one in the same process.

Spark's Python workers run one task after the other, and a small task takes less time than to register at the
master and to connect to the brokers.

**States of a producer here.**

- *in use*: one ``with`` block of ``sender`` has it, and no other knows it;
- *idle*: in ``_idle``, with everything acknowledged; its heartbeats go on, so it stays registered;
- *closed*.

``sender`` takes an idle producer of the same settings, or makes one. A block that ends well makes it idle;
any other block closes it. An idle one is closed after ``idle_ms``, for which the process's scheduler starts a
thread, and when the process ends.

**Invariants.** A producer leaves ``_idle`` under ``_lock`` before anybody uses or closes it, so it has one
user at a time. A block sees receipts and counts of its own messages only (``BatchSender.pause``). A forked
child has no idle producers, and closes no connection of its parent.
"""

import atexit
import dataclasses
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.producer.batch_sender import BatchSender
from tubemq_spark.net.pool import ChannelPool, process_pool
from tubemq_spark.net.scheduler import Task, process_scheduler

_IDLE_MS: Final = 30_000
"""Longer than most pauses between micro-batches; Spark keeps an idle Python worker for a minute."""


@dataclasses.dataclass(slots=True, eq=False)
class _Idle:
    """An idle producer, and what closes it when its time is over."""

    config: ClientConfig
    producer: BatchSender
    expiry: Task | None = None


class KeptProducers:
    """The producers of a process over one pool of channels; threads may share it."""

    def __init__(self, pool: ChannelPool, idle_ms: float = _IDLE_MS) -> None:
        self._pool = pool
        self._idle_ms = idle_ms
        self._lock = threading.Lock()
        self._idle: list[_Idle] = []
        _all.add(self)

    def __len__(self) -> int:
        """How many are idle."""
        return len(self._idle)

    @contextmanager
    def sender(self, config: ClientConfig, name: str = "") -> Iterator[BatchSender]:
        """Lend a producer, whose messages are flushed at the end of the block; when it fails, it is closed.

        Raises:
            TubeMQError: as ``BatchSender.flush``.
        """
        producer = self._take(config, name)
        try:
            yield producer
            producer.flush()
            producer.pause()
        except BaseException:
            producer.close()
            raise
        self._keep(_Idle(config, producer))

    def close_idle(self) -> None:
        """Close those that are idle now."""
        with self._lock:
            leaving, self._idle = self._idle, []
        for idle in leaving:
            _close(idle)

    def start_anew(self) -> None:
        """Forget the idle ones, which belong to the parent process; for a forked child."""
        self._idle = []
        self._lock = threading.Lock()

    def _take(self, config: ClientConfig, name: str) -> BatchSender:
        idle = self._pop(config)
        if idle is None:
            return BatchSender(config, self._pool, name=name)
        idle.producer.resume(name)
        return idle.producer

    def _pop(self, config: ClientConfig) -> _Idle | None:
        with self._lock:
            idle = next((idle for idle in self._idle if idle.config == config), None)
            if idle is None:
                return None
            self._idle.remove(idle)
        if idle.expiry is not None:
            idle.expiry.cancel()
        return idle

    def _keep(self, idle: _Idle) -> None:
        with self._lock:
            self._idle.append(idle)
            idle.expiry = process_scheduler().after(
                self._idle_ms / 1000, lambda: self._expire(idle), "closing an idle producer"
            )

    def _expire(self, idle: _Idle) -> None:
        with self._lock:
            if idle not in self._idle:
                return
            self._idle.remove(idle)
        # Closing waits for a master, and the scheduler's thread waits for none.
        threading.Thread(target=_close, args=(idle,), name="tubemq-closing-producer", daemon=True).start()


def _close(idle: _Idle) -> None:
    if idle.expiry is not None:
        idle.expiry.cancel()
    idle.producer.close()


_all: "weakref.WeakSet[KeptProducers]" = weakref.WeakSet()
_process_producers: Final = KeptProducers(process_pool())


def process_producers() -> KeptProducers:
    """Return the producers that everything in this process shares; the idle ones are closed when it ends."""
    return _process_producers


def _after_fork_in_child() -> None:
    for producers in list(_all):
        producers.start_anew()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_process_producers.close_idle)
