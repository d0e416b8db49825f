"""What becomes of the messages of a batch, by columns, and futures of single messages, which are views of it.

**States of a message.** *Open* from its acceptance on, and *ended*, once, when its batch's outcome says so. A
future has no outcome before its message stands in a batch. It looks there for all that it says.

**Who changes what.** The thread of the event loop gives futures their batch (``follow``) and ends messages.
Then it wakes threads that wait, and hands what the user wants called to ``run_user_code``. Other threads
register with a future first, and look at its state afterwards; the loop does the opposite.
"""

import asyncio
import concurrent.futures
import contextvars
import dataclasses
import functools
import itertools
import logging
import os
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

import numpy as np

from tubemq_spark.client.names.guesses import answers_attributes, missing_attribute
from tubemq_spark.client.producer.outgoing import OutgoingBatch
from tubemq_spark.client.producer.partitioner import RunUserCode
from tubemq_spark.errors import ProduceError, TubeMQError
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.send_batch import Int64s
from tubemq_spark.protocol.send_connection import Details
from tubemq_spark.receipts import CHECKSUM_MODULUS, Receipt

logger = logging.getLogger(__name__)

_NOWHERE: Final = -1
_MOST_FAILURES: Final = 1_000
_FOR_WAITS: Final[Mapping[str, Callable[[], object]]] = {
    "_condition": threading.Condition,
    "_waiters": list,
    "_done_callbacks": list,
}
"""Attributes of the standard library's futures, and what makes them."""
_ACCEPTED: Final = "The message was accepted: it is sent all the same, and may be stored."


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class StoredColumns:
    """Where the messages of a batch are, a row for each; what is not stored has the place -1."""

    partitions: tuple[TopicPartition, ...]
    places: Int64s
    """The place of each message's partition in ``partitions``."""
    offsets: Int64s
    message_ids: Int64s
    """As brokers made them; 0 where they did not tell, or were not asked."""
    append_times: Int64s
    """The same; milliseconds since 1970."""
    attempts: Int64s
    """How often each was sent."""
    unanswered: Int64s
    """How many of the attempts had no answer that says whether the message was stored."""


