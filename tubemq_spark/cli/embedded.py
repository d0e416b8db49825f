"""``tubemq-spark embedded``: the embedded server as a separate process."""

import argparse
import dataclasses
import logging
import os
import re
import resource
import signal
import socket
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from tubemq_spark.cli.connection import TOKEN_VARIABLE, read_token, variable
from tubemq_spark.cli.output import complain
from tubemq_spark.cli.parser import SECONDS, argument, command, whole_number
from tubemq_spark.errors import OptionError, TubeMQConnectionError
from tubemq_spark.model import INDEX_ENTRY_BYTES, OffsetBounds, StoreId
from tubemq_spark.protocol.constants import (
    DEFAULT_ADMIN_TOKEN,
    EMBEDDED_WEB_PORT,
    TOPIC_NAME,
    USUAL_WEB_PORTS,
)
from tubemq_spark.receipts import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tubemq_spark.embedded.config.settings import EmbeddedSettings
    from tubemq_spark.embedded.server import EmbeddedTubeMQ, Overview
    from tubemq_spark.net.tls import ServerTls

logger = logging.getLogger(__name__)

TOPIC_TEXT: Final = re.compile(r"(?P<name>[^:]*):(?P<stores>[0-9]{1,4}):(?P<partitions>[0-9]{1,4})", re.ASCII)

_REFRESH_SECONDS: Final = 1.0
_FILES_ON_MACOS: Final = 10_240
"""``OPEN_MAX``: setrlimit(2) refuses more there."""

_PORTS: Final = {
    "--master-port": (8715, "the master"),
    "--broker-port": (8123, "the broker"),
    # TubeMQ uses 8080 and 8081, but so do the web pages of a Spark cluster.
    "--master-web-port": (EMBEDDED_WEB_PORT, "the master's HTTP administration"),
    "--broker-web-port": (8781, "the broker's HTTP administration"),
}

TopicShape = tuple[str, int, int]
"""A topic's name, its stores, and the partitions per store."""


def parse_topic(text: str) -> TopicShape:
    """Read ``name:stores:partitions``."""
    match = TOPIC_TEXT.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME:STORES:PARTITIONS; clicks:3:1, for example, has 3 stores of 1 partition"
        )
    name, stores, partitions = match["name"], int(match["stores"]), int(match["partitions"])
    if not TOPIC_NAME.fullmatch(name):
        raise argparse.ArgumentTypeError(
            f"{name!r} is not a valid topic name; use 2 to 64 letters, digits or _, beginning with a letter"
        )
    if not stores or not partitions:
        raise argparse.ArgumentTypeError(
            f"{text!r} has no partition; a topic needs at least one store and one partition per store"
        )
    return name, stores, partitions


