"""The blocking face of a pipeline for one thread: what the sink sends with, directly and through gateways."""

import logging
import os
from collections.abc import Coroutine
from threading import current_thread, get_ident
from typing import Any, Final, Self

from tubemq_spark.client.producer.outgoing import outgoing_batch, refused_message
from tubemq_spark.client.producer.pipeline import Pipeline
from tubemq_spark.client.producer.statistics import ProducerStatistics
from tubemq_spark.client.registry import abandon_in_child, process_registry
from tubemq_spark.errors import ProduceError, TubeMQError
from tubemq_spark.net import loop
from tubemq_spark.protocol.send_batch import MESSAGE_REFUSALS, OnRefused, SendBatch
from tubemq_spark.receipts import Receipt, summarise

_NO_THREAD: Final = 0

logger = logging.getLogger(__name__)


class BatchSender:
    """Sends batches of messages to any number of topics; belongs to the thread that first uses it.

    **At least once.** ``send_batch`` accepts messages and returns; ``flush`` returns when brokers have stored
    all accepted messages. A message whose broker is full, stopped, unreachable or silent is sent again
    until ``delivery_timeout_ms`` have passed (without key or partition, to the next partition). When the
    answer to a message was lost, the message may be stored twice: TubeMQ cannot recognise a repetition.
    ``send_batch`` waits as long for a master, and for a topic none of whose partitions can be published to.

    **Order.** A partition holds this sender's messages in the order of sending, except that a message
    that had to be sent again may come after later ones. With ``keep_order`` that is not so for messages with
    a key or a named partition: a partition has one of them under way at a time.

    **First error wins.** When an accepted message cannot be stored, ``send_batch`` and ``flush`` raise that
    error from then on, and nothing more is sent. So it is after an interrupt. A message that is refused (too
    long, no such topic) was not accepted and does no harm to the others.

    **In the process's loop.** Messages move there, also between calls. Another thread than the first is
    refused, and so is a forked child.

    As a context manager it flushes and closes; when the block fails, it closes at once.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        """Reach no server; own a pipeline of the process's loop, whose partitioner is not a user's object."""
        self._pipeline = pipeline
        self._closed = False
        self._has_all_stored = False
        """Whether it was closed, and had nothing under way then."""
        self._process = os.getpid()
        self._thread = _NO_THREAD
        self._thread_name = ""
        abandon_in_child(self)
        process_registry().enter(self, "batch sender")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        try:
            if error_type is None:
                self.flush()
        finally:
            self.close()

    @property
    def client_id(self) -> str:
        """The name under which servers know this sender."""
        return self._pipeline.client_id

    @property
    def retried(self) -> int:
        """How often a message was sent again; 0 means that nothing can be stored twice."""
        return self.statistics().retries

    @property
    def unacknowledged(self) -> int:
        """How many accepted messages no broker has acknowledged."""
        return self._pipeline.unacknowledged

    def send_batch(self, batch: SendBatch, on_refused: OnRefused | None = None) -> None:
        """Accept the messages of a batch, in order; wait while as many are under way as the window holds."""
        self._enter()
        outgoing, unwritable = outgoing_batch(batch, checksums=self._pipeline.config.checksums)
        outgoing.refused = {
            row: refused_message(error, outgoing.describe(row, self._pipeline.log.sender))
            for row, error in unwritable.items()
        }
        refused: list[tuple[int, TubeMQError]] = []

        def refuse(row: int, error: TubeMQError) -> None:
            error.row = row
            if on_refused is None or error.condition not in MESSAGE_REFUSALS:
                raise error
            refused.append((row, error))

        try:
            self._run(self._pipeline.accept(outgoing, 0, len(outgoing), refuse))
        finally:
            if on_refused is not None:
                for row, error in refused:
                    error.row = row  # several messages may share it
                    on_refused(row, error)

    def flush(self) -> None:
        """Wait until every accepted message is stored."""
        if not self._has_all_stored:
            self._enter()
            self._run(self._pipeline.flush())

    def receipts(self) -> list[Receipt]:
        """Return what each partition has acknowledged so far; complete after ``flush``."""
        return self._pipeline.receipts()

    def statistics(self) -> ProducerStatistics:
        """Return what was sent and answered so far, and how long that took, as values that do not change."""
        return self._pipeline.statistics()

    def pause(self) -> None:
        """End a piece of work that was flushed; registration and connections stay for ``resume``."""
        if receipts := self.receipts():
            self._pipeline.log.summary(f"{summarise(receipts)}; {self.statistics()}")
        self._thread = _NO_THREAD

    def resume(self, name: str = "") -> None:
        """Begin the next piece of work under a name, with receipts and counts of its own; after ``pause``."""

        async def begin() -> None:
            self._pipeline.begin(name)

        loop.run(begin())

    def abandon(self) -> None:
        """Drop the connections without closing them: in a forked child they belong to the parent."""
        self._closed = True
        self._pipeline.abandon(
            ProduceError("TUBEMQ_PRODUCER_FORKED", owner=self._process, process=os.getpid())
        )

    def close(self) -> None:
        """Close the connections and leave the servers; messages not acknowledged are abandoned.

        Call ``flush`` first, or use the sender as a context manager, to have them stored.
        """
        if self._closed:
            return
        self._closed = True
        if self._pipeline.error is None:
            self._has_all_stored = not self.unacknowledged
            if self.unacknowledged:
                logger.warning(
                    "producer %s closed with %d messages not acknowledged; some of them may be stored",
                    self.client_id,
                    self.unacknowledged,
                )
        loop.run(self.aclose())

    async def aclose(self) -> None:
        """Close a sender that has nothing under way, in the process's loop."""
        self._closed = True
        process_registry().leave(self)
        await self._pipeline.close()

    def _run(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Wait for a coroutine in the process's loop; what interrupts that breaks the sender for good."""
        try:
            loop.run(coroutine)
        except TubeMQError:
            raise
        except BaseException as error:
            loop.call_soon(self._pipeline.break_off, error)
            raise

    def _enter(self) -> None:
        """Check that the sender is open, and that it is the first thread that used it which calls."""
        if self._pipeline.error is not None:
            raise self._pipeline.error
        if self._closed:
            raise ProduceError("TUBEMQ_PRODUCER_CLOSED", unacknowledged=self.unacknowledged)
        if self._thread == _NO_THREAD:
            self._thread, self._thread_name = get_ident(), current_thread().name
        elif self._thread != get_ident():
            raise ProduceError(
                "TUBEMQ_PRODUCER_THREAD", owner=self._thread_name, caller=current_thread().name
            )
