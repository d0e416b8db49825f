"""How many bytes may wait in the gateway: for each session, and for all together.

Threads take bytes before they keep them, and give them back when they are on their way. What is larger than a
limit is let in when nothing else of that limit is there, so that nothing waits for ever.

**Invariant.** ``used`` is the sum of all that was taken and not given back, and ``_by_owner`` has that of
each owner, without those that have none.
"""

import threading
import time
from collections.abc import Callable
from typing import Final

_LOOK_S: Final = 0.1
"""How often who waits looks whether to stop waiting."""
_PRESSED_S: Final = 1.0


class ByteBudget:
    """The bytes of one gateway; threads share it."""

    def __init__(self, per_owner: int, total: int) -> None:
        """Allow so many bytes."""
        self._per_owner = per_owner
        self._total = total
        self._changed = threading.Condition()
        self._by_owner: dict[str, int] = {}
        self._waiting = 0
        self._short_at = -_PRESSED_S
        self.used = 0
        """How many there are now."""

    @property
    def pressed(self) -> bool:
        """Whether a call waits for room, or had none a moment ago."""
        return self._waiting > 0 or time.monotonic() - self._short_at < _PRESSED_S

    def take(
        self, owner: str, size: int, stopped: Callable[[], bool], timeout_s: float | None = None
    ) -> bool:
        """Wait for room and take it; return whether there was some before ``stopped`` or the time-out."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            self._waiting += 1
            try:
                while not self._fits(owner, size):
                    if stopped() or (deadline is not None and time.monotonic() >= deadline):
                        self._short_at = time.monotonic()
                        return False
                    self._changed.wait(_LOOK_S)
            finally:
                self._waiting -= 1
            self._by_owner[owner] = self._by_owner.get(owner, 0) + size
            self.used += size
            return True

    def give(self, owner: str, size: int) -> None:
        """Give bytes back."""
        with self._changed:
            self.used -= size
            rest = self._by_owner[owner] - size
            if rest:
                self._by_owner[owner] = rest
            else:
                del self._by_owner[owner]
            self._changed.notify_all()

    def _fits(self, owner: str, size: int) -> bool:
        own = self._by_owner.get(owner, 0)
        return (not own or own + size <= self._per_owner) and (
            not self.used or self.used + size <= self._total
        )
