"""Clients of all kinds through two gateways, which crash, freeze, drain and are cut off like other servers.

Laws: those of consumers, producers and readers (``consumers``, ``producers``, ``reader``) hold through
gateways as without. Besides, when all is well every question that clients ask has the answer that is true;
while it is not, an answer was true at some moment, or there is an error in time.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Final

import simloom

from simulation import chance, gateways as fleet, troubles
from simulation.cluster import TOPIC, Cluster
from simulation.gateways import Fleet
from simulation.scenarios.consumers import Consuming
from simulation.scenarios.producers import Producing, produce
from simulation.scenarios.reader import Reading, read
from simulation.sent import Sent
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.producer.pipeline import Pipeline
from tubemq_spark.client.remote.gateways import Gateways
from tubemq_spark.client.remote.pipeline import GatewayPipeline
from tubemq_spark.client.transport.gateway import GatewayTransport
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import INDEX_ENTRY_BYTES, RangeRequest, TopicsLayout
from tubemq_spark.offsets.loss import LossRecord
from tubemq_spark.protocol.fetch_columns import FetchedBatch

_FAIR_MS: Final = 1_000
"""Who has so much time confirms what is out, and gets the answers to what was sent."""
_SOON_S: Final = 3.0
_ASKING_S: Final = 120.0
"""What some questions in a row take at most, whatever happens."""
_WELL_S: Final = 60.0
"""After so long at most all questions are answered when all is well."""
_AGAIN_S: Final = 40.0
"""After so long at most members have their partitions again, and what they had not confirmed."""
_GRACE_S: Final = 5.0
"""How much longer a window waits for a gateway that has messages."""


async def gateways(world: simloom.World) -> None:
    """Run the scenario."""
    kind = chance.below(10)
    if kind < 2:
        await _read(world)
    elif kind < 7:
        with tempfile.TemporaryDirectory() as folder:
            await _ConsumingThroughGateways(world, Path(folder)).run()
    else:
        # Frames of this wire are longer than those of brokers.
        await produce(world, Fleet, _ProducingThroughGateways, [fleet.drain, fleet.drain], (2_000, 8_000))


async def _read(world: simloom.World) -> None:
    """Read ranges, and ask questions."""
    cluster = Fleet(world, brokers=1, partitions=chance.one_of((1, 1, 3)))
    cluster.clients.append(cluster.client)
    ways: list[Gateways] = []

    def make(**more: Any) -> Reading:  # noqa: ANN401 (as those of Reading)
        reading = _ReadingThroughGateways(cluster, **more)
        ways.append(reading.gateways)
        return reading

    asking = _Asking(cluster)
    task = asyncio.create_task(asking.ask_on())
    await read(cluster, make, [fleet.drain, fleet.drain])
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    cluster.heal()
    await asking.ask_when_all_is_well()
    for gateways in (*ways, asking.gateways):
        await gateways.closing()
    await cluster.nothing_is_left()


class _ReadingThroughGateways(Reading):
    """A reader of a range through gateways, with a session of its own."""

    def __init__(self, cluster: Fleet, **more: Any) -> None:  # noqa: ANN401 (as those of Reading)
        super().__init__(cluster, None, **more)
        self.gateways = cluster.way(self.config)

    def items(self, request: RangeRequest) -> AsyncGenerator[FetchedBatch | LossRecord, None]:
        return GatewayTransport(self.gateways).read_range(request)


class _Asking:
    """Questions through gateways."""

    def __init__(self, cluster: Fleet) -> None:
        config = ClientConfig(
            cluster.master_addresses,
            "asker",
            rpc_timeout_ms=2_000,
            connect_timeout_ms=1_000,
            register_attempts=2,
            lease_wait_ms=5_000,
        ).validate()
        self.gateways = cluster.way(config)
        self._cluster = cluster
        self._questions = GatewayTransport(self.gateways)
        self._layout = TopicsLayout({}, 0)

    async def ask_on(self) -> None:
        """Ask again and again, until it is cancelled."""
        while True:
            await asyncio.sleep(chance.between(0.0, 5.0))
            began = self._cluster.world.time
            try:
                await self._ask()
                simloom.reached("a question was answered")
            except TubeMQError as error:
                simloom.reached(f"a question: {error.condition}")
            took_s = self._cluster.world.time - began
            assert took_s <= _ASKING_S, f"a question took {took_s} s instead of {_ASKING_S}"

    async def ask_when_all_is_well(self) -> None:
        """Ask until everything is answered."""
        async with asyncio.timeout(_WELL_S):
            while True:
                with contextlib.suppress(TubeMQError):
                    if await self._ask():
                        return
                await asyncio.sleep(1.0)

    async def _ask(self) -> bool:
        """Ask for a layout and bounds; return whether there was no failure."""
        directory, questions = self._cluster.directory, self._questions
        self._layout = layout = await questions.layout([TOPIC])
        assert set(layout.partitions) == set(directory.partitions(TOPIC)), layout
        (broker,) = self._cluster.brokers
        ((name, log),) = broker.model.stores.items()
        earliest, lost, end = log.earliest, len(broker.model.lost[name]), len(log.entries)
        bounds = await questions.bounds(layout)
        assert bounds.by_store.keys() | bounds.failures.keys() == {name}, bounds
        if name not in bounds.by_store:
            return False
        answer = bounds.by_store[name]
        assert earliest <= answer.earliest <= log.earliest, f"{answer}, from {earliest} to {log.earliest}"
        most = max(end, len(log.entries)) * INDEX_ENTRY_BYTES
        assert answer.latest <= most, f"{answer} ends behind {most}"
        if lost == len(broker.model.lost[name]):
            assert answer.latest >= end * INDEX_ENTRY_BYTES, f"{answer} ends before {end}"
        if broker.model.partitions == 1:
            offsets = await questions.first_readable(layout, dict.fromkeys(layout.partitions, answer))
            assert offsets.keys() == layout.partitions.keys(), offsets
            assert all(answer.earliest <= offset for offset in offsets.values()), (answer, offsets)
        return True


class _ProducingThroughGateways(Producing):
    """A producer through gateways. One that drains stores nothing twice, and is left without an error."""

    cluster: Fleet
    knows_attempts = False
    grace_s = _GRACE_S

    async def check_more(self) -> None:
        """Drain a gateway while messages are sent."""
        if self.cluster.drain_ms < _FAIR_MS:
            return
        await self.cluster.any_gateway().drain()
        sent: list[Sent] = []
        for _ in range(20):
            sent += await self.send(1, 3)
            await asyncio.sleep(0.1)
        await asyncio.sleep(_SOON_S)
        for message in sent:
            assert message.partition is not None, f"{message}, sent while a gateway drained"
            assert (message.attempts, message.unanswered) == (1, 0), (
                f"{message}, sent while a gateway drained"
            )

    def make_pipeline(self) -> Pipeline:
        """Return a window of batches at gateways, with a session of its own."""
        gateways = self.cluster.way(self.config)
        return GatewayPipeline(gateways, per_message=True, own=True)


class _ConsumingThroughGateways(Consuming):
    """Groups through gateways. One that drains is left in good order, and soon."""

    cluster: Fleet
    hears_s = 10.0
    """Its heartbeats to its gateway are so rare when all is well."""

    def __init__(self, world: simloom.World, folder: Path) -> None:
        self._folder = folder
        super().__init__(world)
        polls_s = [gateway.settings.poll_ms / 1000 for gateway in self.cluster.gateways]
        for group in self.groups:
            group.rest_s = max(group.rest_s, *polls_s)  # gateways ask brokers no more often than that

    def make_cluster(self, world: simloom.World, **shape: Any) -> Cluster:  # noqa: ANN401
        policy_file = self._folder / "policy.toml" if chance.happens(30) else None
        return Fleet(world, policy_file=policy_file, **shape)

    def way(self) -> Fleet:
        return self.cluster

    async def check_more(self) -> None:
        """Drain a gateway while messages come."""
        wait_ms = [group.habits.config.consumer.rebalance_wait_ms for group in self.groups]
        is_fair = min(*wait_ms, self.cluster.drain_ms) >= _FAIR_MS
        for group in self.groups:
            group.habits.settled = is_fair
        gateway = self.cluster.any_gateway()
        self.store()
        await gateway.drain()
        for _ in range(10):
            self.store()
            await asyncio.sleep(0.1)
        await self.check_balanced()
        if is_fair:
            assert gateway.drained_s <= max(wait_ms) / 1000 + _SOON_S, f"it drained for {gateway.drained_s} s"
        await self._lose_answers()

    async def _lose_answers(self) -> None:
        """Drop connections while answers are on their way; what was in them comes again, and soon."""
        for group in self.groups:
            group.habits.settled = False
        clients = [member.host for group in self.groups for member in group.open]
        for gateway in self.cluster.gateways:
            for client in clients:
                self.cluster.set_delay(gateway, 0.4, 0.5, client)
        for _ in range(3):
            self.store()
        await asyncio.sleep(chance.between(0.4, 1.5))
        for gateway in self.cluster.gateways:
            gateway.drop_connections()
            for client in clients:
                self.cluster.set_delay(gateway, 0.0005, 0.02, client)
        await asyncio.sleep(_AGAIN_S)
        for group in self.groups:
            assert not group.ledger.missing(), f"{group.name} did not get {group.ledger.missing()} again"
            group.habits.settled = True

    def kinds(self) -> list[troubles.Trouble[Any]]:
        return [fleet.drain, fleet.drain, fleet.take_rights]
