"""Serves ``Consume``: a stream of batches for a client, and of its commands.

**States of a stream.**

- *flowing*: there is credit, so the stream waits for messages as a fetch does, and sends them;
- *without credit*, or *without partitions*: nothing is fetched, so a client that does not read makes no
  gateway keep messages for it;
- *over*: the client ended its side or has gone, its session has ended, or the gateway drains. What was sent
  and not committed by then is taken back, and comes again.

Two tasks serve a stream: one reads and carries out commands, one sends batches. What either writes, it writes
under ``_write_lock``. The end of one is the end of both. What is fetched of a partition after a command about
it is written after the answer; what a seek has taken back is not written at all.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from tubemq_spark.client.consumer.values import Batch, parse_context
from tubemq_spark.errors import TubeMQError
from tubemq_spark.gateway.calls import Calls, ServedCall
from tubemq_spark.gateway.consuming import ConsumeService, SessionConsumer, attach_at, commit_batch, error_in
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.gateway import failures, gateway_pb2 as pb, values
from tubemq_spark.protocol.gateway.batches import MalformedMessageError

_SIGN_S: Final = 1.0
"""After how long the client of a stream hears that there are no messages."""
_NOTHING_NAMED: Final = pb.ConsumeRequest()


async def consume(service: ConsumeService, calls: Calls, call: ServedCall) -> None:
    """Send the client of a session batches, and carry out its commands, until one side ends the stream."""
    command = await call.read()
    if not isinstance(command, pb.ConsumeRequest):
        return
    if not command.HasField("begin"):
        raise MalformedMessageError("the first command of a consume stream is not begin")
    call.judge(command)
    with service.place(call.who):
        await _ConsumeStream(service.consumer_of(call.owner()), service, calls, call).run()


class _ConsumeStream:
    """One call of ``Consume``: its commands, and the batches that it sends."""

    def __init__(
        self, consumer: SessionConsumer, service: ConsumeService, calls: Calls, call: ServedCall
    ) -> None:
        self._consumer = consumer
        self._service = service
        self._calls = calls
        self._call = call
        self._credit = 0
        self._write_lock = asyncio.Lock()
        self._uncommitted: set[str] = set()
        """The contexts of batches that were sent, and neither committed nor taken back."""
        self._commanded: TopicPartition | None = None
        """The partition of the command that is being carried out."""
        self._answered = asyncio.Event()
        """Set when that command is answered."""

    async def run(self) -> None:
        """Serve until one side ends it."""
        tasks = {asyncio.create_task(self._carry_out_commands()), asyncio.create_task(self._send())}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            self._consumer.take_back(self._uncommitted)
        for result in ended:
            if isinstance(result, Exception):
                raise result

    # Sending.

    async def _send(self) -> None:
        """Send batches while the stream flows, until the session ends or the gateway drains."""
        consumer = self._consumer
        while not consumer.session.ended:
            self._calls.refuse_when_draining()
            if self._flows():
                await self._send_next()
            else:
                await consumer.changed.wait()

    async def _send_next(self) -> None:
        """Send the next batch, an error instead, or a sign that there is nothing."""
        self._call.judge(_NOTHING_NAMED)
        try:
            batch = await self._consumer.fetch(_SIGN_S)
        except TubeMQError as error:
            await self._write(pb.ConsumeResponse(error=failures.to_proto(error)))
        else:
            if batch is not None:
                await self._send_batch(batch)
            elif self._flows():
                await self._write(pb.ConsumeResponse(waiting=pb.Waiting()))

    async def _send_batch(self, batch: Batch) -> None:
        """Send a batch, unless a command takes it back."""
        self._uncommitted.add(batch.context)
        while self._commanded == batch.partition:
            await self._answered.wait()
        if self._consumer.uncommitted.get(batch.partition) == batch.context:
            answer = self._service.response(batch, self._call)
            self._credit -= answer.ByteSize()
            await self._write(pb.ConsumeResponse(batch=answer))
        else:
            self._uncommitted.discard(batch.context)

    def _flows(self) -> bool:
        """Return whether the client takes more bytes, and partitions are there to fetch from."""
        return self._credit > 0 and not self._consumer.core.has_nothing

    async def _write(self, event: pb.ConsumeResponse) -> None:
        async with self._write_lock:
            await self._call.context.write(event)

    # Commands.

    async def _carry_out_commands(self) -> None:
        # What read returns at the end of a stream is no command.
        while isinstance(command := await self._call.read(), pb.ConsumeRequest):
            self._call.judge(command)
            which = command.WhichOneof("command")
            if which == "credit":
                self._credit += command.credit
                self._consumer.note()
            elif which == "commit":
                with self._about(lambda: parse_context(command.commit.batch).partition):
                    await self._write(pb.ConsumeResponse(committed=await self._commit(command.commit)))
            elif which == "seek":
                with self._about(lambda: values.partition_from_proto(command.seek.partition)):
                    await self._write(pb.ConsumeResponse(sought=await self._seek(command.seek)))
            elif which in ("pause", "resume"):
                await self._write(pb.ConsumeResponse(paused=self._pause(command)))
            else:
                raise MalformedMessageError("a command of a consume stream is none of those that there are")

    @contextlib.contextmanager
    def _about(self, partition: Callable[[], TopicPartition]) -> Iterator[None]:
        """Write nothing of a partition until a command about it is answered."""
        with contextlib.suppress(TubeMQError):  # which the answer tells
            self._commanded = partition()
        self._answered.clear()
        try:
            yield
        finally:
            self._commanded = None
            self._answered.set()

    async def _commit(self, request: pb.CommitRequest) -> pb.ConsumeResponse.Committed:
        answer = pb.ConsumeResponse.Committed(batch=request.batch)
        with error_in(answer.error):
            # Not before: a stream that ends here takes back what was not committed.
            answer.position.CopyFrom(await commit_batch(self._consumer, request))
        self._uncommitted.discard(request.batch)
        return answer

    async def _seek(self, command: pb.ConsumeRequest.Seek) -> pb.ConsumeResponse.Sought:
        answer = pb.ConsumeResponse.Sought(partition=command.partition)
        with error_in(answer.error):
            self._consumer.assigned()  # a member would give the partition back to its group
            await self._consumer.detach(values.partition_from_proto(command.partition))
            answer.offset = await attach_at(self._consumer, command)
        return answer

    def _pause(self, command: pb.ConsumeRequest) -> pb.ConsumeResponse.Paused:
        core = self._consumer.core
        if command.HasField("pause"):
            core.pause(map(values.partition_from_proto, command.pause.partitions))
        else:
            core.resume(map(values.partition_from_proto, command.resume.partitions))
        paused = sorted(core.paused())
        return pb.ConsumeResponse.Paused(partitions=map(values.partition_to_proto, paused))
