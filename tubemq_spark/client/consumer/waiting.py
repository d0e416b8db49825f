"""Threads that wait for batches: each makes the calls that rules of its consumer need, until it has one."""

import time
from typing import Final

from tubemq_spark.client.consumer.brokers import PATIENCE_S
from tubemq_spark.client.consumer.fetching import Booked, Fetching
from tubemq_spark.client.consumer.home import Bell, ThreadHome
from tubemq_spark.client.consumer.turns import Seat, Turns
from tubemq_spark.client.consumer.values import Batch
from tubemq_spark.client.consumer_config import WITHOUT_LIMIT
from tubemq_spark.net.deadline import Clock

_NEVER: Final = float("inf")


class FetchingThreads:
    """The threads that fetch with one consumer."""

    def __init__(self, fetching: Fetching, clock: Clock = time.monotonic) -> None:
        self._fetching = fetching
        self._clock = clock
        self._home = ThreadHome(clock)
        self.turns = Turns(fetching, self._home, clock)

    def fetch(self, timeout_ms: int) -> Batch | None:
        """Return the next batch; None when there was none in time. See ``Consumer.fetch``."""
        until = _NEVER if timeout_ms == WITHOUT_LIMIT else self._clock() + timeout_ms / 1000
        while True:
            bell = Bell()
            seat = Seat(bell.ring)
            try:
                batch = self._sit(seat, bell, until)
                outcome = self.turns.leave(seat)
            except BaseException:
                self.turns.recover(seat)
                raise
            if isinstance(outcome, BaseException):
                raise outcome
            if batch is not None or outcome is None:
                return batch

    def _sit(self, seat: Seat, bell: Bell, until: float) -> Batch | None:
        """Wait for a batch and hand it out; None: the seat has none, or another outcome."""
        self.turns.join(seat)
        self._home.wait(bell, lambda: seat.outcome is not None, lambda: self._limit(seat, until))
        booked = seat.outcome
        return self._fetching.hand_out(booked) if isinstance(booked, Booked) else None

    def _limit(self, seat: Seat, until: float) -> float:
        """Return until when a seat waits: a partition that is asked in time is waited for a little longer."""
        now = self._clock()
        if now < until:
            return until
        return until + PATIENCE_S if self.turns.expects_more(seat) else now
