"""One universe: a scenario, and a seed that decides everything in it."""

import asyncio
import functools
import gc
import itertools
from collections.abc import Callable, Coroutine
from typing import Any
from unittest import mock

import simloom

from simulation import chance
from simulation.scenarios import SCENARIOS
from tubemq_spark.client.master import session
from tubemq_spark.model import Endpoint

_SETTINGS: dict[str, Any] = {
    "virtual_time": True,
    "seed_randomness": True,
    "max_steps_per_instant": 100_000,
}


def run(scenario: str, seed: int) -> simloom.RunResult:
    """Run a scenario in the universe of a seed, and return what became of it."""
    with mock.patch.object(session, "_speaks_tls", _speaks_no_tls):
        return simloom.run(_main(scenario), seed=seed, raise_on_error=False, **_SETTINGS)


def spare_the_collector() -> None:
    """Spare the garbage collector what is there before the first universe: it runs often in each."""
    gc.collect()
    gc.freeze()


async def _speaks_no_tls(master: Endpoint) -> bool:  # noqa: ARG001
    """Return what a probe of a server's port returns, which is made in a thread on a socket of its own."""
    await asyncio.sleep(chance.between(0.0, 3.0))
    return False


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
