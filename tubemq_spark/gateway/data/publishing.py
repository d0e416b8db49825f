"""Messages to send: a stream of commands for each client that publishes.

While messages of a stream are under way it has a thread, since a producer belongs to one, and a producer for
itself. So the producers, and their connections to brokers, are as many as streams that send at the same time,
and not as many as streams.

**States of a stream.**

- *sending*: its thread has a producer, and carries out one command after the other. The client sends the next
  one only after it has the answer to the last one, so a stream has at most one command in the gateway;
- *at rest*: everything is stored, and the producer is kept for the next stream. With the next command the
  stream sends again, as soon as there is a thread;
- *finished*: the client said so, and everything is stored;
- *abandoned*: the stream broke off. The producer is closed, and what was not stored by then may never be.

What a producer refuses is an answer and not the end of the stream: the client decides what to do.
"""

import asyncio
import contextlib
import queue
from collections.abc import Callable
from typing import Any, Final, cast

from tubemq_spark.cluster.base import Cluster, Sender
from tubemq_spark.errors import GatewayError, TubeMQError
from tubemq_spark.gateway.admission import Admission
from tubemq_spark.gateway.data.fetching import Arrivals
from tubemq_spark.gateway.metrics import Metrics
from tubemq_spark.gateway.session.calls import Call, Calls
from tubemq_spark.gateway.session.sessions import Session
from tubemq_spark.protocol.gateway import failures, gateway_pb2 as pb, sends, values
from tubemq_spark.protocol.gateway.packed import MalformedMessageError
from tubemq_spark.receipts import Receipt, merged

_LOOK_S: Final = 0.01
_ABANDON_S: Final = 2.0
"""How long is waited for the thread of a stream that was ended."""
_RESTS: Final = frozenset({"flush", "finish"})
"""The commands after which everything is stored."""


class _AbandonedError(Exception):
    """The client has gone."""


class _Producing:
    """The thread of a stream, from one rest to the next."""

    def __init__(self, cluster: Cluster, name: str, stored: list[Receipt]) -> None:
        """Begin in the event loop; ``stored`` is what the stream has stored before."""
        self._cluster = cluster
        self.name = name
        self._before = stored
        self.stored = stored
        """What the stream has stored when it is at rest."""
        self._loop = asyncio.get_running_loop()
        self._commands: queue.SimpleQueue[tuple[pb.PublishStreamRequest, asyncio.Future[Any]] | None] = (
            queue.SimpleQueue()
        )

    async def ask(
        self, command: pb.PublishStreamRequest, thread: "asyncio.Future[None]"
    ) -> pb.PublishStreamResponse:
        """Carry a command out and return the answer.

        Raises:
            TubeMQError: the thread has ended because of it.
            MalformedMessageError: the command contradicts itself.
        """
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._commands.put((command, answer))
        both: set[asyncio.Future[Any]] = {answer, thread}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            thread.result()
        return cast("pb.PublishStreamResponse", await answer)

    def abandon(self) -> None:
        """End the thread, unless it has finished."""
        self._commands.put(None)

    def run(self) -> None:
        """Carry out commands until everything is stored; in the thread."""
        finished = None
        with self._cluster.sender(self.name) as sender:
            while finished is None:
                finished = self._carry_out_next(sender)
            self.stored = merged([*self._before, *sender.receipts()])
        # Only now: others may have the producer.
        self._answer(*finished)

    def _carry_out_next(
        self, sender: Sender
    ) -> tuple["asyncio.Future[Any]", pb.PublishStreamResponse] | None:
        waiting = self._commands.get()
        if waiting is None:
            raise _AbandonedError
        command, future = waiting
        try:
            answer = _carry_out(sender, command, self._before)
        except TubeMQError as error:
            answer = pb.PublishStreamResponse(error=failures.to_proto(error))
        except MalformedMessageError as error:
            self._loop.call_soon_threadsafe(future.set_exception, error)
            raise _AbandonedError from error
        if command.WhichOneof("request") in _RESTS and not answer.HasField("error"):
            return future, answer
        self._answer(future, answer)
        return None

    def _answer(self, future: "asyncio.Future[Any]", answer: pb.PublishStreamResponse) -> None:
        self._loop.call_soon_threadsafe(_set, future, answer)


