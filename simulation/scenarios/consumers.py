"""Groups of consumers, while brokers, masters, networks, members and their users do what they like.

A group's partitions are given to its members by the master, or its members choose them among themselves. One
to five members, in one of twenty universes twenty, join, leave, freeze and crash. Their users wait for
batches with and without time-outs and stop waiting at any moment; they confirm late, twice, for another
batch, not at all, or stop waiting for that too; they move partitions. Their callbacks take long, or raise.

Laws:

- every message that stays is handed out to each group that wants it, and in the order of its partition;
- a broker's position of a group passes no message that no user has confirmed, nor goes back, unless someone
  has moved the group, or the broker has crashed; a batch that was confirmed does not come again otherwise;
- a batch is confirmed once, and only by who has it; what is told of losses is true;
- no message of a partition is handed out before ``on_assigned`` has ended, or after ``on_revoked`` has begun;
- a fetch ends within its time-out, or 0.2 s later if it is patient, and at once when it is cancelled;
- when all is well again each partition has one holder, the same for its broker, its master and itself, which
  keeps its lease also while nothing is fetched;
- a partition that another consumer has taken is given up with the next fetch, and without one with the next
  heartbeat;
- beside one frozen broker, messages of the others come at most 0.6 s after the rest of their partitions;
- closing ends within its bound, and leaves no task when it ends, and no connection or lease.
"""

import asyncio
import contextlib
from collections import Counter
from typing import Any, Final

import simloom

from simulation import chance, hosts, troubles
from simulation.cluster import TOPIC, Broker, Cluster
from simulation.cluster_troubles import (
    OF_MASTERS,
    TRANSIENT_CODES,
    change_token,
    end_leases,
    expire,
    flush,
    move_broker,
    refuse_reading,
    restart_broker,
)
from simulation.consumed import GroupLedger, watch
from simulation.faults import LOST, WRONG, carry_out_late
from simulation.gateways import Fleet
from simulation.members import SETTLED_S, Habits, Member
from simulation.scene import Scene
from testkit.broker_model import Held
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer_config import ConsumePosition, ConsumerConfig, Subscription
from tubemq_spark.model import TopicPartition

_TOPICS: Final = (TOPIC, "other")
_TYPES: Final = ("a", "b", "c")
_USUAL_MEMBERS: Final = 5
_MOST_MEMBERS: Final = 20
_ROUNDS_S: Final = 30.0
"""In so long, members that come or go have been taken into account."""
_LEASE_S: Final = 31.0
"""So long without a request, and a broker gives a partition to others."""
_SOON_S: Final = 1.5
"""A message is handed out so soon when all is well, and its partition does not rest."""
_BESIDE_S: Final = 0.6
"""The same beside a frozen broker, of which one partition takes a turn."""
_FREEZES_S: Final = (0.5, 5.0, 45.0)


async def consumers(world: simloom.World) -> None:
    """Run the scenario."""
    await Consuming(world).run()


class _Group:
    """A group, and its members."""

    def __init__(self, cluster: Cluster, name: str, *, most: int, way: Fleet | None = None) -> None:
        types = frozenset(chance.one_of(((), (), ("a",), ("a", "b"))))
        # Through a gateway, what it has handed out and no user has seen would count as consumed.
        rollback, by_master = (
            way is not None or chance.happens(75),
            most > _USUAL_MEMBERS or chance.happens(65),
        )
        self.name = name
        locally, rest_ms = chance.happens(25), chance.one_of((400, 2_000, 4_000))
        self.rest_s = rest_ms / 1000
        """How long a partition rests at most."""
        self.heartbeat_s = chance.one_of((2, 5, 9))
        self.ledger = GroupLedger(
            cluster, name, types, rollback=rollback, locally=locally, by_master=by_master
        )
        self.members: list[Member] = []
        self._cluster = cluster
        self._count = 0
        self.most = most if by_master else 1 + chance.below(3)
        config = ClientConfig(
            cluster.master_addresses,
            name,
            rpc_timeout_ms=2_000,
            connect_timeout_ms=1_000,
            heartbeat_period_ms=self.heartbeat_s * 1000,
            register_attempts=2,
            consumer=ConsumerConfig(
                consume_position=ConsumePosition.FIRST,
                confirm_timeout_ms=chance.one_of((3_000, 20_000, 60_000)),
                rollback=rollback,
                rebalance_wait_ms=chance.one_of((0, 1_000, 3_000)),
                shutdown_wait_ms=chance.one_of((1_000, 5_000)),
                report_interval=chance.one_of((1, 3)),
                confirm_locally=locally,
                not_found_wait_ms=rest_ms,
                layout_period_ms=chance.one_of((1_000, 10_000)),
            ),
        ).validate()
        subscription = Subscription.of(
            cluster.directory.topics, dict.fromkeys(cluster.directory.topics, types)
        )
        self.habits = Habits(config, subscription, self.ledger, way)
        if not by_master:
            self.habits.members = self.most

    @property
    def soon_s(self) -> float:
        """In so long a message comes when all is well."""
        return _SOON_S + self.rest_s

    @property
    def by_master(self) -> bool:
        """Whether the master gives partitions to the members."""
        return self.habits.members is None

    @property
    def open(self) -> list[Member]:
        """The members that take part."""
        self.look()
        return [member for member in self.members if member.is_open]

    def look(self) -> None:
        """Forget members that have gone; raise what one of them has found."""
        for member in list(self.members):
            if member.is_gone or member.task.done():
                self.members.remove(member)
                if not member.is_gone:
                    member.task.result()

    def join(self) -> None:
        """Add a member, if there is room."""
        self.look()
        nodes = set(range(self.most)).difference(member.node for member in self.members)
        if nodes:
            self._count += 1
            name = f"{self.name}-{self._count}"
            self.members.append(Member(self._cluster, self.habits, name, min(nodes)))

    async def close(self) -> None:
        """Make all members leave."""
        for member in self.members:
            member.leave()
        self.look()
        for member in self.members:
            await member.task


