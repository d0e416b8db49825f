"""Sessions with two masters, of which one or both fail, change, forget, or answer nonsense.

Laws: with one bad master, whatever it does, the other hears from each session in time; a call with a deadline
ends by it, and every other one in the end; when all is well again each session is known soon, asks the master
that leads and no other, and stays known; one that a master forgets registers again, once; leaving takes no
longer than it may, and the master knows it; nothing is left.
"""

import asyncio
import contextlib
import itertools
from collections import Counter
from typing import Final

import simloom

from simulation import chance, troubles
from simulation.cluster import TOPIC, Cluster
from simulation.cluster_troubles import OF_MASTERS, answer_nonsense, move_broker, refuse_sessions
from simulation.master import MasterModel
from simulation.server import Server
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master.balance import BalanceSession
from tubemq_spark.client.master.producers import ProducerSession
from tubemq_spark.errors import TubeMQError
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.retry import LEAVE_MS
from tubemq_spark.protocol.constants import Method

_PERIOD_S: Final = 5.0
_TIMEOUT_S: Final = 2.0
_EPSILON_S: Final = 0.5
"""What a request and a new connection may take where all is well."""
_ANY_CALL_S: Final = 10 * _TIMEOUT_S
"""What a call without a deadline may take: it waits for another one, registers again, and asks again."""
_REGISTERS: Final = {Method.PRODUCER_REGISTER, Method.BALANCE_REGISTER}

Session = ProducerSession | BalanceSession


async def masters(world: simloom.World) -> None:
    """Run the scenario."""
    cluster = Cluster(world, brokers=1)
    cluster.directory.leader = chance.one_of(cluster.masters).host.name
    await asyncio.sleep(0.1)
    connections = Connections(look_up=cluster.look_up)
    config = ClientConfig(
        cluster.master_addresses,
        "etl",
        rpc_timeout_ms=int(_TIMEOUT_S * 1000),
        connect_timeout_ms=1_000,
        heartbeat_period_ms=int(_PERIOD_S * 1000),
    ).validate()
    sessions: list[Session] = [ProducerSession(config, connections) for _ in range(2)]
    sessions += [BalanceSession(config, connections, [TOPIC]) for _ in range(2)]
    for session in sessions:
        await session.open()
    await _with_one_bad_master(cluster, sessions)
    callers = [asyncio.create_task(_call(session)) for session in sessions]
    async with troubles.inflict(
        cluster, (*troubles.OF_ANY_SERVER, *OF_MASTERS, refuse_sessions, move_broker)
    ):
        await asyncio.sleep(chance.between(1.0, 60.0))
    for caller in callers:
        caller.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await caller
    await _all_well(cluster, sessions)
    await _forgotten(cluster, sessions)
    await _leave(cluster, sessions)
    await connections.close()
    await cluster.nothing_is_left()


async def _with_one_bad_master(cluster: Cluster, sessions: list[Session]) -> None:
    """Make a sound master lead beside one that is bad in every way."""
    good, bad = cluster.masters if chance.happens(50) else reversed(cluster.masters)
    cluster.directory.leader = good.host.name
    cluster.exposed = [bad]
    kinds = list(troubles.OF_SERVERS_ONLY)
    if bad is cluster.masters[1]:
        kinds.append(answer_nonsense)
    began = cluster.world.time
    async with troubles.inflict(cluster, kinds):
        await asyncio.sleep(chance.between(10.0, 60.0))
    cluster.exposed = None
    # The first request may ask the bad one first, which has half of the time.
    for session in sessions:
        _heard_in_time(cluster, session, began + _TIMEOUT_S)


async def _call(session: Session) -> None:
    """Ask now and then, until this is cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(chance.between(0.0, chance.one_of((0.1, 5.0))))
        began, bound_s = loop.time(), _ANY_CALL_S
        try:
            if isinstance(session, BalanceSession):
                await session.layout()
            else:
                bound_s = chance.between(0.01, _ANY_CALL_S)
                await session.publish([TOPIC], Deadline(began + bound_s, loop.time))
        except TubeMQError as error:
            simloom.reached(error.condition)
        took_s = loop.time() - began
        assert took_s <= bound_s + 0.01, f"a call took {took_s} s instead of {bound_s}"


async def _all_well(cluster: Cluster, sessions: list[Session]) -> None:
    """Wait for a minute in which nothing happens."""
    await asyncio.sleep(_PERIOD_S + _ANY_CALL_S)
    began = cluster.world.time
    await asyncio.sleep(60.0)
    for session in sessions:
        _heard_in_time(cluster, session, began)
        if isinstance(session, BalanceSession):
            (place,) = set((await session.layout()).partitions.values())
            assert place == cluster.brokers[0].server.endpoint
    for master in cluster.masters:
        asked = [request for request in _model_of(master).requests if request.at >= began]
        assert master.host.name == cluster.directory.leader or not asked, "a master on standby is asked"
        assert not _REGISTERS.intersection(request.method for request in asked), "a known session registers"


async def _forgotten(cluster: Cluster, sessions: list[Session]) -> None:
    """Make the leading master forget all clients, once."""
    model = _leader(cluster)
    model.crash()
    began = cluster.world.time
    await asyncio.sleep(2 * _PERIOD_S + _EPSILON_S)
    registered = Counter(
        request.client_id
        for request in model.requests
        if request.at >= began and request.method in _REGISTERS
    )
    assert registered == Counter(session.client_id for session in sessions), registered


async def _leave(cluster: Cluster, sessions: list[Session]) -> None:
    """Close the sessions, with masters that answer, or not."""
    frozen = chance.happens(50)
    if frozen:
        for master in cluster.masters:
            master.freeze()
        await asyncio.sleep(chance.between(0.0, _PERIOD_S))
    for session in sessions:
        async with asyncio.timeout(LEAVE_MS / 1000 + 0.01):
            await session.close()
    assert frozen or not _leader(cluster).heard, "a session has left, but the master does not know it"


def _heard_in_time(cluster: Cluster, session: Session, since: float) -> None:
    """Assert that the leading master was asked by a session often enough."""
    heard = [
        request.at
        for request in _leader(cluster).requests
        if request.client_id == session.client_id and request.at >= since
    ]
    moments = [since, *heard, cluster.world.time]
    longest_s = max(after - before for before, after in itertools.pairwise(moments))
    assert longest_s <= _PERIOD_S + _EPSILON_S, f"{session.client_id} was silent for {longest_s} s"


def _model_of(master: Server) -> MasterModel:
    assert isinstance(master.model, MasterModel)
    return master.model


def _leader(cluster: Cluster) -> MasterModel:
    (leader,) = (server for server in cluster.masters if server.host.name == cluster.directory.leader)
    return _model_of(leader)
