"""``tubemq-spark embedded``: the embedded server as a process of its own."""

import argparse
import dataclasses
import re
import resource
import signal
import socket
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from tubemq_spark.protocol.names import TOPIC_NAME

if TYPE_CHECKING:
    from tubemq_spark.embedded.config.settings import EmbeddedSettings
    from tubemq_spark.embedded.server import EmbeddedTubeMQ

TOPIC_TEXT: Final = re.compile(r"(?P<name>[^:]*):(?P<stores>[0-9]{1,4}):(?P<partitions>[0-9]{1,4})", re.ASCII)

_REFRESH_SECONDS: Final = 1.0
_LONGEST_PERIOD: Final = 86_400.0
_MOST_BROKERS: Final = 100

TopicShape = tuple[str, int, int]
"""A topic's name, stores and partitions a store."""


class Addresses(NamedTuple):
    """Where a server listens, as ``host:port``; the brokers by their ids."""

    master: str
    master_web: str
    brokers: dict[int, str]
    broker_webs: dict[int, str]

    @classmethod
    def of(cls, server: "EmbeddedTubeMQ") -> Self:
        """Return those of a server."""
        return cls(server.master, server.master_web, server.brokers, server.broker_webs)


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Describe the command and its arguments."""
    parser = commands.add_parser(
        "embedded",
        help="serve topics from this process, kept in a directory",
        description="Serve TubeMQ topics from this process until SIGINT or SIGTERM. "
        "With --data the topics' messages outlive the process.",
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="directory of the messages (default: a temporary one)"
    )
    parser.add_argument(
        "--topic",
        type=parse_topic,
        action="append",
        default=[],
        dest="topics",
        metavar="NAME:STORES:PARTITIONS",
        help="a topic, its stores and the partitions of each store; may be given several times",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--advertised-host",
        metavar="HOST",
        help="name under which clients reach this machine (default: that of --host)",
    )
    for option, port, what in (
        ("--master-port", 8715, "the master"),
        ("--broker-port", 8123, "the broker"),
        # TubeMQ's own 8080 and 8081 are those of a Spark cluster's web pages.
        ("--master-web-port", 8780, "the master's HTTP administration"),
        ("--broker-web-port", 8781, "the broker's HTTP administration"),
    ):
        parser.add_argument(
            option,
            type=_port,
            default=port,
            metavar="PORT",
            help=f"port of {what} (default: {port}; 0: any free one)",
        )
    parser.add_argument(
        "--admin-token",
        metavar="TOKEN",
        help="what changing calls of the master's HTTP administration must carry (default: TubeMQ's own, "
        "which everybody knows; needed where other machines reach the server)",
    )
    parser.add_argument(
        "--segment-mib",
        type=_mebibytes,
        default=1024,
        metavar="N",
        help="size at which a file of messages is followed by a new one; old data go by whole files "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--brokers",
        type=_broker_count,
        default=1,
        metavar="N",
        help="number of brokers; several listen on 127.0.0.1, 127.0.0.2 and so on (default: %(default)s)",
    )
    parser.add_argument(
        "--report-seconds",
        type=_seconds,
        metavar="N",
        help="write a line about traffic and clients every N seconds, in place of the table on a terminal",
    )
    parser.set_defaults(run=run)


def parse_topic(text: str) -> TopicShape:
    """Read ``name:stores:partitions``.

    Raises:
        argparse.ArgumentTypeError: the text has another form, or a number is 0.
    """
    match = TOPIC_TEXT.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME:STORES:PARTITIONS; clicks:3:1 has three stores of one partition"
        )
    name, stores, partitions = match["name"], int(match["stores"]), int(match["partitions"])
    if not TOPIC_NAME.fullmatch(name):
        raise argparse.ArgumentTypeError(
            f"{name!r} is no name of a topic; take a letter and then letters, digits or _, 2 to 64 in all"
        )
    if not stores or not partitions:
        raise argparse.ArgumentTypeError(
            f"{text!r} has no partition; give one store and one partition at least"
        )
    return name, stores, partitions


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    from tubemq_spark.embedded.server import EmbeddedTubeMQ

    _allow_many_files()
    topics = {name: (stores, partitions) for name, stores, partitions in arguments.topics}
    with (
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
            settings=_settings(arguments),
            advertised_host=arguments.advertised_host,
        ) as server,
    ):
        # Those of earlier runs, too.
        shapes = {name: (spec.stores, spec.partitions) for name, spec in server.topics().items()}
        _say(describe(Addresses.of(server), shapes, arguments.data))
        _watch(server, stop, arguments.report_seconds)
        _say("stopping")
    return 0


def _settings(arguments: argparse.Namespace) -> "EmbeddedSettings":
    from tubemq_spark.embedded.config.settings import EmbeddedSettings

    settings = EmbeddedSettings(data_segment_bytes=arguments.segment_mib << 20)
    if arguments.admin_token is None:
        return settings
    return dataclasses.replace(settings, admin_token=arguments.admin_token)


def _allow_many_files() -> None:
    """Raise the soft limit of open files: a store has two, a connection one, and 1024 are soon too few."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _watch(server: "EmbeddedTubeMQ", stop: socket.socket, report_seconds: float | None) -> None:
    """Show what goes on until the signal comes."""
    if report_seconds is None and not sys.stdout.isatty():
        stop.recv(1)
        return
    from tubemq_spark.cli import embedded_screen as screen

    meter = screen.Meter()
    if report_seconds is not None:
        while not _came(stop, report_seconds):
            overview = server.overview()
            _say(screen.line(overview, meter.flows(overview)))
        return
    with screen.live() as show:
        while not _came(stop, _REFRESH_SECONDS):
            overview = server.overview()
            show(screen.table(overview, meter.flows(overview)))


