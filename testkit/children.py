"""Checks in forked children."""

import os
import select
import signal
from collections.abc import Callable
from typing import Final

import pytest

_LONGEST_S: Final = 60.0

forks = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


def in_child(check: Callable[[], object]) -> None:
    """Run a function in a forked child, and fail with what it failed with, or if it does not end in time."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        text = ""
        try:
            check()
        except BaseException as error:  # noqa: BLE001 - the parent raises it
            text = repr(error) or "failed"
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        ended = bool(select.select([pipe], [], [], _LONGEST_S)[0])
        if not ended:
            os.kill(child, signal.SIGKILL)
        text = pipe.read()
    os.waitpid(child, 0)
    assert ended, f"the child has not ended within {_LONGEST_S:.0f} s"
    assert not text, text
