"""Batches on their way to TubeMQ through gateways: sent ahead of their answers, and again when one is lost.

**States of a piece**, which is a part of a batch. It is *unsent* until it was given to a stream; *on its
way* there until the gateway has answered it; then it has *ended*, and ``on_answer`` or ``on_failure`` was
told, once.

**States of a stream.** *Opening*: its gateway has not taken it, and pieces wait; when one of them is late,
the gateway counts as away. *Open*: it takes pieces. *Left*: its gateway is about to stop; it takes no more,
and is given up when all on it are answered. There is one at a time, and none as long as nothing was to be
sent.

**What happens to pieces on their way when their stream ends.**

- The gateway was about to stop (``TUBEMQ_GATEWAY_DRAINING``): it answered all that it took, so these were not
  taken. They are unsent again.
- For any other reason they may be stored. With ``retry_ambiguous`` they are unsent again, and count as sent
  once more without an answer; without, they fail.

**Invariants.** Pieces are sent in the order of ``add``, also when they are sent again. None lives for longer
than its deadline, or ``_GRACE_S`` longer when a gateway has it, which keeps the same deadline itself. A
gateway that is busy is asked again; one that is away is left for the next.

**Who changes what.** Everything happens in the thread of one event loop. A task for each stream opens it and
takes its answers; the owner of the window owns these tasks.
"""

import asyncio
import collections
import contextlib
from collections.abc import Callable
from typing import Final

from tubemq_spark.client.producer.outgoing import OutgoingBatch
from tubemq_spark.client.remote.attempts import Attempts, AwayError
from tubemq_spark.client.remote.channels import Stream
from tubemq_spark.client.remote.gateways import Gateways
from tubemq_spark.client.tasks import OwnedTasks
from tubemq_spark.errors import TubeMQError
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, sends
from tubemq_spark.protocol.gateway.service import PART_BYTES
from tubemq_spark.protocol.send_batch import SendBatch

_GRACE_S: Final = 5.0
_LOST_SESSIONS: Final = frozenset({"TUBEMQ_SESSION_UNKNOWN"})
"""What ends a stream and not the work: the gateway has forgotten who sends."""


class Piece:
    """Messages of a batch that follow one another, until they have ended."""

    __slots__ = (
        "attempts",
        "due_at",
        "first",
        "messages",
        "number",
        "outgoing",
        "sent_at",
        "size",
        "unanswered",
    )

    def __init__(
        self, messages: SendBatch, outgoing: OutgoingBatch, first: int, sent_at: float, due_at: float
    ) -> None:
        """Take messages from row ``first`` of ``outgoing`` on; times are those of the event loop."""
        self.messages = messages
        self.outgoing = outgoing
        self.first = first
        self.sent_at = sent_at
        self.due_at = due_at
        self.size = int(messages.values.offsets[-1] - messages.values.offsets[0])
        self.number = 0
        """Its number on the stream that has it; 0: none has."""
        self.attempts = 0
        """How often it was given to a stream."""
        self.unanswered = 0
        """How many of the attempts had no answer that says whether it was stored."""

    @property
    def rows(self) -> range:
        """The messages' rows in their batch."""
        return range(self.first, self.first + len(self.messages))


_Arrival = pb.PublishStreamResponse | Exception | None
"""An answer, the first of which says that the stream is open; or why nothing more comes."""