def _came(stop: socket.socket, seconds: float) -> bool:
    """Wait for the signal; return whether it came."""
    stop.settimeout(seconds)
    try:
        return bool(stop.recv(1))
    except TimeoutError:
        return False


def _port(text: str) -> int:
    return _whole_number(text, 0, 65_535, "a port")


def _mebibytes(text: str) -> int:
    return _whole_number(text, 1, 1 << 20, "a size in MiB")


def _whole_number(text: str, least: int, most: int, what: str) -> int:
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}; take {least} to {most}")
    return int(text)


def _broker_count(text: str) -> int:
    return _whole_number(text, 1, _MOST_BROKERS, "a number of brokers")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < _LONGEST_PERIOD:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of seconds; take one above 0, and below a day"
        )
    return seconds


def describe(addresses: "Addresses", topics: dict[str, tuple[int, int]], data: Path | None) -> str:
    """Return what a user needs to work with the server: addresses, topics, and lines for PySpark."""
    webs = [f"http://{addresses.master_web} (master)"]
    webs += [f"http://{address} (broker)" for address in addresses.broker_webs.values()]
    lines = [
        f"master            {addresses.master}",
        *(f"broker            {address}" for address in addresses.brokers.values()),
        f"administration    {', '.join(webs)}",
        f"data              {data if data is not None else 'temporary, removed at the end'}",
        *(
            f"topic             {name}: {stores} stores of {partitions} partitions"
            for name, (stores, partitions) in topics.items()
        ),
        "",
        "To read a topic in PySpark:",
        "",
        textwrap.indent(snippet(addresses.master, next(iter(topics), "my_topic")), "    "),
        "",
        "Stop with Ctrl-C.",
    ]
    return "\n".join(lines)


def snippet(master: str, topic: str) -> str:
    """Return PySpark lines that print a topic as it grows."""
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
    """Give a socket that can be read as soon as SIGINT or SIGTERM came, to whichever thread.

    An event that a handler sets would not do: a signal that comes just before the main thread begins to
    wait for it is handled only after that wait.
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
    """Be a handler: only signals with one are written to the socket."""


def _say(text: str) -> None:
    # Flushed, because whoever starts this process reads the addresses through a pipe.
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
