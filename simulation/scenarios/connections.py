"""Many callers of three servers over shared and private connections, while servers and the network fail.

Laws: connecting and calls end within their time; no call gets another's answer; a caller that is cancelled
ends at once; all that need a peer at first share one connection; a bad server delays no call to another one;
when all is well again calls are answered; closing leaves nothing.
"""

import asyncio
import itertools
from collections.abc import Awaitable
from typing import Final, TypeVar

import simloom
from google.protobuf.message import Message

from simulation import chance, troubles
from simulation.scene import GRACE_S, Scene
from simulation.server import Server
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.connection import Connection
from tubemq_spark.net.connections import Connections
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.constants import Method, ServiceType
from tubemq_spark.protocol.pb import broker_pb2

Result = TypeVar("Result")

_CONNECT_S: Final = 3.0
_CALLERS: Final = 6
_CALLS: Final = 12
_WAY_AND_BACK_S: Final = 0.045
_LATEST_ANSWER_S: Final = 20.0


class _Echo:
    """A server that answers with what it was asked."""

    now = 0.0
    is_late = False

    def answer(self, method: Method, body: bytes | memoryview) -> Message:  # noqa: ARG002
        request = rpc.parse_message(broker_pb2.HeartBeatRequestC2B, body)
        text = request.clientId + "!" * int(request.groupName)
        return broker_pb2.HeartBeatResponseB2C(success=True, errCode=200, errMsg=text)

    def crash(self) -> None:
        """Lose nothing."""


class _Echoes(Scene):
    def __init__(self, world: simloom.World) -> None:
        super().__init__(world)
        self._servers = [Server(world, f"server{number}", 8123, _Echo()) for number in (1, 2, 3)]

    @property
    def servers(self) -> list[Server]:
        return self._servers


async def connections(world: simloom.World) -> None:
    """Run the scenario."""
    scene = _Echoes(world)
    await asyncio.sleep(0.1)
    owner = Connections(int(_CONNECT_S * 1000), look_up=scene.look_up)
    callers = _Callers(owner, scene)
    await asyncio.gather(*(callers.call(server.endpoint) for server in scene.servers for _ in range(4)))
    assert [len(server.peers) for server in scene.servers] == [1, 1, 1]
    *good, bad = scene.servers
    scene.exposed = [bad]
    async with troubles.inflict(scene, troubles.OF_SERVERS_ONLY):
        await callers.beside(bad.endpoint, [server.endpoint for server in good])
    scene.exposed = None
    async with troubles.inflict(scene, troubles.OF_ANY_SERVER):
        await callers.run()
    for server in scene.servers:
        await callers.until_answered(server.endpoint)
    await asyncio.sleep(_LATEST_ANSWER_S)
    assert not any(connection.in_use for connection in owner.shared()), "a call is left in flight"
    await owner.close()
    await scene.nothing_is_left()


class _Callers:
    def __init__(self, owner: Connections, scene: Scene) -> None:
        self._owner = owner
        self._scene = scene
        self._numbers = itertools.count(1)

    async def run(self) -> None:
        """Call from many tasks at once, some of which are cancelled."""
        tasks = [asyncio.create_task(self._shared()) for _ in range(_CALLERS)]
        tasks += [asyncio.create_task(self._private()) for _ in range(2)]
        for task in tasks[:2]:
            await asyncio.sleep(chance.between(0.0, 10.0))
            task.cancel()
            async with asyncio.timeout(0.001):
                await asyncio.wait([task])
        for task in tasks[2:]:
            await task

    async def beside(self, bad: Endpoint, good: list[Endpoint]) -> None:
        """Call servers that are well, while many others call one that is not."""
        others = [asyncio.create_task(self._repeat(bad)) for _ in range(4)]
        for _ in range(_CALLS):
            await asyncio.sleep(chance.between(0.0, 2.0))
            assert await _within(_WAY_AND_BACK_S, self.call(chance.one_of(good))), (
                "no answer from a good server"
            )
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def until_answered(self, endpoint: Endpoint) -> None:
        """Call until there is an answer; connections that were lost unnoticed may cost some calls."""
        async with asyncio.timeout(GRACE_S):
            while not await self.call(endpoint):
                pass

    async def call(self, endpoint: Endpoint) -> bool:
        """Call over the shared connection; return whether there was an answer."""
        try:
            connection = await _within(_CONNECT_S, self._owner.get(endpoint))
            await self._ask(connection)
        except TubeMQError:
            return False
        return True

    async def _repeat(self, endpoint: Endpoint) -> None:
        while True:
            await self.call(endpoint)
            await asyncio.sleep(chance.between(0.0, 1.0))

    async def _shared(self) -> None:
        for _ in range(_CALLS):
            await self.call(chance.one_of(self._scene.servers).endpoint)
            await asyncio.sleep(chance.between(0.0, chance.one_of((0.01, 1.0))))

    async def _private(self) -> None:
        for _ in range(_CALLS // 4):
            async with self._owner.private(int(_CONNECT_S * 1000), None) as private:
                for _ in range(3):
                    try:
                        endpoint = chance.one_of(self._scene.servers).endpoint
                        await self._ask(await _within(_CONNECT_S, private.to(endpoint)))
                    except TubeMQError:
                        await asyncio.sleep(chance.between(0.0, 1.0))

    async def _ask(self, connection: Connection) -> None:
        name = f"call {next(self._numbers)}"
        length = chance.one_of((0, 100, 20_000))
        timeout_ms = chance.one_of((50, 1_000, 10_000))
        request = broker_pb2.HeartBeatRequestC2B(clientId=name, groupName=str(length), readStatus=0)
        call = connection.start(
            ServiceType.BROKER_READ,
            Method.PARTITION_HEARTBEAT,
            request,
            timeout_ms=timeout_ms,
            during="asking for an echo",
        )
        await _within(timeout_ms / 1000, call)
        answer = call.result(broker_pb2.HeartBeatResponseB2C, "asking for an echo")
        assert answer.errMsg == name + "!" * length, f"{name} got the answer {answer.errMsg[:20]}"


async def _within(seconds: float, waiting: Awaitable[Result]) -> Result:
    """Wait, and assert that this ends in time."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        return await waiting
    finally:
        assert loop.time() - began <= seconds + 0.001, f"it took {loop.time() - began} s instead of {seconds}"
