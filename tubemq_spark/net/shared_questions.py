"""Questions of several callers in one event loop: who asks the same waits for the same answer."""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")


class SharedQuestions(Generic[Key, Answer]):
    """What is asked now; a question that no caller waits for any more is cancelled."""

    def __init__(self) -> None:
        self._tasks: dict[Key, asyncio.Task[Answer]] = {}
        self._callers: dict[asyncio.Task[Answer], int] = {}
        self._error: Exception | None = None

    async def ask(self, key: Key, begin: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """Return the answer to a question, which is begun unless it is asked already."""
        task = self._tasks.get(key)
        if task is None or task.done():
            task = self._tasks[key] = asyncio.create_task(begin())
            self._callers[task] = 0
        self._callers[task] += 1
        try:
            await asyncio.wait((task,))
            if task.cancelled() and self._error is not None:
                raise self._error
            return task.result()
        finally:
            self._callers[task] -= 1
            if not self._callers[task]:
                del self._callers[task]
                if self._tasks.get(key) is task:
                    del self._tasks[key]
                if not task.done():
                    task.cancel()
            # Its error holds this frame.
            del task

    async def close(self, error: Exception) -> None:
        """Cancel all questions, and wait until they have ended; an error is the answer to them."""
        self._error = error
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
