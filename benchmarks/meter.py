"""Time, and CPU of Spark's whole process tree and of a server, that some work takes."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil  # type: ignore[import-untyped]

from benchmarks.control_group import ControlGroup
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
        return own + sum(map(_with_ended_children, self._tree()))

    def python_workers(self) -> list[int]:
        """Return the process ids of the JVM's Python processes."""
        return [process.pid for process in self._jvm.children(recursive=True)]

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


def _with_ended_children(process: psutil.Process) -> float:
    try:
        spent = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(spent.user + spent.system + spent.children_user + spent.children_system)


def child_with(text: str) -> psutil.Process:
    """Return the only child of this process whose command line has a text in it."""
    (found,) = (child for child in psutil.Process().children() if text in " ".join(child.cmdline()))
    return found


def cpu_of(process: psutil.Process) -> float:
    """Return the CPU time of one process so far, user and system."""
    spent = process.cpu_times()
    return float(spent.user + spent.system)


def peak_mb(pid: int) -> float:
    """Return the most memory that a process has had resident so far, in MB; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) * 1024 / 1e6 if found else 0.0
