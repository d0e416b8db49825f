"""The demo against a running TubeMQ, as ``make run ARGS="--master host:port"`` does it."""

import subprocess
import sys

import pytest

from integration_tests.rig.runs import form


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_demo_loses_and_repeats_no_line(server):
    topics = ["--lines-topic", server.fresh_topic("2x3"), "--counts-topic", server.fresh_topic("3x1")]
    limit = ["--max-lines", str(server.pick(embedded=10_000, real=form(short=20_000, long=100_000)))]
    command = [sys.executable, "-m", "tubemq_spark", "demo", "--master", server.master, *topics, *limit]

    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "none was lost, none repeated" in done.stdout
