"""Consuming as one long call: batches come by themselves, as long as the client gives credit.

**States of a stream.**

- *flowing*: there is credit, so the stream waits for messages as a fetch does, and sends them;
- *without credit*: nothing is fetched, so a client that does not read makes no gateway keep messages for it;
- *over*: the client ended its side or has gone, its session has ended, or the gateway drains. What was sent
  and not committed by then is taken back, and comes again.

Two tasks serve a stream: one reads and carries out commands, one sends batches. What either writes, it writes
under ``_writing``. The end of one is the end of both.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final

from tubemq_spark.client.consumer.values import ConsumeStatus
from tubemq_spark.errors import TubeMQError
from tubemq_spark.gateway.handlers.consuming import Attached, Consuming
from tubemq_spark.gateway.session.calls import Call, Calls
from tubemq_spark.gateway.session.sessions import Session
from tubemq_spark.protocol.gateway import failures, gateway_pb2 as pb, values
from tubemq_spark.protocol.gateway.packed import MalformedMessageError

_SIGN_S: Final = 1.0
"""After how long a client is told that there is nothing yet."""
_NOTHING_NAMED: Final = pb.ConsumeRequest()
_EMPTY_S: Final = 0.2
"""How often a stream looks whether something is attached again."""


class _Stream:
    """One stream."""

    def __init__(self, attached: Attached, consuming: Consuming, calls: Calls, call: Call) -> None:
        self._attached = attached
        self._consuming = consuming
        self._calls = calls
        self._call = call
        self._credit = 0
        self._credited = asyncio.Event()
        self._writing = asyncio.Lock()
        self._sent: set[str] = set()
        """The batches that were sent, and neither committed nor taken back."""

    async def run(self) -> None:
        """Serve until one side ends it."""
        tasks = {asyncio.create_task(self._obey()), asyncio.create_task(self._send())}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            self._consuming.take_back(self._attached, self._sent)
        for result in ended:
            if isinstance(result, Exception):
                raise result

    # Sending.

    async def _send(self) -> None:
        attached = self._attached
        while not attached.session.ended:
            self._calls.refuse_when_draining()
            self._call.judge(_NOTHING_NAMED)
            if self._credit <= 0:
                await self._wait_for_credit()
                continue
            try:
                batch = await attached.parking.fetch(_SIGN_S)
            except TubeMQError as error:
                await self._write(pb.ConsumeResponse(error=failures.to_proto(error)))
                continue
            if batch is not None:
                self._sent.add(batch.context)
                answer = self._consuming.response(attached, batch, self._call)
                self._credit -= answer.ByteSize()
                await self._write(pb.ConsumeResponse(batch=answer))
            elif attached.consumer.consume_status is ConsumeStatus.NOTHING_ASSIGNED:
                await asyncio.sleep(_EMPTY_S)
            else:
                await self._write(pb.ConsumeResponse(waiting=pb.Waiting()))

    async def _wait_for_credit(self) -> None:
        self._credited.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EMPTY_S):
                await self._credited.wait()

    async def _write(self, event: pb.ConsumeResponse) -> None:
        async with self._writing:
            await self._call.context.write(event)

    # Commands.

    async def _obey(self) -> None:
        # What read returns at the end of a stream is no command.
        while isinstance(command := await self._call.read(), pb.ConsumeRequest):
            self._call.judge(command)
            which = command.WhichOneof("command")
            if which == "credit":
                self._credit += command.credit
                self._credited.set()
            elif which == "commit":
                await self._write(pb.ConsumeResponse(committed=await self._commit(command.commit)))
            elif which == "seek":
                await self._write(pb.ConsumeResponse(sought=await self._seek(command.seek)))
            else:
                raise MalformedMessageError("a command of a consume stream is none of those that there are")

    async def _commit(self, request: pb.CommitRequest) -> pb.ConsumeResponse.Committed:
        answer = pb.ConsumeResponse.Committed(batch=request.batch)
        self._sent.discard(request.batch)
        with _told(answer.error):
            result = await self._consuming.commit_batch(
                self._attached, request.batch, consumed=not request.roll_back
            )
            answer.position.CopyFrom(result)
        return answer

    async def _seek(self, command: pb.ConsumeRequest.Seek) -> pb.ConsumeResponse.Sought:
        answer = pb.ConsumeResponse.Sought(partition=command.partition)
        partition = values.partition_from_proto(command.partition)
        with _told(answer.error):
            await self._consuming.detach(self._attached, partition)
            offset = command.offset if command.HasField("offset") else None
            answer.offset = await self._consuming.attach(self._attached, partition, offset)
        return answer


@contextlib.contextmanager
def _told(place: pb.TubeError) -> Iterator[None]:
    """Write an error into an answer."""
    try:
        yield
    except TubeMQError as error:
        place.CopyFrom(failures.to_proto(error))


class Streaming:
    """Serves ``Consume``."""

    def __init__(self, consuming: Consuming, calls: Calls) -> None:
        self._consuming = consuming
        self._calls = calls

    async def consume(self, _: object, call: Call) -> None:
        """Send batches of what a session has attached, and carry out its commands."""
        command = await call.read()
        if not isinstance(command, pb.ConsumeRequest):
            return
        if not command.HasField("begin"):
            raise MalformedMessageError("the first command of a consume stream is not begin")
        call.judge(command)
        with self._consuming.place():
            await self._serve(call.owner(), call)

    async def _serve(self, session: Session, call: Call) -> None:
        attached = self._consuming.attached(session)
        await _Stream(attached, self._consuming, self._calls, call).run()