@command(
    name="embedded",
    summary="run a TubeMQ master and brokers in this process",
    description="Run a TubeMQ master and brokers in this process until SIGINT or SIGTERM. "
    "With --data, topics and messages are kept for the next start.",
    example="--data /tmp/tubemq --topic clicks:3:1",
    failure="it cannot listen, or use its directory",
    arguments=(
        argument("--data DIR", "directory for topics and messages (default: a temporary one)", Path),
        argument(
            "--topic NAME:STORES:PARTITIONS",
            "a topic to create, with its stores and partitions per store; can be repeated",
            parse_topic,
            action="append",
            default=[],
            dest="topics",
        ),
        argument("--host HOST", "address to listen on (default: %(default)s)", default="127.0.0.1"),
        argument(
            "--advertised-host HOST",
            "name that clients use to reach this machine (default: the value of --host)",
        ),
        *(
            argument(
                f"{option} PORT",
                f"port of {what} (default: {port}; 0: any free port)",
                whole_number(0, 65_535, "a port"),
                default=port,
            )
            for option, (port, what) in _PORTS.items()
        ),
        argument(
            "--token-file FILE",
            "file with the token that calls of the master's HTTP administration must carry to change "
            f"something (default: what {TOKEN_VARIABLE} in the environment says, or TubeMQ's public default, "
            f"{DEFAULT_ADMIN_TOKEN}; required if other machines can reach the server)",
            Path,
        ),
        argument(
            "--tls-cert FILE",
            "certificate of the server, in PEM: its ports then speak TLS only, but for the web ports",
        ),
        argument("--tls-key FILE", "private key of the certificate, in PEM (default: in the same file)"),
        argument(
            "--tls-client-ca FILE",
            "CA whose certificates clients have to show, in PEM (default: they need none)",
        ),
        argument(
            "--segment-mib N",
            "size at which a new data file is started; old data is deleted in whole files "
            "(default: %(default)s)",
            whole_number(1, 1 << 20, "a size in MiB"),
            default=1024,
        ),
        argument(
            "--index-segment-entries N",
            "messages after which a new index file is started; they are deleted by age in whole files "
            "too (default: %(default)s)",
            whole_number(1, 1 << 26, "a number of messages"),
            default=700_000,
        ),
        argument(
            "--brokers N",
            "number of brokers, which listen on 127.0.0.1, 127.0.0.2 and so on (default: %(default)s)",
            whole_number(1, 100, "a number of brokers"),
            default=1,
        ),
        argument(
            "--report-seconds N",
            "print a line about traffic and clients every N seconds instead of the table",
            SECONDS,
        ),
    ),
)
def embedded(arguments: argparse.Namespace) -> int:
    """Serve until a signal arrives."""
    from tubemq_spark.embedded.server import EmbeddedTubeMQ

    _allow_many_files()
    topics = {name: (stores, partitions) for name, stores, partitions in arguments.topics}
    settings = _settings(arguments)
    with (
        _ports_named(arguments),
        _stop_signal() as stop,
        EmbeddedTubeMQ(
            data=arguments.data,
            topics=topics,
            host=arguments.host,
            master_port=arguments.master_port,
            broker_port=arguments.broker_port,
            master_web_port=arguments.master_web_port,
            broker_web_port=arguments.broker_web_port,
            brokers=arguments.brokers,
            settings=settings,
            advertised_host=arguments.advertised_host,
        ) as server,
    ):
        # Including those of earlier runs.
        shapes = {name: (spec.stores, spec.partitions) for name, spec in server.topics().items()}
        _print(describe(server, shapes, arguments.data, settings.admin_token))
        _watch(server, stop, arguments.report_seconds)
        _print("stopping")
    return 0


@contextmanager
def _ports_named(arguments: argparse.Namespace) -> Iterator[None]:
    """Name the options of all ports where one of them is in use: the others may well be too."""
    try:
        yield
    except TubeMQConnectionError as error:
        if error.condition == "TUBEMQ_LISTEN_FAILED":
            ports = {option: getattr(arguments, option[2:].replace("-", "_")) for option in _PORTS}
            complain(f"the ports are {', '.join(f'{option} {port}' for option, port in ports.items())}")
        raise


def _settings(arguments: argparse.Namespace) -> "EmbeddedSettings":
    from tubemq_spark.embedded.config.settings import EmbeddedSettings

    settings = EmbeddedSettings(
        data_segment_bytes=arguments.segment_mib << 20,
        index_segment_bytes=arguments.index_segment_entries * INDEX_ENTRY_BYTES,
        tls=_tls(arguments),
    )
    # Other users of the host see arguments.
    file: Path | None = arguments.token_file
    token = os.environ.get(TOKEN_VARIABLE) if file is None else read_token(file)
    return settings if token is None else dataclasses.replace(settings, admin_token=token)


def _tls(arguments: argparse.Namespace) -> "ServerTls | None":
    """Return how the ports speak TLS; None: they do not."""
    from tubemq_spark.net.tls import ServerTls

    if arguments.tls_cert is not None:
        return ServerTls(arguments.tls_cert, arguments.tls_key, client_ca_file=arguments.tls_client_ca)
    for option, value in (("--tls-key", arguments.tls_key), ("--tls-client-ca", arguments.tls_client_ca)):
        if value is not None:
            raise OptionError("TUBEMQ_OPTION_NEEDED", option="--tls-cert", other=option)
    return None


