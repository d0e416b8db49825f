"""Sockets that take only so much ahead of the peer; the rest waits in the transport, as asyncio's does."""

import sys
from typing import Any, Final

import simloom
from simloom import _net

_LIMIT: Final = "socket_bytes"
_HIGH_WATER_BYTES: Final = 1 << 16


def limit_sockets(world: simloom.World, count: int) -> None:
    """Make the sockets of a connection hold so many bytes in one direction of what the peer has not read."""
    setattr(world.net, _LIMIT, count)


class SocketTransport(_net.SimTransport):
    """A transport in a simulated network; without a limit it hands everything to the peer at once."""

    def __init__(self, *arguments: Any, **more: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments, **more)
        self._unsent = bytearray()
        self._under_way = 0
        """How many bytes the sockets hold."""
        self._limits = (_HIGH_WATER_BYTES >> 2, _HIGH_WATER_BYTES)
        self._writing_is_paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Hand to the sockets what they take, and keep the rest."""
        if self._closing or not data:
            return
        self._unsent += data
        self._send_more(getattr(self._network, _LIMIT, sys.maxsize))
        if len(self._unsent) > self._limits[1] and not self._writing_is_paused:
            self._writing_is_paused = True
            self._protocol.pause_writing()  # type: ignore[union-attr]

    def close(self) -> None:
        """Send what was kept, some time, and then the end."""
        if not self._closing:
            self._send_more(sys.maxsize)
        super().close()

    def abort(self) -> None:
        """Drop what was kept."""
        self._unsent.clear()
        super().close()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Say when the protocol is to stop writing, and when to go on."""
        high = (4 * low if low else _HIGH_WATER_BYTES) if high is None else high
        self._limits = (high // 4 if low is None else low, high)

    def get_write_buffer_size(self) -> int:
        """Return how many bytes are kept."""
        return len(self._unsent)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return the sizes at which the protocol resumes writing, and at which it stops."""
        return self._limits

    def _deliver(self, protocol: Any, data: bytes) -> None:  # noqa: ANN401
        super()._deliver(protocol, data)
        peer = self._peer
        if isinstance(peer, SocketTransport):
            peer.note_taken(len(data))

    def note_taken(self, count: int) -> None:
        """Send more: the peer has read something."""
        self._under_way -= count
        if not self._unsent or self._closing:
            return
        self._send_more(getattr(self._network, _LIMIT, sys.maxsize))
        if self._writing_is_paused and len(self._unsent) <= self._limits[0]:
            self._writing_is_paused = False
            # Not as the peer, with whose host timers would go that are set now.
            self._host_ctx.run(self._protocol.resume_writing)  # type: ignore[union-attr]

    def _send_more(self, most: int) -> None:
        part = bytes(self._unsent[: max(0, most - self._under_way)])
        if part:
            del self._unsent[: len(part)]
            self._under_way += len(part)
            super().write(part)
