"""Sending through gateways, at least once, with the same receipts and errors as without.

**What is known of a message.**

- *accepted*: a gateway's producer took it; until the next flush it is in ``_unstored`` too;
- *stored*: a flush after it was answered; its receipt is in ``_stored``, or will be told by the open stream.

**When a gateway is lost**, what was accepted and not flushed may be stored or not. With ``retry_ambiguous``
it is all sent again through another gateway, flushed, and receipted as sent more than once; without, the
sender fails with the number of such messages. What a gateway refuses before it takes anything is simply tried
elsewhere.

**When a gateway drains**, it says so with an answer. The sender then has everything stored there and goes on
at another one, so nothing is sent twice.

A command and its answer take turns, so each error belongs to the call that caused it; a batch of messages
costs one round trip to the gateway. After so many bytes the sender flushes by itself, since it keeps what is
not stored.
"""

import dataclasses
import logging
import queue
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

import numpy as np

from tubemq_spark.client.remote.connections import AwayError, Gateways
from tubemq_spark.cluster.base import Sender
from tubemq_spark.errors import ProduceError, TubeMQConnectionError, TubeMQError
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.retry import SLEEP, Backoff, Wait
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, sends, values
from tubemq_spark.protocol.gateway.failures import from_proto
from tubemq_spark.protocol.send_batch import MESSAGE_REFUSALS, TOPIC_REFUSALS, OnRefused, SendBatch
from tubemq_spark.receipts import Receipt, merged

logger = logging.getLogger(__name__)

_PART_BYTES: Final = 3 << 20
"""How many bytes of bodies travel in one message of gRPC; a single longer body travels alone."""
_FLUSH_BYTES: Final = 32 << 20
"""After how many bytes the sender flushes by itself."""


class _Stream:
    """A publish stream at one gateway."""

    def __init__(self, gateways: Gateways, gateway: int, name: str) -> None:
        """Begin it.

        Raises:
            AwayError: the gateway is away, busy, or about to stop.
            TubeMQError: that of the gateway.
        """
        self.gateway = gateway
        self._gateways = gateways
        begin = pb.PublishStreamRequest.Begin(name=name)
        gateways.in_session(gateway, lambda: self._begin(pb.PublishStreamRequest(begin=begin)))

    def _begin(self, begin: pb.PublishStreamRequest) -> None:
        self._commands: queue.SimpleQueue[pb.PublishStreamRequest | None] = queue.SimpleQueue()
        self._call = self._gateways.stream(self.gateway, "PublishStream", iter(self._commands.get, None))
        try:
            self.ask(begin)
        except BaseException:
            self.break_off()
            raise

    def ask(self, command: pb.PublishStreamRequest) -> pb.PublishStreamResponse:
        """Return the answer to a command.

        Raises:
            AwayError: the gateway was lost, and what it did is unknown.
            TubeMQError: the gateway ended the stream.
        """
        self._commands.put(command)
        answer: pb.PublishStreamResponse | None = self._gateways.next_of(self._call)
        if answer is None:
            raise AwayError("it ended the stream")
        return answer

    def finish(self) -> pb.PublishStreamResponse:
        """Flush, and end the stream."""
        answer = self.ask(pb.PublishStreamRequest(finish=pb.PublishStreamRequest.Finish()))
        if not answer.HasField("error"):
            self._commands.put(None)
            self._gateways.next_of(self._call)
        return answer

    def break_off(self) -> None:
        """End the stream at once."""
        self._call.cancel()
        self._commands.put(None)


