"""What the main tests of reading and writing show, they show through gateways too.

They run as they are, in their short form, but queries reach the servers through two gateways, of which one is
killed every 10 s in turn: nothing may be lost, repeated, or told.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from integration_tests.conftest import BOTH_SERVERS, THROUGH_GATEWAYS
from integration_tests.rig.runs import LONG_VARIABLE

ROOT = Path(__file__).parents[1]
MAIN_TESTS = {"test_batch_read.py": 10, "test_stream_read.py": 6, "test_sinks.py": 6, "test_kill.py": 1}
"""And how many tests each has at least on either server."""


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", MAIN_TESTS)
@pytest.mark.parametrize("kind", BOTH_SERVERS)
def test_the_main_tests_pass_through_gateways_that_are_killed(kind, name):
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "-k", kind]

    done = subprocess.run(
        [*command, f"integration_tests/{name}"],
        cwd=ROOT,
        env=os.environ | {THROUGH_GATEWAYS: "1", LONG_VARIABLE: "0"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-8_000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= MAIN_TESTS[name]
