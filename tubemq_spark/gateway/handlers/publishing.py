"""Messages to send: a stream of commands for each client that publishes, and single batches.

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
import queue
from collections.abc import Callable
from typing import Any, Final, cast

from tubemq_spark.cluster.base import Cluster, Sender
from tubemq_spark.errors import GatewayError, TubeMQError
from tubemq_spark.gateway.handlers.arrivals import Arrivals
from tubemq_spark.gateway.operate.metrics import Metrics
from tubemq_spark.gateway.session.budget import ByteBudget
from tubemq_spark.gateway.session.calls import Call, Calls
from tubemq_spark.gateway.session.sessions import Session, Sessions
from tubemq_spark.gateway.session.workers import Workers
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.protocol.gateway import failures, gateway_pb2 as pb, sends, values
from tubemq_spark.protocol.gateway.packed import MalformedMessageError
from tubemq_spark.protocol.send_batch import SendBatch
from tubemq_spark.receipts import Receipt, merged

_SHORTLY_MS: Final = 100
_LOOK_S: Final = 0.01
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
        self._commands: queue.SimpleQueue[tuple[pb.PublishCommand, asyncio.Future[Any]] | None] = (
            queue.SimpleQueue()
        )

    async def ask(self, command: pb.PublishCommand, thread: "asyncio.Future[None]") -> pb.PublishAnswer:
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
        return cast("pb.PublishAnswer", await answer)

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

    def _carry_out_next(self, sender: Sender) -> tuple["asyncio.Future[Any]", pb.PublishAnswer] | None:
        waiting = self._commands.get()
        if waiting is None:
            raise _AbandonedError
        command, future = waiting
        try:
            answer = _carry_out(sender, command, self._before)
        except TubeMQError as error:
            answer = pb.PublishAnswer(error=failures.to_proto(error))
        except MalformedMessageError as error:
            self._loop.call_soon_threadsafe(future.set_exception, error)
            raise _AbandonedError from error
        if command.WhichOneof("command") in _RESTS and not answer.HasField("error"):
            return future, answer
        self._answer(future, answer)
        return None

    def _answer(self, future: "asyncio.Future[Any]", answer: pb.PublishAnswer) -> None:
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


def _set(future: "asyncio.Future[Any]", answer: pb.PublishAnswer) -> None:
    if not future.done():
        future.set_result(answer)


def _carry_out(sender: Sender, command: pb.PublishCommand, before: list[Receipt]) -> pb.PublishAnswer:
    which = command.WhichOneof("command")
    if which == "batch":
        sender.send_batch(sends.from_proto(command.batch))
        return pb.PublishAnswer()
    if which in _RESTS:
        sender.flush()
    elif which == "begin":
        return pb.PublishAnswer()
    elif which is None:
        raise MalformedMessageError("a command of a publish stream is none of those that there are")
    return pb.PublishAnswer(receipts=values.receipts_to_proto(merged([*before, *sender.receipts()])))


class Publishing:
    """Serves ``Publish`` and ``PublishStream``."""

    def __init__(
        self,
        settings: GatewaySettings,
        sessions: Sessions,
        workers: Workers,
        budget: ByteBudget,
        metrics: Metrics,
        calls: Calls,
        arrivals: Arrivals,
    ) -> None:
        """Publish in the threads of ``workers``."""
        self._gateway = settings.name
        self._queue_s = settings.queue_ms / 1000
        self._sessions = sessions
        self._workers = workers
        self._budget = budget
        self._metrics = metrics
        self._calls = calls
        self._arrivals = arrivals

    async def publish(self, request: pb.PublishRequest, call: Call) -> pb.PublishResponse:
        """Store the messages of one batch."""
        session, batch = call.owner(), sends.from_proto(request.batch)
        size = request.ByteSize()

        def work() -> list[Receipt]:
            self._take(session, size)
            try:
                return _publish(session.access.cluster, request.name, batch)
            finally:
                self._budget.give(session.client_id, size)

        receipts = await self._workers.run(work)
        self._arrivals.arrived(receipt.partition for receipt in receipts)
        self._count(call, len(batch), size)
        return pb.PublishResponse(receipts=values.receipts_to_proto(receipts))

    async def publish_stream(self, _: object, call: Call) -> None:
        """Carry out a client's commands, one after the other."""
        command = await call.read()
        if not isinstance(command, pb.PublishCommand):
            return
        if not command.HasField("begin"):
            raise MalformedMessageError("the first command of a publish stream is not begin")
        with self._calls.within(call, self._sessions.use(command.begin.session)) as session:
            sending = self._begin(session, command.begin.name, [])
            try:
                await self._serve(sending, command, call)
            finally:
                sending.producing.abandon()

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
        session, name = call.owner(), sending.producing.name
        # What read returns at the end of a stream is no command.
        while isinstance(command, pb.PublishCommand):
            call.judge(command.batch)
            if sending.at_rest:
                sending.follow(self._begin(session, name, sending.producing.stored, patiently=True))
            size = command.ByteSize()
            await self._room(session, size)
            try:
                answer = await sending.producing.ask(command, sending.thread)
            finally:
                self._budget.give(session.client_id, size)
            if command.HasField("batch"):
                self._count(call, _accepted(command, answer), size)
            sending.at_rest = command.WhichOneof("command") in _RESTS and not answer.HasField("error")
            self._arrivals.arrived(
                values.partition_from_proto(receipt.partition) for receipt in answer.receipts
            )
            answer.draining = self._calls.draining
            await call.context.write(answer)
            if command.HasField("finish") and sending.at_rest:
                return
            command = await call.read()

    async def _room(self, session: Session, size: int) -> None:
        """Take bytes; while there are none, the client waits for its answer, and so sends no more."""
        while not self._budget.take(session.client_id, size, lambda: True):
            await asyncio.sleep(_LOOK_S)

    def _take(self, session: Session, size: int) -> None:
        if not self._budget.take(session.client_id, size, lambda: False, self._queue_s):
            raise GatewayError(
                "TUBEMQ_GATEWAY_BUSY",
                gateway=self._gateway,
                what="the bytes that may wait in it are used up",
                retry_after_ms=_SHORTLY_MS,
            )

    def _count(self, call: Call, rows: int, size: int) -> None:
        call.rows += rows
        self._metrics.passed("published", rows, size)


def _accepted(command: pb.PublishCommand, answer: pb.PublishAnswer) -> int:
    """Return how many messages of a batch the producer has taken."""
    if not answer.HasField("error"):
        return len(command.batch.topic_codes) // 4
    return answer.error.row if answer.error.HasField("row") else 0


def _publish(cluster: Cluster, name: str, batch: SendBatch) -> list[Receipt]:
    """Store messages; when one is refused, those before it are stored all the same."""
    refusal = None
    with cluster.sender(name) as sender:
        try:
            sender.send_batch(batch)
        except TubeMQError as error:
            if error.row is None:
                raise
            refusal = error
        sender.flush()
        receipts = sender.receipts()
    if refusal is not None:
        raise refusal
    return receipts