def _allow_many_files() -> None:
    """Raise the soft limit of open files: a store needs two and a connection one, so 1024 are too few.

    macOS shows no hard limit, but has one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES_ON_MACOS if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        logger.warning("the limit of %d open files cannot be raised to %d: %s", soft, wanted, error)


def _watch(server: "EmbeddedTubeMQ", stop: socket.socket, report_seconds: float | None) -> None:
    """Show what happens until the signal arrives."""
    if report_seconds is None and not sys.stdout.isatty():
        stop.recv(1)
        return
    meter = Meter()
    if report_seconds is not None:
        while not _arrived(stop, report_seconds):
            overview = server.overview()
            _print(line(overview, meter.flows(overview)))
        return
    from tubemq_spark.cli.screen import live

    with live() as show:
        while not _arrived(stop, _REFRESH_SECONDS):
            overview = server.overview()
            show(table(overview, meter.flows(overview)))


def _arrived(stop: socket.socket, seconds: float) -> bool:
    """Wait for the signal; return whether it arrived in time."""
    stop.settimeout(seconds)
    try:
        return bool(stop.recv(1))
    except TimeoutError:
        return False


def describe(
    server: "EmbeddedTubeMQ", topics: dict[str, tuple[int, int]], data: Path | None, token: str
) -> str:
    """Describe the server to its user: addresses, topics, lines to copy.

    The token is among them only if it is the default, which is public.
    """
    webs = [f"http://{server.master_web} (master)"]
    webs += [f"http://{address} (broker)" for address in server.broker_webs.values()]
    lines = [
        f"master            {server.master}",
        *(f"broker            {address}" for address in server.brokers.values()),
        f"administration    {', '.join(webs)}",
        *_web_hint(server.master_web),
        f"data              {data if data is not None else 'temporary, deleted at the end'}",
        *(
            f"topic             {name}: {counted(stores, 'store')} of {counted(partitions, 'partition')}"
            for name, (stores, partitions) in topics.items()
        ),
        "",
        "For commands in another terminal:",
        "",
        f"    {_exports(server, token)}",
        "",
        "To read a topic in PySpark:",
        "",
        textwrap.indent(snippet(server.master, next(iter(topics), "my_topic")), "    "),
        "",
        "Stop with Ctrl-C.",
    ]
    return "\n".join(lines)


def _exports(server: "EmbeddedTubeMQ", token: str) -> str:
    """Return the line that tells commands of a shell where the server is, and lets them change its topics."""
    variables = {variable("master"): server.master}
    if _web_hint(server.master_web):
        variables[variable("web")] = server.master_web
    if token == DEFAULT_ADMIN_TOKEN:
        variables[TOKEN_VARIABLE] = token
    return " ".join(["export", *(f"{name}={value}" for name, value in variables.items())])


def _web_hint(master_web: str) -> list[str]:
    """Return how to name the masters' administration where clients do not look for it by themselves."""
    if int(master_web.rpartition(":")[2]) in USUAL_WEB_PORTS:
        return []
    return [f"                  for lists: tubemq.master.web={master_web}, or --web of a command"]


def snippet(master: str, topic: str) -> str:
    """Return PySpark code that prints a topic as it grows."""
    return textwrap.dedent(f"""\
        import os, sys
        from pyspark.sql import SparkSession

        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        spark = SparkSession.builder.getOrCreate()
        rows = (
            spark.readStream.format("tubemq")
            .option("tubemq.master.servers", "{master}")
            .option("tubemq.group", "try_it")
            .option("subscribe", "{topic}")
            .option("startingOffsets", "earliest")
            .load()
        )
        rows.writeStream.format("console").start().awaitTermination()""")


