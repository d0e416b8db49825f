"""Channels that many users share, one per peer."""

import atexit
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Self

from tubemq_spark.errors import TubeMQConnectionError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.channel import RpcChannel
from tubemq_spark.net.deadline import Clock, Deadline
from tubemq_spark.net.tls import TlsConfig
from tubemq_spark.protocol.constants import IDLE_LIMIT_S

_SWEEP_PERIOD_S: Final = 20.0
"""How often the pool looks at most for channels that are idle, as TubeMQ's C++ client does."""
_DEFAULT_CONNECT_TIMEOUT_MS: Final = 3_000

_PROBE_MS: Final = 3_500
"""How long it takes at most to see whether a port speaks no TLS (``net/tls_probes.py``)."""


class StartedChannel:
    """A peer's channel for one who waits no longer than some time, also for the resolver of names."""

    def __init__(self, endpoint: Endpoint, future: "Future[RpcChannel]", timeout_ms: int) -> None:
        self._endpoint = endpoint
        self._future = future
        self._deadline = Deadline.after_ms(timeout_ms)

    @property
    def remaining_s(self) -> float:
        """For how many seconds the channel may still come; then ``result`` raises an error at once."""
        return self._deadline.remaining()

    def when_done(self, listener: Callable[[], object]) -> None:
        """Call a function when ``result`` will not wait any more, in any thread."""
        self._future.add_done_callback(lambda _: listener())

    def result(self) -> RpcChannel:
        """Wait for the channel.

        Raises:
            TubeMQError: as ``ChannelPool.get``.
        """
        try:
            return self._future.result(self.remaining_s)
        except TimeoutError as error:
            raise TubeMQConnectionError(
                "TUBEMQ_CONNECT_FAILED", endpoint=self._endpoint, cause="timed out"
            ) from error


class _Slot:
    """One peer's channel; the lock is held while connecting."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.channel: RpcChannel | None = None
        self.coming: Future[RpcChannel] | None = None
        """What those wait for that do not connect in their own thread."""
        self.failure: TubeMQConnectionError | None = None
        self.failed_at = 0.0

    def drop_if_idle(self) -> None:
        """Close the channel if it was idle too long, and forget it if it is closed. Hold the lock."""
        if self.channel is not None:
            self.channel.close_if_idle(IDLE_LIMIT_S)
            if self.channel.closed:
                self.channel = None


class ChannelPool:
    """One channel per peer, opened when it is first needed and again after it was lost.

    A caller with other TLS settings, or none, gets another channel to the same peer.

    A channel that was idle for ``IDLE_LIMIT_S`` is closed when anybody asks the pool for any channel: devices
    on the way may have forgotten it. Its users find it lost, as after any other end.

    A pool that its user drops without closing it is collected, and its connections end, with a warning.

    In a forked child the pools are empty: threads and connections stay with the parent.
    """

    def __init__(
        self, connect_timeout_ms: int = _DEFAULT_CONNECT_TIMEOUT_MS, clock: Clock = time.monotonic
    ) -> None:
        self._connect_timeout_ms = connect_timeout_ms
        self._clock = clock
        self._swept_at = clock()
        self._lock = threading.Lock()
        self._slots: dict[tuple[Endpoint, TlsConfig | None], _Slot] = {}
        self._closed = False
        weakref.finalize(self, _hang_up, self._slots).atexit = False
        _pools.add(self)

    @property
    def open_count(self) -> int:
        """How many channels are open."""
        with self._lock:
            channels = [slot.channel for slot in self._slots.values()]
        return sum(channel is not None and not channel.closed for channel in channels)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get(
        self, endpoint: Endpoint, connect_timeout_ms: int | None = None, tls: TlsConfig | None = None
    ) -> RpcChannel:
        """Return the peer's channel; connect if there is none, or if it was lost.

        Args:
            endpoint: the peer.
            connect_timeout_ms: how long connecting may take; the pool's own time-out by default.
            tls: how to speak TLS; None: without it.

        Raises:
            TubeMQConnectionError: the peer could not be reached, or the pool is closed.
            OptionError: a file of ``tls`` cannot be used.
        """
        asked_at = time.monotonic()
        self._sweep_when_due()
        with self._lock:
            slot = self._slots.setdefault((endpoint, tls), _Slot())
        with slot.lock:
            if self._closed:
                raise _pool_closed(endpoint)
            if slot.channel is None or slot.channel.closed:
                timeout_ms = connect_timeout_ms or self._connect_timeout_ms
                return self._enter(slot, _connect(slot, endpoint, timeout_ms, tls, asked_at))
            return slot.channel

    def _enter(self, slot: _Slot, opened: RpcChannel) -> RpcChannel:
        """Enter a channel for all users of the pool, unless the pool was closed while it was opened."""
        with self._lock:
            if not self._closed:
                slot.channel = opened
                return opened
        opened.close()
        raise _pool_closed(opened.endpoint)

    def start(
        self, endpoint: Endpoint, timeout_ms: int | None = None, tls: TlsConfig | None = None
    ) -> StartedChannel:
        """Return the peer's channel, or one that is being opened: for callers that must not wait.

        A thread opens it, one for each peer that is away, and all that ask for that peer wait for the same.
        """
        self._sweep_when_due()
        timeout_ms = timeout_ms or self._connect_timeout_ms
        channel = self.connected(endpoint, tls)
        if channel is not None:
            ready: Future[RpcChannel] = Future()
            ready.set_result(channel)
            return StartedChannel(endpoint, ready, timeout_ms)
        with self._lock:
            slot = self._slots.setdefault((endpoint, tls), _Slot())
            coming = slot.coming
            if coming is None:
                coming = Future()
                try:
                    threading.Thread(
                        target=self._open,
                        args=(slot, coming, endpoint, timeout_ms, tls),
                        name=f"tubemq-connect-{endpoint}",
                        daemon=True,
                    ).start()
                    slot.coming = coming
                except RuntimeError as error:  # no thread is left; the next who asks tries again
                    coming.set_exception(
                        TubeMQConnectionError("TUBEMQ_CONNECT_FAILED", endpoint=endpoint, cause=error)
                    )
        # Without an agreement on TLS, what connects looks why before it ends, and knows better.
        return StartedChannel(endpoint, coming, timeout_ms + (_PROBE_MS if tls else 0))

    def _open(
        self,
        slot: _Slot,
        coming: "Future[RpcChannel]",
        endpoint: Endpoint,
        timeout_ms: int,
        tls: TlsConfig | None,
    ) -> None:
        """Get a channel for those who wait for it; in a thread of its own."""
        channel, failure = None, None
        try:
            channel = self.get(endpoint, timeout_ms, tls)
        except Exception as error:  # noqa: BLE001 (those who wait get it)
            failure = error
        with self._lock:
            slot.coming = None
        if channel is None:
            coming.set_exception(failure)
        else:
            coming.set_result(channel)

    def connected(self, endpoint: Endpoint, tls: TlsConfig | None = None) -> RpcChannel | None:
        """Return the peer's channel if there is an open one; never connect, never wait."""
        slot = self._slots.get((endpoint, tls))
        channel = None if slot is None else slot.channel
        return None if channel is None or channel.closed else channel

    def failed_lately(self, endpoint: Endpoint, tls: TlsConfig | None, seconds: float) -> bool:
        """Whether the last attempt to connect to a peer failed, and not longer ago than some seconds."""
        slot = self._slots.get((endpoint, tls))
        if slot is None or slot.failure is None or self.connected(endpoint, tls) is not None:
            return False
        return time.monotonic() - slot.failed_at <= seconds

    def close(self) -> None:
        """Close all channels; the pool opens no others, and a thread that is connecting finds it closed."""
        with self._lock:
            self._closed = True
            channels = [slot.channel for slot in self._slots.values() if slot.channel is not None]
        for channel in channels:
            channel.close()

    def sweep(self) -> None:
        """Close the channels that were idle too long; those that are being opened now are passed over."""
        with self._lock:
            slots = list(self._slots.values())
        for slot in slots:
            if slot.lock.acquire(blocking=False):
                try:
                    slot.drop_if_idle()
                finally:
                    slot.lock.release()

    def _sweep_when_due(self) -> None:
        now = self._clock()
        if now - self._swept_at >= _SWEEP_PERIOD_S:
            self._swept_at = now
            self.sweep()

    def start_anew(self) -> None:
        """Forget the channels without closing them for the parent process; for a forked child."""
        for slot in self._slots.values():
            if slot.channel is not None:
                slot.channel.abandon()
        self._lock = threading.Lock()
        self._slots.clear()


