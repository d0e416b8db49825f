"""Numbered rows that are written while a test does something to the servers, and found again afterwards.

A producer is given rows 0, 1, 2 and so on. Afterwards the topic is read to its end: each row that the
producer accepted must be there, and there may be no more copies than its receipts tell of.
"""

import collections
import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Self

from integration_tests.real.processes import wait_until
from testkit.connections import opened_connections
from testkit.message_sender import MessageSender
from tubemq_spark.client import ClientConfig, Producer, Receipt, Record, SendResult, TubeMQClient
from tubemq_spark.errors import ProduceError, TubeMQError

GRACE_S: Final = 10.0
"""How much longer than its time-out a call may take on a machine that has other things to do."""
_PATIENCE_S: Final = 120.0
_ROWS_PER_BURST: Final = 100
_PAUSE_S: Final = 0.002
"""Some ten thousand rows a second at most: some are always under way, and all can be read back soon."""


@dataclasses.dataclass(frozen=True)
class Found:
    """What was found in a topic."""

    rows: int
    """How many different ones."""
    extra: int
    """How many copies besides."""
    told: int
    """How many of those the receipts allow for."""


class Writing:
    """A producer with a thread of its own, which writes rows until it is told to stop; a context manager.

    Its thread alone changes what is public here, except for ``topic``.
    """

    def __init__(
        self,
        config: ClientConfig,
        topic: str,
        *,
        partitions: Sequence[tuple[int, int]] = (),
        size: int = 200,
        pause_s: float = _PAUSE_S,
        message_time: str | None = "202402291234",
    ) -> None:
        """Write from now on, to these ``partitions`` in turn, or to any."""
        self.topic = topic
        """Where rows go from now on; it may be changed."""
        self.accepted = 0
        """How many rows the producer has accepted."""
        self.error: TubeMQError | None = None
        """What ``send`` or the last ``flush`` raised."""
        self.later: list[TubeMQError | None] = []
        """What ``flush`` raised after an error, or None; if it did, then what ``send`` and ``flush`` did."""
        self.receipts: list[Receipt] = []
        self.retried = 0
        self.longest_call_s = 0.0
        """The longest time that one call of the producer took."""
        self._config = config
        self._partitions = itertools.cycle(partitions or (None,))
        self._size = size
        self._pause_s = pause_s
        self._message_time = message_time
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writing", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(_PATIENCE_S)

    @property
    def delivery_s(self) -> float:
        """How long the producer may try to deliver a row."""
        return self._config.delivery_timeout_ms / 1000

    def await_rows(self, count: int) -> None:
        """Wait until so many more rows were accepted."""
        wanted = self.accepted + count
        wait_until(
            lambda: self.accepted >= wanted or not self._thread.is_alive(),
            timeout_s=_PATIENCE_S,
            what=f"{count} rows to be accepted",
            poll_s=0.01,
        )
        assert self.accepted >= wanted, f"the producer ended after {self.accepted} rows: {self.error}"

    def await_error(self) -> TubeMQError:
        """Wait until the producer fails, which takes no longer than its delivery time-out."""
        self._thread.join(self.delivery_s + GRACE_S)
        assert self.error is not None, f"no error after {self.delivery_s + GRACE_S:g} s"
        return self.error

    def finish(self) -> None:
        """Send no more rows, and wait until all are stored."""
        self._stopping.set()
        self._thread.join(self.delivery_s + GRACE_S)
        assert not self._thread.is_alive(), "the last flush hangs"
        assert self.error is None, self.error

    def check(self, values: Iterable[bytes]) -> Found:
        """Compare what was read from all topics with what was written; fail if a row is missing."""
        assert not self._thread.is_alive()
        assert self.longest_call_s <= self.delivery_s + GRACE_S
        copies = collections.Counter(int(value.lstrip(b"0") or b"0") for value in values)
        acknowledged = sum(receipt.count for receipt in self.receipts)
        told = sum(receipt.unanswered for receipt in self.receipts)
        extra = copies.total() - len(copies)
        sent = range(self.accepted if self.error is None else self.accepted + 1)
        assert copies.keys() <= set(sent)
        if self.error is None or self.later[0] is None:
            missing = set(range(self.accepted)) - copies.keys()
            assert not missing, f"{len(missing)} rows are missing, such as {min(missing)}"
            assert acknowledged == self.accepted
            assert extra <= told
        else:
            assert len(copies) >= acknowledged
            assert extra <= self.retried
        return Found(len(copies), extra, told)

    def assert_failed_once(self) -> None:
        """An error that ends a producer is the same object in all later calls."""
        assert self.later == [self.error] * 3, self.later

    def _run(self) -> None:
        with opened_connections(self._config.connect_timeout_ms) as connections:
            producer = MessageSender(self._config, connections, name="writing")
            try:
                self._write(producer)
                self._timed(producer.flush)
            except TubeMQError as error:
                self.error = error
                self.later = [self._raised(producer.flush)]
                if self.later[0] is not None:
                    self.later += map(self._raised, (lambda: self._send(producer), producer.flush))
            finally:
                producer.close()
                self.receipts = producer.receipts()
                self.retried = producer.retried

    def _write(self, producer: MessageSender) -> None:
        while not self._stopping.is_set():
            for _ in range(_ROWS_PER_BURST):
                self._timed(lambda: self._send(producer))
                self.accepted += 1
            time.sleep(self._pause_s)

    def _send(self, producer: MessageSender) -> None:
        value = b"%0*d" % (self._size, self.accepted)
        place = next(self._partitions)
        producer.send(self.topic, value, message_time=self._message_time, partition=place)

    def _raised(self, call: Callable[[], None]) -> TubeMQError | None:
        try:
            self._timed(call)
        except TubeMQError as error:
            return error
        return None

    def _timed(self, call: Callable[[], None]) -> None:
        began = time.monotonic()
        try:
            call()
        finally:
            self.longest_call_s = max(self.longest_call_s, time.monotonic() - began)


