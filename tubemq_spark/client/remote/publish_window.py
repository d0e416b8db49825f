"""Batches on their way to TubeMQ through gateways: sent ahead of their answers, and again when one is lost.

**States of a parcel**, which is one batch. It is *unsent* until it was given to a stream; *on its way* there
until the gateway has answered it; then it has *ended*, and ``on_answer`` or ``on_failure`` was told, once.

**States of a stream.** *Open*: it takes parcels. *Left*: its gateway is about to stop; it takes no more, and
is given up when all on it are answered. There is one at a time, and none as long as nothing was to be sent.

**What happens to parcels on their way when their stream ends.**

- The gateway was about to stop (``TUBEMQ_GATEWAY_DRAINING``): it answered all that it took, so these were not
  taken. They are unsent again.
- For any other reason they may be stored. With ``retry_ambiguous`` they are unsent again, and count as sent
  once more without an answer; without, they fail.

**Invariants.** Parcels are sent in the order of ``add``, also when they are sent again. None lives for longer
than its deadline, or ``_GRACE_S`` longer when a gateway has it, which keeps the same deadline itself. A
gateway that is busy is asked again; one that is away is left for the next.

**Who changes what.** One thread at a time calls the methods; a thread for each stream reads its answers, and
hands them over by ``_arrivals``.
"""

import collections
import queue
import selectors
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from tubemq_spark.client.remote.attempts import Attempts, AwayError
from tubemq_spark.client.remote.connections import Gateways
from tubemq_spark.errors import TubeMQError
from tubemq_spark.net.waker import Waker
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, sends
from tubemq_spark.protocol.gateway.limits import PART_BYTES
from tubemq_spark.protocol.send_batch import SendBatch

_GRACE_S: Final = 5.0
_LOOK_S: Final = 1.0
_LOST_SESSIONS: Final = frozenset({"TUBEMQ_SESSION_UNKNOWN"})
"""What ends a stream and not the work: the gateway has forgotten who sends."""


class Parcel:
    """One batch, until it has ended."""

    __slots__ = ("attempts", "batch", "due_at", "number", "size", "unanswered")

    def __init__(self, batch: SendBatch, due_at: float) -> None:
        """``due_at`` is its deadline, by ``time.monotonic``."""
        self.batch = batch
        self.due_at = due_at
        self.size = int(batch.values.offsets[-1] - batch.values.offsets[0])
        """The length of its bodies."""
        self.number = 0
        """Its number on the stream that has it; 0: none has."""
        self.attempts = 0
        """How often it was given to a stream."""
        self.unanswered = 0
        """How many of the attempts had no answer that says whether it was stored."""


OnAnswer = Callable[[Parcel, pb.PublishStreamResponse], object]
OnFailure = Callable[[Parcel, str, bool], object]
"""Takes a parcel that will not be sent again, the cause, and whether it may be stored."""
_Arrival = pb.PublishStreamResponse | Exception | None


class _Stream:
    """A publish stream at one gateway."""

    def __init__(self, gateways: Gateways, gateway: int, name: str, *, per_message: bool) -> None:
        """Begin it, and wait until the gateway has taken it.

        Raises:
            AwayError: the gateway is away, busy, or about to stop.
            TubeMQError: that of the gateway.
        """
        self.gateway = gateway
        self.parcels: dict[int, Parcel] = {}
        """Those without an answer, by their numbers."""
        self.left = False
        """Whether it takes no more of them."""
        self._gateways = gateways
        self._numbers = 0
        begin = pb.PublishStreamRequest.Begin(name=name, per_message=per_message)
        gateways.in_session(gateway, lambda: self._begin(pb.PublishStreamRequest(begin=begin)))

    def _begin(self, begin: pb.PublishStreamRequest) -> None:
        self._requests: queue.SimpleQueue[pb.PublishStreamRequest | None] = queue.SimpleQueue()
        self._requests.put(begin)
        self._call = self._gateways.stream(self.gateway, "PublishStream", iter(self._requests.get, None))
        try:
            if self._gateways.next_of(self._call) is None:
                raise AwayError("it ended the stream")
        except BaseException:
            self.break_off()
            raise

    def answers(self) -> Iterator[_Arrival]:
        """Return what comes, and at the end why nothing more does."""
        while True:
            try:
                answer = self._gateways.next_of(self._call)
            except Exception as error:  # noqa: BLE001 (who reads the answers decides)
                yield error
                return
            yield answer
            if answer is None:
                return

    def push(self, parcel: Parcel) -> None:
        """Send a parcel."""
        self._numbers += 1
        parcel.number = number = self._numbers
        parcel.attempts += 1
        self.parcels[number] = parcel
        message = sends.to_proto(parcel.batch)
        if parcel.size <= PART_BYTES:
            self._requests.put(pb.PublishStreamRequest(batch=message, number=number))
            return
        data = message.SerializeToString()
        for first in range(0, len(data), PART_BYTES):
            part = pb.PublishStreamRequest.Part(data=data[first : first + PART_BYTES], size=len(data))
            self._requests.put(pb.PublishStreamRequest(part=part, number=number))

    def finish(self) -> None:
        """End our side of it."""
        self._requests.put(None)

    def break_off(self) -> None:
        """End it at once."""
        self._call.cancel()
        self._requests.put(None)


