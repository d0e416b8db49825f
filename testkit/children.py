"""Checks in forked children."""

import os
from collections.abc import Callable

import pytest

forks = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


def in_child(check: Callable[[], object]) -> None:
    """Run a function in a forked child, and fail with what it failed with."""
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
        text = pipe.read()
    os.waitpid(child, 0)
    assert not text, text
