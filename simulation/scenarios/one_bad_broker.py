"""A producer while one broker of three is frozen, cut off, crashed, or refuses everything.

Laws: messages that may go anywhere are stored by the other brokers as fast as if there were only these (about
half as fast beside one that refuses), and without a pause; messages for partitions of the other brokers are
stored at once, whatever waits for the bad one; each message has its outcome.
"""

import asyncio
import itertools
from typing import Final

import simloom

from simulation import chance
from simulation.cluster import TOPIC, Broker, Cluster
from simulation.faults import refuse
from simulation.sent import Ledger, Sent, Told, batch_of
from tubemq_spark.client.config import BuiltInPartitioner, ClientConfig
from tubemq_spark.client.producer.broker_pipeline import BrokerPipeline
from tubemq_spark.net.connections import Connections
from tubemq_spark.protocol.errcodes import ErrCode

_PERIOD_S: Final = 2.0
_USUAL_S: Final = 3.0
_MEASURED_S: Final = 8.0
"""In so long, what is for the bad broker would fill the whole window."""
_SILENT_S: Final = 0.6
"""After so long a broker that says nothing holds up no others."""
_LEAST_SHARE: Final = 0.75
"""Of what two brokers store by themselves: the delays of a network are never the same."""
_LEAST_BESIDE_REFUSALS: Final = 0.4
"""The same beside one that refuses: messages go there in turn, and after a pause elsewhere."""
_AT_ONCE_S: Final = 0.3
_NAMED_PAUSE_S: Final = 0.2
"""Longer than an answer takes: in order, a partition stores one message after the other."""


async def one_bad_broker(world: simloom.World) -> None:
    """Run the scenario."""
    cluster = Cluster(world, partitions=chance.one_of((1, 2)))
    bad = chance.one_of(cluster.brokers)
    good = [broker for broker in cluster.brokers if broker is not bad]
    cluster.close(bad)
    await asyncio.sleep(0.1)
    for broker in cluster.brokers:
        cluster.set_delay(broker.server, 0.02, 0.06)
    flow = _Flow(cluster)
    tasks = [asyncio.create_task(flow.send_anywhere()) for _ in range(3)]
    await asyncio.sleep(1.0)
    usual = await flow.measure(_USUAL_S)
    cluster.reopen(bad)
    await asyncio.sleep(_PERIOD_S + 1.0)
    tasks += [asyncio.create_task(flow.send_to(broker)) for broker in cluster.brokers]
    await asyncio.sleep(1.0)
    _spoil(cluster, bad)
    began = world.time
    await asyncio.sleep(_SILENT_S)
    rate = await flow.measure(_MEASURED_S)
    measured_at = world.time
    least = _LEAST_BESIDE_REFUSALS if bad.server.faults else _LEAST_SHARE
    assert rate >= least * usual, f"{rate:.0f} messages a second instead of {usual:.0f}"
    ended = sorted(message.ended_at for message in flow.free() if message.partition is not None)
    ended = [at for at in ended if at is not None and at >= began]
    pause_s = max(after - before for before, after in itertools.pairwise([began, *ended, measured_at]))
    assert pause_s <= _SILENT_S, f"nothing was stored for {pause_s} s"
    for broker in good:
        for message in flow.named(broker):
            took_s = (message.ended_at or world.time) - message.offered_at
            is_at_once = took_s <= _AT_ONCE_S or began - 0.1 < message.offered_at < began + _SILENT_S
            assert is_at_once, f"it took {took_s} s: {message}"
            waited_s = max(took_s, (message.accepted_by or world.time) - message.offered_at)
            assert waited_s <= _SILENT_S + _AT_ONCE_S, f"it took {waited_s} s: {message}"
    cluster.heal()
    flow.stopping = True
    await asyncio.gather(*tasks)
    await flow.pipeline.flush()
    await asyncio.sleep(20.0)
    flow.ledger.check()
    await flow.pipeline.close()
    await flow.connections.close()
    await cluster.nothing_is_left()


def _spoil(cluster: Cluster, broker: Broker) -> None:
    """Make a broker bad."""
    server = broker.server
    kind = chance.one_of(("frozen", "cut off", "crashed", "refuses", "refuses"))
    simloom.reached(kind)
    if kind == "frozen":
        server.freeze()
    elif kind == "cut off":
        cluster.world.net.block(cluster.client, server.host)
    elif kind == "crashed":
        server.crash()
    else:
        server.faults = (refuse(ErrCode.SERVICE_UNAVAILABLE),)
        server.fault_percent = 100


class _Flow:
    """A producer, and those who send with it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.connections = Connections(look_up=cluster.look_up)
        self.stopping = False
        config = ClientConfig(
            cluster.master_addresses,
            "etl",
            rpc_timeout_ms=2_000,
            connect_timeout_ms=1_000,
            heartbeat_period_ms=int(_PERIOD_S * 1000),
            delivery_timeout_ms=60_000,
            max_in_flight=12,
            max_in_flight_bytes=chance.one_of((3_000, 6_000)),
            keep_order=chance.happens(50),
            partitioner=chance.one_of(tuple(BuiltInPartitioner)),
        ).validate()
        self.pipeline = BrokerPipeline(
            config,
            self.connections,
            detailed=False,
            run_user_code=asyncio.get_running_loop().call_soon,
            look_up=cluster.look_up,
        )
        self.ledger = Ledger(cluster, 60.0, keep_order=config.keep_order, retry_ambiguous=True)

    def free(self) -> list[Sent]:
        """Return the messages that may go anywhere."""
        return [message for message in self.ledger.messages.values() if message.named is None]

    def named(self, broker: Broker) -> list[Sent]:
        """Return those for a broker."""
        messages = self.ledger.messages.values()
        return [
            message for message in messages if message.named is not None and message.named[0] == broker.id
        ]

    async def measure(self, seconds: float) -> float:
        """Return how many messages that may go anywhere are stored in a second."""
        before = sum(message.partition is not None for message in self.free())
        await asyncio.sleep(seconds)
        return (sum(message.partition is not None for message in self.free()) - before) / seconds

    async def send_anywhere(self) -> None:
        """Send messages that may go anywhere, as many as there is room for."""
        while not self.stopping:
            await self._accept([self._message(None) for _ in range(4)])

    async def send_to(self, broker: Broker) -> None:
        """Send messages to a partition of a broker, one now and then."""
        while not self.stopping:
            await self._accept([self._message((broker.id, 0))])
            await asyncio.sleep(_NAMED_PAUSE_S)

    async def _accept(self, messages: list[Sent]) -> None:
        batch = batch_of(messages)
        batch.outcomes = Told(self._cluster.world, messages)
        await self.pipeline.accept(batch, 0, len(batch))
        for message in messages:
            message.accepted_by = self._cluster.world.time

    def _message(self, named: tuple[int, int] | None) -> Sent:
        number = len(self.ledger.messages)
        value = b"%d...................................." % number
        sender = 0 if named is None else named[0]
        return self.ledger.enter(
            Sent(value, TOPIC, None, named, None, sender, number, self._cluster.world.time)
        )
