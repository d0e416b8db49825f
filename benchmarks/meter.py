"""Time, and CPU of Spark's whole process tree and of a server, that some work takes."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

import psutil  # type: ignore[import-untyped]

SECONDS: Final = "s"
SPARK_CPU: Final = "Spark's CPU s"
SERVER_CPU: Final = "server's CPU s"

CpuTimes: TypeAlias = dict[int, tuple[float, int]]
"""By each process's id: its CPU seconds so far, those of ended children included, and its parent's id."""


class SparkMeter:
    """Reads the CPU time of this process, of the JVM it started, and of the JVM's Python processes."""

    def __init__(self) -> None:
        """Find the JVM; a Spark session must be there."""
        self._driver = psutil.Process()
        self._jvm = child_with("SparkSubmit")

    def cpu_times(self) -> CpuTimes:
        """Return the CPU time of each process so far; that of this one without its children's."""
        own = self._driver.cpu_times()
        # Servers are children of the driver too, so the driver's own time only.
        found = {self._driver.pid: (float(own.user + own.system), 0)}
        for process in (self._jvm, *self._jvm.children(recursive=True)):
            try:
                spent, parent = process.cpu_times(), process.ppid()
            except psutil.Error:
                continue
            cpu = spent.user + spent.system + spent.children_user + spent.children_system
            found[process.pid] = (float(cpu), parent)
        return found

    def python_workers(self) -> list[int]:
        """Return the process ids of the JVM's Python processes."""
        return [process.pid for process in self._jvm.children(recursive=True)]

    def measure(
        self, work: Callable[[], object], server: Callable[[], float] | None = None
    ) -> dict[str, float]:
        """Run some work; return seconds, CPU-seconds of Spark, and those of a server if its CPU is given."""
        before = server() if server else 0.0
        before_work, began = self.cpu_times(), time.perf_counter()
        work()
        seconds = time.perf_counter() - began
        found = {SECONDS: seconds, SPARK_CPU: cpu_between(before_work, self.cpu_times())}
        if server:
            found[SERVER_CPU] = server() - before
        return found


def cpu_between(before: CpuTimes, after: CpuTimes) -> float:
    """Return the CPU seconds that processes took between two moments.

    What an ended process took is its parent's. Where that has ended too, as when Spark stops an idle daemon
    of Python workers, it is nobody's any more: then what it had before must not be subtracted.
    """
    total = sum(cpu for cpu, _ in after.values())
    return total - sum(cpu for pid, (cpu, parent) in before.items() if pid in after or parent in after)


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
