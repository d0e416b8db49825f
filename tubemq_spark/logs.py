"""Log lines where logging is not configured.

Python then writes a warning's bare text to stderr. In the middle of Spark's own lines that tells neither when
nor who, and in a task's process users cannot configure logging. So this package has a handler that writes
time, level and logger, and keeps silent as soon as another handler listens. An environment variable, which
Spark can set for its executors, says from which level on.
"""

import logging
import os
import sys
from typing import Final

LEVEL_VARIABLE: Final = "TUBEMQ_SPARK_LOG_LEVEL"
"""The level from which on this package logs, by the name that Python has for it; by default WARNING."""
_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class LastResortHandler(logging.Handler):
    """Writes warnings to stderr when no other handler would take them, as Python's own last resort."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter(_FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, or leave it to the handlers that users configured."""
        try:
            if not self._others_listen(record.name):
                sys.stderr.write(self.format(record) + "\n")
        except Exception:  # noqa: BLE001 - a handler must never raise into what logs
            self.handleError(record)

    def _others_listen(self, name: str) -> bool:
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return True
            logger = logger.parent if logger.propagate else None
        return False


def write_lines_as(formatter: logging.Formatter) -> None:
    """Write this package's lines in another form, where no other handler takes them."""
    for handler in logging.getLogger("tubemq_spark").handlers:
        if isinstance(handler, LastResortHandler):
            handler.setFormatter(formatter)


def install() -> None:
    """Add the handler to this package's logger; called once, by the package's import."""
    logger, handler = logging.getLogger("tubemq_spark"), LastResortHandler()
    logger.addHandler(handler)
    name = os.environ.get(LEVEL_VARIABLE, "").strip().upper()
    level = logging.getLevelNamesMapping().get(name)
    if level is not None:
        logger.setLevel(level)
        handler.setLevel(level)
    elif name:
        logger.warning("%s is %s, which is no level: logging begins at WARNING", LEVEL_VARIABLE, name)
