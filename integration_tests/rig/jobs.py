"""Streaming jobs in processes of their own: started, killed with all they have started, looked into.

A job reads TubeMQ into a checkpointed file sink (``programs/stream_to_files.py``). All it leaves is in one
folder: ``checkpoint``, ``rows`` and ``job.log``.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

Job = subprocess.Popen[bytes]

PROGRAM: Final = Path(__file__).parents[1] / "programs" / "stream_to_files.py"
START_SECONDS: Final = 600
_SHOWN: Final = 5_000
"""How much of a job's log a failure shows, in characters."""


def start_job(
    folder: Path,
    options: Mapping[str, str],
    *,
    settings: Mapping[str, str] | None = None,
    endless: bool = False,
    program: Path = PROGRAM,
    variables: Mapping[str, str] | None = None,
    **more: object,
) -> Job:
    """Start a job in a process group of its own; ``kill`` it at the end.

    In the folder of an earlier job it goes on from that one's checkpoint. With ``endless`` it goes on until
    ``stop_job``; ``more`` is what else the program wants in its plan.
    """
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, **(variables or {})}
    plan = {"options": dict(options), "settings": dict(settings or {}), "endless": endless, **more}
    _stop_file(folder).unlink(missing_ok=True)
    with (folder / "job.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, str(program), str(folder), json.dumps(plan)],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


@contextmanager
def running_job(folder: Path, options: Mapping[str, str], **more: object) -> Iterator[Job]:
    """Start a job; what is left of it is killed at the end."""
    job = start_job(folder, options, **more)  # type: ignore[arg-type]
    try:
        yield job
    finally:
        kill(job)


def kill(job: Job) -> None:
    """Kill a job as a machine's failure would: driver, JVM and Python workers at once."""
    with suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)
    job.wait()


def stop_job(job: Job, folder: Path, timeout_s: float = 120) -> None:
    """End an endless job, and its query, at any point."""
    _stop_file(folder).touch()
    assert job.wait(timeout=timeout_s) == 0, end_of_log(folder)


def end_of_log(folder: Path) -> str:
    """Return the last lines that a job has written."""
    return (folder / "job.log").read_text(errors="replace")[-_SHOWN:]


def batches(folder: Path, log: str) -> set[int]:
    """Return the numbers of the micro-batches in one of the checkpoint's two logs, offsets and commits."""
    names = [path.name for path in (folder / "checkpoint" / log).glob("*")]
    return {int(name) for name in names if name.isdigit()}


def wait_for_batch(job: Job, folder: Path, log: str, number: int) -> None:
    """Wait until a micro-batch is in a log; fail when the job has ended before."""
    deadline = time.monotonic() + START_SECONDS
    while number not in batches(folder, log):
        assert job.poll() is None, end_of_log(folder)
        assert time.monotonic() < deadline, end_of_log(folder)
        time.sleep(0.002)


def kill_and_finish(folder: Path, options: Mapping[str, str], kills: int, **more: object) -> int:
    """Run a job over and over, killing it, and to its end; return how often a micro-batch was under way."""
    within = 0
    for number in range(kills):
        # Planned but not done, or done and the next not yet planned.
        log = "offsets" if number % 2 == 0 else "commits"
        done = max(batches(folder, "commits"), default=-1)
        with running_job(folder, options, **more) as job:
            wait_for_batch(job, folder, log, done + 1 + number % 3)
            kill(job)
        within += bool(batches(folder, "offsets") - batches(folder, "commits"))
    finish_job(folder, options, **more)
    return within


def finish_job(folder: Path, options: Mapping[str, str], **more: object) -> None:
    """Run a job to its end."""
    with running_job(folder, options, **more) as job:
        assert job.wait(timeout=START_SECONDS) == 0, end_of_log(folder)


def forget_last_commit(folder: Path) -> None:
    """Leave a checkpoint as a driver does that dies between its sink's commit and Spark's own."""
    commits = folder / "checkpoint" / "commits"
    last = max(batches(folder, "commits"))
    for path in (commits / str(last), commits / f".{last}.crc"):
        path.unlink(missing_ok=True)


def rows_written(folder: Path) -> list[int]:
    """Read the files that the file sink's own log says are written."""
    return [int(number) for path in files_written(folder / "rows") for number in path.read_text().split()]


def files_written(table: Path) -> list[Path]:
    """Return the files that the log of a file sink names."""
    while True:
        try:
            return [Path(name) for name in _names_in_log(table / "_spark_metadata")]
        except FileNotFoundError:
            continue  # Spark removes what is ten minutes old, after it has written the same to a later entry


def _names_in_log(log: Path) -> set[str]:
    names = set()
    for entry in log.glob("*"):
        if entry.name.partition(".")[0].isdigit():
            lines = entry.read_text().splitlines()[1:]
            names |= {json.loads(line)["path"].removeprefix("file://") for line in lines}
    return names


def _stop_file(folder: Path) -> Path:
    return folder / "stop"
