"""A gateway as a process, with its log, its signals and its exit code; or in the event loop of another one.

**The log** goes to stderr, or to a file that is replaced when it is large. Names and texts in it come from
clients, so nothing that they send may look like a line of its own, move the cursor of a terminal, or fill a
disk:

- characters that are not printable are escaped, among them line ends, ESC, and marks that turn the direction
  of writing; a traceback is indented;
- each value in a line is cut at 1,000 characters;
- of warnings, and of all that has a *kind* (a failed call has its condition), the first in a minute are
  written and the others counted: "and 1,234 more of TUBEMQ_SESSION_UNKNOWN in 60 s".
"""

import asyncio
import contextlib
import dataclasses
import json
import logging
import logging.handlers
import signal
import sys
import time
from typing import Final, Self

from tubemq_spark.errors import TubeMQConnectionError
from tubemq_spark.gateway.overview import report
from tubemq_spark.gateway.server import GatewayServer
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.net import loop
from tubemq_spark.net.deadline import Clock, monotonic

STOPPED: Final = 0
CANNOT_LISTEN: Final = 3
NO_MASTER: Final = 4

logger = logging.getLogger("tubemq_spark.gateway")
_FORMAT: Final = "%(asctime)sZ %(levelname)s %(name)s: %(message)s"
_MOMENT: Final = "%Y-%m-%dT%H:%M:%S"
_VALUE_CHARACTERS: Final = 1_000
_LINE_CHARACTERS: Final = 10_000
"""Of a message with all of its values, and of a traceback."""
_ALL_OF_A_KIND: Final = 10
_PERIOD_S: Final = 60.0
_MOST_KINDS: Final = 500
"""Others share one count."""


def run_gateway(settings: GatewaySettings, report_s: float | None = None) -> int:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends it at once. Return the exit code.

    With ``report_s``, a line about what it is doing goes to stdout that often.
    """
    logging.basicConfig(level=settings.log_level, handlers=[log_handler(settings)])
    server = GatewayServer(settings)
    return asyncio.run(_serve(server, settings, report_s))


async def _serve(server: GatewayServer, settings: GatewaySettings, report_s: float | None) -> int:
    signals: asyncio.Queue[None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, None)
    try:
        await server.start()
    except TubeMQConnectionError as error:
        sys.stderr.write(f"tubemq-spark: {error}\n")
        await server.stop(0)
        return CANNOT_LISTEN if error.condition == "TUBEMQ_LISTEN_FAILED" else NO_MASTER
    # The parent process reads where it listens, which may be any free port.
    sys.stdout.write(f"gateway {settings.name} serves at {server.address}\n")
    if server.metrics_address is not None:
        sys.stdout.write(f"metrics at http://{server.metrics_address}/metrics\n")
        sys.stdout.write(f"status page at http://{server.metrics_address}/\n")
    sys.stdout.flush()
    reporting = None if report_s is None else asyncio.create_task(_report(server, report_s))
    await signals.get()
    stopping = asyncio.create_task(server.stop())
    forced = asyncio.create_task(signals.get())
    await asyncio.wait({stopping, forced}, return_when=asyncio.FIRST_COMPLETED)
    if not stopping.done():
        logger.warning("a second signal: the gateway does not wait any longer")
        server.hurry()
    await stopping
    if reporting is not None:
        reporting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reporting
    return STOPPED


async def _report(server: GatewayServer, every_s: float) -> None:
    """Write what the gateway is doing until it has stopped; a mistake in that does not end the gateway."""
    while True:
        await asyncio.sleep(every_s)
        try:
            # In a thread, since a terminal may block.
            await asyncio.to_thread(_write, report(server.observer.overview()))
        except Exception:  # (a reader that has gone, among others)
            logger.exception("what the gateway is doing can no longer be written to stdout")
            return


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


# The log.


def printable(text: str) -> str:
    """Return a text with escapes in place of all characters that are not printable."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def _cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    return f"{text[:longest]}... ({len(text):,} characters)"


def _value(value: object) -> object:
    """Return a value of a message as it may be shown; a number keeps the format that the message wants."""
    return value if isinstance(value, int | float) else _cut(str(value), _VALUE_CHARACTERS)


def _message(record: logging.LogRecord) -> str:
    values = record.args
    if isinstance(values, tuple):
        text = str(record.msg) % tuple(map(_value, values)) if values else str(record.msg)
    else:
        text = record.getMessage()
    return _cut(text, _LINE_CHARACTERS)


