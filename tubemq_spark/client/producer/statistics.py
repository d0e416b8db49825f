"""What a producer counts about each broker, and what it tells of that.

Everything is counted per write or per read, never per message. The counts belong to a piece of work, as
receipts do, and start from zero with the next one.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from typing import Final

from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.rpc import Failure
from tubemq_spark.protocol.send_connection import Refusal
from tubemq_spark.receipts import counted

_US: Final = 1_000_000
_STEPS_BITS: Final = 2
"""Each doubling is divided into four buckets: a bucket's bounds differ by a quarter at most."""


@dataclasses.dataclass(frozen=True, slots=True)
class Latency:
    """How long something took, in seconds. All numbers are 0 when it never happened.

    For example:

        print(producer.statistics().latency.percentile_s(99))
    """

    count: int = 0
    """How often it happened."""
    total_s: float = 0.0
    """How long it took altogether."""
    least_s: float = 0.0
    """The shortest time."""
    most_s: float = 0.0
    """The longest time."""
    buckets: tuple[tuple[float, int], ...] = ()
    """How often it took up to that many seconds and longer than the bucket before; ascending, none empty."""

    @property
    def mean_s(self) -> float:
        """The mean."""
        return self.total_s / self.count if self.count else 0.0

    def percentile_s(self, percent: float) -> float:
        """Return the time within which it was done in that many of a hundred cases.

        It is not below the true value, and above it by a quarter at most.
        """
        rank = self.count * percent / 100
        counts = itertools.accumulate(count for _, count in self.buckets)
        for (bound, _), count in zip(self.buckets, counts, strict=True):
            if count >= rank:
                return max(self.least_s, min(bound, self.most_s))
        return self.most_s


class Latencies:
    """Counts times; adding one takes as long as updating a dictionary."""

    def __init__(self) -> None:
        self._count = 0
        self._total_s = 0.0
        self._least_s = 0.0
        self._most_s = 0.0
        self._buckets: dict[int, int] = {}

    def add(self, seconds: float, times: int) -> None:
        """Count a time, of at least 0 seconds, that was taken so often."""
        if not self._count or seconds < self._least_s:
            self._least_s = seconds
        self._most_s = max(self._most_s, seconds)
        self._count += times
        self._total_s += seconds * times
        bucket = _bucket(int(seconds * _US))
        self._buckets[bucket] = self._buckets.get(bucket, 0) + times

    def snapshot(self) -> Latency:
        """Return the counts so far."""
        return Latency(
            self._count,
            self._total_s,
            self._least_s,
            self._most_s,
            tuple((_bound_s(bucket), count) for bucket, count in sorted(self._buckets.items())),
        )


def together(latencies: Iterable[Latency]) -> Latency:
    """Return several counts as one."""
    some = [latency for latency in latencies if latency.count]
    if not some:
        return Latency()
    buckets: dict[float, int] = {}
    for bound, count in itertools.chain.from_iterable(latency.buckets for latency in some):
        buckets[bound] = buckets.get(bound, 0) + count
    return Latency(
        sum(latency.count for latency in some),
        sum(latency.total_s for latency in some),
        min(latency.least_s for latency in some),
        max(latency.most_s for latency in some),
        tuple(sorted(buckets.items())),
    )


def _bucket(us: int) -> int:
    """Return the number of a time's bucket: its highest bits, and how many bits follow them."""
    shift = max(0, us.bit_length() - 1 - _STEPS_BITS)
    return (shift << _STEPS_BITS) + (us >> shift)


def _bound_s(bucket: int) -> float:
    """Return the end of a bucket, which the times in it are below."""
    shift = max(0, (bucket >> _STEPS_BITS) - 1)
    return ((bucket - (shift << _STEPS_BITS) + 1) << shift) / _US


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerStatistics:
    """What a producer and one broker have told each other.

    For example:

        for broker in producer.statistics().brokers:
            print(broker.endpoint, broker.stored, broker.latency.mean_s)
    """

    broker_id: int
    endpoint: Endpoint
    requests: int
    """How many messages were handed to a connection; one that is sent again counts again."""
    retries: int
    """How many of ``requests`` were not the first for their message."""
    sent_bytes: int
    """The length of all requests."""
    received_bytes: int
    """The length of all that the broker has sent."""
    stored: int
    """How many messages the broker has acknowledged."""
    stored_bytes: int
    """The length of their bodies and attributes together, as they were sent."""
    refused: Mapping[int, int]
    """How many requests it refused, by result code."""
    exceptions: Mapping[str, int]
    """How many it answered with an exception, by the exception's class."""
    unanswered: int
    """How many requests were given up because a connection was lost, or an answer did not come in time."""
    latency: Latency
    """How long acknowledged messages took: from handing a request to its connection until its answer was
    read. Answers are read when the producer is used, and collected for up to 20 ms before."""

    @property
    def answers(self) -> Mapping[int, int]:
        """How many answers there were, by result code; 200 stands for the acknowledged messages."""
        return {**({int(ErrCode.SUCCESS): self.stored} if self.stored else {}), **self.refused}


