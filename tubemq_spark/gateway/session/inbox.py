"""What a session is to be told.

An event is *pending* until it was written to the session's stream of events, or until a heartbeat says that
the client has seen it; so each is told at least once as long as the session lives. A newer event about the
same thing takes the place of the older one, so a client that never looks does not make the gateway grow; of
so many things that even this is too much, the oldest are left out, which the numbers show.

Used in the event loop only.
"""

import asyncio
from typing import Final

from tubemq_spark.protocol.gateway import gateway_pb2 as pb

_MOST: Final = 1_000


class Inbox:
    """The events of one session."""

    def __init__(self) -> None:
        self._pending: dict[tuple[str, ...], pb.SessionEvent] = {}
        self._number = 0
        self.news = asyncio.Event()
        """Set when there is something to tell, or the session has ended."""
        self.reader: object = None
        """The call that tells them; a newer one takes its place."""

    def put(self, about: tuple[str, ...], event: pb.SessionEvent) -> None:
        """Add an event, which takes the place of one that is about the same."""
        self._number += 1
        event.number = self._number
        self._pending.pop(about, None)
        self._pending[about] = event
        if len(self._pending) > _MOST:
            del self._pending[next(iter(self._pending))]
        self.news.set()

    def pending(self) -> list[pb.SessionEvent]:
        """Return what is pending, oldest first."""
        return list(self._pending.values())

    def seen(self, number: int) -> None:
        """Forget the events up to a number."""
        for about, event in list(self._pending.items()):
            if event.number <= number:
                del self._pending[about]
