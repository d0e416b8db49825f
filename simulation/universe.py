"""One universe: a scenario, and a seed that decides everything in it."""

import asyncio
import functools
import gc
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import simloom

from simulation.scenarios import SCENARIOS

_SETTINGS: dict[str, Any] = {
    "virtual_time": True,
    "seed_randomness": True,
    "max_steps_per_instant": 100_000,
}


def run(scenario: str, seed: int) -> simloom.RunResult:
    """Run a scenario in the universe of a seed, and return what became of it."""
    return simloom.run(_main(scenario), seed=seed, raise_on_error=False, **_SETTINGS)


def shrink(scenario: str, failure: simloom.RunResult, most_runs: int) -> str:
    """Return which of a failing universe's choices suffice to make it fail."""
    return simloom.shrink(_main(scenario), failure, max_runs=most_runs, **_SETTINGS).describe()


def spare_the_collector() -> None:
    """Spare the garbage collector what is there before the first universe: it runs often in each."""
    gc.collect()
    gc.freeze()


class _Task(asyncio.Task[Any]):
    """A task whose place in a set does not depend on its address: a group cancels its tasks in that order."""

    def __init__(self, number: int, coroutine: Coroutine[Any, Any, Any], **more: Any) -> None:  # noqa: ANN401
        self._number = number
        super().__init__(coroutine, **more)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


def _main(scenario: str) -> Callable[[simloom.World], Coroutine[Any, Any, None]]:
    async def main(world: simloom.World) -> None:
        numbers = itertools.count()
        loop = asyncio.get_running_loop()
        loop.set_task_factory(lambda loop, coro, **more: _Task(next(numbers), coro, loop=loop, **more))
        await world.host("client").spawn(functools.partial(SCENARIOS[scenario], world), name="client")

    return main
