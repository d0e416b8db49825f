"""An event loop without real time or sockets: when nothing is ready, its clock jumps to the next timer."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Final, ParamSpec, TypeVar

_BEGINS_AT: Final = 100.0
_TICK_S: Final = 0.000_001
"""Everything takes some time; without it, rounding could make the clock stand."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class VirtualLoop(asyncio.BaseEventLoop):
    """A loop for one thread, whose time is what its timers say."""

    def __init__(self) -> None:
        super().__init__()
        self._now = _BEGINS_AT
        self._selector = self

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._now

    def stand_still(self, seconds: float) -> None:
        """Advance the clock while nothing runs, as if the process were stopped."""
        self._now += seconds

    def select(self, timeout: float | None) -> list[Any]:
        """Advance the clock to the next timer; there are no sockets to report."""
        if timeout is None:
            raise RuntimeError("what is awaited never happens")
        self._now += timeout + _TICK_S
        return []

    def _process_events(self, events: list[Any]) -> None: ...

    def _write_to_self(self) -> None: ...


def in_virtual_time(
    test: Callable[Arguments, Coroutine[Any, Any, Result]],
) -> Callable[Arguments, Result]:
    """Return a function that runs a coroutine in a loop of its own, in which no task may be left."""

    @functools.wraps(test)
    def run(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        loop = VirtualLoop()
        try:
            result = loop.run_until_complete(test(*arguments, **named))
            assert not asyncio.all_tasks(loop)
            return result
        finally:
            loop.close()

    return run
