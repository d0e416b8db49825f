"""What goes wrong in a scene, for a while: each trouble ends by itself, or with ``Scene.heal``."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Final, TypeVar

import simloom

from simulation import chance
from simulation.faults import LOST, WRONG
from simulation.scene import Scene
from simulation.server import Fault, Server

AnyScene = TypeVar("AnyScene", bound=Scene)
Trouble = Callable[[AnyScene], Coroutine[None, None, None]]


async def last() -> None:
    """Wait as long as a trouble lasts: mostly shorter than usual time-outs, but not always."""
    await asyncio.sleep(chance.between(0.01, chance.one_of((0.5, 5.0, 20.0))))


async def freeze(scene: Scene) -> None:
    """Stop a server's process, and let it go on."""
    server = scene.any_server()
    server.freeze()
    await last()
    server.thaw()


async def crash(scene: Scene) -> None:
    """Cut a server's power; it comes back."""
    server = scene.any_server()
    if not server.host.crashed:
        server.crash()
        await last()
        server.restart()


async def drop_connections(scene: Scene) -> None:
    """End the connections of a server in good order."""
    scene.any_server().drop_connections()


async def reset_connections(scene: Scene) -> None:
    """End the connections of a server by force."""
    scene.world.net.reset_connections(scene.any_client(), scene.any_server().host)


async def slow_down(scene: Scene) -> None:
    """Make the way to a server and back slow."""
    server, client = scene.any_server(), scene.any_client()
    scene.set_delay(server, 0.1, chance.between(0.2, 8.0), client)
    await last()
    scene.set_delay(server, 0.0005, 0.02, client)


async def cut(scene: Scene) -> None:
    """Drop everything between a client and a server."""
    await _cut(scene, scene.any_server(), towards=True, back=True)


async def cut_one_way(scene: Scene) -> None:
    """Drop everything to a server, or everything that comes back."""
    towards = chance.happens(50)
    await _cut(scene, scene.any_server(), towards=towards, back=not towards)


async def fail_names(scene: Scene) -> None:
    """Answer no question for a name."""
    scene.names_fail = True
    await last()
    scene.names_fail = False


def meet(faults: Sequence[Fault]) -> Trouble[Scene]:
    """Return the trouble that some requests to a server meet faults."""

    async def trouble(scene: Scene) -> None:
        server = scene.any_server()
        server.faults, server.fault_percent = tuple(faults), chance.one_of((10, 40, 100))
        await last()
        server.faults, server.fault_percent = (), 0

    return trouble


OF_SERVERS_ONLY: Final[tuple[Trouble[Scene], ...]] = (
    freeze,
    crash,
    drop_connections,
    reset_connections,
    slow_down,
    cut,
    cut_one_way,
    meet(LOST),
    meet(WRONG),
)
"""What concerns no other server."""
OF_ANY_SERVER: Final = (*OF_SERVERS_ONLY, fail_names)


@contextlib.asynccontextmanager
async def inflict(scene: AnyScene, kinds: Sequence[Trouble[AnyScene]]) -> AsyncGenerator[None, None]:
    """Begin one trouble after the other at random, at times several at once; heal the scene at the end."""

    async def begin() -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(chance.between(0.0, chance.one_of((0.3, 3.0, 10.0))))
                trouble = chance.one_of(kinds)
                simloom.reached(trouble.__qualname__.partition(".")[0])
                group.create_task(trouble(scene))

    beginning = asyncio.create_task(begin())
    try:
        yield
    finally:
        beginning.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beginning
        scene.heal()


async def _cut(scene: Scene, server: Server, *, towards: bool, back: bool) -> None:
    net, client = scene.world.net, scene.any_client()
    ways = [(client, server.host)] * towards + [(server.host, client)] * back
    for way in ways:
        net.block(*way)
    await last()
    for way in ways:
        net.unblock(*way)
