"""A producer with several senders, while brokers, masters, the network and the senders do what they like.

Laws: every message that is accepted has one outcome within its time; a message that is reported as stored is
at the reported offset, unless its broker lost it in a crash, and has at most one copy more for each attempt
without a clear answer; one that failed with no such attempt is not stored, nor is one that was refused, or
cancelled before it was accepted; keys and named partitions are kept to, in order if that is asked for;
receipts and statistics add up to the outcomes; ``flush`` returns when what was accepted before has ended;
when all is well again, messages are stored with their first attempt, and an empty window takes at once what
it holds; a partition that is not listed gets nothing; closing ends soon, and nothing is left.

In some universes an ``AsyncProducer`` sends the messages one by one. Its laws besides: a note on a
``CancelledError`` says truly whether the message was accepted; ``flush`` raises the first failure of which
was not asked, whatever callbacks do; ``close`` says how many messages were abandoned.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import simloom

from simulation import chance, troubles
from simulation.cluster import Broker, Cluster
from simulation.cluster_troubles import (
    OF_BROKERS_THAT_STORE,
    OF_MASTERS,
    change_token,
    refuse_messages_for_good,
    refuse_sessions,
)
from simulation.faults import LOST, WRONG, carry_out_late
from simulation.sent import LATEST_S, Ledger, Sent, Told, batch_of, partitioner
from simulation.singly import SingleMessages
from simulation.sockets import limit_sockets
from tubemq_spark.client.config import BuiltInPartitioner, ClientConfig
from tubemq_spark.client.producer.broker_pipeline import BrokerPipeline
from tubemq_spark.client.producer.pipeline import Pipeline
from tubemq_spark.errors import ProduceError, TubeMQError
from tubemq_spark.model import TopicPartition
from tubemq_spark.net.connections import Connections
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.pb import broker_pb2

AnyCluster = TypeVar("AnyCluster", bound=Cluster)

_TOPICS: Final = ("demo", "more")
_SENDERS: Final = 3
_PERIOD_S: Final = 5.0
_TIMEOUT_S: Final = 2.0
_CALM_S: Final = 70.0
"""After so long a producer remembers no troubles: it passes over a broker for 48 s at most."""
_WELL_S: Final = 1.0
"""What storing a message takes at most where all is well."""
_CLOSE_S: Final = 3.1
"""Leaving the master takes a second at most, and closing connections two."""
_ATTRIBUTE_BYTES: Final = 20
_TYPES: Final = (None, "a", "b")


async def producers(world: simloom.World) -> None:
    """Run the scenario."""
    await produce(world, Cluster, Producing)


async def produce(
    world: simloom.World,
    make_cluster: Callable[..., AnyCluster],
    make: "Callable[[AnyCluster], Producing]",
    more: Sequence[troubles.Trouble[Any]] = (),
    socket_bytes: Sequence[int] = (300, 2_000),
) -> None:
    """Send and check, in a cluster that a function makes, with a producer that another one makes."""
    if chance.happens(70):
        limit_sockets(world, chance.one_of(socket_bytes))
    cluster = make_cluster(
        world,
        stores=chance.one_of((1, 1, 2)),
        partitions=chance.one_of((1, 2, 3)),
        topics=_TOPICS,
    )
    await asyncio.sleep(0.1)
    producing = make(cluster)
    senders = chance.one_of((1, _SENDERS, _SENDERS))
    tasks = [asyncio.create_task(producing.send_on(number)) for number in range(senders)]
    tasks.append(asyncio.create_task(producing.flush_on()))
    lost = [fault for fault in LOST if fault is not carry_out_late or producing.config.keep_order]
    kinds: list[troubles.Trouble[Cluster]] = [
        *(kind for kind in troubles.OF_ANY_SERVER if not kind.__qualname__.startswith("meet")),
        troubles.meet(lost),
        troubles.meet(WRONG),
        *OF_BROKERS_THAT_STORE,
        *OF_MASTERS,
        change_token,
        *more,
    ]
    if chance.happens(30):
        kinds += [refuse_messages_for_good, refuse_sessions]
    async with troubles.inflict(cluster, kinds):
        await asyncio.sleep(chance.between(1.0, 40.0))
    if chance.happens(30):
        await producing.close(tasks)
    else:
        await producing.end(tasks)
        await _all_well(producing)
        await producing.check_more()
        await _closed_broker(producing)
        await producing.close([])
    await producing.connections.close()
    await cluster.nothing_is_left()
    # What a frozen broker, or the network, held back is stored late.
    await asyncio.sleep(20.0)
    producing.ledger.check()


async def _all_well(producing: "Producing") -> None:
    """Send when nothing goes wrong."""
    await asyncio.sleep(_CALM_S)
    config = producing.config
    # The window grows again with what is stored.
    for _ in range(6):
        await producing.send(0, 8)
        await asyncio.sleep(_WELL_S)
    while await producing.send_free(config.max_in_flight) > 0.0:
        assert producing.tries < 60, "an empty window does not take what it holds"
        await asyncio.sleep(_WELL_S)
    sent = [message for _ in range(3) for message in await producing.send(1, 5)]
    await asyncio.sleep(_WELL_S)
    for message in sent:
        assert message.partition is not None, f"{message}, sent when all is well"
        assert message.attempts == 1, f"{message}, sent when all is well"
        if message.key is not None and message.named is None:
            listed = producing.cluster.listings(message.topic)[-1][1]
            assert message.partition == partitioner(listed).by_key(message.key).partition, message


async def _closed_broker(producing: "Producing") -> None:
    """Close a broker to producers: messages for it wait, and nothing is sent to it."""
    cluster = producing.cluster
    broker = chance.one_of(cluster.brokers)
    config = producing.config
    # In a small window a long message that waits leaves no room for others.
    if config.delivery_timeout_ms < 30_000 or config.max_in_flight_bytes < 3_000:
        return
    # A window of batches holds what waits, too.
    if not producing.knows_attempts and config.max_in_flight < 16:
        return
    if not producing.named_before(broker):
        return
    simloom.reached("a closed broker")
    cluster.close(broker)
    await asyncio.sleep(_PERIOD_S + _WELL_S)
    began = cluster.world.time
    waiting = await producing.send_to(broker)
    assert await producing.send_free(8) < _WELL_S
    await asyncio.sleep(_PERIOD_S)
    late = [request for request in _messages_to(broker) if request[0] >= began]
    assert not late, f"sent to a partition that is not listed: {late}"
    assert all(message.ended_at is None for message in waiting), f"{waiting}"
    cluster.reopen(broker)
    await asyncio.sleep(_PERIOD_S + _WELL_S)
    assert all(message.partition is not None for message in waiting), "messages wait for a listed partition"


def _messages_to(broker: Broker) -> list[tuple[float, str, int]]:
    received = [item for item in broker.server.received if item.method == Method.SEND_MESSAGE]
    requests = [(item.at, broker_pb2.SendMessageRequestP2B.FromString(item.body)) for item in received]
    return [(at, request.topicName, request.partitionId) for at, request in requests]


class Producing:
    """A producer, and those who send with it."""

    knows_attempts = True
    """Whether outcomes tell of each attempt to store a message."""
    grace_s = 0.0
    """How much later than its time-out a message may have its outcome."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.connections = Connections(look_up=cluster.look_up)
        delivery_s = chance.one_of((3.0, 15.0, 60.0))
        self.config = ClientConfig(
            cluster.master_addresses,
            "etl",
            rpc_timeout_ms=int(_TIMEOUT_S * 1000),
            connect_timeout_ms=1_000,
            heartbeat_period_ms=int(_PERIOD_S * 1000),
            delivery_timeout_ms=int(delivery_s * 1000),
            max_in_flight=chance.one_of((1, 4, 16, 64)),
            max_in_flight_bytes=chance.one_of((300, 3_000, 1 << 20)),
            keep_order=chance.happens(50),
            retry_ambiguous=chance.happens(60),
            partitioner=chance.one_of(tuple(BuiltInPartitioner)),
            checksums=chance.happens(50),
        ).validate()
        self.pipeline = self.make_pipeline()
        self.singly = SingleMessages(cluster.world, self.pipeline) if chance.happens(40) else None
        """What sends instead of batches."""
        # A message may wait as long for those in the window before it.
        self._flush_s = delivery_s + self.grace_s + LATEST_S * (1 if self.singly is None else 2)
        self.ledger = Ledger(
            cluster,
            self._flush_s,
            keep_order=self.config.keep_order,
            retry_ambiguous=self.config.retry_ambiguous,
            knows_attempts=self.knows_attempts,
        )
        self.tries = 0
        self._longest_pause_s = chance.one_of((3.0, 3.0, 12.0))
        self._stopping = False
        self._cut: list[Told] = []
        """Batches of which it is not known how many messages were accepted."""

    async def check_more(self) -> None:
        """Assert what holds besides when all is well."""

    def make_pipeline(self) -> Pipeline:
        """Return the way of the messages."""
        return BrokerPipeline(
            self.config,
            self.connections,
            detailed=chance.happens(50),
            run_user_code=lambda code: asyncio.get_running_loop().call_soon(code),
            look_up=self.cluster.look_up,
        )

    async def send_on(self, sender: int) -> None:
        """Send batches until this is to end."""
        while not self._stopping:
            await asyncio.sleep(chance.between(0.0, chance.one_of((0.01, 0.5, self._longest_pause_s))))
            await self.send(sender, 1 + chance.below(chance.one_of((2, 12))), in_trouble=True)

    async def flush_on(self) -> None:
        """Flush now and then, and give up waiting now and then."""
        while not self._stopping:
            await asyncio.sleep(chance.between(0.0, 3.0))
            before = [message for message in self.ledger.messages.values() if message.accepted_by is not None]
            with contextlib.suppress(TimeoutError, ProduceError):
                async with asyncio.timeout(chance.one_of((0.1, 3.0, None))):
                    if self.singly is not None:
                        await self.singly.flush(chance.one_of((0.5, None)))
                        continue
                    await self.pipeline.flush()
                    assert all(message.ended_at is not None for message in before), "flushed too early"

    async def send(self, sender: int, count: int, *, in_trouble: bool = False) -> list[Sent]:
        """Send a batch; return its messages."""
        messages = [self._message(sender, in_trouble=in_trouble) for _ in range(count)]
        if chance.happens(50):
            messages = [dataclasses.replace(message, key=None, named=None) for message in messages]
        if chance.happens(70):
            messages = [dataclasses.replace(message, topic=messages[0].topic) for message in messages]
        return await self._accept(messages, in_trouble=in_trouble)

    async def send_free(self, count: int) -> float:
        """Send messages that may go anywhere, no more than the window holds; return how long that took."""
        self.tries += 1
        count = min(count, self.config.max_in_flight_bytes // 60)
        size = min(100, self.config.max_in_flight_bytes // count - _ATTRIBUTE_BYTES)
        messages = [self._message(0, in_trouble=False) for _ in range(count)]
        padded = [message.value.rstrip(b".").ljust(size, b".") for message in messages]
        messages = [
            dataclasses.replace(
                message, value=value, key=None, named=None, topic=_TOPICS[0], message_type=None
            )
            for message, value in zip(messages, padded, strict=True)
        ]
        began = self.cluster.world.time
        await self._accept(messages, in_trouble=False)
        return self.cluster.world.time - began

    def named_before(self, broker: Broker) -> bool:
        """Return whether both topics' partitions of a broker are known."""
        return all(self.pipeline.place_now(topic, (broker.id, 0)) is not None for topic in _TOPICS)

    async def send_to(self, broker: Broker) -> list[Sent]:
        """Send a message to a partition of a broker."""
        message = dataclasses.replace(self._message(2, in_trouble=False), named=(broker.id, 0))
        return await self._accept([message], in_trouble=False)

    async def end(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """End the senders, and wait until all that was accepted has ended."""
        await self._stop(tasks)
        async with asyncio.timeout(self._flush_s):
            await (self.pipeline if self.singly is None else self.singly).flush()
        assert not self.pipeline.unacknowledged, f"{self.pipeline.unacknowledged} messages are left"
        self._check_cut()
        self._check_counts()

    async def close(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Close the producer, whatever is under way."""
        if not tasks:
            self._check_counts()
        if chance.happens(40):
            for server in self.cluster.servers:
                server.freeze()
            await asyncio.sleep(chance.between(0.0, 8.0) if tasks else 0.0)
        self._stopping = True
        patience_s = chance.one_of((0.0, 1.0))
        async with asyncio.timeout(_CLOSE_S + patience_s):
            await (self.pipeline.close() if self.singly is None else self.singly.close(patience_s))
        async with asyncio.timeout(self._longest_pause_s + 1.0):  # who waits is told so
            await asyncio.gather(*tasks)
        self.cluster.heal()
        self._check_cut()

    async def _stop(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        self._stopping = True
        # A batch may wait for several windows, and for topics that cannot be published to.
        async with asyncio.timeout(30 * (self.config.delivery_timeout_ms / 1000 + LATEST_S)):
            await asyncio.gather(*tasks)

    def _check_counts(self) -> None:
        self.ledger.check_counts(
            self.pipeline.receipts(), self.pipeline.statistics(), sums=self.config.checksums
        )

    def _check_cut(self) -> None:
        """Assert that messages were accepted in order."""
        for told in self._cut:
            ended = [message.ended_at is not None for message in told.messages if not message.refused]
            assert ended == sorted(ended, reverse=True), f"not the first ones were accepted: {told.messages}"

    async def _send_singly(self, singly: SingleMessages, messages: list[Sent], *, in_trouble: bool) -> None:
        for message in messages:
            try:
                async with asyncio.timeout(self._patience_s() if in_trouble else None):
                    await singly.send(message, in_trouble=in_trouble)
            except TimeoutError:
                simloom.reached("cancelled")
            except TubeMQError as error:
                self._check_refusal(error, in_trouble=in_trouble)

    def _check_refusal(self, error: TubeMQError, *, in_trouble: bool) -> None:
        simloom.reached(error.condition)
        assert in_trouble or self._stopping, f"{error} when all is well"

    async def _accept(self, messages: list[Sent], *, in_trouble: bool) -> list[Sent]:
        loop = asyncio.get_running_loop()
        for message in messages:
            self.ledger.enter(message)
        if self.singly is not None:
            await self._send_singly(self.singly, messages, in_trouble=in_trouble)
            return messages
        told = Told(self.cluster.world, messages)
        batch = batch_of(messages, checksums=self.config.checksums)
        batch.outcomes = told
        on_refused = chance.happens(50)

        def refuse(row: int, error: TubeMQError) -> None:
            simloom.reached(error.condition)
            messages[row].refused = True

        after = len(messages)
        try:
            async with asyncio.timeout(self._patience_s() if in_trouble else None):
                await self.pipeline.accept(batch, 0, len(batch), refuse if on_refused else None)
        except TimeoutError:
            simloom.reached("cancelled")
            after = 0
            self._cut.append(told)
        except TubeMQError as error:
            simloom.reached(error.condition)
            after = self._refused_at(error, told, in_trouble=in_trouble and not on_refused)
        for message in messages[:after]:
            if not message.refused:
                message.accepted_by = loop.time()
        return messages

    def _refused_at(self, error: TubeMQError, told: Told, *, in_trouble: bool) -> int:
        """Return which message of a batch was refused; those behind it were not accepted either."""
        if error is self.pipeline.error:
            self._cut.append(told)
            return 0
        assert in_trouble, f"{error} when all is well"
        assert error.row is not None, error
        for message in told.messages[error.row :]:
            message.refused = True
        return error.row

    @staticmethod
    def _patience_s() -> float | None:
        return chance.between(0.0, chance.one_of((0.05, 2.0))) if chance.happens(30) else None

    def _message(self, sender: int, *, in_trouble: bool) -> Sent:
        number = len(self.ledger.messages)
        topic = chance.one_of(_TOPICS)
        key = b"key%d" % chance.below(5) if chance.happens(40) else None
        named = None
        if chance.happens(30):
            partition: TopicPartition = chance.one_of(sorted(self.cluster.listings(topic)[0][1]))
            named = partition.broker_id, partition.partition_id
        if in_trouble and chance.happens(1):
            topic, named = chance.one_of((("unknown", None), (topic, (1, 77))))
        value = b"%d of %d" % (number, sender)
        if chance.happens(30):
            value = value.ljust(1 + chance.below(400), b".")
        # Numbers are taken before the message is entered.
        self.ledger.messages[value] = sent = Sent(
            value, topic, key, named, chance.one_of(_TYPES), sender, number, self.cluster.world.time
        )
        return sent
