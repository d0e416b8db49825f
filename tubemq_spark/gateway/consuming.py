"""Consumers of sessions: partitions that a client names, fetched with a wait, and committed.

A session that attaches partitions has a consumer, which registers at the master and at the brokers under the
session's client id. So another gateway, where the client opens its session again, takes its partitions over.

**States of a session's consumer.**

- *none*: until the session attaches for the first time;
- *open*: in ``_consumers``; its heartbeats go on without the client, as long as the session lives;
- *closed*: the session has ended, or the gateway stops. Its partitions are given up; what was not committed
  comes again, to whoever reads them next.

**A fetch that waits** uses a thread only while a broker is asked, which is now and then. It is answered once:
with messages, or empty after its wait, or empty when the gateway drains. What a broker gave after its client
had gone is rolled back, so it comes again.
"""

import asyncio
import contextlib
import logging
import time
from typing import Final

from tubemq_spark.client.assigned_consumer import AssignedConsumer
from tubemq_spark.client.consumer_values import Batch
from tubemq_spark.client.partition_states import ConsumeStatus
from tubemq_spark.client.records import Record
from tubemq_spark.errors import ConsumeError, GatewayError, TubeMQError
from tubemq_spark.gateway.calls import Call, Calls
from tubemq_spark.gateway.metrics import Metrics
from tubemq_spark.gateway.sessions import Session, Sessions
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.gateway.upstream import Upstream
from tubemq_spark.gateway.workers import Workers
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.gateway import failures, gateway_pb2 as pb, values

logger = logging.getLogger(__name__)

_LONGEST_WAIT_S: Final = 20.0
_RESERVE_S: Final = 0.1
"""How much earlier than its client's deadline a fetch is answered."""
_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 0.4
_SHORTLY_MS: Final = 500
"""When to try again after too many fetches waited."""


