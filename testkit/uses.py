"""The columns of the table *One peer's trouble* of the guarantees: each does rounds of work.

A round needs the peers only that are not in trouble.
"""

import asyncio
import concurrent.futures
import contextlib
import threading
import time
import types
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

import pytest

from testkit.connections import opened_connections
from testkit.message_sender import single
from testkit.peers import AWAY, FOR_EVER_MS, OF_MASTERS, PATIENCE_S, await_that, client_of
from testkit.readers import Query, plan_batch
from tubemq_spark.client.aio import AsyncTubeMQClient
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.transport.direct import DirectTransport
from tubemq_spark.cluster.transport_cluster import TransportCluster
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.constants import Method

PATIENT = {
    "tubemq.rpctimeoutms": str(FOR_EVER_MS),
    "tubemq.connecttimeoutms": str(FOR_EVER_MS),
    "tubemq.fetchtimeoutms": str(FOR_EVER_MS),
}
KEYS = [b"key %d" % number for number in range(600)]
BURSTS, BURST, PAUSE_S = 40, 10, 0.05
FETCH_MS = 100
SETTLING_S = 100.0

Result = TypeVar("Result")


class Use:
    """Something that goes on; a context manager."""

    def __init__(self, stage: Any, trouble: str) -> None:
        """Take the ``Stage``, and the trouble that will come."""
        self.stage = stage
        self.masters_are_sound = trouble not in OF_MASTERS
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with self._closing as closing:
            self.open(closing)
            self._closing = closing.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def open(self, closing: contextlib.ExitStack) -> None:
        """Begin, with all peers sound."""
        raise NotImplementedError

    def round(self) -> None:
        """Do some more work."""
        raise NotImplementedError


class StreamRead(Use):
    """Triggers and tasks of a streaming query."""

    options = types.MappingProxyType({})

    def open(self, closing: contextlib.ExitStack) -> None:
        self.query = Query(self.stage, subscribe=self.stage.topic, **PATIENT, **self.options)
        # It has read all brokers before.
        self.query.await_rows(self.stage.feed([*self.stage.others, AWAY]))

    def round(self) -> None:
        wanted = self.stage.feed()
        while not wanted <= set(self.query.rows):
            self.query.trigger()
            self.query.reader.commit(self.query.checkpoint)


class StreamThatShowsProgress(StreamRead):
    """The same, with the group's position moved."""

    options = types.MappingProxyType({"commitoffsetstogroup": "true", "tubemq.group": "shown"})


class BatchRead(Use):
    """Tasks of a batch read that was planned before."""

    def open(self, closing: contextlib.ExitStack) -> None:
        self.wanted = self.stage.feed()
        self.tasks = plan_batch(self.stage, subscribe=self.stage.topic, **PATIENT)

    def round(self) -> None:
        rows = self.tasks.start(lambda partition: partition.broker_id in self.stage.others)()
        assert self.wanted <= set(rows)


class GroupConsumer(Use):
    """Batches of a member of a group, in one thread."""

    def open(self, closing: contextlib.ExitStack) -> None:
        self.consumer = closing.enter_context(self.stage.client.group_consumer(self.stage.topic))
        await_that(lambda: len(self.consumer.connected) == self.stage.partitions)

    def round(self) -> None:
        wanted = self.stage.feed()
        while wanted:
            if (batch := self.consumer.fetch(FETCH_MS)) is not None:
                wanted -= {record.value for record in batch}
                self.consumer.confirm(batch)


class AssignedConsumer(GroupConsumer):
    """Batches of partitions that are named."""

    def open(self, closing: contextlib.ExitStack) -> None:
        self.consumer = closing.enter_context(self.stage.client.assigned_consumer(self.stage.topic))
        for partition in self.consumer.share():
            self.consumer.connect(partition)