@contextmanager
def _stop_signal() -> Iterator[socket.socket]:
    """Yield a socket that becomes readable when SIGINT or SIGTERM arrives, in whichever thread.

    An event that is set by a handler does not suffice: a signal that arrives just before the main thread
    starts to wait for the event is handled only after that wait.
    """
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        handlers = {number: signal.signal(number, _do_nothing) for number in (signal.SIGINT, signal.SIGTERM)}
        descriptor = signal.set_wakeup_fd(writer.fileno())
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(descriptor)
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Handle a signal: only signals with a handler are written to the socket."""


_MEGABYTE: Final = 1_000_000
_SHOWN_STORES: Final = 4


class Meter:
    """Turns totals into rates, from one call to the next."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = ((0, 0), (0, 0))
        self._last_at = clock()

    def flows(self, overview: "Overview") -> tuple[str, ...]:
        """Return the incoming and the outgoing traffic as texts: the present rates, and the totals."""
        now, traffic = self._clock(), overview.traffic
        totals = (traffic.messages_in, traffic.bytes_in), (traffic.messages_out, traffic.bytes_out)
        seconds = max(now - self._last_at, 1e-9)
        texts = tuple(
            f"{(messages - last[0]) / seconds:,.0f} messages/s, "
            f"{(size - last[1]) / seconds / _MEGABYTE:,.1f} MB/s "
            f"({messages:,} messages, {size / _MEGABYTE:,.1f} MB in total)"
            for (messages, size), last in zip(totals, self._last, strict=True)
        )
        self._last, self._last_at = totals, now
        return texts


def line(overview: "Overview", flows: tuple[str, ...]) -> str:
    """Return everything except the offsets, in one line."""
    return "; ".join((f"in {flows[0]}", f"out {flows[1]}", _clients(overview), *_brokers(overview)))


def table(overview: "Overview", flows: tuple[str, ...]) -> "RenderableType":
    """Return everything, for a terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    topics = Table("topic", "messages", "offsets by store", box=None, padding=(0, 2, 0, 0))
    topics.columns[1].justify = "right"
    for topic, stores in _by_topic(overview.stores).items():
        rows = sum((bounds.latest - bounds.earliest) // INDEX_ENTRY_BYTES for bounds in stores.values())
        topics.add_row(topic, f"{rows:,}", _ranges(stores, several_brokers=len(overview.brokers) > 1))
    lines = (f"in   {flows[0]}", f"out  {flows[1]}", _clients(overview), *_brokers(overview))
    return Group(*map(Text, lines), topics)


def _clients(overview: "Overview") -> str:
    return (
        f"{counted(overview.connections, 'connection')}, {counted(overview.producers, 'producer')}, "
        f"{counted(overview.consumers, 'consumer')}, {counted(overview.leases, 'partition')} being read"
    )


def _brokers(overview: "Overview") -> list[str]:
    """Return the line about brokers if there are several."""
    if len(overview.brokers) == 1:
        return []
    return ["brokers: " + ", ".join(f"{number} {state}" for number, state in overview.brokers.items())]


def _by_topic(stores: Mapping[StoreId, OffsetBounds]) -> dict[str, dict[StoreId, OffsetBounds]]:
    topics: dict[str, dict[StoreId, OffsetBounds]] = {}
    for place, bounds in sorted(stores.items()):
        topics.setdefault(place.topic, {})[place] = bounds
    return topics


def _ranges(stores: Mapping[StoreId, OffsetBounds], *, several_brokers: bool) -> str:
    shown = [
        f"{f'{place.broker_id}/' if several_brokers else ''}{place.store}: {bounds.earliest}-{bounds.latest}"
        for place, bounds in stores.items()
    ]
    more = len(shown) - _SHOWN_STORES
    return "  ".join(shown[:_SHOWN_STORES]) + (f"  and {more} more" if more > 0 else "")


def _print(text: str) -> None:
    # Flushed, because a program that starts this process reads the addresses through a pipe.
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