class _Sending:
    """What a stream sends with now."""

    def __init__(self, producing: _Producing, thread: "asyncio.Future[None]") -> None:
        self.producing = producing
        self.thread = thread
        self.at_rest = False

    def follow(self, next_one: "_Sending") -> None:
        """Go on with another thread; that of before has ended."""
        self.producing, self.thread, self.at_rest = next_one.producing, next_one.thread, False


def _set(future: "asyncio.Future[Any]", answer: pb.PublishStreamResponse) -> None:
    if not future.done():
        future.set_result(answer)


def _carry_out(
    sender: Sender, command: pb.PublishStreamRequest, before: list[Receipt]
) -> pb.PublishStreamResponse:
    which = command.WhichOneof("request")
    if which == "batch":
        sender.send_batch(sends.from_proto(command.batch))
        return pb.PublishStreamResponse()
    if which in _RESTS:
        sender.flush()
    elif which == "begin":
        return pb.PublishStreamResponse()
    elif which is None:
        raise MalformedMessageError("a command of a publish stream is none of those that there are")
    return pb.PublishStreamResponse(receipts=values.receipts_to_proto(merged([*before, *sender.receipts()])))


class Publishing:
    """Serves ``PublishStream``."""

    def __init__(
        self,
        admission: Admission,
        metrics: Metrics,
        calls: Calls,
        arrivals: Arrivals,
    ) -> None:
        """Publish in the threads of ``admission``."""
        self._admission = admission
        self._workers = admission.publishes
        self._metrics = metrics
        self._calls = calls
        self._arrivals = arrivals

    async def publish_stream(self, _: object, call: Call) -> None:
        """Carry out a client's commands, one after the other."""
        command = await call.read()
        if not isinstance(command, pb.PublishStreamRequest):
            return
        if not command.HasField("begin"):
            raise MalformedMessageError("the first command of a publish stream is not begin")
        sending = self._begin(call.owner(), command.begin.name, [])
        try:
            await self._serve(sending, command, call)
        finally:
            sending.producing.abandon()
            if call.ended_by is not None:
                # Who waits for this end may rely on that nothing more is stored.
                await asyncio.wait({sending.thread}, timeout=_ABANDON_S)

    def _begin(
        self, session: Session, name: str, stored: list[Receipt], *, patiently: bool = False
    ) -> "_Sending":
        producing = _Producing(session.access.cluster, name, stored)
        run = self._run_patiently if patiently else self._workers.run
        thread = asyncio.ensure_future(run(producing.run))
        thread.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return _Sending(producing, thread)

    async def _run_patiently(self, work: Callable[[], None]) -> None:
        """Run something in a thread whenever there is one: the client has sent messages already."""
        while True:
            try:
                return await self._workers.run(work)
            except GatewayError as error:
                if error.condition != "TUBEMQ_GATEWAY_BUSY":
                    raise
                await asyncio.sleep(_LOOK_S)

    async def _serve(self, sending: "_Sending", command: object, call: Call) -> None:
        session, name, under_way = call.owner(), sending.producing.name, False
        # What read returns at the end of a stream is no command.
        while isinstance(command, pb.PublishStreamRequest):
            call.judge(command.batch)
            if sending.at_rest:
                sending.follow(self._begin(session, name, sending.producing.stored, patiently=True))
            size = command.ByteSize()
            # While there is no room, the client waits for its answer, and so sends no more.
            await self._admission.bytes.enter(call.who, size)
            try:
                answer = await sending.producing.ask(command, sending.thread)
            finally:
                self._admission.bytes.give(call.who, size)
            under_way = under_way or command.HasField("batch")
            if command.HasField("batch"):
                self._count(call, _accepted(command, answer), size)
            sending.at_rest = command.WhichOneof("request") in _RESTS and not answer.HasField("error")
            self._arrivals.arrived(
                values.partition_from_proto(receipt.partition) for receipt in answer.receipts
            )
            answer.draining = self._calls.draining
            await call.context.write(answer)
            if command.HasField("finish") and sending.at_rest:
                return
            under_way = under_way and not sending.at_rest
            with contextlib.nullcontext() if under_way else call.rest():
                command = await call.read()

    def _count(self, call: Call, rows: int, size: int) -> None:
        call.rows += rows
        self._metrics.passed("published", rows, size)


def _accepted(command: pb.PublishStreamRequest, answer: pb.PublishStreamResponse) -> int:
    """Return how many messages of a batch the producer has taken."""
    if not answer.HasField("error"):
        return len(command.batch.topic_codes) // 4
    return answer.error.row if answer.error.HasField("row") else 0