@dataclasses.dataclass(frozen=True, slots=True)
class ProducerStatistics:
    """What a producer has done since the beginning of its present piece of work.

    For example:

        statistics = producer.statistics()
        print(statistics.stored, statistics.retries, statistics.slowest)
    """

    brokers: tuple[BrokerStatistics, ...]
    """Each broker that it sent to, by id."""
    room_wait_s: float
    """How long it waited, in seconds, because as many messages were under way as the window holds."""
    elapsed_s: float
    """How long ago the piece of work began, in seconds."""

    @property
    def requests(self) -> int:
        """How many messages were handed to a connection; one that is sent again counts again."""
        return sum(broker.requests for broker in self.brokers)

    @property
    def retries(self) -> int:
        """How many of ``requests`` were not the first for their message."""
        return sum(broker.retries for broker in self.brokers)

    @property
    def stored(self) -> int:
        """How many messages were acknowledged."""
        return sum(broker.stored for broker in self.brokers)

    @property
    def stored_bytes(self) -> int:
        """The length of the bodies and attributes of acknowledged messages."""
        return sum(broker.stored_bytes for broker in self.brokers)

    @property
    def answers(self) -> Mapping[int, int]:
        """How many answers there were, by result code."""
        counts: dict[int, int] = {}
        for broker in self.brokers:
            for code, count in broker.answers.items():
                counts[code] = counts.get(code, 0) + count
        return counts

    @property
    def latency(self) -> Latency:
        """How long acknowledged messages took, of all brokers together."""
        return together(broker.latency for broker in self.brokers)

    @property
    def slowest(self) -> BrokerStatistics | None:
        """The broker whose acknowledgements took longest on average; None before the first one."""
        answered = [broker for broker in self.brokers if broker.latency.count]
        return max(answered, key=lambda broker: broker.latency.mean_s, default=None)

    def __str__(self) -> str:
        """Say in one line what was sent, what was waited for and how long that took."""
        parts = [
            f"{counted(self.requests, 'request')}, {self.retries} of them retries",
            f"waited {self.room_wait_s:.1f} s for room",
        ]
        if (slowest := self.slowest) is not None:
            latency = slowest.latency
            parts.append(
                f"slowest broker {slowest.broker_id} ({slowest.endpoint}): mean {_duration(latency.mean_s)}, "
                f"99th percentile {_duration(latency.percentile_s(99))}"
            )
        return "; ".join([*parts, f"took {self.elapsed_s:.1f} s"])


class BrokerCounts:
    """Counts what a producer and one broker tell each other."""

    def __init__(self) -> None:
        self.requests = 0
        self.retries = 0
        self.sent_bytes = 0
        self.received_bytes = 0
        self.stored = 0
        self.stored_bytes = 0
        self.unanswered = 0
        self._refused: dict[int, int] = {}
        self._exceptions: dict[str, int] = {}
        self._latencies = Latencies()

    def sent(self, messages: int, size: int, *, again: bool) -> None:
        """Count requests that were handed to a connection together, and the length of their frames."""
        self.requests += messages
        self.sent_bytes += size
        if again:
            self.retries += messages

    def acknowledged(self, messages: int, size: int, latency_s: float) -> None:
        """Count messages that were sent together and acknowledged together."""
        self.stored += messages
        self.stored_bytes += size
        self._latencies.add(latency_s, messages)

    def not_stored(self, answer: Refusal | Failure) -> None:
        """Count an answer that is not an acknowledgement."""
        if isinstance(answer, Refusal):
            self._refused[answer.code] = self._refused.get(answer.code, 0) + 1
        else:
            name = answer.exception_class
            self._exceptions[name] = self._exceptions.get(name, 0) + 1

    def snapshot(self, broker_id: int, endpoint: Endpoint) -> BrokerStatistics:
        """Return the counts so far."""
        return BrokerStatistics(
            broker_id,
            endpoint,
            self.requests,
            self.retries,
            self.sent_bytes,
            self.received_bytes,
            self.stored,
            self.stored_bytes,
            dict(self._refused),
            dict(self._exceptions),
            self.unanswered,
            self._latencies.snapshot(),
        )


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"
