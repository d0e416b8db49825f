"""Where a call goes when a gateway cannot serve it, and when.

A gateway that is *busy* is not left at once: all clients of a busy one would move to the next together, and
back. It says when to ask again; the client waits for that, a little longer by chance, and asks there. Only
when that goes on for ``LONGEST_REFUSAL_S`` does it try the next one.

A gateway that is *away*, about to stop, or does not come to an end is left at once. When all were tried
there is a pause, and another round.

======================  ==================================================================================
an attempt ended with   what follows
======================  ==================================================================================
busy                    the same gateway, after ``retry_after_ms`` and up to half of that more; another
                        one at once, when that would be later than ``LONGEST_REFUSAL_S`` after the first
                        such answer
away                    the next gateway at once; after a round, ``register_retry_ms``, up to half less
TLS does not fit        as away, but a whole round of that is the end
======================  ==================================================================================

It ends after so many rounds, or when the next attempt of a busy gateway would come too late.
"""

import random
from collections.abc import Callable
from typing import Final

from tubemq_spark.errors import GatewayError, TubeMQConnectionError, TubeMQError
from tubemq_spark.net.deadline import Clock, monotonic

LONGEST_REFUSAL_S: Final = 5.0
"""How long a client stays at a gateway that is busy."""
_SHORTEST_PAUSE_S: Final = 0.05
"""Before a busy gateway that does not say when is asked again."""


class AwayError(Exception):
    """A gateway cannot serve a call, which another one may, or this one later."""

    def __init__(self, cause: TubeMQError | str) -> None:
        super().__init__(str(cause))
        self.failure = cause if isinstance(cause, TubeMQError) else None
        """What the gateway said, or what is wrong with TLS."""

    @property
    def busy(self) -> bool:
        """Whether the gateway is there, and has no room now."""
        return self.failure is not None and self.failure.condition == "TUBEMQ_GATEWAY_BUSY"

    @property
    def lost(self) -> bool:
        """Whether the gateway has not answered."""
        return not isinstance(self.failure, GatewayError)

    @property
    def lasting(self) -> bool:
        """Whether asking this gateway again will not help."""
        return self.failure is not None and not self.failure.retriable and self.lost

    @property
    def retry_after_s(self) -> float:
        """When a busy gateway wants to be asked again, in seconds."""
        after_ms = 0 if self.failure is None else self.failure.parameters.get("retry_after_ms", 0)
        return max(_SHORTEST_PAUSE_S, after_ms / 1000 if isinstance(after_ms, int) else 0)


class Attempts:
    """What one call has tried; for one thread."""

    def __init__(
        self,
        count: int,
        leave: Callable[[int], object],
        *,
        rounds: int | None,
        retry_s: float,
        patience_s: float | None,
        clock: Clock = monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Begin, for so many gateways; no ``rounds`` or no ``patience_s``: without end."""
        self._count = count
        self._leave = leave
        self._rounds = rounds
        self._retry_s = retry_s
        self._clock = clock
        self._chance = chance
        self._until = None if patience_s is None else clock() + patience_s
        self._refused_since: dict[int, float] = {}
        """The gateways that were busy, each with since when it is."""
        self._round: list[AwayError] = []
        self._last: AwayError | None = None

    def failed(self, gateway: int, error: AwayError) -> float | None:
        """Note how an attempt ended, and leave the gateway if that helps.

        Return after how many seconds to try again, at the gateway that is the current one then; None: not any
        more.
        """
        self._last = error
        return self._refused(gateway, error) if error.busy else self._away(gateway, error)

    def error(self, during: str, tried: str) -> TubeMQError:
        """Return why the call has failed: what a gateway said, or that none is there."""
        last = self._last
        if last is None:
            raise ValueError("no attempt has failed")
        if last.failure is not None and (last.busy or last.lasting):
            return last.failure
        cause = str(last).rstrip(".")
        return TubeMQConnectionError("TUBEMQ_GATEWAY_AWAY", during=during, tried=tried, cause=cause)

    def _refused(self, gateway: int, error: AwayError) -> float | None:
        now = self._clock()
        pause_s = error.retry_after_s * (1 + self._chance() / 2)
        since = self._refused_since.setdefault(gateway, now)
        if now + pause_s - since > LONGEST_REFUSAL_S and self._count > 1:
            self._leave(gateway)
            if len(self._refused_since) < self._count:
                return 0.0
            self._refused_since.clear()
        return None if self._until is not None and now + pause_s > self._until else pause_s

    def _away(self, gateway: int, error: AwayError) -> float | None:
        self._leave(gateway)
        self._refused_since.pop(gateway, None)
        self._round.append(error)
        if len(self._round) < self._count:
            return 0.0
        over = all(error.lasting for error in self._round)
        self._round.clear()
        if self._rounds is not None:
            self._rounds -= 1
        return None if over or self._rounds == 0 else self._retry_s * (1 - self._chance() / 2)