class RemoteSender(Sender):
    """A sender; for use by one thread, within a ``with`` block, whose end flushes it."""

    def __init__(self, gateways: Gateways, name: str = "", wait: Wait = SLEEP) -> None:
        self._gateways = gateways
        self._name = name
        self._wait = wait
        self._stream: _Stream | None = None
        self._unstored: list[SendBatch] = []
        self._unstored_bytes = 0
        self._flushed: list[Receipt] = []
        """What the open stream told when it was flushed last."""
        self._stored: list[Receipt] = []
        """What streams that are over have stored."""
        self._error: TubeMQError | None = None
        """Why this sender is of no use any more."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error_type is None and self._stream is not None:
                self._finish()
        finally:
            self._break_off()

    def send_batch(self, batch: SendBatch, on_refused: OnRefused | None = None) -> None:
        """Accept the messages of a batch; see ``Sender.send_batch``.

        A gateway that refuses a message has encoded those behind it in vain. So as many are tried at once as
        were accepted since the last refusal, and those to a topic that does not exist are not tried again.
        """
        self._check()
        unknown: dict[str, TubeMQError] = {}
        topics = batch.topics
        start, most = 0, len(batch)
        while start < len(batch):
            refusal = unknown.get(topics.value(start)) if unknown else None
            row = start
            if refusal is None:
                stop = _stop(batch, start, most, unknown)
                refusal = self._send(batch.part(start, stop))
                if refusal is None:
                    start, most = stop, 2 * most
                    continue
                row = start + (refusal.row or 0)
                most = 1
                if refusal.condition in TOPIC_REFUSALS:
                    unknown[topics.value(row)] = refusal
            refusal.row = row
            if on_refused is None or refusal.condition not in MESSAGE_REFUSALS:
                raise refusal
            on_refused(row, refusal)
            start = row + 1

    def flush(self) -> None:
        """Return when every accepted message is stored; see ``Sender.flush``."""
        self._check()
        if self._stream is None:
            return
        try:
            answer = self._stream.ask(pb.PublishStreamRequest(flush=pb.PublishStreamRequest.Flush()))
        except AwayError as error:
            self._recover(error)
            return
        self._raise_refusal(answer)
        self._flushed = values.receipts_from_proto(answer.receipts)
        self._forget_stored()
        self._leave_if_draining(answer)

    def receipts(self) -> list[Receipt]:
        """Return what each partition has acknowledged so far, in the partitions' order."""
        told = self._flushed
        if self._stream is not None and self._error is None:
            try:
                answer = self._stream.ask(pb.PublishStreamRequest(tell=pb.PublishStreamRequest.Tell()))
            except AwayError as error:
                self._recover(error)
                told = []
            else:
                self._raise_refusal(answer)
                told = values.receipts_from_proto(answer.receipts)
        return merged([*self._stored, *told])

    # One batch.

    def _send(self, part: SendBatch) -> TubeMQError | None:
        """Send messages up to the first one that is refused, and return why it is; ``row`` is its place.

        Raises:
            TubeMQError: what concerns all messages.
        """
        message = sends.to_proto(part)
        try:
            answer = self._opened().ask(pb.PublishStreamRequest(batch=message))
        except AwayError as error:
            self._keep(part)
            return self._recover(error, part)
        if answer.HasField("error"):
            refusal = from_proto(answer.error)
            self._keep(part.part(0, refusal.row or 0))
            if refusal.row is None:
                self._raise_refusal(answer)
            return refusal
        self._keep(part)
        if self._unstored_bytes >= _FLUSH_BYTES:
            self.flush()
        else:
            self._leave_if_draining(answer)
        return None

    def _keep(self, part: SendBatch) -> None:
        if len(part):
            self._unstored.append(part)
            self._unstored_bytes += _size(part)

    def _forget_stored(self) -> None:
        self._unstored.clear()
        self._unstored_bytes = 0

    # Streams.

    def _opened(self) -> _Stream:
        """Return the stream; begin one at the first gateway that takes it.

        Raises:
            TubeMQConnectionError: none does, for ``delivery_timeout_ms``.
        """
        if self._stream is None:
            self._stream = self._open(self._deadline())
        return self._stream

    def _open(self, deadline: Deadline) -> _Stream:
        backoff = Backoff(wait=self._wait)
        while True:
            gateway = self._gateways.current_index
            try:
                return _Stream(self._gateways, gateway, self._name)
            except AwayError as error:
                self._gateways.leave(gateway)
                if not backoff.wait(deadline):
                    raise self._away(error) from error

    def _recover(self, lost: AwayError, latest: SendBatch | None = None) -> TubeMQError | None:
        """Send again, after a gateway was lost, what may not be stored.

        ``latest`` is what was on its way to that gateway, of which the next one may refuse a message.

        Returns:
            Why a message of ``latest`` is refused, if one is; those before it are stored.

        Raises:
            ProduceError: it must not be sent again, or could not be stored.
            TubeMQConnectionError: no gateway takes it, for ``delivery_timeout_ms``.
        """
        deadline = self._deadline()
        while True:
            self._lose_stream()
            count = sum(map(len, self._unstored))
            if not count:
                return None
            if not self._gateways.config.retry_ambiguous:
                self._error = self._lost(lost, count)
                raise self._error from lost
            logger.warning(
                "a gateway was lost (%s); %d messages that may not be stored are sent again", lost, count
            )
            try:
                return self._send_again(self._open(deadline), latest)
            except AwayError as error:
                if deadline.expired:
                    self._error = self._lost(error, count)
                    raise self._error from error
                lost = error
            except TubeMQError as error:
                # What was accepted is not stored: a later flush must not say otherwise.
                self._error = error
                raise

    def _send_again(self, stream: _Stream, latest: SendBatch | None) -> TubeMQError | None:
        """Send everything that may not be stored through a stream of its own; see ``_recover``."""
        self._stream = stream
        refusal = None
        for part in self._unstored:
            answer = stream.ask(pb.PublishStreamRequest(batch=sends.to_proto(part)))
            if answer.HasField("error"):
                refusal = from_proto(answer.error)
                if part is not latest or refusal.row is None:
                    # A message that was accepted once: no row of the caller's batch is to blame.
                    refusal.row = None
                    self._error = refusal
                    raise refusal
        answer = stream.finish()
        self._stream = None
        self._raise_refusal(answer)
        for receipt in values.receipts_from_proto(answer.receipts):
            self._stored.append(
                dataclasses.replace(
                    receipt,
                    retried=receipt.count,
                    unanswered=receipt.unanswered + receipt.count,
                )
            )
        self._forget_stored()
        return refusal

    def _finish(self) -> None:
        """Flush, and end the stream."""
        self._check()
        if self._stream is None:
            return
        try:
            answer = self._stream.finish()
        except AwayError as error:
            self._recover(error)
            return
        self._raise_refusal(answer)
        self._stored += values.receipts_from_proto(answer.receipts)
        self._stream, self._flushed = None, []
        self._forget_stored()

    def _leave_if_draining(self, answer: pb.PublishStreamResponse) -> None:
        if answer.draining and self._stream is not None and self._gateways.several:
            gateway = self._stream.gateway
            self._finish()
            self._gateways.leave(gateway)

    def _lose_stream(self) -> None:
        if self._stream is not None:
            self._gateways.leave(self._stream.gateway)
        self._break_off()
        self._stored += self._flushed
        self._flushed = []

    def _break_off(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.break_off()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _raise_refusal(self, answer: pb.PublishStreamResponse) -> None:
        """Raise the error of an answer about all messages; it ends this sender."""
        if answer.HasField("error"):
            self._error = from_proto(answer.error)
            raise self._error

    def _deadline(self) -> Deadline:
        return Deadline.after_ms(self._gateways.config.delivery_timeout_ms)

    def _lost(self, lost: AwayError, count: int) -> ProduceError:
        return ProduceError(
            "TUBEMQ_GATEWAY_LOST", during=self._doing(), cause=str(lost).rstrip("."), unanswered=count
        )

    def _away(self, error: AwayError) -> TubeMQConnectionError:
        return TubeMQConnectionError(
            "TUBEMQ_GATEWAY_AWAY",
            during=self._doing(),
            tried=self._gateways.tried,
            cause=str(error).rstrip("."),
        )

    def _doing(self) -> str:
        return f"sending as {self._name}" if self._name else "sending"


def _size(batch: SendBatch) -> int:
    return int(batch.values.offsets[-1] - batch.values.offsets[0])


def _stop(batch: SendBatch, start: int, most: int, unknown: Mapping[str, TubeMQError]) -> int:
    """Return where a part of a batch ends that travels by itself."""
    ends = batch.values.offsets
    fitting = int(np.searchsorted(ends, ends[start] + _PART_BYTES, side="right")) - 1
    stop = min(max(fitting, start + 1), start + most, len(batch))
    if unknown:
        codes = [code for code, topic in enumerate(batch.topics.values) if topic in unknown]
        refused = np.flatnonzero(np.isin(batch.topics.codes[start:stop], codes))
        return start + int(refused[0]) if len(refused) else stop
    return stop
