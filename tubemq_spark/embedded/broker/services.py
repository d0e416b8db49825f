"""Whether a broker reads and writes: too many I/O errors stop the one or the other (ServiceStatusHolder).

A service runs, or an operator's word or errors have stopped it. One that errors have stopped is tried again
after a pause: the next request goes through, and if it succeeds all do from then on. TubeMQ leaves that to
the operator alone; here a disk that was full for a moment must not end a test for good.
"""

import errno
import logging
import threading
from collections.abc import Callable
from typing import Final

from tubemq_spark.embedded.clock import monotonic_ms

logger = logging.getLogger(__name__)

RETRY_MS: Final = 5_000
"""How long a service that errors have stopped stays stopped before it is tried again."""

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Service:
    """Reading or writing."""

    def __init__(
        self, allowed_errors: int, name: str = "service", now_ms: Callable[[], int] = monotonic_ms
    ) -> None:
        """Run; one error more than allowed since the last ``open``, or successful trial, stops it.

        ``name`` is what the log calls it.
        """
        self._allowed_errors = allowed_errors
        self._name = name
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._errors = 0
        self._stopped = False
        self._retry_at_ms: int | None = None

    @property
    def stopped(self) -> bool:
        """Whether requests get 503."""
        return self._stopped

    def admits(self) -> bool:
        """Whether a request may go on: while the service runs all, when a pause is over one as a trial."""
        return not self._stopped or self._may_retry()

    def stop(self) -> None:
        """Let requests get 503 until ``open``."""
        with self._lock:
            self._stopped = True
            self._retry_at_ms = None

    def open(self) -> None:
        """Run again, as when an operator releases a broker; errors are counted from none."""
        with self._lock:
            self._errors = 0
            self._stopped = False

    def count_success(self) -> None:
        """Something was read or written: if errors have stopped the service, it runs again."""
        if not self._stopped:
            return
        with self._lock:
            by_errors = self._stopped_by_errors()
            if by_errors:
                self._errors = 0
                self._stopped = False
        if by_errors:
            logger.warning("%s works again", self._name)

    def count_error(self, error: Exception) -> None:
        """Something could not be read or written; one error of the disk too many stops the service.

        That a store has been closed, because its topic is removed, is none of the disk's. TubeMQ reads a
        time window for this from its configuration and does not use it; nor is there one here.
        """
        if not isinstance(error, OSError) or error.errno == errno.ESHUTDOWN:
            return
        with self._lock:
            self._errors += 1
            first = self._errors == 1
            stops = self._errors > self._allowed_errors
            told = self._stopped
            if stops and (not told or self._stopped_by_errors()):
                self._stopped = True
                self._retry_at_ms = self._now_ms() + RETRY_MS
        if first or (stops and not told):
            self._tell(error, stops=stops)

    def _tell(self, error: OSError, *, stops: bool) -> None:
        cure = "make room on it" if error.errno in _FULL else "look at the disk"
        state = "requests are refused (503)" if stops else "the request was refused"
        logger.error("%s failed: %s; %s; %s, it is tried again by itself", self._name, error, state, cure)

    def _may_retry(self) -> bool:
        """Let one request through when the pause is over; the others wait for what becomes of it."""
        now_ms = self._now_ms()
        with self._lock:
            if self._retry_at_ms is None or now_ms < self._retry_at_ms:
                return False
            self._retry_at_ms = now_ms + RETRY_MS
            return True

    def _stopped_by_errors(self) -> bool:
        return self._stopped and self._retry_at_ms is not None
