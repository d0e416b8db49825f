"""Looking at a run from outside, at servers and at processes, to leave out its beginning and its end."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar

import psutil

LOOK_EVERY_S: Final = 0.2
Result = TypeVar("Result")


@dataclass(frozen=True)
class Look:
    """What was seen at one moment of a run."""

    at: float
    count: int
    """How many messages the servers had stored, or a group had confirmed."""
    cpu_s: Mapping[str, float]
    """The client's processor time so far, by part; nothing before it has started."""


def watched(
    work: Callable[[], Result], count: Callable[[], int], cpu_s: Callable[[], Mapping[str, float]]
) -> tuple[Result, list[Look]]:
    """Do some work in this thread; look at it from another one until it is done, at least once."""
    done = threading.Event()

    def look_on() -> list[Look]:
        looks: list[Look] = []
        while not looks or not done.wait(LOOK_EVERY_S):
            looks.append(Look(time.perf_counter(), count(), cpu_s()))
        return looks

    with ThreadPoolExecutor(1) as executor:
        looking = executor.submit(look_on)
        try:
            result = work()
        finally:
            done.set()
        return result, looking.result()


def steady(looks: Sequence[Look], before: int) -> tuple[Look, Look]:
    """Return the first look after the beginning of a run and the last one before its end.

    Args:
        looks: the looks.
        before: the count before the run.
    """
    under_way = [look for look in looks if before < look.count < looks[-1].count and look.cpu_s]
    if len(under_way) < 2:  # too short a run for figures
        return looks[0], looks[-1]
    return under_way[0], under_way[-1]


def cpu_of_child(program: str) -> dict[str, float]:
    """Return the processor time of the child whose command line has a text in it, if there is one."""
    for process in psutil.Process().children():
        try:
            if program in " ".join(process.cmdline()):
                return {"client": of_process(process)}
        except psutil.Error:
            continue
    return {}


def of_process(process: psutil.Process) -> float:
    """Return a process's own processor time."""
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)
