"""Child processes that do not outlive the Python process that started them, free ports, and waiting."""

from __future__ import annotations

import random
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Self

KILL_TIMEOUT_S: Final = 10.0

# The guard leads a process group that all children join. It sleeps on a pipe whose other end
# only this Python process holds; when that end closes, by close() or because Python died in
# whatever way, the guard kills its group. (A parent-death signal would not do: it fires when
# the *thread* that started the child ends.)
_GUARD: Final = ("/bin/sh", "-c", "read -r _; kill -s KILL 0")


class ProcessGroup:
    """Start children in one process group and end them all together."""

    def __init__(self) -> None:
        self._children: list[subprocess.Popen[bytes]] = []
        self._guard = subprocess.Popen(
            _GUARD,
            process_group=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def spawn(self, command: Sequence[str], *, cwd: Path, log: Path) -> subprocess.Popen[bytes]:
        """Start a child that appends all it prints to the file `log`."""
        with log.open("ab") as output:
            child = subprocess.Popen(
                command,
                cwd=cwd,
                process_group=self._guard.pid,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._children.append(child)
        return child

    def close(self) -> None:
        """Kill every child that still runs, and reap them all."""
        for child in self._children:
            kill(child)
        self._children.clear()
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        self._guard.wait(KILL_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def stop(child: subprocess.Popen[bytes], *, timeout_s: float) -> None:
    """Ask a child to end, and wait until it has."""
    child.terminate()
    try:
        child.wait(timeout_s)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"process {child.pid} did not end in {timeout_s:g} s") from error


def kill(child: subprocess.Popen[bytes]) -> None:
    """End a child at once, as a crash would, and reap it."""
    child.kill()
    child.wait(KILL_TIMEOUT_S)


def tail(log: Path, *, lines: int = 40) -> str:
    """Return the last lines of a child's log, for an error message."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return "\n".join(text.splitlines()[-lines:])


# Below the range from which systems take the ports of outgoing connections (32768 on Linux,
# 49152 elsewhere). A port out of that range could be taken by any client while its server
# restarts, and then the server cannot come back under its address.
LOWEST: Final = 15000
HIGHEST: Final = 32000

# Not the module's own functions: test plug-ins seed those, and two test runs that start
# together would then try the same ports.
_choice = random.SystemRandom()
_given: set[int] = set()


def free_port() -> int:
    """Return a free port of 127.0.0.1 that this function has not returned before."""
    while True:
        port = _choice.randrange(LOWEST, HIGHEST)
        if port not in _given and _can_bind(port):
            _given.add(port)
            return port


def _can_bind(port: int) -> bool:
    # On the wildcard address, because TubeMQ's web servers bind that one.
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def wait_until(condition: Callable[[], bool], *, timeout_s: float, what: str, poll_s: float = 0.1) -> None:
    """Ask `condition` again and again until it holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            raise TimeoutError(f"waited {timeout_s:g} s in vain for {what}")
        time.sleep(poll_s)
