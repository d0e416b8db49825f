"""One question to many, asked side by side: one that is slow holds up no other."""

import asyncio
import concurrent.futures
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final, TypeVar

from tubemq_spark.errors import TubeMQError

Key = TypeVar("Key")
Answer = TypeVar("Answer")

_MOST_THREADS: Final = 16


def all_of(ask: Callable[[Key], Answer], keys: Collection[Key]) -> dict[Key, Answer]:
    """Return the answer for each key; what ``ask`` raises for one of them is raised when all have ended."""
    if len(keys) <= 1:
        return {key: ask(key) for key in keys}
    workers = min(_MOST_THREADS, len(keys))
    with concurrent.futures.ThreadPoolExecutor(workers, "tubemq-ask") as executor:
        return dict(zip(keys, executor.map(ask, keys), strict=True))


def answers_and_errors(
    ask: Callable[[Key], Answer], keys: Collection[Key]
) -> tuple[dict[Key, Answer], dict[Key, TubeMQError]]:
    """Return the answer for each key that has one, and the error for each of the others."""
    errors: dict[Key, TubeMQError] = {}

    def ask_or_note(key: Key) -> tuple[Answer, ...]:
        try:
            return (ask(key),)
        except TubeMQError as error:
            errors[key] = error
            return ()

    answers = all_of(ask_or_note, keys)
    return {key: answer[0] for key, answer in answers.items() if answer}, errors


async def each_of(
    ask: Callable[[Key], Coroutine[Any, Any, Answer]], keys: Collection[Key], at_once: int
) -> dict[Key, Answer]:
    """Return the answer for each key, of which some are asked at once, by tasks.

    What ``ask`` raises for one of them ends the others, and is raised when they have ended.
    """
    quota = asyncio.Semaphore(at_once)

    async def ask_in_turn(key: Key) -> Answer:
        async with quota:
            return await ask(key)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = {key: group.create_task(ask_in_turn(key)) for key in keys}
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return {key: task.result() for key, task in tasks.items()}
