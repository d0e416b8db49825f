"""Non-blocking connections, driven by one selector in the caller's thread.

``RpcChannel`` serves calls that wait for their answer; this serves a sender that keeps hundreds of
requests in flight to several peers and wants neither a thread nor a lock for it. It moves bytes only:
what the bytes mean, and what to do when a connection is lost, is the owner's business.
"""

import collections
import contextlib
import errno
import os
import selectors
import socket
import time
from collections.abc import Callable
from typing import Final

from tubemq_spark.errors import TubeMQConnectionError, TubeMQError
from tubemq_spark.model import Endpoint
from tubemq_spark.net import addresses
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.waker import Waker, or_exhausted

_RECEIVE_BYTES: Final = 1 << 16
"""A read takes at most this much; the selector reports the rest again."""
_UNSENT_IN_KERNEL_BYTES: Final = 1 << 17
"""The kernel takes no more than about this much ahead of the network. Otherwise it takes megabytes, and on a
slow connection it would not be known when a request left."""
_CONNECT_STARTED: Final = frozenset({0, errno.EINPROGRESS, errno.EWOULDBLOCK})

Arrival = tuple["Pipeline", bytes | TubeMQConnectionError]
"""What a peer sent, or why its connection is gone (it is closed then)."""


class Pipeline:
    """One connection: being made, open, or closed; at most one piece of data waits to be written.

    A name is looked up first, which counts as connecting. Its addresses are tried one after the other; each
    has an equal part of the time that is left.

    When writing fails, nothing more is written, but what the peer has sent before is still read: it may
    hold answers. The failure is reported behind it.
    """

    untouched = False
    """Whether no byte of what was given to ``write`` last has left; it stays known after the end."""

    def __init__(self, endpoint: Endpoint, selector: selectors.BaseSelector, deadline: Deadline) -> None:
        """Start to connect.

        Raises:
            TubeMQConnectionError: the address cannot be tried.
            OSError: there is no descriptor left to look up the name.
            RuntimeError: there is no thread left to look up the name.
        """
        self.endpoint = endpoint
        self.connect_by = deadline.at
        """Until when the present step of connecting may take, in seconds of the owner's clock."""
        self._deadline = deadline
        self._selector = selector
        self._socket: socket.socket | None = None
        """While a name is looked up, what tells that this is over."""
        self._look_up: addresses.LookUp | None = None
        self._connecting = True
        self._unsent = memoryview(b"")
        self._report_at = 1
        self._addresses: collections.deque[addresses.Address] = collections.deque()
        self._last_cause = "the name has no address"
        self._write_error = ""
        self._start()

    @property
    def connecting(self) -> bool:
        """Whether the connection is still being made."""
        return self._connecting and self._socket is not None

    @property
    def closed(self) -> bool:
        """Whether there is no connection any more."""
        return self._socket is None

    @property
    def writable(self) -> bool:
        """Whether ``write`` may be called: the connection is open and everything before was written."""
        return (
            not self._connecting and not self._unsent and self._socket is not None and not self._write_error
        )

    @property
    def unsent_bytes(self) -> int:
        """How many bytes given to ``write`` the socket has not taken yet, and never will after a failure."""
        return len(self._unsent)

    def write(self, data: bytes) -> None:
        """Write what the socket takes now and keep the rest for ``Pipelines.drive``; see ``writable``."""
        self._unsent = memoryview(data)
        self.untouched = True
        self._write_more()
        if self._writing:
            self._watch(selectors.EVENT_READ | selectors.EVENT_WRITE)

    def report_at(self, count: int) -> None:
        """Report what the peer sends not before ``count`` bytes are there; its end is reported at once.

        Bytes that come one by one wake the thread only once that way. It must not wait for bytes that may
        never come: set 1 to have all that is there.
        """
        if count == self._report_at or self._socket is None:
            return
        with contextlib.suppress(OSError):  # a system without such a mark reports every byte
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
        self._report_at = count

    def close(self) -> None:
        """Close the socket; bytes not yet written are dropped."""
        if self._socket is not None:
            self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None
        self._unsent = memoryview(b"")

    def abandon(self) -> None:
        """Drop the socket; the selector, which the parent process shares, is not told."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def handle(self, events: int) -> bytes | None:
        """Do what the selector says is possible; return the bytes read, or nothing.

        Raises:
            TubeMQConnectionError: the connection failed or was lost; it is closed now.
        """
        if self._connecting:
            self._finish_connecting()
            return None
        if events & selectors.EVENT_WRITE:
            self._write_more()
            if not self._writing:
                self._watch(selectors.EVENT_READ)
        return self._read() if events & selectors.EVENT_READ else None

    def give_up_address(self, cause: str) -> None:
        """Leave an address that has had its part of the time for the next one.

        Raises:
            TubeMQConnectionError: there is none, or no time is left; it is closed now.
        """
        self._last_cause = cause
        self.close()
        if self._deadline.expired:
            self._addresses.clear()
        self._connect_to_next_address()

    def fail(self, cause: str) -> TubeMQConnectionError:
        """Close, and return the error that says why."""
        condition = "TUBEMQ_CONNECT_FAILED" if self._connecting else "TUBEMQ_CONNECTION_LOST"
        self.close()
        return TubeMQConnectionError(
            condition, endpoint=self.endpoint, cause=cause, during="sending messages"
        )

    def _start(self) -> None:
        """Begin to connect, or to look up the name."""
        if addresses.is_address(self.endpoint.host):
            self._connect_to(lambda: addresses.addresses_of(self.endpoint))
            return
        self._look_up = addresses.LookUp(self.endpoint)
        self._socket = self._look_up.receiver
        self._selector.register(self._socket, selectors.EVENT_READ, self)

    def _connect_to(self, look_up: Callable[[], list[addresses.Address]]) -> None:
        try:
            self._addresses.extend(look_up())
        except OSError as error:
            raise self.fail(str(error)) from error
        self._connect_to_next_address()

    def _connect_to_next_address(self) -> None:
        while self._addresses:
            left = len(self._addresses)
            family, kind, protocol, address = self._addresses.popleft()
            try:
                opened = _unconnected(family, kind, protocol)
            except OSError as error:  # out of file descriptors; no such address family
                self._last_cause = str(error)
                continue
            code = opened.connect_ex(address)
            if code in _CONNECT_STARTED:
                others_s = self._deadline.remaining() - addresses.part_of_s(self._deadline, left)
                self.connect_by = self._deadline.at - others_s
                self._socket = opened
                self._report_at = 1
                self._selector.register(opened, selectors.EVENT_WRITE, self)
                return
            opened.close()
            self._last_cause = os.strerror(code)
        raise self.fail(self._last_cause)

    def _finish_connecting(self) -> None:
        if (look_up := self._look_up) is not None:
            self._look_up = None
            self.close()
            self._connect_to(look_up.result)
            return
        opened = self._open_socket()
        code = opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self.close()
            self._last_cause = os.strerror(code)
            self._connect_to_next_address()
            return
        addresses.note_reached(self.endpoint, opened)
        self.connect_by = self._deadline.at
        self._connected()

    def _connected(self) -> None:
        """Begin to read, and let the owner write."""
        self._connecting = False
        self._watch(selectors.EVENT_READ)

    def _read(self) -> bytes | None:
        try:
            data = self._open_socket().recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            raise self.fail(self._write_error or str(error)) from error
        if not data:
            raise self.fail(self._write_error or "the peer closed it")
        return data

    @property
    def _writing(self) -> bool:
        return bool(self._unsent) and not self._write_error

    def _write_more(self) -> None:
        try:
            count = self._open_socket().send(self._unsent)
        except BlockingIOError:
            pass
        except OSError as error:
            self._write_error = str(error)
        else:
            self.untouched = False
            self._unsent = self._unsent[count:]

    def _watch(self, events: int) -> None:
        self._selector.modify(self._open_socket(), events, self)

    def _open_socket(self) -> socket.socket:
        if self._socket is None:
            raise self.fail("it was closed here")
        return self._socket


def _unconnected(family: int, kind: int, protocol: int) -> socket.socket:
    opened = socket.socket(family, kind, protocol)
    opened.setblocking(False)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_IN_KERNEL_BYTES)
    return opened


class Pipelines:
    """The connections of one sender; not for use by several threads at once."""

    def __init__(
        self,
        connect_timeout_ms: int,
        clock: Callable[[], float] = time.monotonic,
        make: Callable[[Endpoint, selectors.BaseSelector, Deadline], Pipeline] = Pipeline,
    ) -> None:
        """Take ``make``, which starts a connection as ``Pipeline`` does.

        Raises:
            TubeMQConnectionError: there is no descriptor left.
        """
        self._make = make
        self._connect_timeout_s = connect_timeout_ms / 1000
        self._clock = clock
        with or_exhausted():
            self._selector = selectors.DefaultSelector()
        self._open: list[Pipeline] = []

    def connect(self, endpoint: Endpoint) -> Pipeline:
        """Start to connect and return at once; ``drive`` finishes it.

        Raises:
            TubeMQConnectionError: the address cannot be tried.
            OptionError: a file of the settings for TLS cannot be used.
        """
        deadline = Deadline.after_ms(self._connect_timeout_s * 1000, self._clock)
        try:
            opened = self._make(endpoint, self._selector, deadline)
        except TubeMQError:
            raise
        except (OSError, RuntimeError, ValueError) as error:
            # No descriptor, no thread, or a name that cannot be one: only this peer is concerned.
            raise TubeMQConnectionError("TUBEMQ_CONNECT_FAILED", endpoint=endpoint, cause=error) from error
        self._open = [pipeline for pipeline in self._open if not pipeline.closed]
        self._open.append(opened)
        return opened

    def add_waker(self, waker: Waker) -> None:
        """End the waits of ``drive`` when a waker is woken, in any thread; the waker outlives this object."""
        self._selector.register(waker.receiver, selectors.EVENT_READ, waker)

    def drive(self, timeout_s: float) -> list[Arrival]:
        """Wait until something can be done, at most ``timeout_s`` seconds; do it and return what came.

        What a waker raises gets through.
        """
        connecting = [pipeline.connect_by for pipeline in self._open if pipeline.connecting]
        if connecting:
            timeout_s = max(0.0, min(timeout_s, min(connecting) - self._clock()))
        arrivals: list[Arrival] = []
        for key, events in self._selector.select(timeout_s):
            pipeline: Pipeline = key.data  # or a waker, which has no data
            try:
                data = pipeline.handle(events)
            except TubeMQConnectionError as error:
                arrivals.append((pipeline, error))
            else:
                if data is not None:
                    arrivals.append((pipeline, data))
        if connecting:
            arrivals.extend(self._give_up_connecting())
        return arrivals

    def close(self) -> None:
        """Close every connection and the selector; doing it twice is harmless."""
        for pipeline in self._open:
            pipeline.close()
        self._selector.close()

    def abandon(self) -> None:
        """Drop every connection in a forked child, and tell neither the peers nor the shared selector."""
        for pipeline in self._open:
            pipeline.abandon()
        self._selector.close()

    def _give_up_connecting(self) -> list[Arrival]:
        now = self._clock()
        late = [pipeline for pipeline in self._open if pipeline.connecting and pipeline.connect_by <= now]
        cause = f"no connection within {self._connect_timeout_s * 1000:.0f} ms"
        arrivals: list[Arrival] = []
        for pipeline in late:
            try:
                pipeline.give_up_address(cause)
            except TubeMQConnectionError as error:
                arrivals.append((pipeline, error))
        return arrivals