def _hang_up(slots: dict[tuple[Endpoint, TlsConfig | None], _Slot]) -> None:
    """End the connections of a dropped pool without waiting: the garbage collector calls this anywhere."""
    channels = [slot.channel for slot in slots.values()]
    still_open = [channel for channel in channels if channel is not None and not channel.closed]
    for channel in still_open:
        channel.hang_up()
    if still_open:
        peers = ", ".join(sorted(str(channel.endpoint) for channel in still_open))
        warnings.warn(f"connections to {peers} were not closed", ResourceWarning, stacklevel=2)


def _connect(
    slot: _Slot, endpoint: Endpoint, timeout_ms: int, tls: TlsConfig | None, asked_at: float
) -> RpcChannel:
    """Open a channel for a slot; a thread that waited while another one failed to, fails with it.

    Otherwise threads that ask for a peer that is away at the same time would time out one after another.
    """
    if slot.failure is not None and slot.failed_at >= asked_at:
        raise type(slot.failure)(slot.failure.condition, **slot.failure.parameters)
    try:
        return RpcChannel.connect(endpoint, timeout_ms, tls)
    except TubeMQConnectionError as error:
        slot.failure, slot.failed_at = error, time.monotonic()
        raise


def _pool_closed(endpoint: Endpoint) -> TubeMQConnectionError:
    cause = "the pool of connections is closed"
    return TubeMQConnectionError("TUBEMQ_CONNECT_FAILED", endpoint=endpoint, cause=cause)


_pools: "weakref.WeakSet[ChannelPool]" = weakref.WeakSet()
_process_pool: Final = ChannelPool()


def process_pool() -> ChannelPool:
    """Return the pool that everything in this process shares; it is closed when the process ends."""
    return _process_pool


def _after_fork_in_child() -> None:
    for pool in list(_pools):
        pool.start_anew()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_process_pool.close)
