"""A stream whose process is killed, between micro-batches and within one, loses and repeats nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from integration_tests.produce import produce_numbers
from integration_tests.runs import form
from integration_tests.truth import assert_same_rows

PROGRAM = Path(__file__).parent / "programs" / "stream_to_files.py"
START_SECONDS = 300
KILLS_PER_JOB = form(short=3, long=5)


@contextmanager
def running_job(server, topic, folder, rows_per_trigger):
    """Run the job in a process group of its own; whatever is left of it is killed at the end."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    arguments = [sys.executable, str(PROGRAM), server.master, topic, str(folder), str(rows_per_trigger)]
    with (folder / "job.log").open("ab") as log:
        job = subprocess.Popen(arguments, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        yield job
    finally:
        kill(job)


def kill(job):
    """Kill the job as a machine's failure would: driver, JVM and Python workers at once."""
    with suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)
    job.wait()


def batches(folder, log):
    """Return the numbers of the micro-batches in one of the checkpoint's two logs."""
    names = [path.name for path in (folder / "checkpoint" / log).glob("*")]
    return {int(name) for name in names if name.isdigit()}


def wait_for_batch(job, folder, log, number):
    """Wait until a micro-batch is in a log; False when the job ended before."""
    deadline = time.monotonic() + START_SECONDS
    while number not in batches(folder, log):
        if job.poll() is not None:
            return False
        assert time.monotonic() < deadline, (folder / "job.log").read_text()[-3000:]
        time.sleep(0.002)
    return True


def kill_and_finish(server, topic, folder, count):
    """Run the job over and over, killing it; return how often that was within a micro-batch."""
    folder.mkdir()
    within = 0
    for number in range(KILLS_PER_JOB):
        # Planned but not done, or done and the next not yet planned.
        log = "offsets" if number % 2 == 0 else "commits"
        done = max(batches(folder, "commits"), default=-1)
        with running_job(server, topic, folder, count // 40) as job:
            there = wait_for_batch(job, folder, log, done + 1 + number % 3)
            assert there, (folder / "job.log").read_text()[-3000:]
            kill(job)
        within += bool(batches(folder, "offsets") - batches(folder, "commits"))
    with running_job(server, topic, folder, count // 40) as job:
        assert job.wait(timeout=300) == 0, (folder / "job.log").read_text()[-3000:]
    return within


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_kills_lose_and_repeat_nothing(server, tmp_path):
    """Jobs run side by side: what takes long is the start of their JVMs."""
    shapes = form(short=("2x3",), long=("3x1", "2x3"))
    topics = {shape: server.fresh_topic(shape) for shape in shapes}
    count = server.pick(embedded=8_000, real=20_000)
    for topic in topics.values():
        produce_numbers(server.master, topic, range(count))

    with ThreadPoolExecutor(len(topics)) as jobs:
        within = list(
            jobs.map(lambda shape: kill_and_finish(server, topics[shape], tmp_path / shape, count), topics)
        )

    for shape in topics:
        assert_same_rows(rows_written(tmp_path / shape), range(count))
    assert KILLS_PER_JOB * len(topics) // 3 <= sum(within) < KILLS_PER_JOB * len(topics)


def rows_written(folder):
    """Read the files that the file sink's own log says are written."""
    names = set()
    for entry in (folder / "rows" / "_spark_metadata").glob("*"):
        if entry.name.partition(".")[0].isdigit():
            lines = entry.read_text().splitlines()[1:]
            names |= {json.loads(line)["path"].removeprefix("file://") for line in lines}
    return [int(number) for name in names for number in Path(name).read_text().split()]
