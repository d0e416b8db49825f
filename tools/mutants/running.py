"""Run tests on a broken copy of the checkout.

Each worker has a copy of its own, and each mutant a new process: so child processes and threads see it, too.
"""

import concurrent.futures
import contextlib
import dataclasses
import enum
import json
import os
import queue
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

from testkit.git import ROOT, git

Item = TypeVar("Item")
Verdict = TypeVar("Verdict")

_MEMORY: Final = 8 << 30
"""Bytes of address space: a loop that never ends may fill lists."""
_SOUND: Final = "tests/test_model.py"
"""Tests that pass where tests can run at all."""
START_S: Final = 60.0
"""What pytest may take to start on a busy machine."""
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+(?:\[.*?\])?)(?: - |$)", re.MULTILINE)
_TESTS_FAILED, _INTERRUPTED, _NO_TESTS = 1, 2, 5


class Outcome(enum.Enum):
    """What became of a mutant."""

    KILLED = "killed"
    TIMED_OUT = "timed out"
    SURVIVED = "SURVIVED"
    UNTOUCHED = "UNTOUCHED"
    """No test touches it, so none was run."""


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """A run of tests on a broken copy."""

    outcome: Outcome
    test: str
    """The one that failed."""
    seconds: float

    @property
    def noticed(self) -> bool:
        """Whether the break was noticed."""
        return self.outcome in {Outcome.KILLED, Outcome.TIMED_OUT}


class Copy:
    """A copy of the checkout that may be broken."""

    def __init__(self, folder: Path) -> None:
        """Copy into an empty folder."""
        self._folder = folder
        names = git("ls-files", "--cached", "--others", "--exclude-standard")
        compiled = [str(path.relative_to(ROOT)) for path in (ROOT / "tubemq_spark").rglob("*.so")]
        for name in [*names, *compiled]:
            if (ROOT / name).is_file():
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, target)
        code, output = self._pytest([_SOUND], START_S)
        if code != 0:
            raise RuntimeError(f"{_SOUND} fails although nothing is broken:\n{output}")

    def run(self, path: str, source: bytes, tests: Sequence[str], timeout_s: float) -> Run:
        """Run tests in their order until one fails, while a module has another text."""
        file = self._folder / path
        before = file.read_bytes()
        started = time.monotonic()
        try:
            _write(file, source)
            outcome, test = self._tested(tests, timeout_s)
        finally:
            _write(file, before)
        return Run(outcome, test, time.monotonic() - started)

    def _tested(self, tests: Sequence[str], timeout_s: float) -> tuple[Outcome, str]:
        code, output = self._pytest(tests, timeout_s)
        if code is None:
            return Outcome.TIMED_OUT, ""
        failed = _FAILED.search(output)
        if code == _TESTS_FAILED and failed is not None:
            # What fails by chance is no proof: the same test has to fail again.
            code, _ = self._pytest([failed[1]], timeout_s)
            return (Outcome.SURVIVED if code == 0 else Outcome.KILLED), failed[1]
        if code == 0:
            return Outcome.SURVIVED, ""
        if code == _NO_TESTS:
            return Outcome.UNTOUCHED, ""
        return Outcome.KILLED, "" if code == _INTERRUPTED else f"exit code {code}"

    def _pytest(self, tests: Sequence[str], timeout_s: float) -> tuple[int | None, str]:
        listed = self._folder / ".listed.json"
        listed.write_text(json.dumps(list(tests)))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "--tb=no", "--no-header"]
        command += ["--durations=0", "--disable-warnings", "-p", "no:randomly", "-p", "no:cacheprovider"]
        command += ["-p", "tools.mutants.plugin", "--rootdir", str(self._folder)]
        environ = {**os.environ, "PYTHONPATH": str(self._folder), "PYTHONHASHSEED": "0"}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)  # it would double the time that a process takes to start
        if all("::" in test for test in tests):
            environ["TUBEMQ_MUTANTS_TESTS"] = str(listed)
            command += dict.fromkeys(test.partition("::")[0] for test in tests)
        else:
            command += tests
        process = subprocess.Popen(
            command,
            cwd=self._folder,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=_begin_child,  # noqa: PLW1509 - it makes system calls alone
        )
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            _end_group(process)
        return process.returncode, output


def each_on_a_copy(
    items: Sequence[Item], judge: Callable[[Copy, Item], Verdict], processes: int
) -> Iterator[tuple[Item, Verdict]]:
    """Yield each item with its verdict, in the order they end; several are judged at once, each on a copy."""
    copies: queue.Queue[Copy] = queue.Queue()

    def judged(item: Item) -> tuple[Item, Verdict]:
        copy = copies.get()
        try:
            return item, judge(copy, item)
        finally:
            copies.put(copy)

    with contextlib.ExitStack() as closing:
        for _ in range(processes):
            folder = tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True)
            copies.put(Copy(Path(closing.enter_context(folder))))
        threads = concurrent.futures.ThreadPoolExecutor(processes)
        closing.callback(threads.shutdown, cancel_futures=True)
        futures = [threads.submit(judged, item) for item in items]
        for future in concurrent.futures.as_completed(futures):
            yield future.result()


def _write(file: Path, source: bytes) -> None:
    """Change a module. Python tells its texts apart by second and size, which a mutant may share."""
    file.write_bytes(source)
    for compiled in file.parent.glob(f"__pycache__/{file.stem}.*.pyc"):
        compiled.unlink()


def _begin_child() -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))


def _end_group(process: subprocess.Popen[str]) -> None:
    """Kill a process with all its children, and wait for it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
