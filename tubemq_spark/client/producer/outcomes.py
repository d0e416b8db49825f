"""What becomes of single messages, told to those who asked: where a message is stored, or why it is not.

**States of a message.** *Open* from the moment its batch is made; then *ended*, once: ``stored``, ``failed``
or ``abandon`` says how. A message without a callback is counted all the same, so that the end of its batch
is known.

**Who changes what.** One thread makes the outcomes of a batch and ends its messages: the one that drives the
send window. It also runs users' callbacks, without any lock; nothing that they raise gets through.
"""

import concurrent.futures
import itertools
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from tubemq_spark.errors import OptionError, ProduceError, TubeMQError
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.send_answers import Details
from tubemq_spark.protocol.send_batch import Int64s

logger = logging.getLogger(__name__)

_MOST_FAILURES: Final = 1_000
_RUNNING: Final = "RUNNING"
_FINISHED: Final = "FINISHED"
_FOR_WAITS: Final[Mapping[str, Callable[[], object]]] = {
    "_condition": threading.Condition,
    "_waiters": list,
    "_done_callbacks": list,
}
"""Attributes of the standard library's futures, and what makes them."""


class SendResult(NamedTuple):
    """What a broker told of a message that it has stored (SendMessageResponseB2P)."""

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


class RowOutcomes(Protocol):
    """Takes what becomes of the messages of a batch, by their rows."""

    def asked(self, row: int) -> bool:
        """Whether the outcome of an open message is asked for; its failure ends no other message then."""

    def stored(
        self,
        rows: Sequence[int],
        partitions: Sequence[TopicPartition],
        offsets: Int64s,
        details: Details | None,
        attempts: int,
        unanswered: int,
    ) -> None:
        """End messages that a broker has stored; all of them were sent equally often.

        ``partitions`` is one for each, or one for all.
        """

    def failed(self, row: int, error: TubeMQError) -> None:
        """End a message that will not be sent again, and whose outcome is asked for."""


class Outcomes:
    """The outcomes of the messages of one batch."""

    __slots__ = ("_left", "_on_end", "_tells", "first_row")

    def __init__(
        self, tells: Sequence[Tell | None], first_row: int, on_end: "Callable[[Outcomes], object]"
    ) -> None:
        """Begin with open messages.

        Args:
            tells: who is told of each message; None: no callback.
            first_row: the number of the first message among all of its sender.
            on_end: called when the last message has ended.
        """
        self.first_row = first_row
        self._tells = list(tells)
        self._left = len(tells)
        self._on_end = on_end

    @property
    def left(self) -> int:
        """How many messages are open."""
        return self._left

    def asked(self, row: int) -> bool:
        """Whether a callback waits for the outcome of an open message."""
        return self._tells[row] is not None

    def stored(
        self,
        rows: Sequence[int],
        partitions: Sequence[TopicPartition],
        offsets: Int64s,
        details: Details | None,
        attempts: int,
        unanswered: int,
    ) -> None:
        """End messages that a broker has stored; see ``RowOutcomes``."""
        nothing = itertools.repeat(0)
        ids, times = (column.tolist() for column in details) if details else (nothing, nothing)
        where = itertools.repeat(partitions[0]) if len(partitions) == 1 else partitions
        for row, partition, offset, message_id, time in zip(
            rows, where, offsets.tolist(), ids, times, strict=False
        ):
            if (tell := self._tells[row]) is not None:
                self._tells[row] = None
                result = SendResult(partition, offset, message_id or None, time or None, attempts, unanswered)
                tell_outcome(tell, result, None)
        self._end(len(rows))

    def failed(self, row: int, error: TubeMQError) -> None:
        """End a message that will not be sent again; it has a callback."""
        tell, self._tells[row] = self._tells[row], None
        if tell is not None:
            tell_outcome(tell, None, error)
        self._end(1)

    def refuse(self, row: int, error: TubeMQError) -> None:
        """End a message that cannot be sent, before any other; those behind it move up by one row."""
        tell = self._tells.pop(row)
        if tell is not None:
            tell_outcome(tell, None, error)
        self._end(1)

    def abandon(self, error_of: Callable[[int], TubeMQError]) -> None:
        """End all messages that are open; ``error_of`` takes the number of one."""
        tells, self._tells = self._tells, [None] * len(self._tells)
        for row, tell in enumerate(tells):
            if tell is not None:
                tell_outcome(tell, None, error_of(self.first_row + row))
        self._end(self._left)

    def _end(self, count: int) -> None:
        self._left -= count
        if count and not self._left:
            self._on_end(self)