@contextmanager
def while_writing(writing: Writing, rows: int) -> Iterator[None]:
    """Do something under load: rows were written before the block, and are written after it."""
    writing.await_rows(rows)
    yield
    writing.await_rows(rows)


_THREADS: Final = 3
_ROWS_PER_BURST_OF_A_THREAD: Final = 30

Outcome = SendResult | TubeMQError | None


class Asking:
    """Threads that write rows until they are told to stop, and ask for each row's outcome; a context manager.

    The numbers of a thread's rows are its own, ``_THREADS`` apart.
    """

    def __init__(
        self, config: ClientConfig, topic: str, partitions: Sequence[tuple[int, int] | None] = (None,)
    ) -> None:
        """Write from now on; rows name these partitions in turn, or none."""
        self.accepted: dict[int, float] = {}
        """When each row was accepted (``time.monotonic()``)."""
        self.refused: list[TubeMQError] = []
        """What ``send`` raised; such rows were not accepted."""
        self._told: collections.defaultdict[int, list[tuple[float, Outcome]]] = collections.defaultdict(list)
        self._delivery_s = config.delivery_timeout_ms / 1000
        self._topic = topic
        self._partitions = partitions
        self._client = TubeMQClient(config)
        self._producer = self._client.producer("asking")
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(first,), name=f"asking-{first}", daemon=True)
            for first in range(_THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._producer.close()
        for thread in self._threads:
            thread.join(_PATIENCE_S)
        self._client.close()

    def await_rows(self, count: int) -> None:
        """Wait until so many more rows were accepted."""
        self._await(lambda: len(self.accepted), count, "rows to be accepted")

    def await_failures(self, count: int) -> None:
        """Wait until so many more rows were told to have failed."""
        self._await(lambda: len(self.failures()), count, "rows to fail")

    def failures(self) -> list[TubeMQError]:
        """Return the errors of all rows that have failed so far."""
        # A row's list is empty for a moment before its outcome is put into it.
        outcomes = [told[0][1] for told in list(self._told.values()) if told]
        return [outcome for outcome in outcomes if isinstance(outcome, TubeMQError)]

    def finish(self) -> None:
        """Send no more rows, and wait until every outcome is told, at most for the delivery time-out."""
        self._stopping.set()
        deadline = time.monotonic() + self._delivery_s + GRACE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            assert not thread.is_alive(), "a call of send hangs"
        flushing = threading.Thread(target=self._producer.flush, name="flush", daemon=True)
        flushing.start()
        flushing.join(max(0.0, deadline - time.monotonic()))
        assert not flushing.is_alive(), "flush hangs"

    def check(self, records: Iterable[Record]) -> Found:
        """Compare what was told of each row with what was read."""
        assert self._told.keys() == self.accepted.keys()
        assert {len(told) for told in self._told.values()} == {1}, "an outcome was told more than once"
        places: collections.defaultdict[int, set[tuple[object, int | None]]] = collections.defaultdict(set)
        for record in records:
            places[int(record.value)].add((record.partition, record.offset))
        assert places.keys() <= self.accepted.keys()
        extra = told_of = 0
        for number, [(when, outcome)] in self._told.items():
            assert when - self.accepted[number] <= self._delivery_s + GRACE_S
            copies = len(places[number])
            if isinstance(outcome, SendResult):
                assert (outcome.partition, outcome.offset) in places[number]
                assert copies <= 1 + outcome.unanswered
                told_of += outcome.unanswered
                extra += copies - 1
            else:
                assert isinstance(outcome, ProduceError)
                assert not copies or outcome.may_be_stored, outcome
        return Found(sum(map(bool, places.values())), extra, told_of)

    def _await(self, count: Callable[[], int], more: int, what: str) -> None:
        wanted = count() + more
        wait_until(lambda: count() >= wanted, timeout_s=_PATIENCE_S, what=f"{more} {what}", poll_s=0.01)

    def _run(self, first: int) -> None:
        places = itertools.cycle(self._partitions)
        numbers = itertools.count(first, _THREADS)
        while not self._stopping.is_set():
            burst = itertools.islice(numbers, _ROWS_PER_BURST_OF_A_THREAD)
            for number, place in zip(burst, places, strict=False):
                self._send(self._producer, number, place)
            time.sleep(_PAUSE_S)

    def _send(self, producer: Producer, number: int, place: tuple[int, int] | None) -> None:
        def tell(result: SendResult | None, error: TubeMQError | None) -> None:
            self._told[number].append((time.monotonic(), result or error))

        try:
            producer.send(self._topic, b"%0200d" % number, partition=place, callback=tell)
        except TubeMQError as error:
            self.refused.append(error)
        else:
            self.accepted[number] = time.monotonic()
