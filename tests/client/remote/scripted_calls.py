"""Consumers at gateways that answer when a test says so, in virtual time: all but gRPC is real."""

import asyncio
import contextlib
import types
from concurrent.futures import Future

import pytest
from google.protobuf.message import Message

from tests.client.consumer.scripted_partitions import batch_of as broker_batch
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.core import ConsumerSetup
from tubemq_spark.client.consumer.user_code import UserLoop
from tubemq_spark.client.consumer_config import ConsumerConfig, Subscription
from tubemq_spark.client.remote.attempts import Attempts, AwayError
from tubemq_spark.client.remote.channels import Channels
from tubemq_spark.client.remote.consumers import RemoteAssignedCore, RemoteGroupCore
from tubemq_spark.client.remote.gateways import Use
from tubemq_spark.errors import GatewayError, TubeMQConnectionError
from tubemq_spark.model import INDEX_ENTRY_BYTES as ROW, Endpoint, TopicPartition, TopicsLayout
from tubemq_spark.offsets.loss import fail_on_loss
from tubemq_spark.protocol.fetch_columns import FetchedBatch
from tubemq_spark.protocol.gateway import batches, gateway_pb2 as pb, values

ADDRESSES = (Endpoint("gateway1", 11911), Endpoint("gateway2", 11911))


def place(broker=1):
    return TopicPartition("demo", broker, 0)


HERE, THERE = place(1), place(2)


class Asked:
    """A call that has no answer."""

    def __init__(self, gateway: int, name: str, request: Message) -> None:
        self.gateway = gateway
        self.name = name
        self.request = request
        self._answer = asyncio.get_running_loop().create_future()

    @property
    def waits(self):
        return not self._answer.done()

    def answer(self, message):
        self._answer.set_result(message)

    def fail(self, error):
        self._answer.set_exception(error)

    def __await__(self):
        return self._answer.__await__()


class ScriptedGateways:
    """In place of ``Gateways``: what is not answered by ``usual`` waits in ``asked`` until a test answers."""

    def __init__(self, config):
        self.config = config
        self.session = types.SimpleNamespace(client_id="etl_1", epoch=1)
        self.current_index = 0
        self.patience_s = 60.0
        self.addresses = ADDRESSES
        self.tried = "gateway1, gateway2"
        self.asked = []
        self.calls = []
        """All calls, as name and gateway."""
        self.opened_at = set()
        self.events = []
        """Told by the next heartbeat."""
        self.is_draining = False

    def attempts(self, patience_s, rounds):
        def leave(gateway):
            self.current_index = 1 - gateway

        clock = asyncio.get_running_loop().time
        return Attempts(2, leave, rounds=rounds, retry_s=1.0, patience_s=patience_s, clock=clock)

    def begin_epoch(self):
        self.calls += [("CloseSession", gateway) for gateway in sorted(self.opened_at)]
        self.opened_at.clear()
        self.session.epoch += 1

    async def with_any(self, attempt, during, patience_s):
        while True:
            try:
                return await attempt(self.current_index)
            except AwayError:
                self.current_index = 1 - self.current_index

    async def opening(self, gateway):
        self.calls.append(("OpenSession", gateway))
        self.opened_at.add(gateway)
        return opened()

    async def closing(self, timeout_s=1.0):
        pass

    def refuse_calls(self):
        pass

    async def ask_at(self, gateway, name, request, answer, timeout_s):
        self.calls.append((name, gateway))
        if (usual := self.usual(name, request)) is not None:
            return usual
        call = Asked(gateway, name, request)
        self.asked.append(call)
        try:
            async with asyncio.timeout(timeout_s):
                return await call
        finally:
            self.asked.remove(call)

    def usual(self, name, request):
        if name == "Heartbeat":
            events, self.events = self.events, []
            return pb.HeartbeatResponse(events=events, draining=self.is_draining)
        return pb.SubscribeResponse() if name == "Subscribe" else None

    def names(self):
        return [call.name for call in self.asked]

    async def next(self, name):
        """Return the call of a method that waits for its answer."""
        for _ in range(3_000):
            if found := [call for call in self.asked if call.name == name and call.waits]:
                return found[0]
            await asyncio.sleep(0.01)
        raise AssertionError(f"no {name} for half a minute, but {self.names()}")

    def requests_at(self, gateway, name):
        return self.calls.count((name, gateway))


class StillChannels(Channels):
    """Channels to gateways that answer at once, and have nothing to tell; calls of one method are lost."""

    def __init__(self, lease_ms=30_000, heartbeat_ms=10_000, lose=None):
        super().__init__()
        self._opened = pb.OpenSessionResponse(lease_ms=lease_ms, heartbeat_ms=heartbeat_ms)
        self._lost = lose
        self.calls = []
        """Each as its name and when it was made."""
        self.closed_at = set()
        """The gateways at which sessions were closed."""

    def connect(self, gateway, made_from):
        return StillChannel(self, gateway)

    def answer(self, name, answer):
        self.calls.append((name, asyncio.get_running_loop().time()))
        if name == self._lost:
            raise killed()
        return self._opened if name == "OpenSession" else answer()


