"""Where stores begin and end, where groups stand, and where records begin, asked of many brokers at once.

The protocol has no request for that, but registering a partition is answered with the group's position and
the store's end, and sets the position where an offset is given; the lease is given up at once, and the
position stays. So asking costs one round trip for all partitions of all brokers, and one more request for
each.

- Bounds are asked for under a reader group, so that no consumer's position is touched: registering at offset
  0 is answered with the store's earliest offset, since the position is moved there. Nothing waits for the
  leases' ends. No reader takes a lease under the first of these groups, so readers never keep anyone from
  asking.
- A group's position is asked for, and moved, under the group. While a consumer of the group holds a
  partition, the broker refuses (410): its position is that consumer's business.

A broker that does not answer must not hold up the others: errors are part of the answer.
"""

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Generic, TypeVar

from tubemq_spark.client.broker.cursor import Cursor, Step
from tubemq_spark.client.broker.lease import ReaderGroupHolder
from tubemq_spark.client.broker.session import (
    FLUSHED_ONLY,
    MEMORY_TOO,
    BrokerSession,
    Claim,
    Position,
    Started,
)
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master import identity
from tubemq_spark.client.master.producers import fresh_visit_token, is_token_refused
from tubemq_spark.errors import RemoteProtocolError, RpcError, TubeMQError, TubeMQTimeoutError
from tubemq_spark.model import (
    INDEX_ENTRY_BYTES,
    PARTITIONS_PER_STORE,
    Endpoint,
    OffsetBounds,
    Route,
    StoreBounds,
    StoreId,
    TopicPartition,
    TopicsLayout,
)
from tubemq_spark.net.connection import Connection
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.retry import Backoff
from tubemq_spark.offsets.notation import listed
from tubemq_spark.protocol.errcodes import ErrCode

Place = TypeVar("Place", StoreId, TopicPartition)


async def store_bounds(
    config: ClientConfig,
    connections: Connections,
    stores: Mapping[StoreId, Endpoint],
    visit_token: int,
    *,
    flushed: bool = False,
    timeout_ms: int | None = None,
) -> StoreBounds:
    """Return the bounds of stores, and for every store without an answer the reason.

    With ``flushed`` a store ends where its data is safe on disk, not where producers append: a broker that
    crashes loses what lies in between, and uses the same offsets again. Connecting and the answers may take
    ``timeout_ms``, by default as long as in the settings.
    """
    patience_ms = min(config.rpc_timeout_ms, timeout_ms or config.rpc_timeout_ms)
    config = dataclasses.replace(config, rpc_timeout_ms=patience_ms)
    priority = FLUSHED_ONLY if flushed else None
    by_store: dict[StoreId, OffsetBounds] = {}

    async def ask(stores_to_ask: Collection[StoreId]) -> None:
        """Ask under one reader group after another until each store has an answer."""
        remaining = list(stores_to_ask)
        # The others at random: queries that ask at the same moment do not ask under the same names in turn.
        first, *others = config.probe_groups
        groups = [first, *random.sample(others, len(others))]
        for group in groups:
            if not remaining:
                return
            positions = await registers.ask(group, dict.fromkeys(remaining, 0), priority)
            for store, position in positions.items():
                try:
                    by_store[store] = _bounds(store, position, stores[store])
                except TubeMQError as error:
                    registers.failures[store] = error
            remaining = [store for store in remaining if _is_occupied(registers.failures.get(store))]
        for store in remaining:
            registers.failures[store] = TubeMQTimeoutError(
                "TUBEMQ_LEASES_TAKEN",
                count=len(groups),
                groups=listed(sorted(groups)),
                partition=_partition_of(store),
                waited_ms=0,
            )

    with contextlib.closing(_Registers(config, connections, stores, visit_token)) as registers:
        await registers.run(ask)
    return StoreBounds(by_store, registers.failures)


async def group_positions(
    config: ClientConfig, connections: Connections, layout: TopicsLayout
) -> dict[TopicPartition, int]:
    """Return where the group stands in each partition, in index bytes; at first at the beginning."""
    positions, failures = await _register(config, connections, layout, dict.fromkeys(layout.partitions))
    for error in failures.values():
        raise error
    return {partition: position.current for partition, position in positions.items()}