class BatchOutcome:
    """The outcome of each message of a batch, filled in by the thread of the loop; any thread may read it.

    **States of a message.** *Open* until it is stored, or has an error; then it has *ended*, and that never
    changes. Its place, or its error, is set after all else that is known of it, and before ``on_rows`` is
    called: other threads that see it ended see all of it. When none is open, ``on_end`` is called.

    **Who is told.** ``on_rows`` is called for each message that fails. For those that are stored it is called
    only if ``watched``: most are never waited for. Who wants to know sets that, in any thread, and then looks
    whether the message has ended.
    """

    def __init__(
        self,
        count: int,
        on_end: "Callable[[BatchOutcome], object]",
        refused: Mapping[int, TubeMQError] | None = None,
    ) -> None:
        """Begin with ``count`` open messages, but for those that were refused, by their rows."""
        self.errors: dict[int, TubeMQError] = dict(refused or {})
        """Why messages are not stored, by their rows; those with one reason share an object."""
        self.on_rows: Callable[[Sequence[int]], object] | None = None
        """Takes the rows of messages that have ended; dropped at the end."""
        self.watched = False
        """Whether ``on_rows`` is called for messages that are stored."""
        self.left = count - len(self.errors)
        """How many messages are open."""
        self._on_end = on_end
        self._codes: dict[TopicPartition, int] = {}
        self._partitions: list[TopicPartition] = []
        # Two arrays, since most batches of single messages are small.
        self._places = np.full((2, count), _NOWHERE, np.int64)
        """The places of partitions, and the offsets."""
        self._counts = np.zeros((4, count), np.int64)
        """Ids, append times, attempts and unanswered attempts."""

    def has_ended(self, row: int) -> bool:
        """Whether a message has ended; for any thread."""
        return bool(self._places[0, row] >= 0) or row in self.errors

    def stored(
        self,
        rows: Sequence[int],
        partitions: Sequence[TopicPartition],
        offsets: Int64s,
        details: Details | None,
        attempts: int,
        unanswered: int,
    ) -> None:
        """End messages that a broker has stored; ``partitions`` is one for each, or one for all."""
        # A list, since a tuple would be one index of several dimensions.
        where = slice(rows.start, rows.stop) if isinstance(rows, range) else list(rows)
        counts = self._counts
        if details is not None:
            counts[0, where], counts[1, where] = details
        counts[2, where] = attempts
        if unanswered:
            counts[3, where] = unanswered
        self._places[1, where] = offsets
        self._places[0, where] = [self._code(partition) for partition in partitions]
        if self.watched and self.on_rows is not None:
            self.on_rows(rows)
        self._end(len(rows))

    def failed(self, row: int, error: TubeMQError) -> None:
        """End a message with an error; it says whether the message may be stored all the same."""
        self.errors[row] = error
        if self.on_rows is not None:
            self.on_rows((row,))
        self._end(1)

    def abandon(self, error_of: Callable[[int], TubeMQError]) -> None:
        """End all messages that are open; ``error_of`` takes the row of one."""
        for row in np.flatnonzero(self._places[0] < 0).tolist():
            if row not in self.errors:
                self.failed(row, error_of(row))

    def begin(self) -> None:
        """Call ``on_end`` if no message was open from the start."""
        if not self.left:
            self._on_end(self)

    def where(self, row: int) -> tuple[TopicPartition, int, int | None, int | None, int, int]:
        """Return what a broker told of a message that is stored, as ``SendResult`` takes it."""
        place, offset = self._places[:, row].tolist()
        message_id, append_time, attempts, unanswered = self._counts[:, row].tolist()
        return self._partitions[place], offset, message_id or None, append_time or None, attempts, unanswered

    def columns(self) -> StoredColumns:
        """Return where the messages are."""
        return StoredColumns(tuple(self._partitions), *self._places, *self._counts)

    def receipts(self, batch: OutgoingBatch) -> list[Receipt]:
        """Return what each partition has acknowledged of the batch, in the partitions' order."""
        places, sizes = self._places[0], np.diff(batch.payloads.values.offsets)
        order = np.argsort(places, kind="stable")
        ends = np.searchsorted(places, np.arange(len(self._partitions) + 1), sorter=order).tolist()
        of_partition = zip(self._partitions, itertools.pairwise(ends), strict=True)
        receipts = [self._receipt(batch, sizes, one, order[slice(*rows)]) for one, rows in of_partition]
        return sorted(receipts, key=lambda receipt: receipt.partition)

    def _receipt(
        self, batch: OutgoingBatch, sizes: Int64s, partition: TopicPartition, rows: Int64s
    ) -> Receipt:
        offsets, again = self._places[1, rows], self._counts[2, rows] > 1
        checksum = batch.checksum_of(rows.tolist())
        return Receipt(
            partition,
            len(rows),
            int(offsets.min()),
            int(offsets.max()),
            int(again.sum()),
            int(self._counts[3, rows][again].sum()),
            int(sizes[rows].sum()),
            None if checksum is None else checksum % CHECKSUM_MODULUS,
        )

    def _code(self, partition: TopicPartition) -> int:
        code = self._codes.setdefault(partition, len(self._partitions))
        if code == len(self._partitions):
            self._partitions.append(partition)
        return code

    def _end(self, count: int) -> None:
        self.left -= count
        if count and not self.left:
            # It holds all futures of the batch, each of which holds this object.
            self.on_rows = None
            self._on_end(self)


@answers_attributes
class SendResult(NamedTuple):
    """What a broker told of a message that it has stored (SendMessageResponseB2P).

    For example:

        result = producer.send("clicks", b"home").result()
        print(result.partition, result.offset, result.may_be_repeated)
    """

    partition: TopicPartition
    """Where it is."""
    offset: int
    """Where it begins in its store's index, in bytes: readers find it under this offset."""
    message_id: int | None
    """The id that the broker gave it; None when it told none."""
    append_time_ms: int | None
    """When the broker took it, in milliseconds since 1970 by the broker's clock; None when it told none."""
    attempts: int
    """How often it was sent."""
    unanswered: int
    """How many of the attempts had no answer that says whether the message was stored."""

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.partition.topic

    @property
    def may_be_repeated(self) -> bool:
        """Whether there may be more copies of it than this one, in this partition or in another."""
        return self.unanswered > 0


Tell = Callable[[SendResult | None, TubeMQError | None], object]
"""Takes the result of a message, or the error that it met; the other one is None."""


