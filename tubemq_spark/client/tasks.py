"""The tasks of one owner, which waits for their ends."""

import asyncio
import functools
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

Value = TypeVar("Value")


class OwnedTasks:
    """Tasks of one event loop; errors of those that nothing awaits are logged."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(
        self, coroutine: Coroutine[Any, Any, Value], name: str, *, alone: bool = False
    ) -> "asyncio.Task[Value]":
        """Begin a coroutine in a task of its own; ``alone``: none awaits it, so its error is a warning."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._forget, logging.WARNING if alone else logging.DEBUG))
        return task

    async def carry_out(self, coroutine: Coroutine[Any, Any, Value], name: str) -> Value:
        """Return what a coroutine returns, which is carried out also when its caller waits no more."""
        return await asyncio.shield(self.start(coroutine, name))

    async def ended(self) -> None:
        """Return when no task is left."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def cancel(self) -> None:
        """Cancel all tasks, and wait for their ends."""
        for task in self._tasks:
            task.cancel()
        await self.ended()

    def _forget(self, level: int, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Who awaits it raises it; otherwise it is seen only here.
            logger.log(level, "%s failed", task.get_name(), exc_info=error)


def is_cancelled() -> bool:
    """Return whether the task that runs is cancelled, and not only what it has waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
