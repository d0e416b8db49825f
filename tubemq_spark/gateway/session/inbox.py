"""What a session is to be told: events about itself, and those of the boards that it follows.

An event is *pending* until it was written to the session's stream of events, or until a heartbeat says that
the client has seen it; so each is told at least once as long as the session lives. A newer event about the
same thing takes the place of the older one, so a client that never looks does not make the gateway grow; of
so many things that even this is too much, the oldest are left out, which the numbers show.

A **board** has the events of many sessions, such as those of a group, each once. To put an event there costs
the same however many follow it: an inbox takes over what is new when it is looked at. The streams that wait
for events are woken at once by the first one, and then at most once in ``WAKE_S``.

Used in the event loop only.
"""

import asyncio
from collections.abc import Iterator
from typing import Final, TypeAlias

from tubemq_spark.protocol.gateway import gateway_pb2 as pb

About: TypeAlias = tuple[str, ...]
"""What an event is about: a newer one with an equal value takes its place."""

WAKE_S: Final = 1.0
_MOST: Final = 1_000


class Board:
    """Events for all inboxes that follow it."""

    def __init__(self) -> None:
        self.version = 0
        """How many events were put here."""
        self.followers: set[Inbox] = set()
        self.readers: set[Inbox] = set()
        """The followers that are told by a stream."""
        self._events: dict[About, tuple[int, pb.SessionEvent]] = {}
        """The newest about each thing, with its version, in their order."""
        self._woken_at = float("-inf")
        self._waking: asyncio.TimerHandle | None = None

    def put(self, about: About, event: pb.SessionEvent) -> None:
        """Add an event, which takes the place of one that is about the same."""
        self.version += 1
        self._events.pop(about, None)
        self._events[about] = self.version, event
        if len(self._events) > _MOST:
            del self._events[next(iter(self._events))]
        if self.readers and self._waking is None:
            loop = asyncio.get_running_loop()
            wait_s = self._woken_at + WAKE_S - loop.time()
            if wait_s <= 0:
                self._wake()
            else:
                self._waking = loop.call_later(wait_s, self._wake)

    def newer(self, version: int) -> Iterator[tuple[About, pb.SessionEvent]]:
        """Return the events that were put here after a version, oldest first."""
        news = []
        for about, (number, event) in reversed(self._events.items()):
            if number <= version:
                break
            news.append((about, event))
        return reversed(news)

    def _wake(self) -> None:
        self._waking = None
        self._woken_at = asyncio.get_running_loop().time()
        for inbox in self.readers:
            inbox.news.set()


class Inbox:
    """The events of one session."""

    def __init__(self) -> None:
        self._pending: dict[About, pb.SessionEvent] = {}
        self._number = 0
        self._versions: dict[Board, int] = {}
        """The boards that it follows, each with the version up to which it has taken events over."""
        self.news = asyncio.Event()
        """Set when there is something to tell."""
        self.reader: object = None
        """The call that tells them; a newer one takes its place."""

    def follow(self, board: Board) -> None:
        """Take over what is put on a board from now on."""
        board.followers.add(self)
        self._versions[board] = board.version

    def leave(self) -> None:
        """Follow no board any more."""
        for board in self._versions:
            board.followers.discard(self)
            board.readers.discard(self)
        self._versions.clear()

    def begin_reading(self, reader: object) -> None:
        """Tell events by a call from now on; a call of before tells no more."""
        self.reader = reader
        self.news.set()
        for board in self._versions:
            board.readers.add(self)

    def end_reading(self, reader: object) -> None:
        """Tell events by this call no longer."""
        if self.reader is reader:
            self.reader = None
            for board in self._versions:
                board.readers.discard(self)

    def put(self, about: About, event: pb.SessionEvent) -> None:
        """Add an event, which takes the place of one that is about the same."""
        self._add(about, event)
        self.news.set()

    def put_for_others(self, board: Board, about: About, event: pb.SessionEvent) -> None:
        """Put an event on a board of which this session needs not be told."""
        self._take_over()
        board.put(about, event)
        if board in self._versions:
            self._versions[board] = board.version

    def pending(self) -> list[pb.SessionEvent]:
        """Return what is pending, oldest first."""
        self._take_over()
        return list(self._pending.values())

    def seen(self, number: int) -> None:
        """Forget the events up to a number."""
        for about, event in list(self._pending.items()):
            if event.number <= number:
                del self._pending[about]

    def _take_over(self) -> None:
        for board, version in self._versions.items():
            if board.version > version:
                self._versions[board] = board.version
                for about, event in board.newer(version):
                    own = pb.SessionEvent()
                    own.CopyFrom(event)
                    self._add(about, own)

    def _add(self, about: About, event: pb.SessionEvent) -> None:
        self._number += 1
        event.number = self._number
        self._pending.pop(about, None)
        self._pending[about] = event
        if len(self._pending) > _MOST:
            del self._pending[next(iter(self._pending))]
