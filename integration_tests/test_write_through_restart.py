"""Both sinks while the only broker of a real TubeMQ is restarted: no row is missing, and repeats are told."""

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from integration_tests.real.artifacts import require_real_tubemq
from integration_tests.real.cluster import RealTubeMQ, TopicSpec
from integration_tests.real.processes import wait_until

PROGRAM = Path(__file__).parent / "programs" / "write_through_restart.py"
ROWS = 150_000
BATCH, STREAM = "batch_writes", "stream_writes"
UNDER_WAY = 2_000
"""So many messages of each job are stored when the broker is stopped."""
ROOM = {"memCacheMsgSizeInMB": 16, "memCacheMsgCntInK": 100}
TOLD = re.compile(r"up to (\d+) extra cop(?:y|ies) may be stored")


@pytest.fixture
def cluster():
    require_real_tubemq()
    specs = {name: TopicSpec(3, 1, properties=ROOM) for name in (BATCH, STREAM)}
    with RealTubeMQ(specs) as running:
        yield running


@contextlib.contextmanager
def running_job(master, folder):
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    arguments = [sys.executable, str(PROGRAM), master, BATCH, STREAM, str(folder), str(ROWS)]
    with (folder / "job.log").open("w") as log:
        job = subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            yield job
        finally:
            job.kill()
            job.communicate()


def restart_without_help(cluster):
    """Stop the broker in good order and start it; unlike ``restart_broker``, leave the master alone.

    So TubeMQ takes its usual time, some 35 s, until it lets the broker's topics be published to.
    """
    cluster.brokers[1].server.stop()
    cluster.brokers[1].server.start()


@pytest.mark.real
@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.timeout(800)
def test_writes_go_on_after_a_restart_of_the_only_broker(cluster, tmp_path):
    with running_job(cluster.master, tmp_path) as job:
        wait_until(
            lambda: min(map(cluster.message_count, (BATCH, STREAM))) > UNDER_WAY,
            timeout_s=240,
            what="both jobs to write",
        )
        restart_without_help(cluster)
        out, _ = job.communicate(timeout=450)
    log = (tmp_path / "job.log").read_text()
    assert job.returncode == 0, log[-5000:]

    stored = json.loads(out.splitlines()[-1])
    for topic in (BATCH, STREAM):
        _, different, lowest, highest = stored[topic]
        assert (different, lowest, highest) == (ROWS, 0, ROWS - 1), topic
    repeats = sum(count - different for count, different, _, _ in stored.values())
    assert repeats <= sum(map(int, TOLD.findall(log)))
    assert "broker 1 is away" in log
    assert "broker 1 is back after" in log
