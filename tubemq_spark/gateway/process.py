"""A gateway as a process: its log, its signals, its exit code."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from typing import Final

from tubemq_spark.errors import TubeMQConnectionError
from tubemq_spark.gateway.operate.log import log_handler
from tubemq_spark.gateway.operate.overview import report
from tubemq_spark.gateway.server import GatewayServer
from tubemq_spark.gateway.settings import GatewaySettings

STOPPED: Final = 0
CANNOT_LISTEN: Final = 3
NO_MASTER: Final = 4

logger = logging.getLogger("tubemq_spark.gateway")


def run_gateway(settings: GatewaySettings, report_s: float | None = None) -> int:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends it at once. Return the exit code.

    With ``report_s``, a line about what it is doing goes to stdout that often.

    Raises:
        OptionError: a package is missing.
    """
    logging.basicConfig(level=settings.log_level, handlers=[log_handler(settings)])
    server = GatewayServer(settings)
    code = asyncio.run(_serve(server, settings, report_s))
    if server.left:
        # Python would wait for threads whose calls have ended.
        logging.shutdown()
        sys.stdout.flush()
        os._exit(code)
    return code


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
    forced.cancel()
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