class Consuming:
    """Groups, and what goes on around them."""

    hears_s = 0.0
    """After so long at most a member hears what has become of its partitions."""

    def __init__(self, world: simloom.World) -> None:
        self.is_storm = chance.happens(5)
        self.cluster = cluster = self.make_cluster(
            world,
            brokers=3,
            stores=1 + chance.happens(20),
            partitions=3 if self.is_storm else chance.one_of((1, 1, 2)),
            topics=_TOPICS[: 1 + chance.happens(15)],
        )
        self._world = world
        most = _MOST_MEMBERS if self.is_storm else 1 + chance.below(_USUAL_MEMBERS)
        count = 1 if self.is_storm else chance.one_of((1, 1, 2))
        self.groups = [
            _Group(cluster, f"group{number}", most=most, way=self.way()) for number in range(count)
        ]
        self._serial = 0
        self._period_s = chance.one_of((0.1, 0.5, 2.0))
        self._keeps_order = chance.happens(70)
        """Whether a server never carries out a client's requests in another order."""
        for broker in cluster.brokers:
            broker.flaws_percent = chance.one_of((0, 0, 5))
            broker.server.drops_late = self._keeps_order
        watch(cluster, [group.ledger for group in self.groups])

    def make_cluster(self, world: simloom.World, **shape: Any) -> Cluster:  # noqa: ANN401 (those of Cluster)
        """Return the cluster."""
        cluster = Cluster(world, **shape)
        cluster.clients = []
        return cluster

    def way(self) -> Fleet | None:
        """Return how consumers reach it; None: directly."""
        return None

    async def check_more(self) -> None:
        """Assert what holds besides when all is well."""

    def kinds(self) -> list[troubles.Trouble[Any]]:
        """Return the troubles that there are besides."""
        return []

    async def run(self) -> None:
        """Run the scenario."""
        cluster = self.cluster
        for _ in range(chance.below(40)):
            self.store()
        await asyncio.sleep(0.1)
        for group in self.groups:
            for _ in range(1 if chance.happens(50) else group.most):
                group.join()
        producing = asyncio.create_task(self._produce())
        moving = asyncio.create_task(self._come_and_go())
        async with troubles.inflict(cluster, self._kinds()):
            await asyncio.sleep(chance.between(1.0, 15.0 if self.is_storm else 40.0))
        for task in (producing, moving):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if chance.happens(30):
            await self._end(well=False)
            return
        await self._settle()
        await self._all_well()
        await self.check_more()
        await self._beside_a_frozen_broker()
        await self._end(well=True)

    # What goes on.

    def _kinds(self) -> list[troubles.Trouble[Cluster]]:
        lost = [fault for fault in LOST if fault is not carry_out_late or not self._keeps_order]
        kinds: list[troubles.Trouble[Cluster]] = [
            *(kind for kind in troubles.OF_ANY_SERVER if not kind.__qualname__.startswith("meet")),
            troubles.meet(lost),
            troubles.meet(WRONG),
            *OF_MASTERS,
            refuse_reading(TRANSIENT_CODES),
            change_token,
            end_leases,
            expire,
            flush,
            restart_broker,
            freeze_client,
        ]
        kinds += self.kinds()
        if not any(group.by_master for group in self.groups):
            kinds.append(move_broker)  # a master does not tell members that a broker has another address
        if chance.happens(30):
            kinds.append(self._reset_group)
        return kinds

    async def _reset_group(self, cluster: Cluster) -> None:
        """Move a group, as an administrator does."""
        group = chance.one_of(self.groups)
        if not group.by_master:
            if group.habits.follow_resets:
                cluster.directory.resets[group.name] = cluster.directory.resets.get(group.name, 0) + 1
                for member in group.open:
                    group.ledger.tell(member.client_id)
            return
        model = chance.one_of(cluster.brokers).model
        keys: list[Held] = [key for key in model.holdings if key[0] == group.name]
        if not keys:
            return
        key = chance.one_of(keys)
        holding = model.holdings[key]
        partition = TopicPartition(key[1], model.broker_id, key[2])
        log = model.stores[partition.store_id]
        before = holding.committed
        after = log.earliest + (log.latest - log.earliest) // 28 * chance.below(5) // 4 * 28
        group.ledger.note_reset(partition, before, after)
        holding.committed, holding.in_flight, holding.recorded = after, 0, True

    async def _produce(self) -> None:
        while True:
            await asyncio.sleep(chance.between(0.0, self._period_s))
            self.store()

    def store(self, broker: Broker | None = None) -> tuple[TopicPartition, bytes]:
        """Store a message somewhere."""
        broker = broker or chance.one_of(self.cluster.brokers)
        places = [
            partition
            for topic in self.cluster.directory.topics
            for partition in self.cluster.directory.partitions(topic)
            if partition.broker_id == broker.id
        ]
        partition = chance.one_of(places)
        self._serial += 1
        value = b"%d" % self._serial
        number = broker.store(partition.topic, partition.partition_id, value, chance.one_of(_TYPES))
        for group in self.groups:
            group.ledger.note_stored(partition, number, value)
        return partition, value

    async def _come_and_go(self) -> None:
        while True:
            longest_s = chance.one_of((0.1, 0.5) if self.is_storm else (5.0, 20.0))
            await asyncio.sleep(chance.between(0.0, longest_s))
            group = chance.one_of(self.groups)
            members = group.open
            kind = chance.below(10)
            if not members or (kind < 5 and len(group.members) < group.most):
                group.join()
            elif kind < 8:
                chance.one_of(members).leave()
            else:
                chance.one_of(members).crash()

    # When all is well.

    async def _settle(self) -> None:
        """Wait until all members know that all is well."""
        for group in self.groups:
            group.habits.calm = True
            while len(group.open) < (1 if group.by_master else group.most):
                group.join()
                await asyncio.sleep(1.0)
            for member in group.open:
                member.resume()
        await self._until_settled()

    async def _until_settled(self) -> None:
        until = self._world.time + SETTLED_S
        while self._world.time < until and not all(map(self._is_settled, self.groups)):
            await asyncio.sleep(2.0)
        for group in self.groups:
            group.look()
            assert not group.ledger.missing(), f"{group.name} did not get {group.ledger.missing()}"
            self._check_holders(group)
            group.habits.settled = True

    async def _all_well(self) -> None:
        """Add and remove members; check that partitions are shared and new messages come soon."""
        for group in self.groups:
            if group.by_master:
                group.join()
                if len(group.open) > 1 and chance.happens(50):
                    chance.one_of(group.open).leave()
        await self.check_balanced()

    async def check_balanced(self) -> None:
        """Wait for members that come or go; check that partitions are shared and new messages come soon."""
        await asyncio.sleep(_ROUNDS_S)
        await self._fetch_nothing_for_a_lease()
        if chance.happens(30):
            await self._take_a_partition(chance.one_of(self.groups))
        for _ in range(2):
            for _ in range(5):
                self.store()
            await asyncio.sleep(max(group.soon_s for group in self.groups))
            for group in self.groups:
                group.look()
                assert not group.ledger.missing(), f"{group.name} did not get {group.ledger.missing()}"

    async def _fetch_nothing_for_a_lease(self) -> None:
        """Pause everything for so long that only heartbeats keep the leases."""
        members = [member for group in self.groups for member in group.open]
        for member in members:
            member.pause()
        await asyncio.sleep(_LEASE_S)
        for broker in self.cluster.brokers:
            broker.model.live_leases(self._world.time)  # ends those that are over
        for group in self.groups:
            self._check_holders(group)
        for member in members:
            member.resume()

    async def _take_a_partition(self, group: _Group) -> None:
        """Take a partition by another consumer for a while, as one does that was believed to be gone."""
        group.habits.settled = False
        partition = chance.one_of(group.ledger.partitions())
        holding = self.cluster.brokers[partition.broker_id - 1].model.holdings[
            group.name, partition.topic, partition.partition_id
        ]
        only_heartbeats = chance.happens(50)
        if only_heartbeats:
            for member in group.open:
                member.pause()
        holding.owner, holding.timed_out, holding.in_flight = "another consumer", False, 0
        holding.renewed_at = self._world.time
        soon_s = _SOON_S + group.heartbeat_s if only_heartbeats else group.soon_s
        await asyncio.sleep(soon_s + self.hears_s)
        for member in group.open:
            assert member.core is None or partition not in member.core.state.connected, (
                f"{member.name} keeps {partition}, which another consumer has"
            )
        holding.owner = None
        for member in group.open:
            member.resume()
        await self._until_settled()

    def _is_settled(self, group: _Group) -> bool:
        if any(member.has_batches() for member in group.open) or group.ledger.missing():
            return False
        try:
            self._check_holders(group)
        except AssertionError:
            return False
        return True

    def _check_holders(self, group: _Group) -> None:
        """Assert that each partition has one holder."""
        members = group.open
        holders = Counter(
            partition
            for member in members
            if member.core is not None
            for partition in member.core.state.connected
        )
        assert holders == Counter(group.ledger.partitions()), f"{group.name}: {holders}"
        for member in members:
            assert member.core is not None
            for partition in member.core.state.connected:
                model = self.cluster.brokers[partition.broker_id - 1].model
                key = group.name, partition.topic, partition.partition_id
                assert model.holdings[key].owner == member.client_id, f"{partition} is not {member.name}'s"
                assert not model.holdings[key].timed_out, f"{member.name} has let {partition} go"
            state = member.core.state
            if group.by_master and group.habits.callbacks:
                assert member.assigned == state.connected.keys(), f"{member.name} knows of {member.assigned}"
            in_trouble = state.troubles.keys() & state.connected.keys()
            assert not in_trouble, {name: state.troubles[name] for name in in_trouble}
        if group.by_master:
            shares = [len(member.core.state.connected) for member in members if member.core is not None]
            assert max(shares) - min(shares) <= 1, f"{group.name} is not balanced: {shares}"

    async def _beside_a_frozen_broker(self) -> None:
        """Freeze a broker; messages of the others come as before."""
        frozen, *good = sorted(self.cluster.brokers, key=lambda _: chance.below(100))
        frozen.server.freeze()
        await asyncio.sleep(chance.between(0.0, 3.0))
        for _ in range(2):
            stored = [self.store(broker) for broker in (*good, *good)]
            await asyncio.sleep(max(group.rest_s for group in self.groups) + _BESIDE_S)
            for group in self.groups:
                group.look()
                for partition, value in stored:
                    assert group.ledger.has(partition, value), f"{value!r} of {partition} does not come"
        frozen.server.thaw()
        await asyncio.sleep(2 * _SOON_S)  # what was sent on connections that were given up is through

    async def _freeze_all(self) -> None:
        for server in self.cluster.servers:
            server.freeze()
        await asyncio.sleep(chance.between(0.0, 5.0))

    async def _cut_off_brokers(self) -> None:
        """Cut all ways to brokers for so long that members may be connecting to them again."""
        for broker in self.cluster.brokers:
            for client in self.cluster.clients:
                self._world.net.block(client, broker.server.host)
                self._world.net.block(broker.server.host, client)
        await asyncio.sleep(chance.between(0.0, 15.0))

    async def _end(self, *, well: bool) -> None:
        """Close everything."""
        if not well:
            for group in self.groups:
                for member in group.open:
                    if chance.happens(20):
                        member.crash()
            await chance.one_of((self._freeze_all, self._cut_off_brokers, _do_nothing))()
        for group in self.groups:
            await group.close()
        self.cluster.heal()
        if well:
            await asyncio.sleep(0.1)
            for broker in self.cluster.brokers:
                leases = broker.model.live_leases(self._world.time)
                assert not leases, f"{leases} are left"
        await self.cluster.nothing_is_left()


async def _do_nothing() -> None:
    """Change nothing."""


async def freeze_client(scene: Scene) -> None:
    """Stop the process of a client, for longer perhaps than its leases last."""
    host = scene.any_client()
    if host is not scene.client:
        hosts.freeze(host)
        await asyncio.sleep(chance.between(0.01, chance.one_of(_FREEZES_S)))
        hosts.thaw(host)
