"""A stream whose process is killed, between micro-batches and within one, loses and repeats nothing."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from integration_tests.produce import produce_numbers
from integration_tests.truth import assert_same_rows

PROGRAM = Path(__file__).parent / "programs" / "stream_to_files.py"
START_SECONDS = 120


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


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shape", ["3x1"])
def test_ten_kills_lose_and_repeat_nothing(server, shape, tmp_path):
    topic = server.fresh_topic(shape)
    count = server.pick(embedded=8_000, real=20_000)
    produce_numbers(server.master, topic, range(count))
    within, between = 0, 0

    for kill_number in range(10):
        # Planned but not done, or done and the next not yet planned.
        log = "offsets" if kill_number % 2 == 0 else "commits"
        done = max(batches(tmp_path, "commits"), default=-1)
        with running_job(server, topic, tmp_path, count // 40) as job:
            assert wait_for_batch(job, tmp_path, log, done + 1 + kill_number % 3), (
                "the job ended before its kill"
            )
            kill(job)
        if batches(tmp_path, "offsets") - batches(tmp_path, "commits"):
            within += 1
        else:
            between += 1
    with running_job(server, topic, tmp_path, count // 40) as job:
        assert job.wait(timeout=300) == 0, (tmp_path / "job.log").read_text()[-3000:]

    assert_same_rows(rows_written(tmp_path), range(count))
    assert within >= 3
    assert between >= 1


def rows_written(folder):
    """Read what the file sink's own log says is written."""
    import json

    import pyarrow.parquet as parquet

    names = set()
    for entry in sorted((folder / "rows" / "_spark_metadata").glob("*")):
        if entry.name.partition(".")[0].isdigit():
            lines = entry.read_text().splitlines()[1:]
            names |= {json.loads(line)["path"].removeprefix("file://") for line in lines}
    numbers = []
    for name in names:
        numbers += [
            int(number) for number in parquet.read_table(name, columns=["number"])["number"].to_pylist()
        ]
    return numbers