class _UtcFormatter(logging.Formatter):
    """One line per record, with the time in UTC; a traceback follows below, indented."""

    def __init__(self) -> None:
        super().__init__(_FORMAT, _MOMENT)
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        # A copy: other handlers format the record in their own way.
        shown = logging.makeLogRecord(record.__dict__)
        shown.msg, shown.args = printable(_message(record)), None
        shown.exc_text = shown.stack_info = None
        return super().format(shown)

    def formatException(self, ei: object) -> str:  # noqa: N802 (logging's name)
        text = _cut(super().formatException(ei), _LINE_CHARACTERS)  # type: ignore[arg-type]
        return "\n".join(f"  {printable(line)}" for line in text.split("\n"))


class _JsonFormatter(logging.Formatter):
    """One JSON object per record, always on one line of ASCII."""

    def __init__(self) -> None:
        super().__init__(datefmt=_MOMENT)
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        record_fields = {
            "time": f"{self.formatTime(record, _MOMENT)}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": _message(record),
        }
        if record.exc_info:
            record_fields["traceback"] = _cut(self.formatException(record.exc_info), _LINE_CHARACTERS)
        return json.dumps(record_fields)


@dataclasses.dataclass(slots=True)
class _Count:
    """Entries of a kind since a moment."""

    since: float
    entries: int = 0

    @property
    def left_out(self) -> int:
        return max(0, self.entries - _ALL_OF_A_KIND)


class LimitedHandler(logging.Handler):
    """Passes entries on to another handler, of a kind not more than ten in a minute.

    What was left out is counted in a line of its own, with the first entry after that minute, or when the
    handler is closed.
    """

    def __init__(self, target: logging.Handler, clock: Clock = monotonic) -> None:
        super().__init__()
        self._target = target
        self._clock = clock
        self._counts: dict[str, _Count] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Write an entry, or count it."""
        now = self._clock()
        for ended in [kind for kind, count in self._counts.items() if now - count.since >= _PERIOD_S]:
            self._tell(ended, self._counts.pop(ended), now)
        kind = self._kind_of(record)
        if kind is not None:
            count = self._counts.setdefault(kind, _Count(now))
            count.entries += 1
            if count.left_out:
                return
        self._target.handle(record)

    def flush(self) -> None:
        """Write what the other handler still holds."""
        self._target.flush()

    def close(self) -> None:
        """Tell what was left out, and write no longer."""
        with self.lock:  # type: ignore[union-attr]  # (typed as if it could be missing)
            for kind, count in self._counts.items():
                self._tell(kind, count, self._clock())
            self._counts.clear()
        self._target.close()
        super().close()

    def _kind_of(self, record: logging.LogRecord) -> str | None:
        """Return of which kind an entry is; None: all of them are written."""
        kind = getattr(record, "kind", None)
        if kind is None and record.levelno >= logging.WARNING:
            kind = f'"{_cut(str(record.msg), _VALUE_CHARACTERS)}"'
        if kind is not None and kind not in self._counts and len(self._counts) >= _MOST_KINDS:
            kind = "further kinds"
        return kind

    def _tell(self, kind: str, count: _Count, now: float) -> None:
        if count.left_out:
            text = f"and {count.left_out:,} more of {kind} in {now - count.since:.0f} s"
            self._target.handle(
                logging.LogRecord("tubemq_spark.gateway", logging.WARNING, __file__, 0, text, (), None)
            )


def log_handler(settings: GatewaySettings) -> logging.Handler:
    """Return the handler that writes the log."""
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
    return LimitedHandler(handler)


class BackgroundGateway:
    """A gateway in the event loop of this process; as a context manager it starts and stops itself.

    All gateways and clients of a process share that loop: several loops of gRPC in one process may lose a
    wake-up.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._running = False
        self.server: GatewayServer | None = None
        """The gateway, once it has started."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(0)

    @property
    def address(self) -> str:
        """Where clients reach it, as ``host:port``."""
        if self.server is None:
            raise RuntimeError("the gateway has not started")
        return self.server.address

    def start(self) -> None:
        """Begin to serve."""
        self.server = loop.run(self._start())
        self._running = True

    def stop(self, drain_ms: int | None = None) -> None:
        """Drain, and end; see ``GatewayServer.stop``."""
        if self.server is not None and self._running:
            self._running = False
            loop.run(self.server.stop(drain_ms))

    async def _start(self) -> GatewayServer:
        server = GatewayServer(self._settings)
        await server.start()
        return server