async def move_group(
    config: ClientConfig,
    connections: Connections,
    layout: TopicsLayout,
    positions: Mapping[TopicPartition, int],
) -> dict[TopicPartition, TubeMQError]:
    """Move the group to offsets, in index bytes; return why it was not moved in some partitions.

    Partitions that the layout does not list are left out.
    """
    offsets = {partition: offset for partition, offset in positions.items() if partition in layout.partitions}
    answers, failures = await _register(config, connections, layout, offsets)
    for partition, position in answers.items():
        if position.current != offsets[partition]:
            failures[partition] = RemoteProtocolError(
                "TUBEMQ_POSITION_MOVED",
                partition=partition,
                actual=position.current,
                expected=offsets[partition],
            )
    return failures


async def _register(
    config: ClientConfig,
    connections: Connections,
    layout: TopicsLayout,
    offsets: Mapping[TopicPartition, int | None],
) -> tuple[dict[TopicPartition, Position], dict[TopicPartition, TubeMQError]]:
    """Register partitions under the group and give them up again; return the answers and the failures."""
    positions: dict[TopicPartition, Position] = {}

    async def ask(partitions: Collection[TopicPartition]) -> None:
        starts = {partition: offsets[partition] for partition in partitions}
        positions.update(await registers.ask(config.group, starts))

    endpoints = {partition: layout.partitions[partition] for partition in offsets}
    with contextlib.closing(_Registers(config, connections, endpoints, layout.visit_token)) as registers:
        await registers.run(ask)
        await registers.released()
    return positions, registers.failures


class _Registers(Generic[Place]):
    """Registers partitions at many brokers at once, and begins to give each up when its answer is there.

    Every place that is asked for ends up either in the answer or in ``failures``.
    """

    def __init__(
        self,
        config: ClientConfig,
        connections: Connections,
        endpoints: Mapping[Place, Endpoint],
        visit_token: int,
    ) -> None:
        self._config = config
        self._connections = connections
        self._endpoints: Mapping[Place, Endpoint] = endpoints
        self._visit_token = visit_token
        self._to_broker: dict[Endpoint, Connection] = {}
        self._releases: list[Started[None]] = []
        self.failures: dict[Place, TubeMQError] = {}

    def close(self) -> None:
        """Wait for no release: a lease that is not given up ends by itself after 30 s."""
        for release in self._releases:
            release.forget()

    async def released(self) -> None:
        """Wait until brokers have ended all leases, or refused to."""
        for release in self._releases:
            with contextlib.suppress(TubeMQError):
                await release

    async def run(self, ask: Callable[[Collection[Place]], Awaitable[None]]) -> None:
        """Connect to the brokers and ask; again where the visit token was refused.

        Brokers accept a token for about 16 minutes.
        """
        config = self._config
        timeout_ms = min(config.connect_timeout_ms, config.rpc_timeout_ms)
        self._to_broker, away = await self._connections.to_all(
            self._endpoints.values(), timeout_ms, config.tls
        )
        self.failures = {
            place: away[endpoint] for place, endpoint in self._endpoints.items() if endpoint in away
        }
        await ask([place for place in self._endpoints if place not in self.failures])
        refused = [place for place, error in self.failures.items() if is_token_refused(error)]
        if not refused:
            return
        try:
            self._visit_token = await fresh_visit_token(config, self._connections)
        except TubeMQError as error:
            self.failures.update(dict.fromkeys(refused, error))
        else:
            await ask(refused)

    async def ask(
        self, group: str, offsets: Mapping[Place, int | None], query_priority: int | None = None
    ) -> dict[Place, Position]:
        """Register at offsets, or where the group stands, under a new name of the group, all at once."""
        client_id = identity.consumer_id(group)
        started: dict[Place, tuple[Claim, Started[Position]]] = {}
        positions: dict[Place, Position] = {}
        try:
            for place, offset in offsets.items():
                self.failures.pop(place, None)
                claim = Claim(_partition_of(place), group, client_id)
                try:
                    register = self._session(place).start_register(
                        claim, offset, query_priority=query_priority
                    )
                except TubeMQError as error:
                    self.failures[place] = error
                else:
                    started[place] = claim, register
            for place, (claim, register) in started.items():
                try:
                    positions[place] = await register
                except TubeMQError as error:
                    self.failures[place] = error
                    if _is_occupied(error):
                        continue
                # Also after an error: the broker may have carried the request out.
                self._release(place, claim)
        except BaseException:
            # The question was given up; brokers carry it out all the same.
            for place, (claim, register) in started.items():
                register.forget()
                self._release(place, claim)
            raise
        return positions

    def _release(self, place: Place, claim: Claim) -> None:
        with contextlib.suppress(TubeMQError):
            self._releases.append(self._session(place).start_unregister(claim))

    def _session(self, place: Place) -> BrokerSession:
        return BrokerSession(self._to_broker[self._endpoints[place]], self._config, self._visit_token)


