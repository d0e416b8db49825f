"""CPU time of a tree of processes, exactly: that of a control group of Linux (version 2).

The daemon of Spark's Python workers leaves ended workers to the kernel (it ignores ``SIGCHLD``), so their CPU
time is counted by no process. A control group counts it. To make one takes root as a rule.
"""

import atexit
import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Self

_US_PER_S: Final = 1e6


class ControlGroup:
    """Some processes and all that they start."""

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