class _GatewayStream:
    """A publish stream at one gateway."""

    def __init__(
        self,
        gateways: Gateways,
        gateway: int,
        begin: pb.PublishStreamRequest.Begin,
        on_arrival: "Callable[[_GatewayStream, _Arrival], object]",
        tasks: OwnedTasks,
    ) -> None:
        """Begin to open it, in a task."""
        self.gateway = gateway
        self.is_open = False
        """Whether the gateway has taken it."""
        self.left = False
        """Whether it takes no more pieces."""
        self.pieces: dict[int, Piece] = {}
        """Those without an answer, by their numbers."""
        self._gateways = gateways
        self._begin = pb.PublishStreamRequest(begin=begin)
        self._on_arrival = on_arrival
        self._numbers = 0
        self._stream: Stream | None = None
        self._task = tasks.start(self._run(), f"answers of {gateways.addresses[gateway]}")

    def push(self, piece: Piece) -> None:
        """Send a piece."""
        self._numbers += 1
        piece.number = number = self._numbers
        piece.attempts += 1
        self.pieces[number] = piece
        message = sends.to_proto(piece.messages)
        if piece.size <= PART_BYTES:
            self._write(pb.PublishStreamRequest(batch=message, number=number))
            return
        data = message.SerializeToString()
        for first in range(0, len(data), PART_BYTES):
            part = pb.PublishStreamRequest.Part(data=data[first : first + PART_BYTES], size=len(data))
            self._write(pb.PublishStreamRequest(part=part, number=number))

    def finish(self) -> None:
        """End our side of it."""
        if self._stream is not None:
            self._stream.end_writing()

    def break_off(self) -> None:
        """End it at once; nothing of it arrives any more."""
        self._task.cancel()

    def _write(self, request: pb.PublishStreamRequest) -> None:
        if self._stream is not None:
            self._stream.write(request)

    async def _run(self) -> None:
        """Open it, and tell what comes."""
        arrival: _Arrival = None
        try:
            async with contextlib.AsyncExitStack() as closing:
                stream, answer = await self._gateways.in_session(self.gateway, lambda: self._open(closing))
                self._stream = stream
                while answer is not None:
                    self._on_arrival(self, answer)
                    answer = await stream.read()
        except Exception as error:  # noqa: BLE001 (the window decides)
            arrival = error
        self._on_arrival(self, arrival)

    async def _open(
        self, closing: contextlib.AsyncExitStack
    ) -> tuple[Stream, pb.PublishStreamResponse | None]:
        """Begin the call, and return it with the answer to that."""
        opening = self._gateways.stream(self.gateway, "PublishStream", self._begin)
        stream = await closing.enter_async_context(opening)
        first: pb.PublishStreamResponse | None = await stream.read()
        if first is None:
            raise AwayError("it ended the stream")
        return stream, first


