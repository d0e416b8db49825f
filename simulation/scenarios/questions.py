"""Questions that are asked once: where partitions are, and where their stores begin and end.

Laws: a bad broker takes nothing from the answers of the others, and costs no more than its time-outs; each
store has bounds that were true while they were asked for, or an error, within its time; when all is well
again each question is answered; asking leaves no lease and nothing else.
"""

import asyncio
import contextlib
from collections.abc import Collection
from typing import Final

import simloom

from simulation import chance, troubles
from simulation.cluster import TOPIC, Broker, Cluster
from simulation.cluster_troubles import OF_MASTERS, change_token, end_leases, expire, move_broker, store_more
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.metadata.positions import store_bounds
from tubemq_spark.client.metadata.topics import topics_layout
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import OffsetBounds, StoreId, TopicPartition
from tubemq_spark.net.connections import Connections

_CONNECT_S: Final = 1.0
_TIMEOUT_S: Final = 2.0
_EPSILON_S: Final = 0.1
"""What a question takes where all is well, and until brokers have what was not waited for."""
_ONE_BAD_S: Final = _CONNECT_S + 3 * _TIMEOUT_S
"""To connect, and to ask again under another group where a lease is left that could not be given back."""
_WITH_A_TOKEN_S: Final = 4 * _TIMEOUT_S
"""What a new visit token may cost besides: registering at a master, and leaving it."""
_LATEST_LEASE_S: Final = 50.0
"""After so long a lease has ended that a broker made late."""
_ROUNDS: Final = 8


async def questions(world: simloom.World) -> None:
    """Run the scenario."""
    cluster = Cluster(world, brokers=3)
    for broker in cluster.brokers:
        broker.append(0, chance.below(40))
        broker.flush()
    await asyncio.sleep(0.1)
    asker = _Asker(cluster)
    *good, bad = cluster.brokers
    cluster.exposed = [bad.server]
    async with troubles.inflict(cluster, troubles.OF_SERVERS_ONLY):
        for _ in range(_ROUNDS):
            await asyncio.sleep(chance.between(0.0, 2.0))
            assert await asker.ask(_ONE_BAD_S) >= {broker.id for broker in good}
    cluster.exposed = None
    kinds = (*troubles.OF_ANY_SERVER, *OF_MASTERS, change_token, end_leases, expire, move_broker, store_more)
    async with troubles.inflict(cluster, kinds):
        for _ in range(_ROUNDS):
            await asyncio.sleep(chance.between(0.0, 5.0))
            await asker.ask(2 * (_CONNECT_S + 5 * _TIMEOUT_S) + _WITH_A_TOKEN_S)
    async with asyncio.timeout(60.0):
        while not await asker.learn_layout() or await asker.ask(60.0) != {1, 2, 3}:
            await asyncio.sleep(1.0)
    # A lease that was not given back, because its connection was lost, ends by itself.
    await asyncio.sleep(_LATEST_LEASE_S)
    assert await asker.ask(_EPSILON_S) == {1, 2, 3}
    await asyncio.sleep(_EPSILON_S)
    for broker in cluster.brokers:
        assert not broker.model.live_leases(world.time), "a question has left a lease"
    await asker.connections.close()
    await cluster.nothing_is_left()


class _Asker:
    def __init__(self, cluster: Cluster) -> None:
        self.connections = Connections(look_up=cluster.look_up)
        self._cluster = cluster
        self._config = ClientConfig(
            cluster.master_addresses,
            "etl",
            rpc_timeout_ms=int(_TIMEOUT_S * 1000),
            connect_timeout_ms=int(_CONNECT_S * 1000),
            lease_wait_ms=5_000,
        ).validate()
        self._stores = {StoreId(TOPIC, broker.id, 0): broker.server.endpoint for broker in cluster.brokers}
        self._token = cluster.directory.token

    async def learn_layout(self) -> bool:
        """Ask the masters where the partitions are; return whether they told."""
        with contextlib.suppress(TubeMQError):
            layout = await topics_layout(self._config, self.connections, [TOPIC])
            places = {
                TopicPartition(TOPIC, broker.id, 0): broker.server.endpoint
                for broker in self._cluster.brokers
            }
            assert layout.partitions == places
            self._stores = {partition.store_id: endpoint for partition, endpoint in places.items()}
            self._token = layout.visit_token
            return True
        return False

    async def ask(self, bound_s: float) -> Collection[int]:
        """Ask for all bounds; return the brokers that answered."""
        before = [_bounds(broker) for broker in self._cluster.brokers]
        began = self._cluster.world.time
        bounds = await store_bounds(self._config, self.connections, self._stores, self._token)
        took_s = self._cluster.world.time - began
        assert took_s <= bound_s, f"it took {took_s} s instead of {bound_s}"
        assert bounds.by_store.keys() | bounds.failures.keys() == self._stores.keys()
        for broker, earlier in zip(self._cluster.brokers, before, strict=True):
            answer = bounds.by_store.get(StoreId(TOPIC, broker.id, 0))
            if answer is not None:
                later = _bounds(broker)
                assert earlier.earliest <= answer.earliest <= later.earliest, (earlier, answer, later)
                assert answer.latest <= max(earlier.latest, later.latest), (earlier, answer, later)
        return {store.broker_id for store in bounds.by_store}


def _bounds(broker: Broker) -> OffsetBounds:
    (log,) = broker.model.stores.values()
    return OffsetBounds(log.earliest, log.latest)
