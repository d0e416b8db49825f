"""The thread in which functions of the user are called."""

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from tubemq_spark.errors import TubeMQConnectionError

logger = logging.getLogger(__name__)


class CallbackThread:
    """A daemon thread that is started when it is first needed; any thread may use it.

    Nothing is lost: what was handed over before ``end`` is called before the thread ends.
    """

    def __init__(self) -> None:
        """Start no thread."""
        self.name = "tubemq-callbacks"
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._has_ended = False

    def start(self) -> None:
        """Start the thread unless it has been started.

        Raises:
            TubeMQConnectionError: no thread is left.
        """
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name=self.name, daemon=True)
                    try:
                        thread.start()
                    except RuntimeError as error:
                        raise TubeMQConnectionError("TUBEMQ_PROCESS_EXHAUSTED", cause=error) from error
                    self._thread = thread

    def is_current(self) -> bool:
        """Whether this is the thread."""
        return self._thread is threading.current_thread()

    def call_soon(self, call: Callable[[], object]) -> None:
        """Call a function in the thread, soon; if it cannot be started, after a later call that starts it."""
        self._calls.put(call)
        try:
            self.start()
        except TubeMQConnectionError as error:  # the loop calls this, and has other messages
            logger.warning("functions of the user are called later: %s", error)

    def flush(self, timeout: float | None = None) -> bool:
        """Return when all that was handed over has been called; False if it has not in time."""
        if self._thread is None:
            return True
        called = threading.Event()
        with self._lock:
            has_ended = self._has_ended
            if not has_ended:
                self._calls.put(called.set)
        if not has_ended:
            return called.wait(timeout)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def end(self) -> None:
        """End the thread after what it was handed; return at once."""
        with self._lock:
            self._has_ended = True
            self._calls.put(None)

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended, unless this is it."""
        if self._thread is not None and not self.is_current():
            self._thread.join(timeout)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except BaseException:
                logger.warning("%r raised an error, which ends nothing", call, exc_info=True)
            del call