class PublishWindow:
    """The pieces of one producer; belongs to the loop in which the first one is added."""

    def __init__(
        self,
        gateways: Gateways,
        name: str,
        tasks: OwnedTasks,
        *,
        per_message: bool,
        on_answer: Callable[[Piece, pb.PublishStreamResponse], object],
        on_failure: Callable[[Piece, str], object],
        on_error: Callable[[Exception], object],
    ) -> None:
        """Call no gateway; nothing is sent after ``on_error``. Its tasks are among ``tasks``."""
        self._gateways = gateways
        self._tasks = tasks
        self._name = name
        self._begin = pb.PublishStreamRequest.Begin(name=name, per_message=per_message)
        self._on_answer = on_answer
        self._on_failure = on_failure
        self._on_error = on_error
        self._unsent: collections.deque[Piece] = collections.deque()
        self._stream: _GatewayStream | None = None
        self._attempts: Attempts | None = None
        """What came to nothing since a stream was opened last."""
        self._pause: asyncio.TimerHandle | None = None
        """Ends the pause before the next stream is opened."""
        self._timer: asyncio.TimerHandle | None = None
        """Runs at the first deadline, or before."""
        self._trouble = ""
        """What delays the pieces."""
        self.messages = 0
        """How many messages have not ended."""
        self.bytes = 0
        """The length of their bodies."""

    def add(self, piece: Piece) -> None:
        """Send a piece as soon as there is a stream for it."""
        self._unsent.append(piece)
        self.messages += len(piece.messages)
        self.bytes += piece.size
        if piece.due_at <= asyncio.get_running_loop().time():
            self._fail_late()  # it has waited for room for as long as it may take
        else:
            self._fail_at(piece.due_at)
            self._send()

    def give_up(self, batch: OutgoingBatch) -> None:
        """Fail the pieces of a batch."""
        for piece in self._pieces():
            if piece.outgoing is batch:
                piece.due_at = float("-inf")
        self._fail_late()

    def close(self) -> list[Piece]:
        """End the stream at once, and return what has not ended; it may be stored or not."""
        left = self._pieces()
        stream = self._stream
        self.abandon()
        for timer in (self._pause, self._timer):
            if timer is not None:
                timer.cancel()
        if stream is not None:
            stream.break_off()
        return left

    def abandon(self) -> None:
        """Forget everything, and end nothing at gateways: in a forked child it belongs to the parent."""
        self._stream = None
        self._unsent.clear()

    def _pieces(self) -> list[Piece]:
        return [*(self._stream.pieces.values() if self._stream is not None else ()), *self._unsent]

    def _send(self) -> None:
        """Do what can be done now: give unsent pieces to the stream, leave it, open one."""
        try:
            stream = self._stream
            if stream is not None and stream.left and not stream.pieces:
                self._stream = None
                self._gateways.leave(stream.gateway)
                stream.finish()
            if self._stream is None and self._unsent and self._pause is None:
                gateway = self._gateways.current_index
                self._stream = _GatewayStream(
                    self._gateways, gateway, self._begin, self._receive, self._tasks
                )
            if self._stream is not None and self._stream.is_open and not self._stream.left:
                while self._unsent:
                    self._stream.push(self._unsent.popleft())
        except Exception as error:  # noqa: BLE001 (every message waits for it)
            self._on_error(error)

    def _receive(self, stream: _GatewayStream, arrival: _Arrival) -> None:
        if stream is not self._stream:
            return
        try:
            if isinstance(arrival, pb.PublishStreamResponse):
                self._take(stream, arrival)
            else:
                self._lose(stream, arrival)
        except Exception as error:  # noqa: BLE001 (every message waits for it)
            self._on_error(error)
        self._send()

    def _take(self, stream: _GatewayStream, answer: pb.PublishStreamResponse) -> None:
        """Take a gateway's answer about one piece."""
        if not stream.is_open:
            stream.is_open = True
            self._attempts = None
        if answer.draining and len(self._gateways.addresses) > 1:
            stream.left = True
        piece = stream.pieces.pop(answer.number, None)
        if piece is not None:
            self._end(piece)
            self._on_answer(piece, answer)

    def _lose(self, stream: _GatewayStream, error: Exception | None) -> None:
        """Go on without a stream that has ended, or raise why there is no going on."""
        self._stream = None
        pieces = list(stream.pieces.values())
        self._unsent.extendleft(reversed(pieces))
        is_forgotten = stream.is_open and isinstance(error, TubeMQError) and error.condition in _LOST_SESSIONS
        if error is not None and not isinstance(error, AwayError) and not is_forgotten:
            raise error
        if not isinstance(error, AwayError):
            error = AwayError(error if isinstance(error, TubeMQError) else "it ended the stream")
        may_be_stored = error.failure is None or error.failure.condition != "TUBEMQ_GATEWAY_DRAINING"
        for piece in pieces:
            piece.unanswered += may_be_stored
            piece.attempts -= not may_be_stored
            piece.number = 0
        self._rest(stream.gateway, error)
        if may_be_stored and not self._gateways.config.retry_ambiguous:
            self._fail(pieces, self._trouble)
        self._fail_late()

    def _rest(self, gateway: int, error: AwayError) -> None:
        """Plan when to open a stream next, and where; raise if that will not help."""
        self._trouble = str(error).rstrip(".")
        if self._attempts is None:
            self._attempts = self._gateways.attempts(None, None)
        pause_s = self._attempts.failed(gateway, error)
        if pause_s is None:
            raise self._attempts.error(f"sending as {self._name}", self._gateways.tried)
        self._pause = asyncio.get_running_loop().call_later(pause_s, self._end_rest)

    def _end_rest(self) -> None:
        self._pause = None
        self._send()

    def _fail_at(self, when: float) -> None:
        """Look for pieces that are late at a time, unless that is done before."""
        if self._timer is None or when < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_at(when, self._fail_late)

    def _fail_late(self) -> None:
        """Fail the pieces whose time is over."""
        now = asyncio.get_running_loop().time()
        late = [piece for piece in self._unsent if piece.due_at <= now]
        is_late = bool(late)
        self._fail(late, self._trouble or "no gateway took it in time")
        if (stream := self._stream) is not None:
            late = [piece for piece in stream.pieces.values() if piece.due_at + _GRACE_S <= now]
            self._fail(late, f"the gateway {self._gateways.addresses[stream.gateway]} did not answer in time")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = [piece.due_at + (_GRACE_S if piece.number else 0.0) for piece in self._pieces()]
        if due:
            self._fail_at(min(due))
        if is_late and stream is not None and not stream.is_open:
            stream.break_off()
            self._receive(stream, AwayError("it did not take a stream in time"))
        self._send()

    def _fail(self, pieces: list[Piece], cause: str) -> None:
        """Fail pieces; those that a gateway has may be stored."""
        for piece in pieces:
            if piece.number and self._stream is not None:
                del self._stream.pieces[piece.number]
                piece.unanswered += 1
            else:
                self._unsent.remove(piece)
            self._end(piece)
        for piece in pieces:
            self._on_failure(piece, cause)

    def _end(self, piece: Piece) -> None:
        self.messages -= len(piece.messages)
        self.bytes -= piece.size
