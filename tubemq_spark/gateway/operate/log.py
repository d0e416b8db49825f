"""Where the log of a gateway process goes: to stderr, or to a file that is replaced when it is large."""

import json
import logging
import logging.handlers
import sys
import time
from typing import Final

from tubemq_spark.gateway.settings import GatewaySettings

_FORMAT: Final = "%(asctime)sZ %(levelname)s %(name)s: %(message)s"
_MOMENT: Final = "%Y-%m-%dT%H:%M:%S"


class _UtcFormatter(logging.Formatter):
    """One line per record, with the time in UTC; a traceback follows below."""

    def __init__(self) -> None:
        super().__init__(_FORMAT, _MOMENT)
        self.converter = time.gmtime


class _JsonFormatter(_UtcFormatter):
    """One JSON object per record, always on one line."""

    def format(self, record: logging.LogRecord) -> str:
        record_fields = {
            "time": f"{self.formatTime(record, _MOMENT)}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            record_fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(record_fields)


def log_handler(settings: GatewaySettings) -> logging.Handler:
    """Return what writes the log.

    Raises:
        OSError: the file cannot be opened.
    """
    handler: logging.Handler
    if settings.log_file is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        handler = logging.handlers.RotatingFileHandler(
            settings.log_file,
            maxBytes=settings.log_file_bytes,
            backupCount=settings.log_files,
            encoding="utf-8",
        )
    handler.setFormatter(_JsonFormatter() if settings.log_json else _UtcFormatter())
    return handler