def _partition_of(place: StoreId | TopicPartition) -> TopicPartition:
    """Return the partition to register, of a store its first one."""
    if isinstance(place, TopicPartition):
        return place
    return TopicPartition(place.topic, place.broker_id, place.store * PARTITIONS_PER_STORE)


def _is_occupied(error: TubeMQError | None) -> bool:
    return isinstance(error, RpcError) and error.code == ErrCode.PARTITION_OCCUPIED


def _bounds(store: StoreId, position: Position, endpoint: Endpoint) -> OffsetBounds:
    if position.latest is None:
        during, what = "asking for offsets", f"it did not say where {store} ends"
        raise RemoteProtocolError("TUBEMQ_BAD_ANSWER", endpoint=endpoint, during=during, what=what)
    # While nothing is flushed its end may lie before the log's beginning: the range is empty then.
    return OffsetBounds(position.current, max(position.current, position.latest))


async def first_readable(
    config: ClientConfig,
    connections: Connections,
    partition: TopicPartition,
    route: Route,
    bounds: OffsetBounds,
) -> int:
    """Return the offset of the first record of a log that can be read, or ``bounds.latest`` without one.

    The partition must be the only one of its store. Retention removes the data of a log and its index in
    whole files, which hold different numbers of messages (``BrokerConfig``: 1 GB of data, 786 432 index
    entries). So a log may begin with index entries whose data is gone, and the broker moves on a reader that
    starts there. Starting behind them is not a loss, but where that is must be known before a range is
    planned: a range that starts inside these entries looks like one whose records were removed later.
    """
    if bounds.earliest >= bounds.latest:
        return bounds.latest
    probing = dataclasses.replace(config, reader_groups=config.probe_groups)
    holder = ReaderGroupHolder(probing, connections, partition, route, query_priority=MEMORY_TOO)
    async with holder:
        return await _search(Cursor(holder, partition), partition, bounds, config.rpc_timeout_ms)


async def _search(cursor: Cursor, partition: TopicPartition, bounds: OffsetBounds, timeout_ms: int) -> int:
    deadline = Deadline.after_ms(timeout_ms, asyncio.get_running_loop().time)
    backoff = Backoff()
    await cursor.seek(bounds.earliest)
    while cursor.position < bounds.latest:
        await cursor.receive(cursor.start_fetch())
        step = await cursor.confirm()
        if step.fetched.count:
            return step.start if step.dense else await _behind_the_gap(cursor, step)
        if step.pause_ms:
            await asyncio.sleep(step.pause_ms / 1000)
            continue
        if step.next != step.start:
            continue
        pause_s = backoff.next_s(deadline)
        if pause_s is None:
            raise TubeMQTimeoutError(
                "TUBEMQ_NO_PROGRESS",
                partition=partition,
                position=step.start,
                end=bounds.latest,
                timeout_ms=timeout_ms,
                trouble="the broker has nothing to read there",
            )
        await asyncio.sleep(pause_s)
    return bounds.latest


async def _behind_the_gap(cursor: Cursor, step: Step) -> int:
    """Return where the records begin in a step that passed over entries without data.

    The answer to a fetch does not say where the gap is. If it is at the beginning, as it is after retention,
    the records fill the end of the step: then reading from there on returns the same record first. Otherwise
    there are records between gaps, which must not be passed over, and the step's own start is returned.
    """
    candidate = step.next - INDEX_ENTRY_BYTES * step.fetched.count
    await cursor.seek(candidate)
    await cursor.receive(cursor.start_fetch())
    again = await cursor.confirm()
    return candidate if again.start == candidate and _first(again) == _first(step) else step.start


def _first(step: Step) -> tuple[int, bytes] | None:
    """Return what identifies the first record of a step; None for a damaged one."""
    columns = step.fetched.columns
    if not len(columns) or columns.ordinals[0] != 0:
        return None
    return columns.identity(0)
