"""The command ``produce`` as a process: lines are stored as they come."""

import signal
import subprocess
import sys

import pytest

from tests.waiting import wait_until
from tubemq_spark.embedded.server import EmbeddedTubeMQ

SECONDS = 30
COMMAND = [
    sys.executable,
    "-c",
    "import sys; from tubemq_spark.cli.main import main; sys.exit(main())",
    "produce",
    "demo",
    "--master",
]


@pytest.fixture
def server():
    with EmbeddedTubeMQ(topics={"demo": (1, 1)}) as running:
        yield running


@pytest.fixture
def process(server):
    command = [*COMMAND, server.master]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        yield running
        running.kill()


def type_in(process, lines):
    process.stdin.write(lines)
    process.stdin.flush()


def test_lines_are_stored_while_the_input_goes_on(server, process):
    type_in(process, b"one\ntwo\n")
    wait_until(lambda: server.stats().messages_in == 2, SECONDS)
    process.stdin.close()
    assert process.wait(SECONDS) == 0


def test_sigterm_ends_the_command_with_what_it_has_read_stored(server, process):
    type_in(process, b"one\ntwo\n")
    wait_until(lambda: server.stats().messages_in == 2, SECONDS)
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 130
    assert b"stored before it ended: 2 rows" in process.stderr.read()
