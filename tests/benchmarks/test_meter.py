"""CPU time of a tree of processes, some of which end meanwhile."""

from benchmarks.meter import cpu_between

JVM, DAEMON, WORKER = 2, 3, 4
BEFORE = {JVM: (10.0, 1), DAEMON: (1.0, JVM), WORKER: (5.0, DAEMON)}


def test_what_running_processes_took():
    assert cpu_between(BEFORE, {JVM: (11.0, 1), DAEMON: (1.5, JVM), WORKER: (7.0, DAEMON)}) == 3.5


def test_a_new_process_took_all_that_it_has():
    assert cpu_between(BEFORE, {**BEFORE, 5: (0.5, DAEMON)}) == 0.5


def test_an_ended_process_is_counted_by_its_parent():
    assert cpu_between(BEFORE, {JVM: (10.0, 1), DAEMON: (1.0 + 5.5, JVM)}) == 0.5


def test_what_ended_with_its_parent_is_not_taken_away():
    """The JVM has the daemon's time now; nobody has the worker's."""
    assert cpu_between(BEFORE, {JVM: (10.0 + 1.25, 1)}) == 0.25
