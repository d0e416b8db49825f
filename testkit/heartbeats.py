"""Heartbeats of a client that does nothing else, from a process and a host of its own.

    python -m testkit.heartbeats ADDRESS [CA]

It reads lines: after each it prints, as JSON, the milliseconds that each heartbeat since the last line took,
and the errors. It ends with its input.
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
_DEADLINE_S: Final = 20


def beat(client: Caller, took: list[float], errors: list[str], over: threading.Event) -> None:
    """Send heartbeats until it is over."""
    while not over.wait(EVERY_S):
        began = time.perf_counter()
        try:
            client("Heartbeat", timeout=_DEADLINE_S)
        except grpc.RpcError as error:
            errors.append(f"{error.code().name}: {str(error.details())[:200]}")
        took.append((time.perf_counter() - began) * 1000)


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
        took: list[float] = []
        errors: list[str] = []
        thread = threading.Thread(target=beat, args=(client, took, errors, over))
        thread.start()
        print(json.dumps({"took": [], "errors": []}), flush=True)  # noqa: T201 (its protocol)
        for _ in sys.stdin:
            so_far, failed = took[:], errors[:]
            del took[: len(so_far)], errors[: len(failed)]
            print(json.dumps({"took": so_far, "errors": failed}), flush=True)  # noqa: T201
        over.set()
        thread.join()


if __name__ == "__main__":
    main()
