"""Producers that outlive their task, for the next one in the same process.

Spark's Python workers run one task after the other, and a small task takes less time than to register at the
master and to connect to the brokers.

**States of a producer here.**

- *in use*: one ``with`` block of ``sender`` has it, and no other knows it;
- *idle*: in ``_idle``, with everything acknowledged; its heartbeats go on, so it stays registered;
- *closed*.

``sender`` takes an idle producer of the same settings, or makes one. A block that ends well makes it idle;
any other block closes it. An idle one is closed by a task of the process's loop after ``idle_ms``, and when
the process ends.

**Invariants.** A producer is popped from ``_idle`` before it is used or closed, which succeeds once, so it
has one user at a time. A block sees receipts and counts of its own messages only (``BatchSender.resume``).
A forked child has no idle producers, and closes no connection of its parent.
"""

import asyncio
import atexit
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.producer.batch_sender import BatchSender
from tubemq_spark.client.registry import abandon_in_child
from tubemq_spark.client.transport.base import Transport
from tubemq_spark.client.transport.direct import DirectTransport
from tubemq_spark.net import loop
from tubemq_spark.net.connections import Connections, process_connections

_IDLE_MS: Final = 30_000
"""Longer than most pauses between micro-batches; Spark keeps an idle Python worker for a minute."""


def batch_sender(transport: Transport, name: str = "") -> BatchSender:
    """Return a new producer of the process's loop; no code of users runs in it."""
    return BatchSender(
        transport.pipeline(transport.config, name, per_message=False, run_user_code=lambda call: call())
    )


class KeptProducers:
    """The producers of a process over the same connections; threads may share it."""

    def __init__(self, connections: Connections, idle_ms: float = _IDLE_MS) -> None:
        self._connections = connections
        self._idle_s = idle_ms / 1000
        self._idle: dict[BatchSender, tuple[ClientConfig, loop.Submitted[None]]] = {}
        """The idle ones, each with its settings and what closes it when its time is over."""
        abandon_in_child(self)

    def __len__(self) -> int:
        """How many are idle."""
        return len(self._idle)

    @contextmanager
    def sender(self, config: ClientConfig, name: str = "") -> Iterator[BatchSender]:
        """Lend a producer, which is flushed at the end of the block; when that fails, it is closed."""
        idle = self._pop(config)
        producer = idle or batch_sender(DirectTransport(config, self._connections), name)
        try:
            if idle is not None:
                producer.resume(name)
            yield producer
            producer.flush()
            producer.pause()
        except BaseException:
            producer.close()
            raise
        expiry = loop.Submitted(self._expire(producer))
        self._idle[producer] = config, expiry
        expiry.begin()

    def close_idle(self) -> None:
        """Close those that are idle now."""
        while (producer := self._pop()) is not None:
            producer.close()

    def abandon(self) -> None:
        """Forget the idle ones, which belong to the parent process; for a forked child."""
        self._idle = {}

    def _pop(self, config: ClientConfig | None = None) -> BatchSender | None:
        """Remove an idle producer and return it, by default any."""
        for producer, (settings, expiry) in list(self._idle.items()):
            if config in (None, settings) and self._idle.pop(producer, None) is not None:
                expiry.stop()
                return producer
        return None

    async def _expire(self, producer: BatchSender) -> None:
        await asyncio.sleep(self._idle_s)
        if self._idle.pop(producer, None) is not None:
            await producer.aclose()


_process_producers: Final = KeptProducers(process_connections())


def process_producers() -> KeptProducers:
    """Return the producers that everything in this process shares; the idle ones are closed when it ends."""
    return _process_producers


atexit.register(_process_producers.close_idle)
