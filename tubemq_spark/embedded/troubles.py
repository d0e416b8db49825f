"""What goes wrong again and again is logged once when it begins, and once when it is over."""

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)


class Troubles:
    """Remembers by their names what is in trouble now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: set[str] = set()

    def begins(self, name: str, cause: object) -> None:
        """Log that something went wrong, unless that has been said and has not been over since."""
        with self._lock:
            known = name in self._names
            self._names.add(name)
        if not known:
            logger.error("%s failed: %s", name, cause)

    def ends(self, name: str) -> None:
        """Log that something works again that was in trouble."""
        if name not in self._names:
            return
        with self._lock:
            known = name in self._names
            self._names.discard(name)
        if known:
            logger.warning("%s works again", name)

    @contextlib.contextmanager
    def told(self, name: str) -> Iterator[None]:
        """Do something that may fail with an OSError, which is told and goes no further."""
        try:
            yield
        except OSError as error:
            self.begins(name, error)
        else:
            self.ends(name)

    def guarded(self, name: str, function: Callable[[], object]) -> Callable[[], None]:
        """Return a function that calls this one as ``told`` says."""
        return functools.partial(self._call, name, function)

    def _call(self, name: str, function: Callable[[], object]) -> None:
        with self.told(name):
            function()