def tell_outcome(tell: Tell, result: SendResult | None, error: TubeMQError | None) -> None:
    """Tell the outcome of one message; nothing that is raised gets through."""
    try:
        tell(result, error)
    except BaseException:
        # Also sys.exit(): the thread that runs callbacks serves the messages of everybody else.
        logger.warning("%r raised an error, which ends nothing", tell, exc_info=True)


def unplaceable(error: Exception) -> TubeMQError:
    """Return why no partition can be chosen for a message, whose choice raised an error."""
    if isinstance(error, TubeMQError):
        return error
    return OptionError("TUBEMQ_BAD_MESSAGE", what=f"no partition can be chosen for it ({error!r})")


class UnaskedFailures:
    """Failed messages whose senders have not asked what became of them; threads may share it.

    Only the first thousand are held, so that a sender that never asks does not fill the memory.
    """

    def __init__(self) -> None:
        self._errors: dict[object, TubeMQError] = {}

    def __len__(self) -> int:
        return len(self._errors)

    def add(self, future: object, error: TubeMQError) -> None:
        """Note the failure of a message."""
        if len(self._errors) < _MOST_FAILURES:
            self._errors[future] = error

    def discard(self, future: object) -> None:
        """Forget a message whose outcome was asked for."""
        self._errors.pop(future, None)

    def raise_first(self) -> None:
        """Return when there are none; otherwise forget all of them.

        Raises:
            TubeMQError: that of the first message.
        """
        errors, self._errors = self._errors, {}
        for error in errors.values():
            raise error


class SendFuture(concurrent.futures.Future[SendResult]):
    """Where a message is stored, once a broker has said so.

    It cannot be cancelled: the message was accepted. In a forked child, which hears of nothing, asking for an
    outcome that was not known before the fork raises an error instead of waiting forever.

    **Most are never waited for.** What a wait needs, a condition and two lists, costs more than all else that
    ``send`` does, so each is made when it is first looked for; two threads that look get the same one.
    ``tell`` sets ``_state`` before it looks for a condition, and others read it with the condition held: who
    has seen the message open has made the condition before, and is woken.

    They are in a dict of their own. The first two threads that ask Python 3.11 for an object's ``__dict__``
    at the same time may both make it, if garbage is collected just then, and free its values twice.
    """

    _state = _RUNNING
    _result: SendResult | None = None
    _exception: BaseException | None = None

    def __init__(
        self,
        unasked: UnaskedFailures,
        callback: Tell | None = None,
        in_callback: Callable[[], bool] = lambda: False,
    ) -> None:
        """``in_callback`` says whether the caller is the thread that tells outcomes."""
        # Not super().__init__(): that makes what a wait needs.
        self._for_waits: dict[str, Any] = {}
        self._process = os.getpid()
        self._in_callback = in_callback
        self._unasked = unasked
        self._callback = callback
        self._asked = callback is not None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (what the standard library says)
        """Make what a wait needs."""
        if name not in _FOR_WAITS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self._for_waits.setdefault(name, _FOR_WAITS[name]())

    def tell(self, result: SendResult | None, error: TubeMQError | None) -> None:
        """End with one of both, and call the callback."""
        if error is None:
            self._result = result
        else:
            self._exception = error
            if not self._asked:
                self._unasked.add(self, error)
        self._state = _FINISHED
        if self._for_waits:
            self._tell_who_waits()
        if self._callback is not None:
            self._callback(result, error)

    def _tell_who_waits(self) -> None:
        with self._condition:
            for waiter in self._waiters:
                (waiter.add_result if self._exception is None else waiter.add_exception)(self)
            self._condition.notify_all()
        self._invoke_callbacks()

    def result(self, timeout: float | None = None) -> SendResult:
        """Return where the message is stored; wait for that.

        Raises:
            ProduceError: no broker has confirmed that it is stored; ``may_be_stored`` says whether it may be.
                Or a callback calls this before the outcome is known.
            TimeoutError: its outcome is not known after ``timeout`` seconds.
        """
        self._ask()
        self._refuse_in_callback("result")
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error that the message met, or None; wait for that as ``result`` does."""
        self._ask()
        self._refuse_in_callback("exception")
        return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[SendResult]], object]) -> None:
        """Call a function when the outcome is known, as futures do."""
        self._ask()
        super().add_done_callback(fn)

    def _refuse_in_callback(self, method: str) -> None:
        if not self.done() and self._in_callback():
            raise ProduceError("TUBEMQ_PRODUCER_IN_CALLBACK", method=method)

    def _ask(self) -> None:
        process = os.getpid()
        if process != self._process and not self.done():
            raise ProduceError("TUBEMQ_PRODUCER_FORKED", owner=self._process, process=process)
        self._asked = True
        self._unasked.discard(self)
