"""Readers of ranges in one partition, while its broker, the network and the readers' users do what they like.

Laws: a reader has exactly the records of its range, in order, but for those that it reports as lost, and they
are; only a broker that refuses for good ends it before the end; when all is well again it ends soon; one that
is ended early gives its lease back at once; one whose broker is frozen says so in time; nothing is left.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Final

import simloom

from simulation import chance, troubles
from simulation.cluster import TOPIC, Broker, Cluster
from simulation.cluster_troubles import FATAL_CODES, OF_BROKERS, OF_MASTERS, change_token, refuse_reading
from simulation.scene import GRACE_S
from testkit.broker_model import Held
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.reader.range_reader import read_range
from tubemq_spark.errors import RpcError, TubeMQError
from tubemq_spark.model import INDEX_ENTRY_BYTES, OffsetRange, RangeRequest, Route, TopicPartition
from tubemq_spark.net.connections import Connections
from tubemq_spark.offsets.loss import Loss, LossRecord
from tubemq_spark.protocol.fetch_columns import FetchedBatch

_READERS: Final = 3
_LONGEST_REST_S: Final = 40.0
"""Longer than a lease lasts."""


async def reader(world: simloom.World) -> None:
    """Run the scenario."""
    cluster = Cluster(world, brokers=1, partitions=chance.one_of((1, 1, 3)))
    connections = Connections(look_up=cluster.look_up)
    await read(cluster, lambda **more: Reading(cluster, connections, **more))
    await connections.close()
    await cluster.nothing_is_left()


async def read(
    cluster: Cluster, make: "Callable[..., Reading]", more: Sequence[troubles.Trouble[Any]] = ()
) -> None:
    """Read ranges of the only broker, with readers that a function makes."""
    broker = cluster.brokers[0]
    broker.flaws_percent = chance.one_of((0, 0, 10))
    broker.append(0, 20 + chance.below(40))
    broker.flush()
    broker.append(0, chance.below(40))
    await asyncio.sleep(0.1)
    readings = [make() for _ in range(_READERS)]
    tasks = [asyncio.create_task(reading.run()) for reading in readings]
    kinds = [*troubles.OF_ANY_SERVER, *OF_BROKERS, *OF_MASTERS, change_token, *more]
    if chance.happens(20):
        kinds.append(refuse_reading(FATAL_CODES))
    async with troubles.inflict(cluster, kinds):
        await asyncio.sleep(chance.between(1.0, 60.0))
    for reading in readings:
        reading.rests = False
    async with asyncio.timeout(GRACE_S + _LONGEST_REST_S):
        for task in tasks:
            await task
    for reading in readings:
        reading.check(broker)
    await _end_early(cluster, make)
    await _freeze(cluster, make)


async def _freeze(cluster: Cluster, make: "Callable[..., Reading]") -> None:
    """Freeze the broker for good."""
    reading = make(fetch_timeout_s=15.0)
    reading.rests = False
    task = asyncio.create_task(reading.run())
    await asyncio.sleep(chance.between(0.0, 0.3))
    cluster.brokers[0].server.freeze()
    began = cluster.world.time
    await task
    if reading.error is not None:
        assert reading.error.condition == "TUBEMQ_NO_PROGRESS", reading.error
        # An attempt that was under way ends first.
        assert 14.0 < cluster.world.time - began < 25.0, (
            f"no progress was told after {cluster.world.time - began} s"
        )


async def _end_early(cluster: Cluster, make: "Callable[..., Reading]") -> None:
    """End readers at any moment; each gives its lease back at once."""
    for _ in range(3):
        reading = make()
        await cluster.world.until(lambda reading=reading: not reading.leases(), timeout=31.0)
        task = asyncio.create_task(reading.run())
        await asyncio.sleep(chance.between(0.0, 0.5))
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await asyncio.sleep(reading.ends_s)
        assert not reading.leases(), f"a reader that was ended early holds {reading.leases()}"


class Reading:
    """One reader of a range, and what it has read."""

    ends_s = 0.1
    """How long it takes at most to give a lease back when all is well."""

    def __init__(
        self, cluster: Cluster, connections: Connections | None, fetch_timeout_s: float = 600.0
    ) -> None:
        self.rests = True
        """Whether its user takes some time now and then."""
        self.error: TubeMQError | None = None
        broker = cluster.brokers[0]
        (log,) = broker.model.stores.values()
        first = log.first if chance.happens(30) else chance.below(len(log.entries))
        self._end = first + 1 + chance.below(len(log.entries) - first)
        self._first = first
        self._partition = TopicPartition(TOPIC, broker.id, chance.below(broker.model.partitions))
        self._own_store = broker.model.partitions == 1 and chance.happens(80)
        self._cluster = cluster
        self._connections = connections
        self.config = ClientConfig(
            cluster.master_addresses,
            "etl",
            rpc_timeout_ms=2_000,
            reader_groups=("etl_a", "etl_b", "etl_c", "etl_d"),
            connect_timeout_ms=1_000,
            fetch_timeout_ms=int(fetch_timeout_s * 1000),
            lease_wait_ms=chance.one_of((1_000, 45_000)),
        ).validate()
        self._numbers: list[int] = []
        self._losses: list[LossRecord] = []
        self._taken_for: dict[int, int] = {}
        """Entries without data for each of which a later one was taken: when retention has removed what comes
        behind an answer, it cannot be known which entries the broker had passed over in it."""

    async def run(self) -> None:
        """Read the range; note an error."""
        offsets = OffsetRange(self._partition, self._first * INDEX_ENTRY_BYTES, self._end * INDEX_ENTRY_BYTES)
        route = Route(self._cluster.brokers[0].server.endpoint, self._cluster.directory.token)
        items = self.items(RangeRequest(offsets, route, self._own_store))
        try:
            async with contextlib.aclosing(items):
                async for item in items:
                    self._take(item)
                    if self.rests and chance.happens(40):
                        await asyncio.sleep(chance.between(0.0, chance.one_of((1.0, 5.0, _LONGEST_REST_S))))
        except TubeMQError as error:
            simloom.reached(error.condition)
            self.error = error

    def items(self, request: RangeRequest) -> AsyncGenerator[FetchedBatch | LossRecord, None]:
        """Return what yields the records of a range, and losses."""
        assert self._connections is not None
        return read_range(self.config, self._connections, request, private=chance.happens(50))

    def leases(self) -> list[Held]:
        """Return what its groups hold at the broker; who asks questions has leases of others for a moment."""
        live = self._cluster.brokers[0].model.live_leases(self._cluster.world.time)
        return [lease for lease in live if lease[0] in self.config.reader_groups]

    def check(self, broker: Broker) -> None:
        """Assert that what was read, and what was reported as lost, is the range, or its beginning."""
        (store_id,) = broker.model.stores
        log, lost = broker.model.stores[store_id], broker.model.lost[store_id]
        partitions = broker.model.partitions
        mine = {number for number in range(self._first, self._end) if number % partitions == self._number}
        assert self._numbers == sorted(set(self._numbers)), f"not in order: {self._numbers}"
        assert mine.issuperset(self._numbers), f"not of the range: {set(self._numbers) - mine}"
        unreadable = broker.flawed(0, "readable")
        truth = {
            Loss.EXPIRED: set(range(log.first)),
            Loss.TRUNCATED: lost,
            Loss.CORRUPT: broker.flawed(0, "sound"),
            Loss.SKIPPED: unreadable,
        }
        told: set[int] = set()
        for loss in self._losses:
            offsets = range(loss.start // INDEX_ENTRY_BYTES, -(-loss.end // INDEX_ENTRY_BYTES))
            gone = mine.intersection(offsets) & truth[loss.loss]
            told |= gone
            if loss.loss in {Loss.EXPIRED, Loss.TRUNCATED}:
                assert gone == mine.intersection(offsets), f"{loss} is not true"
                # A log may end before what was read of it, and there some may be lost for other reasons.
                unread = gone.difference(self._numbers)
                least, most = len(unread - truth[Loss.CORRUPT] - unreadable), len(unread)
                most += len(self._taken_for)
                assert (loss.rows is None) is not self._own_store, loss
                assert loss.rows is None or least <= loss.rows <= most, (
                    f"{loss} is not {least} to {most} rows"
                )
        assert unreadable.issuperset(self._taken_for), self._taken_for
        assert truth[Loss.EXPIRED].issuperset(self._taken_for.values()), self._taken_for
        missing = mine.difference(self._numbers, self._taken_for)
        if self.error is not None:
            assert isinstance(self.error, RpcError), self.error
            assert self.error.parameters.get("code") in FATAL_CODES, self.error
            missing = {number for number in missing if number < max(self._numbers, default=0)}
        # What was passed over is told only where every offset is one of the partition's records.
        untold = missing - told - (set() if self._own_store else unreadable)
        assert not untold, f"neither read nor told as lost: {sorted(untold)}; told: {self._losses}"

    @property
    def _number(self) -> int:
        return self._partition.partition_id

    def _take(self, item: FetchedBatch | LossRecord) -> None:
        if isinstance(item, LossRecord):
            simloom.reached(item.loss.name)
            self._losses.append(item)
            return
        columns = item.columns
        numbers = [int(columns.message(row).value) for row in range(len(columns))]
        first, behind = item.start // INDEX_ENTRY_BYTES, item.next // INDEX_ENTRY_BYTES
        if any(number >= behind for number in numbers):
            beyond = [number for number in numbers if number >= behind]
            passed_over = sorted(set(range(first, behind)).difference(numbers))
            assert len(beyond) <= len(passed_over), f"{numbers} from {first} to {behind}"
            self._taken_for.update(zip(passed_over, beyond, strict=False))
        assert all(first <= number for number in numbers), f"{numbers} from {first} to {behind}"
        self._numbers += numbers
