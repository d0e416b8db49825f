"""The command ``tubemq-spark demo``: its arguments, and what it starts and stops.

The lines of many files are published to one topic. A streaming query counts their words into a second topic,
is stopped halfway and restarted from its checkpoint. Then both topics are read back and compared with what
plain Python finds in the files.
"""

import argparse
import importlib.util
import logging
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from tubemq_spark.cli.demo.input import DEFAULT_MAX_LINES, InputFiles, select_installed_python, select_paths
from tubemq_spark.cli.parser import COUNT, argument, command
from tubemq_spark.errors import OptionError, TubeMQError
from tubemq_spark.model import Endpoint

if TYPE_CHECKING:
    from tubemq_spark.cli.screen import Screen

# In the first topic each partition has its own store, so rows have exact offsets; in the second one,
# partitions share a store.
_SHAPES: Final = ((3, 1), (1, 2))

MICRO_BATCHES: Final = 8
"""How many micro-batches the query takes, unless the user sets their size."""

_TERMINATED: Final = 128 + signal.SIGTERM


def _masters(text: str) -> str:
    try:
        return ",".join(str(Endpoint.parse(part)) for part in text.split(","))
    except OptionError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


@command(
    name="demo",
    summary="send text through TubeMQ and Spark and check every line",
    description="Publish the lines of files to TubeMQ, count their words with Structured Streaming, stop "
    "and restart the query halfway, read everything back, and check that no line was lost or repeated.",
    example="--max-lines 10000",
    failure="a check does not pass, or Spark or TubeMQ fails",
    arguments=(
        argument(
            "--input PATH",
            "files and directories to publish (default: modules and licences of the installed Python)",
            nargs="+",
        ),
        argument(
            "--max-lines N",
            f"publish whole files up to a total of N lines (default: {DEFAULT_MAX_LINES}, or no limit "
            "with --input)",
            COUNT,
        ),
        argument(
            "--rows-per-batch N",
            f"maximum lines per micro-batch (default: enough for {MICRO_BATCHES} micro-batches)",
            COUNT,
        ),
        argument(
            "--master HOST:PORT",
            "use a running TubeMQ that has both topics, instead of an embedded one; separate several "
            "masters with commas; nothing else may write to the topics during the run",
            _masters,
        ),
        argument("--lines-topic TOPIC", "topic for the lines (default: %(default)s)", default="demo_lines"),
        argument(
            "--counts-topic TOPIC", "topic for the word counts (default: %(default)s)", default="demo_counts"
        ),
        argument("--group GROUP", "consumer group (default: %(default)s)", default="tubemq_spark_demo"),
        argument("--keep", "keep the checkpoint, messages and logs"),
    ),
)
def demo(arguments: argparse.Namespace) -> int:
    """Run the demo and return 0; an error tells of checks that failed."""
    if importlib.util.find_spec("pyspark") is None:
        raise TubeMQError("TUBEMQ_DEMO_NO_SPARK", python=sys.executable)
    if arguments.lines_topic == arguments.counts_topic:
        raise OptionError("TUBEMQ_DEMO_ONE_TOPIC", topic=arguments.lines_topic)
    from tubemq_spark.cli.screen import Screen

    screen, began = Screen(), time.perf_counter()
    with _unwinding_on_sigterm():
        with screen.step("choose files"):
            if arguments.input:
                selection = select_paths(arguments.input, arguments.max_lines)
            else:
                selection = select_installed_python(arguments.max_lines or DEFAULT_MAX_LINES)
        for reason in selection.skipped:
            screen.say(f"  skipped: {reason}")
        with _workspace(screen, keep=arguments.keep) as workspace:
            _run_in(workspace, arguments, selection, screen)
        screen.say(f"{time.perf_counter() - began:.1f} s in total")
    return 0


def _run_in(workspace: Path, arguments: argparse.Namespace, selection: InputFiles, screen: "Screen") -> None:
    """Start Spark and TubeMQ, do the work, and stop them in the opposite order."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from tubemq_spark.cli.demo.job import Plan, cause_of, spark_session
    from tubemq_spark.cli.demo.run import DemoRun

    log = workspace / "demo.log"
    # Warnings of this process go to Spark's log; py4j logs a stack trace when it is interrupted.
    logging.basicConfig(filename=log, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        with ExitStack() as running:
            # Spark first, because it forks, which is best done before there are threads.
            with screen.step("start Spark"):
                session = running.enter_context(spark_session(workspace, log))
            with screen.step("connect to TubeMQ" if arguments.master else "start the embedded TubeMQ"):
                masters = arguments.master or running.enter_context(_embedded(workspace, arguments))
            plan = Plan(
                masters=masters,
                group=arguments.group,
                lines_topic=arguments.lines_topic,
                counts_topic=arguments.counts_topic,
                rows_per_batch=arguments.rows_per_batch or lines_per_batch(selection.line_count),
                checkpoint=workspace / "checkpoint",
            )
            DemoRun(plan, selection, session, screen).run()
    except (PySparkException, Py4JError) as error:
        raise TubeMQError("TUBEMQ_DEMO_SPARK", cause=cause_of(error), log=log) from error


@contextmanager
def _embedded(workspace: Path, arguments: argparse.Namespace) -> Iterator[str]:
    """Run an embedded server with the demo's topics and yield its master's address."""
    from tubemq_spark.embedded.server import EmbeddedTubeMQ

    topics = dict(zip((arguments.lines_topic, arguments.counts_topic), _SHAPES, strict=True))
    with EmbeddedTubeMQ(data=workspace / "tubemq", topics=topics) as server:
        yield server.master


@contextmanager
def _workspace(screen: "Screen", *, keep: bool) -> Iterator[Path]:
    """Yield a new directory; it is deleted at the end unless ``keep`` is set or something failed."""
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
    """Turn SIGTERM into an exception, so that everything is cleaned up."""

    def leave(_number: int, _frame: FrameType | None) -> None:
        sys.exit(_TERMINATED)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def lines_per_batch(lines: int) -> int:
    """Return how many lines a micro-batch takes, so that the last of ``MICRO_BATCHES`` is about half full.

    With an exact share, rounding per store would require one more micro-batch.
    """
    return lines * 2 // (2 * MICRO_BATCHES - 1) + 1