class InLoop(Use):
    """Work in an event loop, which a thread of its own runs."""

    def open(self, closing: contextlib.ExitStack) -> None:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()

        def end() -> None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(PATIENCE_S)
            loop.close()

        closing.callback(end)
        self._loop = loop
        contexts = contextlib.AsyncExitStack()
        closing.callback(lambda: self.run(contexts.aclose()))
        self.run(self._open_client(contexts))

    async def _open_client(self, closing: contextlib.AsyncExitStack) -> None:
        self.client = await closing.enter_async_context(AsyncTubeMQClient(self.stage.client))
        await self.open_in_loop(closing)

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Return what a coroutine returns."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def round(self) -> None:
        self.run(self.round_in_loop())

    async def open_in_loop(self, closing: contextlib.AsyncExitStack) -> None:
        """Begin, with all peers sound."""
        raise NotImplementedError

    async def round_in_loop(self) -> None:
        """Do some more work."""
        raise NotImplementedError


class AsyncGroupConsumer(InLoop):
    """Batches of a member of a group, in one coroutine."""

    async def open_in_loop(self, closing: contextlib.AsyncExitStack) -> None:
        self.consumer = await closing.enter_async_context(self.client.group_consumer(self.stage.topic))
        while len(self.consumer.connected) < self.stage.partitions:
            await asyncio.sleep(0.01)

    async def round_in_loop(self) -> None:
        wanted = await asyncio.to_thread(self.stage.feed)
        while wanted:
            if (batch := await self.consumer.fetch(FETCH_MS)) is not None:
                wanted -= {record.value for record in batch}
                await self.consumer.confirm(batch)


class AsyncAssignedConsumer(AsyncGroupConsumer):
    """Batches of partitions that are named, in one coroutine."""

    async def open_in_loop(self, closing: contextlib.AsyncExitStack) -> None:
        self.consumer = await closing.enter_async_context(self.client.assigned_consumer(self.stage.topic))
        for partition in await self.consumer.share():
            await self.consumer.connect(partition)


class KeyedProducer(Use):
    """The messages whose keys belong to the other brokers."""

    def open(self, closing: contextlib.ExitStack) -> None:
        self.producer = closing.enter_context(contextlib.closing(self.stage.client.producer()))
        places = [self.producer.send(self.stage.topic, b"first", key=key) for key in KEYS]
        self.brokers = [future.result(PATIENCE_S).partition.broker_id for future in places]

    def round(self) -> None:
        futures = [self.producer.send(self.stage.topic, b"more", key=key) for key in KEYS]
        for broker, future in zip(self.brokers, futures, strict=True):
            if broker in self.stage.others:
                future.result(PATIENCE_S)


