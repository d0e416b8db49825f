"""Where stores begin and end now, asked of many brokers at once.

The protocol has no request for that, but registering at offset 0 is answered with the store's earliest offset
(the position is moved there) and its end. This is done under a reader group, so that no consumer's position
is touched, and the lease is released at once without waiting for the answer. So asking costs one round trip
for all stores of all brokers, and one more request per store whose answer is not awaited.

No reader takes a lease under the first of these groups, so readers never keep anyone from asking.

A broker that does not answer must not hold up the others: errors are part of the answer.
"""

import contextlib
import dataclasses
import random
from collections.abc import Mapping

from tubemq_spark.client.broker.session import FLUSHED_ONLY, BrokerSession, Claim, Position, Started
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master import identity
from tubemq_spark.client.master.producers import fresh_visit_token, is_token_refused
from tubemq_spark.errors import RemoteProtocolError, RpcError, TubeMQError, TubeMQTimeoutError
from tubemq_spark.model import (
    PARTITIONS_PER_STORE,
    Endpoint,
    OffsetBounds,
    StoreBounds,
    StoreId,
    TopicPartition,
)
from tubemq_spark.net.connection import Connection
from tubemq_spark.net.connections import Connections
from tubemq_spark.offsets.notation import listed
from tubemq_spark.protocol.errcodes import ErrCode


async def store_bounds(
    config: ClientConfig,
    connections: Connections,
    stores: Mapping[StoreId, Endpoint],
    visit_token: int,
    *,
    flushed: bool = False,
    timeout_ms: int | None = None,
) -> StoreBounds:
    """Ask the brokers of all stores at once.

    Args:
        config: the settings, which name the reader groups.
        connections: the connections.
        stores: the stores, with their brokers.
        visit_token: a visit token of a master.
        flushed: whether a store ends where its data is safe on disk, not where producers append. A broker
            that crashes loses what lies in between, and uses the same offsets again.
        timeout_ms: how long connecting and the answers may take; by default as in the settings.

    Returns:
        The bounds, and for every store without an answer the reason: its broker cannot be reached or refuses
        (403: it does not have the topic, or not yet), or no reader group is free.
    """
    patience_ms = min(config.rpc_timeout_ms, timeout_ms or config.rpc_timeout_ms)
    probe = _Probe(
        dataclasses.replace(config, rpc_timeout_ms=patience_ms),
        connections,
        stores,
        visit_token,
        flushed=flushed,
    )
    await probe.ask()
    return StoreBounds(probe.by_store, probe.failures)


class _Probe:
    """Asks for some stores once: every store ends up either in ``known`` or in ``failures``."""

    def __init__(
        self,
        config: ClientConfig,
        connections: Connections,
        stores: Mapping[StoreId, Endpoint],
        visit_token: int,
        *,
        flushed: bool,
    ) -> None:
        self._config = config
        self._connections = connections
        self._stores = stores
        self._visit_token = visit_token
        self._priority = FLUSHED_ONLY if flushed else None
        self._to_broker: dict[Endpoint, Connection] = {}
        self.by_store: dict[StoreId, OffsetBounds] = {}
        self.failures: dict[StoreId, TubeMQError] = {}

    async def ask(self) -> None:
        await self._connect()
        await self._ask_under_some_group([store for store in self._stores if store not in self.failures])
        refused = [store for store, error in self.failures.items() if is_token_refused(error)]
        if refused:
            await self._ask_with_a_new_token(refused)

    async def _connect(self) -> None:
        config = self._config
        timeout_ms = min(config.connect_timeout_ms, config.rpc_timeout_ms)
        self._to_broker, failed = await self._connections.to_all(
            self._stores.values(), timeout_ms, config.tls
        )
        for store, endpoint in self._stores.items():
            if endpoint in failed:
                self.failures[store] = failed[endpoint]

    async def _ask_under_some_group(self, stores: list[StoreId]) -> None:
        """Ask under one reader group after another until each store has an answer."""
        # The others at random, so that queries that ask at the same moment do not ask under the same names in
        # turn.
        first, *others = self._config.probe_groups
        groups = [first, *random.sample(others, len(others))]
        for group in groups:
            if not stores:
                return
            stores = await self._ask_under(group, stores)
        for store in stores:
            self.failures[store] = TubeMQTimeoutError(
                "TUBEMQ_LEASES_TAKEN",
                count=len(groups),
                groups=listed(sorted(groups)),
                partition=_first_partition(store),
                waited_ms=0,
            )

    async def _ask_under(self, group: str, stores: list[StoreId]) -> list[StoreId]:
        """Ask for all stores at once; return those that another reader holds under this group."""
        client_id = identity.consumer_id(group)
        started = [
            (store, claim, self._start_register(store, claim))
            for store, claim in (
                (store, Claim(_first_partition(store), group, client_id)) for store in stores
            )
        ]
        occupied = []
        try:
            for store, claim, register in started:
                try:
                    if register is not None:
                        self.by_store[store] = _bounds(store, await register, self._stores[store])
                except TubeMQError as error:
                    if isinstance(error, RpcError) and error.code == ErrCode.PARTITION_OCCUPIED:
                        occupied.append(store)
                        continue
                    self.failures[store] = error
                # Also after an error: the broker may have carried the request out.
                self._release(store, claim)
        except BaseException:
            # The question was given up; brokers carry it out all the same.
            for store, claim, register in started:
                if register is not None:
                    register.forget()
                self._release(store, claim)
            raise
        return occupied

    def _start_register(self, store: StoreId, claim: Claim) -> Started[Position] | None:
        try:
            return self._session(store).start_register(claim, 0, query_priority=self._priority)
        except TubeMQError as error:
            self.failures[store] = error
            return None

    def _release(self, store: StoreId, claim: Claim) -> None:
        """Give a lease up without waiting: one that is not released ends by itself after 30 s."""
        with contextlib.suppress(TubeMQError):
            self._session(store).start_unregister(claim).forget()

    def _session(self, store: StoreId) -> BrokerSession:
        return BrokerSession(self._to_broker[self._stores[store]], self._config, self._visit_token)

    async def _ask_with_a_new_token(self, stores: list[StoreId]) -> None:
        """Ask again where the visit token was refused: brokers accept one for about 16 minutes."""
        try:
            self._visit_token = await fresh_visit_token(self._config, self._connections)
        except TubeMQError as error:
            self.failures.update(dict.fromkeys(stores, error))
            return
        for store in stores:
            del self.failures[store]
        await self._ask_under_some_group(stores)


def _first_partition(store: StoreId) -> TopicPartition:
    return TopicPartition(store.topic, store.broker_id, store.store * PARTITIONS_PER_STORE)


def _bounds(store: StoreId, position: Position, endpoint: Endpoint) -> OffsetBounds:
    if position.latest is None:
        during, what = "asking for offsets", f"it did not say where {store} ends"
        raise RemoteProtocolError("TUBEMQ_BAD_ANSWER", endpoint=endpoint, during=during, what=what)
    # While nothing is flushed its end may lie before the log's beginning: the range is empty then.
    return OffsetBounds(position.current, max(position.current, position.latest))
