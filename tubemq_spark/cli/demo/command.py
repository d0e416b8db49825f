"""``tubemq-spark demo``: real text through TubeMQ and Spark and back, every line accounted for.

The lines of many files are published to one topic; a streaming query counts their words into a second
topic, is stopped half way and started again from its checkpoint; then both topics are read back and
compared with what plain Python finds in the files.
"""

import argparse
import logging
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from tubemq_spark.cli.demo.input import DEFAULT_MAX_LINES, Selection, select_installed_python, select_paths
from tubemq_spark.errors import OptionError, TubeMQError
from tubemq_spark.model import Endpoint

if TYPE_CHECKING:
    from tubemq_spark.cli.demo.screen import Screen

LINES_TOPIC: Final = "demo_lines"
COUNTS_TOPIC: Final = "demo_counts"

# In the one topic each partition has a store of its own and rows have exact offsets; in the other,
# partitions share a store.
EMBEDDED_SHAPES: Final = ((3, 1), (1, 2))

MICRO_BATCHES: Final = 8
"""Into how many micro-batches the query's work is cut, unless the user says otherwise."""

_TERMINATED: Final = 128 + signal.SIGTERM


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Describe the command and its arguments."""
    parser = commands.add_parser(
        "demo",
        help="watch text flow through TubeMQ and Spark, and count every line",
        description="Publish the lines of files to TubeMQ, count their words with Structured Streaming, stop "
        "and restart the query half way, read everything back and check that no line is lost or repeated.",
    )
    parser.add_argument(
        "--input",
        nargs="+",
        metavar="PATH",
        help="files and directories to publish (default: modules and licences of the installed Python)",
    )
    parser.add_argument(
        "--max-lines",
        type=_positive,
        metavar="N",
        help=f"take whole files up to N lines in all (default: {DEFAULT_MAX_LINES} of the installed Python, "
        "no limit with --input)",
    )
    parser.add_argument(
        "--rows-per-batch",
        type=_positive,
        metavar="N",
        help=f"lines a micro-batch takes at most (default: what makes {MICRO_BATCHES} micro-batches)",
    )
    parser.add_argument(
        "--master",
        type=_masters,
        metavar="HOST:PORT",
        help="use a running TubeMQ that has both topics, in place of an embedded one; several masters with "
        "commas; nobody else may write to the topics meanwhile",
    )
    parser.add_argument("--lines-topic", default=LINES_TOPIC, metavar="TOPIC", help="default: %(default)s")
    parser.add_argument("--counts-topic", default=COUNTS_TOPIC, metavar="TOPIC", help="default: %(default)s")
    parser.add_argument("--group", default="tubemq_spark_demo", metavar="GROUP", help="default: %(default)s")
    parser.add_argument("--keep", action="store_true", help="keep checkpoint, messages and logs")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the demo and return 0, which says that every check held.

    Raises:
        OptionError: the input, the address or the topics are not usable.
        TubeMQError: TubeMQ or Spark failed, or a line was lost, repeated or changed.
    """
    if not _has_spark():
        raise TubeMQError("TUBEMQ_DEMO_NO_SPARK", python=sys.executable)
    if arguments.lines_topic == arguments.counts_topic:
        raise OptionError("TUBEMQ_DEMO_ONE_TOPIC", topic=arguments.lines_topic)
    from tubemq_spark.cli.demo.screen import Screen

    screen = Screen()
    with _unwinding_on_sigterm(), screen.whole():
        with screen.step("choose files"):
            selection = _select(arguments)
        for reason in selection.left_out:
            screen.say(f"  left out: {reason}")
        with _workspace(screen, keep=arguments.keep) as workspace:
            _run_in(workspace, arguments, selection, screen)
    return 0


def _run_in(workspace: Path, arguments: argparse.Namespace, selection: Selection, screen: "Screen") -> None:
    """Bring Spark and TubeMQ up, do the work, and take them down in the opposite order."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from tubemq_spark.cli.demo.job import cause_of, spark_session
    from tubemq_spark.cli.demo.run import DemoRun, Plan

    log = workspace / "demo.log"
    # Warnings of this process go where Spark's go; py4j logs a stack trace where it is interrupted.
    logging.basicConfig(filename=log, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        with ExitStack() as running:
            # Spark first: it forks, which is best done before there are threads.
            with screen.step("start Spark"):
                session = running.enter_context(spark_session(workspace, log))
            with screen.step("connect to TubeMQ" if arguments.master else "start the embedded TubeMQ"):
                masters = arguments.master or running.enter_context(_embedded(workspace, arguments))
            plan = Plan(
                selection=selection,
                masters=masters,
                group=arguments.group,
                lines_topic=arguments.lines_topic,
                counts_topic=arguments.counts_topic,
                rows_per_batch=arguments.rows_per_batch or _share(selection.line_count),
                checkpoint=workspace / "checkpoint",
            )
            DemoRun(plan, session, screen).run()
    except (PySparkException, Py4JError) as error:
        raise TubeMQError("TUBEMQ_DEMO_SPARK", cause=cause_of(error), log=log) from error


@contextmanager
def _embedded(workspace: Path, arguments: argparse.Namespace) -> Iterator[str]:
    """Run an embedded server with the demo's topics and give its master's address."""
    from tubemq_spark.embedded.server import EmbeddedTubeMQ

    topics = dict(zip((arguments.lines_topic, arguments.counts_topic), EMBEDDED_SHAPES, strict=True))
    with EmbeddedTubeMQ(data=workspace / "tubemq", topics=topics) as server:
        yield server.master


@contextmanager
def _workspace(screen: "Screen", *, keep: bool) -> Iterator[Path]:
    """Give a new directory, removed at the end unless it is wanted or can tell why something failed."""
    path = Path(tempfile.mkdtemp(prefix="tubemq-demo-"))
    try:
        yield path
    except OptionError:
        raise
    except Exception:
        keep = True
        raise
    finally:
        if keep:
            screen.say(f"kept: {path}")
        else:
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _unwinding_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end the process by an exception, so that nothing stays behind."""

    def leave(_number: int, _frame: FrameType | None) -> None:
        sys.exit(_TERMINATED)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _select(arguments: argparse.Namespace) -> Selection:
    if arguments.input:
        return select_paths(arguments.input, arguments.max_lines)
    return select_installed_python(arguments.max_lines or DEFAULT_MAX_LINES)


def _share(lines: int) -> int:
    """Return how many lines a micro-batch takes, so that the last of ``MICRO_BATCHES`` is about half full.

    With an exact share, what the topic's stores round off would need one micro-batch more.
    """
    return lines * 2 // (2 * MICRO_BATCHES - 1) + 1


def _has_spark() -> bool:
    try:
        import pyspark  # noqa: F401 - only whether it is there
    except ImportError:
        return False
    return True


def _masters(text: str) -> str:
    try:
        return ",".join(str(Endpoint.parse(part)) for part in text.split(","))
    except OptionError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)
