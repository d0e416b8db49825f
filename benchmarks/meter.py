"""Time, and CPU of Spark's whole process tree and of a server, that some work takes."""

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeVar

import psutil  # type: ignore[import-untyped]

from benchmarks.turns import screen

SECONDS: Final = "s"
SPARK_CPU: Final = "Spark's CPU s"
SERVER_CPU: Final = "server's CPU s"


class SparkMeter:
    """Reads the CPU time of this process, of the JVM it started, and of the JVM's Python processes."""

    def __init__(self) -> None:
        """Find the JVM; a Spark session must be there."""
        self._driver = psutil.Process()
        self._jvm = child_with("SparkSubmit")
        self._group = ControlGroup.of(process.pid for process in self._tree())
        if self._group is None:
            screen.print("Without control groups, the CPU time of Python workers that end is not counted.")

    def cpu_s(self) -> float:
        """Return the CPU seconds so far; servers are children of this process too, and do not count."""
        own = cpu_of(self._driver)
        if self._group is not None:
            return own + self._group.cpu_s()
        return own + sum(cpu_of(process, with_ended_children=True) for process in self._tree())

    def _tree(self) -> list[psutil.Process]:
        return [self._jvm, *self._jvm.children(recursive=True)]

    def measure(
        self, work: Callable[[], object], server: Callable[[], float] | None = None
    ) -> dict[str, float]:
        """Run some work; return seconds, CPU-seconds of Spark, and those of a server if its CPU is given."""
        before = server() if server else 0.0
        before_work, began = self.cpu_s(), time.perf_counter()
        work()
        seconds = time.perf_counter() - began
        found = {SECONDS: seconds, SPARK_CPU: self.cpu_s() - before_work}
        if server:
            found[SERVER_CPU] = server() - before
        return found


def child_with(text: str) -> psutil.Process:
    """Return the only child of this process whose command line has a text in it."""
    (found,) = (child for child in psutil.Process().children() if text in " ".join(child.cmdline()))
    return found


def cpu_of(process: psutil.Process, *, with_ended_children: bool = False) -> float:
    """Return the CPU time of one process so far, user and system; 0 if it has ended."""
    try:
        spent = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(
        spent.user + spent.system + with_ended_children * (spent.children_user + spent.children_system)
    )


_US_PER_S: Final = 1e6


class ControlGroup:
    """Some processes and all that they start, as a control group of Linux (version 2), which root can make.

    It counts the CPU time of all of them exactly. The daemon of Spark's Python workers leaves ended ones to
    the kernel (it ignores ``SIGCHLD``), so no process counts theirs.
    """

    def __init__(self, path: Path) -> None:
        """Take over a group that exists; it ends with this process."""
        self._path = path
        atexit.register(self._remove)

    @classmethod
    def of(cls, processes: Iterable[int]) -> Self | None:
        """Put processes into the group of what this process measures; None where that is not possible."""
        parent = _own_group()
        if parent is None:
            return None
        path = parent / f"benchmark-{os.getpid()}"
        try:
            path.mkdir(exist_ok=True)
            made = cls(path)
            for process in processes:
                (path / "cgroup.procs").write_text(str(process), encoding="ascii")
            made.cpu_s()
        except OSError:
            return None
        return made

    def cpu_s(self) -> float:
        """Return the CPU seconds of the group so far, user and system, those of ended processes included."""
        lines = (self._path / "cpu.stat").read_text(encoding="ascii").splitlines()
        return float(dict(line.split() for line in lines)["usage_usec"]) / _US_PER_S

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            for process in (self._path / "cgroup.procs").read_text(encoding="ascii").split():
                (self._path.parent / "cgroup.procs").write_text(process, encoding="ascii")
            self._path.rmdir()


def _own_group() -> Path | None:
    """Return the directory of this process's group; None without control groups of version 2."""
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
        groups = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found = [fields[1] for fields in map(str.split, mounts) if fields[2] == "cgroup2"]
    own = [line.removeprefix("0::") for line in groups if line.startswith("0::")]
    return Path(found[0] + own[0]) if found and own else None


LOOK_EVERY_S: Final = 0.2
Result = TypeVar("Result")


@dataclass(frozen=True)
class Look:
    """What was seen at one moment of a run."""

    at: float
    count: int
    """How many messages the servers had stored, or a group had confirmed."""
    cpu_s: Mapping[str, float]
    """The client's processor time so far, by part; nothing before it has started."""


def watched(
    work: Callable[[], Result], count: Callable[[], int], cpu_s: Callable[[], Mapping[str, float]]
) -> tuple[Result, list[Look]]:
    """Do some work in this thread; look at it from another one until it is done, at least once."""
    done = threading.Event()

    def look_on() -> list[Look]:
        looks: list[Look] = []
        while not looks or not done.wait(LOOK_EVERY_S):
            looks.append(Look(time.perf_counter(), count(), cpu_s()))
        return looks

    with ThreadPoolExecutor(1) as executor:
        looking = executor.submit(look_on)
        try:
            result = work()
        finally:
            done.set()
        return result, looking.result()


def steady(looks: Sequence[Look], before: int) -> tuple[Look, Look]:
    """Return the first look after the beginning of a run and the last one before its end."""
    under_way = [look for look in looks if before < look.count < looks[-1].count and look.cpu_s]
    if len(under_way) < 2:  # too short a run for figures
        return looks[0], looks[-1]
    return under_way[0], under_way[-1]


def cpu_of_child(program: str) -> dict[str, float]:
    """Return the processor time of the child whose command line has a text in it, if there is one."""
    for process in psutil.Process().children():
        try:
            if program in " ".join(process.cmdline()):
                return {"client": cpu_of(process)}
        except psutil.Error:
            continue
    return {}
