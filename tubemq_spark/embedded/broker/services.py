"""Whether a broker reads and writes: too many I/O errors stop the one or the other (ServiceStatusHolder)."""

import errno
import threading


class Service:
    """Reading or writing; it runs until something stops it, and then until ``open``."""

    def __init__(self, allowed_errors: int) -> None:
        """Run; one error more than allowed since the last ``open`` stops it."""
        self._allowed_errors = allowed_errors
        self._lock = threading.Lock()
        self._errors = 0
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether requests get 503."""
        return self._stopped

    def stop(self) -> None:
        """Let requests get 503."""
        self._stopped = True

    def open(self) -> None:
        """Run again, as when an operator releases a broker; errors are counted from none."""
        with self._lock:
            self._errors = 0
            self._stopped = False

    def count_error(self, error: Exception) -> None:
        """Something could not be read or written; one error of the disk too many stops the service.

        That a store has been closed, because its topic is removed, is none of the disk's. TubeMQ reads a
        time window for this from its configuration and does not use it; nor is there one here.
        """
        if not isinstance(error, OSError) or error.errno == errno.ESHUTDOWN:
            return
        with self._lock:
            self._errors += 1
            if self._errors > self._allowed_errors:
                self._stopped = True
