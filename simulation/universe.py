"""One universe: a scenario, and a seed that decides everything in it."""

import asyncio
import functools
import gc
import itertools
import secrets
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Final
from unittest import mock

import simloom
from simloom import _loop, _net

from simulation import hosts
from simulation.gateways import one_world
from simulation.scenarios import SCENARIOS
from simulation.sockets import SocketTransport
from tubemq_spark.client.master import identity, session
from tubemq_spark.model import Endpoint
from tubemq_spark.net.connections import Connections

_LONGEST_S: Final = 3_600.0
"""A universe that lasts longer has something that does not end."""
_INSTANT_S: Final = 0.2
"""Steps within so long count as those of one instant: a timer may be due again and again a little later."""
_SETTINGS: dict[str, Any] = {
    "virtual_time": True,
    "seed_randomness": True,
    "max_steps_per_instant": 100_000,
}


def run(scenario: str, seed: int) -> simloom.RunResult:
    """Run a scenario in the universe of a seed, and return what became of it."""
    session._last_active.clear()  # noqa: SLF001 (it belongs to the process)
    hosts.begin_universe()
    with (
        mock.patch.object(session, "_speaks_tls", _speaks_no_tls),
        mock.patch.object(identity, "_unique", _client_name),
        mock.patch.object(_net, "SimTransport", SocketTransport),
        mock.patch.object(_loop.SimLoop, "_detect_livelock", _detect_livelock),
        mock.patch.object(asyncio.Handle, "_run", hosts.run_unless_frozen),
        one_world(),
    ):
        try:
            return simloom.run(_main(scenario), seed=seed, raise_on_error=False, **_SETTINGS)
        finally:
            _drop_connections()


def spare_the_collector() -> None:
    """Spare the garbage collector what is there before the first universe: it runs often in each."""
    gc.collect()
    gc.freeze()


def _drop_connections() -> None:
    """Drop what hosts that have crashed left open: its finalizers would keep its loop."""
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined] # noqa: SLF001
        if isinstance((finalizer.peek() or [None])[0], Connections):
            finalizer.detach()


def _client_name() -> str:
    """Return a name that only the seed decides: usually the host and the process have a part in it."""
    return f"client-{secrets.randbelow(1 << 31)}"


async def _speaks_no_tls(master: Endpoint) -> bool:  # noqa: ARG001
    """Return what a probe of a server's port returns, which is made in a thread on a socket of its own."""
    return False


def _detect_livelock(loop: Any) -> None:  # noqa: ANN401 (its private parts)
    if loop._now - loop._instant_time < _INSTANT_S:  # noqa: SLF001
        loop._instant_steps += 1  # noqa: SLF001
    else:
        loop._instant_time, loop._instant_steps = loop._now, 1  # noqa: SLF001
    if loop._instant_steps > loop._max_steps_per_instant:  # noqa: SLF001
        raise simloom.SimLivelockError(f"{loop._instant_steps} steps until {loop._now}")  # noqa: SLF001


class _Task(asyncio.Task[Any]):
    """A task whose place in a set does not depend on its address: a group cancels its tasks in that order."""

    def __init__(self, number: int, coroutine: Coroutine[Any, Any, Any], **more: Any) -> None:  # noqa: ANN401
        self._number = number
        super().__init__(coroutine, **more)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


def _note_law(broken: list[AssertionError], loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Note that a law is broken where none awaits it, such as in a server that carries out a request."""
    if isinstance(error := context.get("exception"), AssertionError):
        broken.append(error)
    loop.default_exception_handler(context)


def _main(scenario: str) -> Callable[[simloom.World], Coroutine[Any, Any, None]]:
    async def main(world: simloom.World) -> None:
        numbers = itertools.count()
        loop = asyncio.get_running_loop()
        loop.set_task_factory(lambda loop, coro, **more: _Task(next(numbers), coro, loop=loop, **more))
        broken: list[AssertionError] = []
        loop.set_exception_handler(functools.partial(_note_law, broken))
        try:
            async with asyncio.timeout(_LONGEST_S):
                await world.host("client").spawn(functools.partial(SCENARIOS[scenario], world), name="client")
        finally:
            if broken:  # whatever came of that
                raise broken[0]

    return main
