"""Sending through gateways, at least once, with the same receipts and errors as without.

A batch is checked before it is sent: what no gateway would take is refused at once, by its row. What is
sent is a parcel of ``PublishWindow``, and its answer, which comes later, is about what was accepted. So the
first message that cannot be stored after all ends the sender, as it ends one without gateways.
"""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

import numpy as np

from tubemq_spark.client.producer.outgoing import outgoing_batch, refused_message, unwritable_rows
from tubemq_spark.client.remote.connections import Gateways
from tubemq_spark.client.remote.producing import RemotePlaces, receipts_of
from tubemq_spark.client.remote.publish_window import Parcel, PublishWindow
from tubemq_spark.cluster.base import Sender
from tubemq_spark.errors import ProduceError, TubeMQConnectionError, TubeMQError
from tubemq_spark.net.retry import SLEEP, Wait
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, sends
from tubemq_spark.protocol.gateway.failures import from_proto
from tubemq_spark.protocol.send_batch import MESSAGE_REFUSALS, Coded, OnRefused, SendBatch
from tubemq_spark.receipts import Receipt, describe_message, merged

_LOOK_S: Final = 1.0


class RemoteSender(Sender):
    """A sender; for use by one thread, within a ``with`` block, whose end flushes it."""

    def __init__(self, gateways: Gateways, name: str = "", wait: Wait = SLEEP) -> None:
        self._gateways = gateways
        self._places = RemotePlaces(gateways, name, wait)
        self._name = self._places.log.sender
        self._most_bytes = gateways.config.max_in_flight_bytes
        self._delivery_s = gateways.config.delivery_timeout_ms / 1000
        self._window = PublishWindow(gateways, self._name, self._answered, self._failed)
        self._receipts: list[Receipt] = []
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
            if error_type is None:
                self.flush()
        finally:
            self._window.close()

    def send_batch(self, batch: SendBatch, on_refused: OnRefused | None = None) -> None:
        """Accept the messages of a batch; see ``Sender.send_batch``."""
        self._check()
        start = 0
        for row, refusal in sorted(self._refused(batch).items()):
            self._send(batch, start, row)
            refusal.row = row
            if on_refused is None or refusal.condition not in MESSAGE_REFUSALS:
                raise refusal
            on_refused(row, refusal)
            start = row + 1
        self._send(batch, start, len(batch))

    def flush(self) -> None:
        """Return when every accepted message is stored; see ``Sender.flush``."""
        self._check()
        while self._window.messages:
            self._work(wait=True)

    def receipts(self) -> list[Receipt]:
        """Return what each partition has acknowledged so far, in the partitions' order."""
        return self._receipts

    # One batch.

    def _send(self, batch: SendBatch, start: int, stop: int) -> None:
        """Send some messages that follow one another; wait while there is no room for them."""
        for first, after in sends.parts(batch, start, stop):
            parcel = Parcel(batch.part(first, after), time.monotonic() + self._delivery_s)
            while self._window.messages and self._window.bytes + parcel.size > self._most_bytes:
                self._work(wait=True)
            self._window.add(parcel)
            self._work(wait=False)

    def _refused(self, batch: SendBatch) -> dict[int, TubeMQError]:
        """Return why messages cannot be sent, by their rows; those that share a reason share an object."""
        refused: dict[int, TubeMQError] = {}
        topics = batch.topics
        for code, topic in enumerate(topics.values):
            if (refusal := self._refusal(topic, None)) is not None:
                refused.update(dict.fromkeys(np.flatnonzero(topics.codes == code).tolist(), refusal))
        if batch.partitions is not None:
            refused |= self._misplaced(topics, batch.partitions, refused)
        unwritable, lengths = unwritable_rows(batch)
        for row, error in unwritable.items():
            refused[row] = refused_message(error, self._describe(batch, row))
        limits = np.array([self._places.limit(topic) for topic in topics.values])
        for row in np.flatnonzero(lengths > limits[topics.codes]).tolist():
            if row not in refused and (too_long := self._excess(batch, row)) is not None:
                refused[row] = too_long
        return refused

    def _excess(self, batch: SendBatch, row: int) -> TubeMQError | None:
        """Return why a message is too long, if it is."""
        message, _ = outgoing_batch(batch.part(row, row + 1))
        topic = self._places.topic(batch.topics.value(row))
        excess = topic.excess(message.prefix(0), message.size(0))
        return None if excess is None else topic.too_long(excess, self._describe(batch, row))

    def _describe(self, batch: SendBatch, row: int) -> str:
        return describe_message(batch.first_row + row, self._name, batch.values.value(row) or b"")

    def _misplaced(
        self,
        topics: Coded[str],
        partitions: Coded[tuple[int, int] | None],
        refused: Mapping[int, TubeMQError],
    ) -> dict[int, TubeMQError]:
        """Return why messages cannot be sent whose partition is named."""
        misplaced: dict[int, TubeMQError] = {}
        pairs = np.stack((topics.codes, partitions.codes), axis=1)
        for topic, code in np.unique(pairs, axis=0).tolist():
            place = partitions.values[code]
            rows = np.flatnonzero((pairs == (topic, code)).all(axis=1)).tolist()
            if place is not None and rows[0] not in refused:
                refusal = self._refusal(topics.values[topic], place)
                if refusal is not None:
                    misplaced.update(dict.fromkeys(rows, refusal))
        return misplaced

    def _refusal(self, topic: str, partition: tuple[int, int] | None) -> TubeMQError | None:
        """Return why messages to a topic, or to one of its partitions, are refused; ask a gateway once."""
        if self._places.place_now(topic, partition) is None:
            try:
                self._places.place(topic, partition)
            except TubeMQError as error:
                if error.condition in MESSAGE_REFUSALS:
                    return error
                raise
        return None

    # Answers.

    def _work(self, *, wait: bool) -> None:
        """Take what has come; the first error of what was accepted ends this sender."""
        try:
            if wait:
                self._window.wait(_LOOK_S)
            else:
                self._window.work()
        except TubeMQError as error:
            self._error = self._error or error
        self._check()

    def _answered(self, parcel: Parcel, answer: pb.PublishStreamResponse) -> None:
        self._receipts = merged([*self._receipts, *receipts_of(answer, parcel)])
        for failure in answer.failures:
            # A message that was accepted: no row of the caller's batch is to blame.
            self._error = self._error or from_proto(failure.error)

    def _failed(self, parcel: Parcel, cause: str, may_be_stored: bool) -> None:
        if self._error is not None:
            return
        during = f"sending as {self._name}"
        if may_be_stored:
            self._error = ProduceError(
                "TUBEMQ_GATEWAY_LOST", during=during, cause=cause, unanswered=len(parcel.batch)
            )
        else:
            self._error = TubeMQConnectionError(
                "TUBEMQ_GATEWAY_AWAY", during=during, tried=self._gateways.tried, cause=cause
            )

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
