"""What is left out of a run, and the CPU time of processes that their parent has not waited for."""

import subprocess
import sys
import threading

import pytest

from benchmarks import meter
from benchmarks.meter import ControlGroup, Look, steady, watched

CPU = {"client": 1.0}


def at(moment, count, cpu_s=CPU):
    return Look(moment, count, cpu_s)


def test_the_beginning_and_the_end_are_left_out():
    seen = [at(0, 5, {}), at(1, 5), at(2, 7), at(3, 8), at(4, 9), at(5, 9)]
    assert steady(seen, 5) == (seen[2], seen[3])


def test_a_client_that_has_ended_is_left_out():
    seen = [at(0, 0), at(1, 1), at(2, 2), at(3, 3, {}), at(4, 4, {})]
    assert steady(seen, 0) == (seen[1], seen[2])


def test_a_run_that_is_too_short_is_taken_whole():
    seen = [at(0, 0), at(1, 3), at(2, 9)]
    assert steady(seen, 0) == (seen[0], seen[2])


def test_looks_go_on_until_the_work_is_done(monkeypatch):
    monkeypatch.setattr(meter, "LOOK_EVERY_S", 0.001)
    enough = threading.Event()
    counts = []

    def count():
        counts.append(len(counts))
        if len(counts) == 3:
            enough.set()
        return counts[-1]

    result, seen = watched(lambda: enough.wait(60), count, lambda: CPU)
    assert result
    assert [look.count for look in seen] == counts
    assert len(seen) >= 3


def test_work_that_fails_is_not_hidden():
    def fail():
        raise RuntimeError("no server")

    with pytest.raises(RuntimeError, match="no server"):
        watched(fail, lambda: 0, dict)


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
def test_a_child_that_is_not_waited_for_is_counted():
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
