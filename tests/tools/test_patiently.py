"""What takes long and says nothing is told by ``tools/patiently.sh``."""

import os
import signal
import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "patiently.sh"


def patiently(*command, seconds="0.05", **how):
    return subprocess.Popen(
        [TOOL, seconds, "installing", *command],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **how,
    )


def test_a_silent_command_is_told_again_and_again_until_it_ends():
    waiting = (sys.executable, "-c", "input(); print('done')")
    with patiently(*waiting, stdin=subprocess.PIPE) as process:
        assert process.stderr.readline() == "installing\n"
        for _ in range(2):
            assert process.stderr.readline().endswith(" s so far\n")
        out, _ = process.communicate("\n", timeout=60)
    assert (process.returncode, out) == (0, "done\n")


def test_its_exit_code_is_that_of_the_command():
    with patiently("sh", "-c", "exit 7", seconds="600") as process:
        assert process.wait(60) == 7
        assert process.stderr.read() == "installing\n"


def test_ctrl_c_ends_both():
    waiting = (sys.executable, "-c", "print('begun', flush=True); input()")
    with patiently(*waiting, stdin=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout.readline() == "begun\n"
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=60)  # to the end of its output, which nothing holds open
        assert process.returncode == 130
