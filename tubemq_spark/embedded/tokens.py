"""Visit tokens: numbers by which a broker sees that a client has talked to the master lately."""

import collections
import threading
from collections.abc import Callable
from typing import Final

from tubemq_spark.embedded.clock import wall_ms

_REMEMBERED: Final = 6
"""A broker accepts the last six tokens (SimpleVisitTokenManager)."""


class VisitTokens:
    """The token of the moment; it changes by the clock when it has a period."""

    def __init__(self, period_ms: int, now_ms: Callable[[], int] = wall_ms) -> None:
        """Begin with a first token; ``period_ms`` 0 keeps it for ever."""
        self._period_ms = period_ms
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._tokens = collections.deque([now_ms()], maxlen=_REMEMBERED)

    @property
    def current(self) -> int:
        """The token that clients get now."""
        with self._lock:
            now = self._now_ms()
            if self._period_ms and now >= self._tokens[-1] + self._period_ms:
                self._tokens.append(now)
            return self._tokens[-1]

    def expire(self) -> None:
        """Accept none of the tokens given so far; there is a new one."""
        with self._lock:
            newest = max(self._tokens[-1] + 1, self._now_ms())
            self._tokens.clear()
            self._tokens.append(newest)

    def accepts(self, token: int) -> bool:
        """Whether a client with this token has been at the master lately."""
        newest = self.current
        with self._lock:
            return token == newest or token in self._tokens
