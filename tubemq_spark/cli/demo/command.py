"""The command ``tubemq-spark demo``: its arguments, which lines it publishes, what it starts and stops.

The lines of many files are published to one topic. A streaming query counts their words into a second topic,
is stopped halfway and restarted from its checkpoint. Then both topics are read back and compared with what
plain Python finds in the files.

Files are in a fixed order. A line is sent with its line ending, because TubeMQ refuses empty values and a
blank line would be one. The lines of a file, joined, are the file again, byte for byte.
"""

import argparse
import contextlib
import dataclasses
import importlib.util
import itertools
import logging
import os
import re
import shutil
import signal
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from tubemq_spark.cli.parser import COUNT, argument, command
from tubemq_spark.errors import OptionError, TubeMQError
from tubemq_spark.model import Endpoint

if TYPE_CHECKING:
    from tubemq_spark.cli.screen import Screen

DEFAULT_MAX_LINES: Final = 100_000
"""How much of the installed Python the demo publishes, so that it takes about a minute."""

MAX_LINE_BYTES: Final = 1_000_000
"""Files with a longer line are skipped: by default TubeMQ accepts 1 MiB of body and attributes."""

CHUNK_LINES: Final = 5_000

_LICENCE_NAME: Final = re.compile(r"(licen[cs]e|copying|notice)", re.IGNORECASE)
_MODULE_NAME: Final = re.compile(r".+\.py$")
_TYPE: Final = re.compile(r"[A-Za-z0-9]{1,16}")
_NO_TYPE: Final = "none"
_SAFE_IN_NAMES: Final = "/+-()@!~"
_SKIPPED_DIRECTORIES: Final = frozenset({"__pycache__", ".git"})
_INSTALLED_PACKAGES: Final = frozenset({"site-packages", "dist-packages"})


@dataclasses.dataclass(frozen=True, slots=True)
class InputFile:
    """A file to publish."""

    path: Path
    name: str
    """The attribute ``file`` of its messages; unique among the files of a run."""
    extension: str
    """The type of its messages."""
    line_count: int
    """Number of lines when the file was selected."""

    def chunks(self, size: int = CHUNK_LINES) -> Iterator[list[bytes]]:
        """Yield the lines in lists of up to ``size``, so that files of any length fit into memory."""
        with self.path.open("rb") as stream:
            while chunk := list(itertools.islice(stream, size)):
                yield chunk


@dataclasses.dataclass(frozen=True, slots=True)
class InputFiles:
    """The files of a run, in the order they are published."""

    files: tuple[InputFile, ...]
    skipped: tuple[str, ...]
    """Files that cannot be published, each with the reason."""

    @property
    def line_count(self) -> int:
        """Lines of all files."""
        return sum(file.line_count for file in self.files)


def select_installed_python(max_lines: int | None = DEFAULT_MAX_LINES) -> InputFiles:
    """Select the licence files and modules of the running Python and of its installed packages.

    Licences come first, then modules, both by name, so the same installation gives the same lines.
    """
    stdlib = Path(sysconfig.get_path("stdlib"))
    packages = sorted({Path(sysconfig.get_path(key)) for key in ("purelib", "platlib")})
    roots = [
        ("stdlib", stdlib, _SKIPPED_DIRECTORIES | _INSTALLED_PACKAGES),
        *(("site-packages", root, _SKIPPED_DIRECTORIES) for root in packages),
    ]

    def named(pattern: re.Pattern[str]) -> Iterator[tuple[str, Path]]:
        for place, root, skipped in roots:
            for entry in _walk(root, skipped):
                if pattern.match(entry.name):
                    path = Path(entry.path)
                    yield f"{place}/{path.relative_to(root).as_posix()}", path

    return _select(itertools.chain(named(_LICENCE_NAME), named(_MODULE_NAME)), max_lines)


def select_paths(paths: Sequence[str], max_lines: int | None = None) -> InputFiles:
    """Select the user's files, and all files in the user's directories.

    Names are relative to the deepest directory that contains them all.

    Raises:
        OptionError: a path does not exist, or there is not a single line.
    """
    roots = [Path(text).absolute() for text in paths]
    for root in roots:
        if not root.exists():
            raise OptionError("TUBEMQ_DEMO_INPUT", path=root, problem="does not exist")
    base = Path(os.path.commonpath([root.parent for root in roots]))
    files = [path for root in roots for path in (map(Path, _walk(root)) if root.is_dir() else [root])]
    selection = _select(((path.relative_to(base).as_posix(), path) for path in files), max_lines)
    if not selection.line_count:
        reasons = "; ".join(selection.skipped) or "all files are empty"
        raise OptionError(
            "TUBEMQ_DEMO_INPUT", path=", ".join(paths), problem=f"contains no lines ({reasons})"
        )
    return selection


def attribute_name(name: str) -> str:
    """Return a file's name in a form that is valid in an attribute.

    TubeMQ has no escapes for ``,`` and ``=`` in attributes, so special characters are percent-encoded.
    """
    return quote(os.fsencode(name), safe=_SAFE_IN_NAMES)


def extension_of(path: Path) -> str:
    """Return a file's extension in lower case; ``none`` if it has no plain one."""
    suffix = path.suffix.removeprefix(".")
    return suffix.lower() if _TYPE.fullmatch(suffix) else _NO_TYPE


def _walk(root: str | Path, skipped: frozenset[str] = _SKIPPED_DIRECTORIES) -> Iterator[os.DirEntry[str]]:
    """Yield the regular files below a directory, by name; links to directories are not followed."""
    with contextlib.suppress(PermissionError):
        for entry in sorted(os.scandir(root), key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in skipped:
                    yield from _walk(entry.path, skipped)
            elif entry.is_file():
                yield entry


def _select(candidates: Iterable[tuple[str, Path]], max_lines: int | None) -> InputFiles:
    """Select whole files in order while they fit into ``max_lines``; each file once."""
    chosen: dict[Path, InputFile] = {}
    skipped = []
    total = 0
    for name, path in candidates:
        if path in chosen:
            continue
        try:
            lines, longest = _measure(path)
        except OSError as error:
            skipped.append(f"{path}: {error.strerror}")
            continue
        if longest > MAX_LINE_BYTES:
            skipped.append(f"{path}: a line of {longest} bytes is too long for a message")
            continue
        if max_lines is not None and total + lines > max_lines:
            break
        total += lines
        if lines:
            chosen[path] = InputFile(path, attribute_name(name), extension_of(path), lines)
    return InputFiles(tuple(chosen.values()), tuple(skipped))


def _measure(path: Path) -> tuple[int, int]:
    """Return how many lines a file has, and the bytes of its longest one."""
    with path.open("rb") as stream:
        sizes = [len(line) for line in stream]
    return len(sizes), max(sizes, default=0)


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