class SharedByFutures:
    """What all futures of a producer have in common; threads may share it."""

    def __init__(
        self,
        waits_for_itself: Callable[[], bool] = lambda: False,
        start_callbacks: Callable[[], object] = lambda: None,
    ) -> None:
        """``waits_for_itself`` tells whether messages may wait for what the caller does.

        ``start_callbacks`` starts what calls functions of the user, or raises that this is not possible.
        """
        self.process = os.getpid()
        self.unasked: dict[object, TubeMQError] = {}
        """The errors of messages whose futures were not asked, which ``flush`` raises.

        Only the first thousand are held, so that a sender that never asks does not fill the memory.
        """
        self.waits_for_itself = waits_for_itself
        self.start_callbacks = start_callbacks

    def add_failure(self, future: object, error: TubeMQError) -> None:
        """Note the failure of a message."""
        if len(self.unasked) < _MOST_FAILURES:
            self.unasked[future] = error

    def raise_first_failure(self) -> None:
        """Raise the error of the first message, if there is one, and forget all."""
        errors, self.unasked = self.unasked, {}
        for error in errors.values():
            raise error


class SendFuture(concurrent.futures.Future[SendResult]):
    """Where a message is stored, once a broker has said so.

    It cannot be cancelled: the message was accepted. In a forked child, which hears of nothing, asking for an
    outcome that was not known before the fork raises an error instead of waiting forever.

    **Most are never waited for.** What a wait needs, a condition and two lists, costs more than all else that
    ``send`` does, so each is made when it is first looked for; two threads that look get the same one.

    They are in a dict of their own. The first two threads that ask Python 3.11 for an object's ``__dict__``
    at the same time may both make it, if garbage is collected just then, and free its values twice.

        future = producer.send("clicks", b"home")
        future.add_done_callback(lambda future: print(future.exception()))
        result = future.result(timeout=10)
        assert future.done()
    """

    _batch: BatchOutcome | None = None
    _row = 0
    _asked = False

    def __init__(self, shared: SharedByFutures, callback: Tell | None = None) -> None:
        # Not super().__init__(): that makes what a wait needs.
        self._for_waits: dict[str, Any] = {}
        self._shared = shared
        self._callback = callback

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (what the standard library says)
        """Return what the standard library keeps in a future; make what a wait needs."""
        if name in _FOR_WAITS:
            part = self._for_waits.setdefault(name, _FOR_WAITS[name]())
            if self._batch is not None:
                self._batch.watched = True
            return part
        if name == "_state":
            return "FINISHED" if self.done() else "RUNNING"
        if name == "_result":
            return self._result_now()
        if name == "_exception":
            return self._error()
        raise missing_attribute(self, name)

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._batch is not None and self._batch.has_ended(self._row)

    def result(self, timeout: float | None = None) -> SendResult:
        """Return where the message is stored; wait for that.

        Raises:
            ProduceError: no broker has confirmed that it is stored; ``may_be_stored`` says whether it may be.
                Or the outcome is not known, and a callback of a producer with a partitioner of the user
                calls this: both are called in one thread.
            TimeoutError: its outcome is not known after ``timeout`` seconds.
        """
        self._ask()
        if not self.done():
            self._wait("result", timeout)
        result = self._result_now()
        if result is not None:
            return result
        try:
            return super().result(0)
        finally:
            del self  # the error's traceback would hold this frame

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error that the message met, or None; wait for that as ``result`` does."""
        self._ask()
        if not self.done():
            self._wait("exception", timeout)
        return self._error()

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[SendResult]], object]) -> None:
        """Call a function when the outcome is known, as futures do."""
        self._ask()
        if not self.done():
            self._shared.start_callbacks()
        super().add_done_callback(fn)

    def _wait(self, method: str, timeout: float | None) -> None:
        if self._shared.waits_for_itself():
            raise ProduceError("TUBEMQ_PRODUCER_IN_CALLBACK", method=method)
        super().exception(timeout)

    def _ask(self) -> None:
        shared = self._shared
        if (process := os.getpid()) != shared.process and not self.done():
            raise ProduceError("TUBEMQ_PRODUCER_FORKED", owner=shared.process, process=process)
        self._asked = True
        shared.unasked.pop(self, None)

    def _error(self) -> TubeMQError | None:
        return None if self._batch is None else self._batch.errors.get(self._row)

    def _result_now(self) -> SendResult | None:
        """Return where a message that has ended is, unless it has failed."""
        if self._batch is None or self._row in self._batch.errors:
            return None
        return SendResult(*self._batch.where(self._row))

    # What follows is for ``follow``.

    def _begin(self, batch: BatchOutcome, row: int) -> None:
        self._row = row
        self._batch = batch  # from now on other threads look there
        if self._for_waits or self._callback is not None:
            batch.watched = True

    def _end(self) -> bool:
        """Tell threads that wait; return whether functions of the user are to be called."""
        error = self._error()
        if error is not None:
            self._shared.add_failure(self, error)
            if self._asked or self._callback is not None:  # looked at afterwards, as ``_ask`` forgets it last
                self._shared.unasked.pop(self, None)
        if self._for_waits:
            with self._condition:
                for waiter in self._waiters:
                    (waiter.add_result if error is None else waiter.add_exception)(self)
                self._condition.notify_all()
        return self._callback is not None or bool(self._for_waits.get("_done_callbacks"))

    def _call(self) -> None:
        """Call the functions of the user."""
        error = self._error()
        for function in self._for_waits.get("_done_callbacks", ()):
            _call(function, self)
        if self._callback is not None:
            _call(self._callback, self._result_now(), error)


@answers_attributes
class AsyncSendFuture(asyncio.Future[SendResult]):
    """Where a message is stored, once a broker has said so; belongs to the event loop that runs.

        future = await producer.send("clicks", b"home")
        result = await future

    It has the same calls as ``SendFuture``.
    """

    _batch: BatchOutcome
    _row: int

    def __init__(self, shared: SharedByFutures) -> None:
        super().__init__()
        self._shared = shared
        self._asked = False

    def result(self) -> SendResult:
        """Return where the message is stored, or raise the error that it met."""
        self._ask()
        return super().result()

    def exception(self) -> BaseException | None:
        """Return the error that the message met, or None."""
        self._ask()
        return super().exception()

    def add_done_callback(
        self, fn: Callable[[Self], object], /, *, context: contextvars.Context | None = None
    ) -> None:
        """Call a function when the outcome is known, as futures do; awaiting does this, too."""
        self._ask()
        super().add_done_callback(fn, context=context)

    def __await__(self) -> Generator[Any, None, SendResult]:
        """Wait for the outcome."""
        self._ask()
        try:
            return (yield from super().__await__())
        except asyncio.CancelledError as error:
            error.add_note(_ACCEPTED)
            raise

    def _ask(self) -> None:
        self._asked = True
        self._shared.unasked.pop(self, None)

    def _begin(self, batch: BatchOutcome, row: int) -> None:
        self._batch, self._row = batch, row
        batch.watched = True

    def _end(self) -> bool:
        if self.done():
            return False  # cancelled
        error = self._batch.errors.get(self._row)
        if error is None:
            self.set_result(SendResult(*self._batch.where(self._row)))
            return False
        if not self._asked:
            self._shared.add_failure(self, error)
        self.set_exception(error)
        return False

    def _call(self) -> None:
        """Do nothing: the event loop calls what was added."""


def _call(function: Callable[..., object], *arguments: object) -> None:
    try:
        function(*arguments)
    except BaseException:
        # Also sys.exit(): the thread that runs callbacks serves the messages of all others.
        logger.warning("%r raised an error, which ends nothing", function, exc_info=True)


MessageFuture = SendFuture | AsyncSendFuture


def follow(batch: BatchOutcome, futures: Sequence[MessageFuture], run_user_code: RunUserCode) -> None:
    """Make futures, one for each row, tell what becomes of the messages of a batch."""
    for row, future in enumerate(futures):
        future._begin(batch, row)  # noqa: SLF001 (of this module)
    batch.on_rows = functools.partial(_tell_rows, futures, run_user_code)


def _tell_rows(futures: Sequence[MessageFuture], run_user_code: RunUserCode, rows: Sequence[int]) -> None:
    called = [future for row in rows if (future := futures[row])._end()]  # noqa: SLF001
    if called:
        run_user_code(functools.partial(_call_all, called))


def _call_all(futures: Sequence[MessageFuture]) -> None:
    for future in futures:
        future._call()  # noqa: SLF001