class PublishWindow:
    """The parcels of one sender."""

    def __init__(
        self,
        gateways: Gateways,
        name: str,
        on_answer: OnAnswer,
        on_failure: OnFailure,
        *,
        per_message: bool = False,
    ) -> None:
        """Call no gateway.

        Args:
            gateways: where the parcels go.
            name: how errors call the sender.
            on_answer: takes what a gateway says of a parcel, in a call of ``work`` or ``wait``.
            on_failure: takes a parcel that has failed as a whole.
            per_message: whether answers say where each message is.
        """
        self._gateways = gateways
        self._name = name
        self._on_answer = on_answer
        self._on_failure = on_failure
        self._per_message = per_message
        self._unsent: collections.deque[Parcel] = collections.deque()
        self._stream: _Stream | None = None
        self._arrivals: queue.SimpleQueue[tuple[_Stream, _Arrival]] = queue.SimpleQueue()
        self._selector = selectors.DefaultSelector()
        self._waker = Waker(lambda: None)
        self._waking = threading.Lock()
        self.add_waker(self._waker)
        self._attempts: Attempts | None = None
        """What came to nothing since a stream was opened last."""
        self._again_at = 0.0
        """When to try next."""
        self._trouble = ""
        """What delays the parcels."""
        self._closed = False
        self.messages = 0
        """How many messages have not ended."""
        self.bytes = 0
        """The length of their bodies."""

    def add_waker(self, waker: Waker) -> None:
        """End the waits of ``wait`` when a waker is woken; what it raises gets through."""
        self._selector.register(waker.receiver, selectors.EVENT_READ, waker)

    def add(self, parcel: Parcel) -> None:
        """Take a parcel; ``work`` sends it."""
        self._unsent.append(parcel)
        self.messages += len(parcel.batch)
        self.bytes += parcel.size

    def work(self) -> None:
        """Do what can be done now; a stream is begun in here, which waits for the gateway.

        Raises:
            TubeMQError: one that concerns all parcels.
        """
        while not self._arrivals.empty():
            self._receive(*self._arrivals.get())
        self._fail_late()
        stream = self._stream
        if stream is not None and stream.left and not stream.parcels:
            self._leave(stream)
            stream.finish()
        if self._stream is None and self._unsent and time.monotonic() >= self._again_at:
            self._open()
        if self._stream is not None and not self._stream.left:
            while self._unsent:
                self._stream.push(self._unsent.popleft())

    def wait(self, at_most_s: float) -> None:
        """Wait until something has come, or is due, and do what can be done then.

        Raises:
            TubeMQError: as ``work``.
        """
        for key, events in self._selector.select(min(at_most_s, self._time_to_wait())):
            key.data.handle(events)
        self.work()

    def close(self) -> None:
        """End the stream at once; what has no answer may be stored or not. Doing it twice is harmless."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.break_off()
        with self._waking:
            if not self._closed:
                self._closed = True
                self._selector.close()
                self._waker.close()

    def abandon(self) -> None:
        """Drop everything, and close nothing at gateways: in a forked child it belongs to the parent."""
        self._stream = None
        self._closed = True
        self._selector.close()
        self._waker.close()

    def _time_to_wait(self) -> float:
        now = time.monotonic()
        if self._stream is None and self._unsent:
            return max(0.0, min(_LOOK_S, self._again_at - now))
        return _LOOK_S if self.messages else float("inf")

    def _open(self) -> None:
        gateway = self._gateways.current_index
        try:
            stream = _Stream(self._gateways, gateway, self._name, per_message=self._per_message)
        except AwayError as error:
            self._note(gateway, error)
            return
        self._attempts = None
        self._stream = stream
        threading.Thread(
            target=_hand_over,
            args=(stream, self._arrivals, self._wake),
            name="tubemq-answers",
            daemon=True,
        ).start()

    def _wake(self) -> None:
        with self._waking:
            if not self._closed:
                self._waker.wake()

    def _note(self, gateway: int, error: AwayError) -> None:
        """Plan when to open a stream next, and where.

        Raises:
            TubeMQError: that will not help.
        """
        self._trouble = str(error).rstrip(".")
        if self._attempts is None:
            self._attempts = self._gateways.attempts(None, None)
        pause_s = self._attempts.failed(gateway, error)
        if pause_s is None:
            raise self._attempts.error(f"sending as {self._name}", self._gateways.tried)
        self._again_at = time.monotonic() + pause_s

    def _leave(self, stream: _Stream) -> None:
        self._stream = None
        self._gateways.leave(stream.gateway)

    def _receive(self, stream: _Stream, arrival: _Arrival) -> None:
        if stream is not self._stream:
            return
        if isinstance(arrival, pb.PublishStreamResponse):
            if arrival.draining and self._gateways.several:
                stream.left = True
            parcel = stream.parcels.pop(arrival.number, None)
            if parcel is not None:
                self._end(parcel)
                self._on_answer(parcel, arrival)
            return
        self._lose(stream, arrival)

    def _lose(self, stream: _Stream, error: Exception | None) -> None:
        """Go on without a stream that has ended, or raise why there is no going on."""
        self._stream = None
        stream.finish()  # for gRPC's thread that waits for requests
        parcels = list(stream.parcels.values())
        if isinstance(error, TubeMQError) and error.condition not in _LOST_SESSIONS:
            self._unsent.extendleft(reversed(parcels))
            raise error
        if error is not None and not isinstance(error, AwayError | TubeMQError):
            raise error
        away = error if isinstance(error, AwayError) else AwayError(error or "it ended the stream")
        may_be_stored = away.failure is None or away.failure.condition != "TUBEMQ_GATEWAY_DRAINING"
        self._note(stream.gateway, away)
        again = []
        for parcel in parcels:
            parcel.unanswered += may_be_stored
            parcel.attempts -= not may_be_stored
            parcel.number = 0
            if may_be_stored and not self._gateways.config.retry_ambiguous:
                self._fail(parcel, self._trouble)
            else:
                again.append(parcel)
        self._unsent.extendleft(reversed(again))

    def _fail_late(self) -> None:
        now = time.monotonic()
        while self._unsent and self._unsent[0].due_at <= now:
            self._fail(self._unsent.popleft(), self._trouble or "no gateway took it in time")
        stream = self._stream
        if stream is not None:
            late = [parcel for parcel in stream.parcels.values() if parcel.due_at + _GRACE_S <= now]
            for parcel in late:
                del stream.parcels[parcel.number]
                parcel.unanswered += 1
                self._fail(
                    parcel, f"the gateway {self._gateways.name(stream.gateway)} did not answer in time"
                )

    def _fail(self, parcel: Parcel, cause: str) -> None:
        self._end(parcel)
        self._on_failure(parcel, cause, parcel.unanswered > 0)

    def _end(self, parcel: Parcel) -> None:
        self.messages -= len(parcel.batch)
        self.bytes -= parcel.size


def _hand_over(
    stream: _Stream, arrivals: "queue.SimpleQueue[tuple[_Stream, _Arrival]]", wake: Callable[[], None]
) -> None:
    for answer in stream.answers():
        arrivals.put((stream, answer))
        wake()
