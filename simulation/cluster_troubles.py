"""What goes wrong in a cluster of TubeMQ, besides what may happen to any server."""

from collections.abc import Collection
from typing import Final

from simulation import chance
from simulation.cluster import Broker, Cluster
from simulation.faults import (
    NONSENSE,
    be_another_server,
    be_standby,
    break_down,
    break_down_after,
    expire_first,
    forget_in_flight,
    refuse,
    refuse_after,
)
from simulation.master import MasterModel
from simulation.server import Server
from simulation.troubles import Trouble, last
from tubemq_spark.protocol.errcodes import ErrCode, lookup

TRANSIENT_CODES: Final = (
    *(code for code in ErrCode if lookup(code).retriable and code != ErrCode.NOT_READY),
    # Usual answers of a broker that has read nothing, or more than it says.
    *(ErrCode.NOT_FOUND,) * 8,
)
FATAL_CODES: Final = (ErrCode.BAD_REQUEST, ErrCode.CONSUME_GROUP_FORBIDDEN, ErrCode.CONSUME_CONTENT_FORBIDDEN)
SEND_CODES: Final = (
    ErrCode.FORBIDDEN,
    ErrCode.CERTIFICATE_FAILURE,
    ErrCode.SERVER_RECEIVE_OVERFLOW,
    ErrCode.SERVICE_UNAVAILABLE,
)


async def end_leases(cluster: Cluster) -> None:
    """End all leases of a broker, as if their holders had been silent."""
    _any(cluster).model.time_out_leases()


async def lose_memory(cluster: Cluster) -> None:
    """Restart a broker that has lost what was not flushed and stored something else, all at once."""
    broker = _any(cluster)
    if not broker.server.host.crashed:
        broker.server.crash()
        broker.append(0, chance.below(20))
        broker.server.restart()


async def move_broker(cluster: Cluster) -> None:
    """Move a broker to another address."""
    cluster.move(_any(cluster))


async def expire(cluster: Cluster) -> None:
    """Remove the oldest records of a store from the disk."""
    log = chance.one_of(list(_any(cluster).model.stores.values()))
    log.first += chance.below(1 + (log.flushed - log.first) // 3)


async def store_more(cluster: Cluster) -> None:
    """Store records, and flush some of them."""
    broker = _any(cluster)
    if chance.happens(50):
        broker.flush()
    broker.append(0, chance.below(20))


async def change_leader(cluster: Cluster) -> None:
    """Make the other master lead, which knows no clients."""
    leader = chance.one_of(cluster.masters)
    if cluster.directory.leader != leader.host.name:
        leader.model.crash()
        cluster.directory.leader = leader.host.name


async def forget_clients(cluster: Cluster) -> None:
    """Make a master forget its clients, as when it restarts."""
    chance.one_of(cluster.masters).model.crash()


async def answer_nonsense(cluster: Cluster) -> None:
    """Make the second master answer nonsense; if both did, no client would ask again."""
    server = cluster.masters[1]
    server.faults, server.fault_percent = NONSENSE, 100
    await last()
    server.faults, server.fault_percent = (), 0


async def change_token(cluster: Cluster) -> None:
    """Make the oldest visit tokens invalid."""
    cluster.change_token()


def refuse_reading(codes: Collection[int]) -> Trouble[Cluster]:
    """Return the trouble that a broker refuses some requests, with one of some codes."""

    async def trouble(cluster: Cluster) -> None:
        server: Server = _any(cluster).server
        code = chance.one_of(tuple(codes))
        server.faults = (refuse(code), refuse_after(code), forget_in_flight, expire_first)
        server.fault_percent = chance.one_of((10, 60))
        await last()
        server.faults, server.fault_percent = (), 0

    return trouble


async def flush(cluster: Cluster) -> None:
    """Write to the disk of a broker what is in memory only."""
    _any(cluster).flush()


async def restart_broker(cluster: Cluster) -> None:
    """Restart a broker in good order: it loses nothing."""
    broker = _any(cluster)
    broker.flush()
    if not broker.server.host.crashed:
        broker.server.crash()
        await last()
        broker.server.restart()


async def close_broker(cluster: Cluster) -> None:
    """Close a broker to producers for a while."""
    broker = _any(cluster)
    cluster.close(broker)
    await last()
    cluster.reopen(broker)


async def refuse_messages(cluster: Cluster) -> None:
    """Make a broker refuse messages, before or after it stores them as far as the answer leaves that open."""
    server = _any(cluster).server
    code = chance.one_of(SEND_CODES)
    server.faults = chance.one_of(
        (
            (refuse(code),),
            (refuse(code),),
            (refuse(ErrCode.INTERNAL_SERVER_ERROR), refuse_after(ErrCode.INTERNAL_SERVER_ERROR)),
            (break_down, break_down_after),
            (be_standby,),
        )
    )
    server.fault_percent = chance.one_of((10, 60, 100))
    await last()
    server.faults, server.fault_percent = (), 0


async def refuse_messages_for_good(cluster: Cluster) -> None:
    """Make a broker refuse some messages so that they are not sent again."""
    server = _any(cluster).server
    unclear = refuse_after(ErrCode.UNSPECIFIED_ABNORMAL, ErrCode.INTERNAL_SERVER_ERROR_MSGSET_NULL)
    final = refuse(ErrCode.BAD_REQUEST), unclear, be_another_server
    server.faults, server.fault_percent = final, chance.one_of((5, 30))
    await last()
    server.faults, server.fault_percent = (), 0


async def refuse_sessions(cluster: Cluster) -> None:
    """Make a master refuse some requests, with any code but those of success."""
    server = cluster.any_server()
    if isinstance(server.model, MasterModel):
        codes = [code for code in ErrCode if code not in {ErrCode.SUCCESS, ErrCode.NOT_READY}]
        server.faults, server.fault_percent = (refuse(*codes),), chance.one_of((10, 60, 100))
        await last()
        server.faults, server.fault_percent = (), 0


OF_BROKERS: Final[tuple[Trouble[Cluster], ...]] = (
    end_leases,
    lose_memory,
    move_broker,
    expire,
    store_more,
    refuse_reading(TRANSIENT_CODES),
)
OF_BROKERS_THAT_STORE: Final[tuple[Trouble[Cluster], ...]] = (
    flush,
    restart_broker,
    move_broker,
    close_broker,
    refuse_messages,
    refuse_messages,
)
OF_MASTERS: Final[tuple[Trouble[Cluster], ...]] = (change_leader, forget_clients, answer_nonsense)


def _any(cluster: Cluster) -> Broker:
    return chance.one_of(cluster.brokers)
