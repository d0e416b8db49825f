"""Whether a broker reads and writes: too many I/O errors stop one or the other (ServiceStatusHolder).

A service that errors have stopped is retried after a pause: the next request is let through, and if it
succeeds, so are all others. TubeMQ leaves that to the operator; here a disk that was full for a moment must
not end a test.
"""

import errno
import logging
import threading
from collections.abc import Callable
from typing import Final

from tubemq_spark.embedded.clock import monotonic_ms

logger = logging.getLogger(__name__)

RETRY_MS: Final = 5_000
"""How long a stopped service pauses before it is retried."""

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_DISK_ERRORS: Final = frozenset({errno.ESHUTDOWN, errno.EMFILE, errno.ENFILE})
"""The topic was removed, or this process or the machine has too many open files."""


def told(error: Exception) -> str:
    """Return the text of an error, with what to do about too many open files."""
    too_many = isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
    return f"{error}; let it open more files (ulimit -n)" if too_many else str(error)


class Service:
    """Reading or writing."""

    def __init__(
        self, allowed_errors: int, name: str = "service", now_ms: Callable[[], int] = monotonic_ms
    ) -> None:
        """Run until there is one more error than allowed since the start or the last successful retry.

        ``name`` is the name in the log.
        """
        self._allowed_errors = allowed_errors
        self._name = name
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._errors = 0
        self._retry_at_ms: int | None = None
        """None while the service runs."""
        self.trouble = ""
        """The last error of the disk, for those who are refused because of it."""

    def admits(self) -> bool:
        """Tell whether a request is let through: all while the service runs, one after each pause."""
        if self._retry_at_ms is None:
            return True
        now_ms = self._now_ms()
        with self._lock:
            if self._retry_at_ms is not None:
                if now_ms < self._retry_at_ms:
                    return False
                self._retry_at_ms = now_ms + RETRY_MS
            return True

    def count_success(self) -> None:
        """Count a read or write that succeeded: a stopped service runs again."""
        if self._retry_at_ms is None:
            return
        with self._lock:
            resumes = self._retry_at_ms is not None
            if resumes:
                self._errors = 0
                self._retry_at_ms = None
        if resumes:
            logger.warning("%s works again", self._name)

    def count_error(self, error: Exception) -> None:
        """Count a read or write that failed; one disk error too many stops the service.

        TubeMQ has a time window for this in its configuration but does not use it, and there is none here.
        """
        if not isinstance(error, OSError) or error.errno in _NO_DISK_ERRORS:
            return
        with self._lock:
            self._errors += 1
            self.trouble = str(error)
            first = self._errors == 1
            stops = self._errors > self._allowed_errors
            runs = self._retry_at_ms is None
            if stops:
                self._retry_at_ms = self._now_ms() + RETRY_MS
        if first or (stops and runs):
            self._tell(error, stops=stops)

    def _tell(self, error: OSError, *, stops: bool) -> None:
        cure = "free some space" if error.errno in _FULL else "check the disk"
        state = "requests are refused (503)" if stops else "the request was refused"
        logger.error("%s failed: %s; %s; %s; it is retried automatically", self._name, error, state, cure)
