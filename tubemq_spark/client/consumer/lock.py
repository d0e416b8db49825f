"""The lock of one partition: for threads, and for rules that an event loop carries out.

It is *free* or *held*; while it is held, whoever else wants it stands in line with a ticket. ``release``
hands it over to the first in line, so it is never free while somebody waits, and nobody is overtaken.

It belongs to no thread: one may take it and another give it back.
"""

import collections
import threading
from concurrent.futures import Future

from tubemq_spark.client.steps import Steps, run, wait_for


class PartitionLock:
    """Held by whoever uses a partition."""

    def __init__(self) -> None:
        """Be free."""
        self._guard = threading.Lock()
        self._held = False
        self._line: collections.deque[Future[None]] = collections.deque()

    def __enter__(self) -> None:
        run(self.take())

    def __exit__(self, *_: object) -> None:
        self.release()

    def try_take(self) -> bool:
        """Take it if it is free; return whether it was."""
        with self._guard:
            was_free, self._held = not self._held, True
        return was_free

    def take(self) -> Steps[None]:
        """Take it, and wait for one's turn."""
        ticket: Future[None] = Future()
        with self._guard:
            if not self._held:
                self._held = True
                return
            self._line.append(ticket)
        try:
            yield from wait_for(ticket)
        except BaseException:
            if not ticket.cancel():  # too late: it is ours
                self.release()
            raise

    def release(self) -> None:
        """Give it to the first in line, or make it free."""
        with self._guard:
            ticket = self._next()
            self._held = ticket is not None
        if ticket is not None:
            ticket.set_result(None)

    def _next(self) -> Future[None] | None:
        """Return the first in line that still waits."""
        while self._line:
            ticket = self._line.popleft()
            if ticket.set_running_or_notify_cancel():
                return ticket
        return None
