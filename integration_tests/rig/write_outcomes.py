"""Rows that several threads give to one producer, each of which is told what became of every row."""

import collections
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Self

from integration_tests.real.processes import wait_until
from integration_tests.rig.write_faults import GRACE_S, Found
from tubemq_spark.client import ClientConfig, Producer, Record, SendResult, TubeMQClient
from tubemq_spark.errors import ProduceError, TubeMQError

_THREADS: Final = 3
_ROWS_PER_BURST: Final = 30
_PAUSE_S: Final = 0.002
_PATIENCE_S: Final = 120.0

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
            for number, place in zip(itertools.islice(numbers, _ROWS_PER_BURST), places, strict=False):
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
