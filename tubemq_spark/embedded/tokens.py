"""Visit tokens: numbers that prove to a broker that a client has recently been at the master."""

import collections
import threading
from collections.abc import Callable
from typing import Final

from tubemq_spark.embedded.clock import wall_ms

_REMEMBERED: Final = 6
"""A broker accepts the last six tokens (SimpleVisitTokenManager)."""


class VisitTokens:
    """The current token, which changes periodically if there is a period."""

    def __init__(self, period_ms: int, now_ms: Callable[[], int] = wall_ms) -> None:
        """Start with a first token; with ``period_ms`` 0 it never changes."""
        self._period_ms = period_ms
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._tokens = collections.deque([now_ms()], maxlen=_REMEMBERED)

    @property
    def current(self) -> int:
        """The token that clients get at present."""
        with self._lock:
            now = self._now_ms()
            if self._period_ms and now >= self._tokens[-1] + self._period_ms:
                self._tokens.append(now)
            return self._tokens[-1]

    def expire(self) -> None:
        """Invalidate all tokens given out so far; there is a new one."""
        with self._lock:
            newest = max(self._tokens[-1] + 1, self._now_ms())
            self._tokens.clear()
            self._tokens.append(newest)

    def accepts(self, token: int) -> bool:
        """Whether a client with this token has recently been at the master."""
        newest = self.current
        with self._lock:
            return token == newest or token in self._tokens