class StillChannel:
    def __init__(self, channels, gateway):
        self._channels = channels
        self._gateway = gateway

    async def call(self, method, request, answer, metadata, timeout_s):
        return self._channels.answer(method.name, answer)

    def begin(self, method, request, metadata, timeout_s):
        """Close a session: no other call is begun and not awaited."""
        assert method.name == "CloseSession"
        self._channels.closed_at.add(self._gateway)
        ended = Future()
        ended.set_result(None)
        return ended

    def close(self):
        pass


class StillQuestions:
    """In place of a transport: each broker has one partition."""

    async def layout(self, topics, *, missing_ok=False):
        return TopicsLayout({place(broker): Endpoint(f"broker{broker}", 8123) for broker in (1, 2, 3)}, 0)


@contextlib.asynccontextmanager
async def core_on(make, kind, on_loss=fail_on_loss, **settings):
    """Open a consumer at the gateways that a function makes of the settings."""
    consumer = ConsumerConfig(rebalance_wait_ms=1_000, **settings)
    config = ClientConfig((), "etl", register_retry_ms=1_000, consumer=consumer)
    gateways = make(config)
    setup = ConsumerSetup(config, Subscription.of("demo"), UserLoop(), on_loss)
    core = kind(setup, gateways, StillQuestions())
    opening = asyncio.create_task(core.open())
    if kind is RemoteAssignedCore and make is ScriptedGateways:
        (await gateways.next("AttachPartitions")).answer(attached())
    await opening
    try:
        yield core, gateways
    finally:
        await core.close()


def core_of(kind=RemoteAssignedCore, **settings):
    return core_on(ScriptedGateways, kind, **settings)


def member_of(**settings):
    return core_of(RemoteGroupCore, **settings)


async def connect(core, gateways, *partitions, offset=0):
    for partition in partitions:
        connecting = asyncio.create_task(core.connect(partition, offset))
        (await gateways.next("AttachPartitions")).answer(attached(offset))
        await connecting


@contextlib.asynccontextmanager
async def connected(*partitions, offset=0, **settings):
    """Open a consumer with these partitions, of which each begins at the offset."""
    async with core_of(**settings) as (core, gateways):
        await connect(core, gateways, *partitions, offset=offset)
        yield core, gateways


def opened():
    """Return the use of a session that a gateway has opened."""
    use = Use()
    use.opened.set_result(pb.OpenSessionResponse(lease_ms=30_000, heartbeat_ms=10_000))
    return use


def attached(*offsets):
    answer = pb.AttachPartitionsResponse()
    for offset in offsets:
        answer.partitions.add(offset=offset)
    return answer


def batch_of(partition, number):
    """Return the answer to a fetch that brings the message of this number."""
    columns = broker_batch(b"%d" % number).columns
    start = number * ROW
    records, data = batches.to_proto(FetchedBatch(partition, start, start + ROW, columns, dense=True))
    records.data = data
    return pb.FetchResponse(
        reason=pb.FetchResponse.REASON_READY,
        partition=values.partition_to_proto(partition),
        records=records,
        batch=context_of(partition, number),
    )


def context_of(partition, number):
    return f"{partition.broker_id}:{partition.topic}:{partition.partition_id}@{1_000 + number}"


def value_of(batch):
    (record,) = batch.records
    return int(record.value)


def began(core, timeout_ms=-1, *, patient=False):
    return asyncio.create_task(core.fetch(timeout_ms, patient=patient))


async def settle():
    await asyncio.sleep(0.05)


async def left(core, gateways):
    """Begin a fetch that its caller leaves; return its call."""
    fetching = began(core)
    await settle()
    assert not fetching.done()
    call = await gateways.next("Fetch")
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    return call


async def confirmed(core, gateways, batch, offset):
    confirming = asyncio.create_task(core.confirm(batch.context, consumed=True))
    (await gateways.next("Commit")).answer(pb.CommitResponse(offset=offset))
    return await confirming


async def buffered(core, gateways, partition, number):
    """Answer a fetch whose caller has left."""
    (await left(core, gateways)).answer(batch_of(partition, number))
    await settle()


async def fetched(core, gateways, partition, number):
    """Return the batch of a message, which the user has then."""
    await buffered(core, gateways, partition, number)
    return await core.fetch(0)


def killed():
    return AwayError("it was killed")


def busy():
    error = GatewayError("TUBEMQ_GATEWAY_BUSY", gateway="gateway", what="it is", retry_after_ms=100)
    return AwayError(error)


def unknown():
    return GatewayError("TUBEMQ_SESSION_UNKNOWN", gateway="gateway", session="etl_1")


def no_master():
    return TubeMQConnectionError("TUBEMQ_NO_MASTER", during="registering", tried="m", cause="c")
