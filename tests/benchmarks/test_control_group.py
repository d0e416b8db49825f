"""CPU time of processes, also of those that ended without anybody waiting for them."""

import subprocess
import sys

import pytest

from benchmarks.control_group import ControlGroup

ENDED_UNSEEN = """
import os, signal, sys, time
sys.stdin.readline()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork() == 0:
    while time.process_time() < 0.3:
        pass
    os._exit(0)
try:
    os.wait()
except ChildProcessError:
    pass
print(sum(os.times()[:4]), flush=True)
sys.stdin.readline()
"""


@pytest.mark.process
def test_a_child_that_nobody_waits_for_is_counted():
    command = [sys.executable, "-c", ENDED_UNSEEN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        group = ControlGroup.of([program.pid])
        if group is None:
            program.stdin.close()
            pytest.skip("control groups of version 2 cannot be made here")
        before = group.cpu_s()
        program.stdin.write("\n")
        program.stdin.flush()
        known_to_its_parent = float(program.stdout.readline())
        spent = group.cpu_s() - before
    assert spent >= 0.3
    assert known_to_its_parent < 0.3
