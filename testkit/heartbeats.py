"""Heartbeats of a client that does nothing else, from a process and a host of its own.

    python -m testkit.heartbeats ADDRESS [CA]

It reads lines: after each it prints, as JSON, the milliseconds that each heartbeat since the last line took,
and the errors. It waits until there are ``LEAST``, or one failed. It ends with its input.
"""

import json
import sys
import threading
import time
from pathlib import Path
from typing import Final

import grpc

from testkit.forwarder import Forwarder
from testkit.gateway_caller import Caller

SOURCE: Final = "127.0.0.9"
"""The address that it calls from: another host than that of an attacker, as a gateway sees it."""
EVERY_S: Final = 0.05
LEAST: Final = 10
"""So many heartbeats tell how others fare, however soon an attack is over."""
_DEADLINE_S: Final = 20


class Beats:
    """What became of the heartbeats since the last look."""

    def __init__(self) -> None:
        self._took: list[float] = []
        self._errors: list[str] = []
        self._changed = threading.Condition()

    def note(self, took_ms: float, *errors: str) -> None:
        """Note one that is over."""
        with self._changed:
            self._took.append(took_ms)
            self._errors += errors
            self._changed.notify_all()

    def look(self) -> dict[str, list[float] | list[str]]:
        """Return how long they took and what went wrong, as soon as there are enough to tell."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._took) >= LEAST or self._errors, 60):
                self._errors.append(f"{len(self._took)} heartbeats in a minute")
            told: dict[str, list[float] | list[str]] = {"took": self._took, "errors": self._errors}
            self._took, self._errors = [], []
        return told


def beat(client: Caller, beats: Beats, over: threading.Event) -> None:
    """Send heartbeats until it is over."""
    while not over.wait(EVERY_S):
        errors = []
        began = time.perf_counter()
        try:
            client("Heartbeat", timeout=_DEADLINE_S)
        except grpc.RpcError as error:
            errors.append(f"{error.code().name}: {str(error.details())[:200]}")
        beats.note((time.perf_counter() - began) * 1000, *errors)


def main() -> None:
    """Beat, and answer lines."""
    address, *files = sys.argv[1:]
    ca = Path(files[0]).read_bytes() if files else None
    over = threading.Event()
    with (
        Forwarder(address, source=SOURCE) as forwarder,
        Caller(forwarder.address, "heartbeats", ca=ca) as client,
    ):
        client.open("heartbeats")
        beats = Beats()
        thread = threading.Thread(target=beat, args=(client, beats, over))
        thread.start()
        for _ in sys.stdin:
            print(json.dumps(beats.look()), flush=True)  # noqa: T201 (its protocol)
        over.set()
        thread.join()


if __name__ == "__main__":
    main()
