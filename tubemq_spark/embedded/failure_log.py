"""Logging of failures that repeat: once when they begin, and once when they are over."""

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)


class FailureLog:
    """Remembers, by name, what is failing at present; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failing: set[str] = set()

    def failed(self, name: str, cause: object) -> None:
        """Log that something failed, unless it has been failing since that was last logged."""
        with self._lock:
            failing = name in self._failing
            self._failing.add(name)
        if not failing:
            logger.error("%s failed: %s", name, cause)

    def succeeded(self, name: str) -> None:
        """Log that something works again, if it was failing."""
        if name not in self._failing:
            return
        with self._lock:
            failing = name in self._failing
            self._failing.discard(name)
        if failing:
            logger.warning("%s works again", name)

    @contextlib.contextmanager
    def logged(self, name: str) -> Iterator[None]:
        """Do something; an OSError is logged and suppressed."""
        try:
            yield
        except OSError as error:
            self.failed(name, error)
        else:
            self.succeeded(name)

    def wrap(self, name: str, function: Callable[[], object]) -> Callable[[], None]:
        """Return a function that calls another one within ``logged``."""
        return functools.partial(self._call, name, function)

    def _call(self, name: str, function: Callable[[], object]) -> None:
        with self.logged(name):
            function()