class UnkeyedProducer(Use):
    """Four of five messages, whichever they are, at a pace that leaves time for a pause of a second."""

    def open(self, closing: contextlib.ExitStack) -> None:
        self.producer = closing.enter_context(contextlib.closing(self.stage.client.producer()))
        self.producer.send(self.stage.topic, b"first").result(PATIENCE_S)

    def round(self) -> None:
        futures = []
        for _ in range(BURSTS):
            futures += [self.producer.send(self.stage.topic, b"more") for _ in range(BURST)]
            time.sleep(PAUSE_S)
        await_that(lambda: sum(map(_is_stored, futures)) >= len(futures) * 4 // 5)


class AsyncKeyedProducer(InLoop):
    """As ``KeyedProducer``, in one coroutine."""

    async def open_in_loop(self, closing: contextlib.AsyncExitStack) -> None:
        self.producer = self.client.producer()
        closing.push_async_callback(self.producer.close)
        places = [await self.producer.send(self.stage.topic, b"first", key=key) for key in KEYS]
        self.brokers = [(await future).partition.broker_id for future in places]

    async def round_in_loop(self) -> None:
        futures = [await self.producer.send(self.stage.topic, b"more", key=key) for key in KEYS]
        for broker, future in zip(self.brokers, futures, strict=True):
            if broker in self.stage.others:
                await future


class AsyncUnkeyedProducer(InLoop):
    """As ``UnkeyedProducer``, in one coroutine."""

    async def open_in_loop(self, closing: contextlib.AsyncExitStack) -> None:
        self.producer = self.client.producer()
        closing.push_async_callback(self.producer.close)
        await (await self.producer.send(self.stage.topic, b"first"))

    async def round_in_loop(self) -> None:
        futures = []
        for _ in range(BURSTS):
            futures += [await self.producer.send(self.stage.topic, b"more") for _ in range(BURST)]
            await asyncio.sleep(PAUSE_S)
        while sum(map(_is_stored, futures)) < len(futures) * 4 // 5:
            await asyncio.sleep(PAUSE_S)


def _is_stored(future: Any) -> bool:
    return future.done() and future.exception() is None


class DataFrameWrite(Use):
    """Rows of a writing task until it flushes, which waits for every row."""

    def open(self, closing: contextlib.ExitStack) -> None:
        connections = closing.enter_context(opened_connections())
        config = ClientConfig(
            (Endpoint.parse(self.stage.masters),),
            "writers",
            rpc_timeout_ms=FOR_EVER_MS,
            connect_timeout_ms=FOR_EVER_MS,
            delivery_timeout_ms=FOR_EVER_MS,
        )
        writing = TransportCluster(DirectTransport(config, connections)).sender()
        self.sender = writing.__enter__()
        # A task that fails does not flush.
        closing.callback(lambda: writing.__exit__(TimeoutError, TimeoutError(), None))

    def round(self) -> None:
        wanted = self._stored() + 100
        while self._stored() < wanted:
            self.sender.send_batch(single(self.stage.topic, b"a row"))

    def _stored(self) -> int:
        return sum(
            receipt.count
            for receipt in self.sender.receipts()
            if receipt.partition.broker_id in self.stage.others
        )


class Heartbeats(Use):
    """Heartbeats of leases to a broker, and of a member to its master unless that is in trouble."""

    def open(self, closing: contextlib.ExitStack) -> None:
        consumer = closing.enter_context(self.stage.client.group_consumer(self.stage.topic))
        await_that(lambda: len(consumer.connected) == self.stage.partitions)

    def round(self) -> None:
        faults = self.stage.server.faults
        rules = [faults.delay(Method.PARTITION_HEARTBEAT, 0, broker=1)]
        if self.masters_are_sound:
            rules.append(faults.delay(Method.CONSUMER_HEARTBEAT, 0))
        assert all(rule.wait_for_hits(3, PATIENCE_S) for rule in rules)
        for rule in rules:
            rule.cancel()


class Closing(Use):
    """Closing a client with a producer and members; what it has of the other brokers is free then."""

    def open(self, closing: contextlib.ExitStack) -> None:
        self.clients = []
        for number in range(4):
            client = closing.enter_context(client_of(self.stage.masters, f"closing_{number}"))
            producer = client.producer()
            producer.send(self.stage.topic, b"stored").result(PATIENCE_S)
            consumer = client.group_consumer(self.stage.topic).open()
            await_that(lambda consumer=consumer: len(consumer.connected) == self.stage.partitions)
            self.clients.append((client, producer, consumer))

    def round(self) -> None:
        client, *_ = self.clients.pop()
        client.close()


class Worker:
    """A thread that uses something, and must not wait for the peer in trouble; a context manager."""

    def __init__(self, use: Use) -> None:
        """Take a use that has not begun."""
        self._use = use
        self._thread = concurrent.futures.ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        # Members get their partitions one after the other.
        self._thread.submit(self._use.__enter__).result(SETTLING_S)
        return self

    def __exit__(self, *_: object) -> None:
        # The trouble is over.
        self._thread.submit(self._use.__exit__, None, None, None).result(SETTLING_S)
        self._thread.shutdown()

    def round(self) -> None:
        """Do a round, and fail when it does not end in time."""
        self._do(self._use.round)

    def _do(self, work: Callable[[], object]) -> None:
        try:
            self._thread.submit(work).result(PATIENCE_S)
        except TimeoutError:
            pytest.fail(f"{work.__qualname__} waits for the peer in trouble")


USES = {
    "Stream": (StreamRead, StreamThatShowsProgress),
    "Planned task": (BatchRead,),
    "Group consumer": (GroupConsumer, AsyncGroupConsumer),
    "Assigned consumer": (AssignedConsumer, AsyncAssignedConsumer),
    "Keyed producer": (KeyedProducer, AsyncKeyedProducer),
    "Unkeyed producer": (UnkeyedProducer, AsyncUnkeyedProducer),
    "`df.write`": (DataFrameWrite,),
    "Heartbeats": (Heartbeats,),
    "Closing": (Closing,),
}
