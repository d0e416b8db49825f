"""Private channels that wait for their next user.

Spark reuses its Python workers for many tasks, and each task reads from few brokers: a connection that one
task has opened serves the next one. A channel without a user is *kept*; a user that takes it has it alone
until it is given back. At most ``_MOST`` are kept, and none for longer than ``IDLE_LIMIT_S`` once another is
given back.

In a forked child none are kept: they stay with the parent.
"""

import atexit
import collections
import os
import threading
import time
from typing import Final, Self

from tubemq_spark.model import Endpoint
from tubemq_spark.net.private_channel import PrivateChannel
from tubemq_spark.net.tls import TlsConfig
from tubemq_spark.protocol.constants import IDLE_LIMIT_S

_MOST: Final = 8

Peer = tuple[Endpoint, TlsConfig | None]


class OwnChannel:
    """The private channel of one user; a context manager that gives it back at the end."""

    def __init__(self, stock: "KeptChannels", tls: TlsConfig | None, connect_timeout_ms: int) -> None:
        self._stock = stock
        self._tls = tls
        self._connect_timeout_ms = connect_timeout_ms
        self._channel: PrivateChannel | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._give_back()

    def to(self, endpoint: Endpoint) -> PrivateChannel:
        """Return the channel to a peer; that to another one is given back.

        Raises:
            TubeMQError: as ``PrivateChannel.connect``.
        """
        channel = self._channel
        if channel is None or channel.closed or channel.endpoint != endpoint:
            self._give_back()
            self._channel = channel = self._stock.take((endpoint, self._tls), self._connect_timeout_ms)
        return channel

    def _give_back(self) -> None:
        if self._channel is not None:
            self._stock.give_back((self._channel.endpoint, self._tls), self._channel)
            self._channel = None


class KeptChannels:
    """A stock of private channels; any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: collections.deque[tuple[float, Peer, PrivateChannel]] = collections.deque()
        """The oldest one first, each with the time when it was given back."""

    def take(self, peer: Peer, connect_timeout_ms: int) -> PrivateChannel:
        """Return a channel to a peer; connect if none is kept that still stands.

        Raises:
            TubeMQError: as ``PrivateChannel.connect``.
        """
        while (channel := self._pop(peer)) is not None:
            if channel.quiet:
                return channel
            channel.close()
        endpoint, tls = peer
        return PrivateChannel.connect(endpoint, connect_timeout_ms, tls)

    def give_back(self, peer: Peer, channel: PrivateChannel) -> None:
        """Keep a channel whose user is done with it."""
        if channel.closed:
            return
        now = time.monotonic()
        with self._lock:
            self._kept.append((now, peer, channel))
            leaving = []
            while len(self._kept) > _MOST or self._kept[0][0] < now - IDLE_LIMIT_S:
                leaving.append(self._kept.popleft()[2])
        for old in leaving:
            old.close()

    def close(self) -> None:
        """Close the channels that are kept."""
        with self._lock:
            leaving = [channel for _, _, channel in self._kept]
            self._kept.clear()
        for channel in leaving:
            channel.close()

    def start_anew(self) -> None:
        """Forget the channels without a word to their peers; for a forked child."""
        for _, _, channel in self._kept:
            channel.abandon()
        self._lock = threading.Lock()
        self._kept.clear()

    def _pop(self, peer: Peer) -> PrivateChannel | None:
        """Take out the channel to a peer that was given back last."""
        with self._lock:
            for entry in reversed(self._kept):
                if entry[1] == peer:
                    self._kept.remove(entry)
                    return entry[2]
        return None


_process_channels: Final = KeptChannels()


def process_channels() -> KeptChannels:
    """Return the stock of this process; it is closed when the process ends."""
    return _process_channels


os.register_at_fork(after_in_child=_process_channels.start_anew)
atexit.register(_process_channels.close)