class Consuming:
    """Serves ``AttachPartitions``, ``DetachPartitions``, ``Fetch`` and ``Commit``."""

    def __init__(
        self,
        settings: GatewaySettings,
        sessions: Sessions,
        upstream: Upstream,
        workers: Workers,
        metrics: Metrics,
        calls: Calls,
    ) -> None:
        """Have no consumer yet."""
        self._gateway = settings.name
        self._most = settings.fetches
        self.waiting = 0
        """How many fetches wait for messages."""
        self._upstream = upstream
        self._workers = workers
        self._metrics = metrics
        self._calls = calls
        self._consumers: dict[Session, AssignedConsumer] = {}
        self._attaching = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()
        sessions.on_end = self._end

    def __len__(self) -> int:
        """How many consumers there are."""
        return len(self._consumers)

    async def attach_partitions(
        self, request: pb.AttachPartitionsRequest, call: Call
    ) -> pb.AttachPartitionsResponse:
        """Take partitions for a session; say of each where it stands or why it was not taken."""
        session = call.owner()
        consumer = await self._opened(session, request)

        def attach() -> pb.AttachPartitionsResponse:
            made = pb.AttachPartitionsResponse()
            for wanted in request.partitions:
                partition = values.partition_from_proto(wanted.partition)
                try:
                    stands = consumer.connect(partition, wanted.offset if wanted.HasField("offset") else None)
                except TubeMQError as error:
                    made.partitions.add(error=failures.to_proto(error))
                else:
                    made.partitions.add(offset=stands.offset)
            return made

        return await self._workers.run(attach)

    async def detach_partitions(
        self, request: pb.DetachPartitionsRequest, call: Call
    ) -> pb.DetachPartitionsResponse:
        """Give partitions up."""
        consumer = self._consumer(call.owner())
        asked = [values.partition_from_proto(one) for one in request.partitions]

        def detach() -> list[TopicPartition]:
            return [partition for partition in asked if consumer.disconnect(partition)]

        given_up = await self._workers.run(detach)
        return pb.DetachPartitionsResponse(partitions=map(values.partition_to_proto, given_up))

    async def fetch(self, request: pb.FetchRequest, call: Call) -> pb.FetchResponse:
        """Return messages as soon as there are some."""
        consumer = self._consumer(call.owner())
        for context in request.commit:
            await self._workers.run(lambda: consumer.confirm(context))  # noqa: B023 (awaited here)
        if self.waiting >= self._most:
            raise GatewayError(
                "TUBEMQ_GATEWAY_BUSY",
                gateway=self._gateway,
                what=f"{self.waiting} fetches wait already",
                retry_after_ms=_SHORTLY_MS,
            )
        self.waiting += 1
        try:
            return await self._wait(consumer, time.monotonic() + _wait_s(request, call), call)
        finally:
            self.waiting -= 1

    async def _wait(self, consumer: AssignedConsumer, deadline: float, call: Call) -> pb.FetchResponse:
        pause = _FIRST_PAUSE_S
        while True:
            batch = await self._poll(consumer)
            if batch is not None:
                return self._response(batch, call)
            left = deadline - time.monotonic()
            if left <= 0 or self._calls.draining:
                return pb.FetchResponse(reason=consumer.consume_status, draining=self._calls.draining)
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def commit(self, request: pb.CommitRequest, call: Call) -> pb.CommitResponse:
        """Confirm a batch, or take it back."""
        consumer = self._consumer(call.owner())
        done = await self._workers.run(
            lambda: consumer.confirm(request.batch, consumed=not request.roll_back)
        )
        return pb.CommitResponse(offset=done.offset, latest=done.latest)

    async def close(self) -> None:
        """Close all consumers, for the end of the gateway."""
        for session in list(self._consumers):
            self._end(session)
        if self._closing:
            await asyncio.wait(self._closing)

    async def _opened(self, session: Session, request: pb.AttachPartitionsRequest) -> AssignedConsumer:
        topics = set(request.topics) or {wanted.partition.topic for wanted in request.partitions}
        async with self._attaching:
            found = self._consumers.get(session)
            if found is None:
                made = self._upstream.consumer(session.access, sorted(topics), session.client_id)
                found = await self._workers.run(made.open)
                if session.ended:
                    await self._workers.run(made.close)
                    raise GatewayError("TUBEMQ_GATEWAY_REQUEST", what="its session has ended meanwhile")
                self._consumers[session] = found
            elif missing := topics - set(found.subscription.topics):
                what = f"the session reads other topics than {', '.join(sorted(missing))}"
                raise GatewayError("TUBEMQ_GATEWAY_REQUEST", what=what)
            return found

    def _consumer(self, session: Session) -> AssignedConsumer:
        found = self._consumers.get(session)
        if found is None:
            raise GatewayError("TUBEMQ_GATEWAY_REQUEST", what="the session has attached no partition")
        return found

    async def _poll(self, consumer: AssignedConsumer) -> Batch | None:
        """Look once whether there are messages; those that come after the client has gone are rolled back."""
        asked = asyncio.ensure_future(self._workers.run(lambda: consumer.fetch(0)))
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            task = asyncio.ensure_future(self._roll_back(consumer, asked))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
            raise

    async def _roll_back(self, consumer: AssignedConsumer, asked: "asyncio.Future[Batch | None]") -> None:
        with contextlib.suppress(TubeMQError):
            batch = await asked
            if batch is not None:
                await self._workers.run(lambda: consumer.confirm(batch, consumed=False))

    def _response(self, batch: Batch, call: Call) -> pb.FetchResponse:
        made = pb.FetchResponse(
            reason=ConsumeStatus.READY,
            partition=values.partition_to_proto(batch.partition),
            offset=batch.offset,
            latest=batch.latest,
            messages=map(_message, batch.records),
            batch=batch.context,
            draining=self._calls.draining,
        )
        call.rows = len(batch)
        self._metrics.passed("read", len(batch), sum(len(record.value) for record in batch.records))
        return made

    def _end(self, session: Session) -> None:
        consumer = self._consumers.pop(session, None)
        if consumer is not None:
            task = asyncio.ensure_future(self._close(consumer))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _close(self, consumer: AssignedConsumer) -> None:
        try:
            await self._workers.run(consumer.close)
        except (GatewayError, ConsumeError) as error:
            logger.warning(
                "the consumer %s was not closed; its leases end by themselves: %s", consumer.client_id, error
            )


def _wait_s(request: pb.FetchRequest, call: Call) -> float:
    wait_s = min(request.wait_ms / 1000, _LONGEST_WAIT_S)
    remaining: float | None = call.context.time_remaining()
    return wait_s if remaining is None else min(wait_s, remaining - _RESERVE_S)


def _message(record: Record) -> pb.FetchResponse.Message:
    made = pb.FetchResponse.Message(
        value=record.value,
        message_id=record.message_id,
        offset=record.offset,
        has_attributes=record.attributes is not None,
    )
    for name, value in (record.attributes or {}).items():
        made.attributes.add(name=name, value=value)
    return made
