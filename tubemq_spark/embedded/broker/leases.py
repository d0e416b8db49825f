"""Which consumer holds which partition of its group, as long as it sends heartbeats (HeartbeatManager)."""

import collections
import dataclasses
from collections.abc import Callable
from typing import Final

from tubemq_spark.embedded.broker.flow_control import Allowance
from tubemq_spark.embedded.broker.offsets import Seat
from tubemq_spark.embedded.clock import monotonic_ms, wall_ms

_MAX_REFUSED: Final = 1000
"""Leases of refused registers that are kept: group names are free, so more could fill the memory."""


@dataclasses.dataclass(slots=True)
class GrantedLease:
    """A consumer's lease on a seat; what may change when is said in ``consume``."""

    client_id: str
    key_codes: frozenset[int]
    """Hashes of the message types it subscribes to; none means all."""
    query_priority: int
    """What it may see, by TubeMQ's rules; 0 or below: the broker decides."""
    allowance: Allowance = dataclasses.field(default_factory=Allowance)
    """What flow control lets it read."""
    expires_at_ms: int = 0
    heard_at_ms: int = 0
    """When its last request came, in ms since the epoch."""


class LeaseTable:
    """The leases of a broker. Grant and end one under the lock of the seat's position; reading needs none."""

    def __init__(self, timeout_ms: int, now_ms: Callable[[], int] = monotonic_ms) -> None:
        self._timeout_ms = timeout_ms
        self._now_ms = now_ms
        self._leases: dict[Seat, GrantedLease] = {}
        self._refused: collections.deque[tuple[Seat, GrantedLease]] = collections.deque()

    def find(self, seat: Seat) -> GrantedLease | None:
        """Return the lease of a seat, expired or not."""
        return self._leases.get(seat)

    def grant(self, seat: Seat, lease: GrantedLease) -> None:
        """Give a seat to a consumer, also when another one holds it."""
        self.renew(lease)
        self._leases[seat] = lease

    def limit_refused(self, seat: Seat, lease: GrantedLease) -> None:
        """Keep the lease of a refused register, as TubeMQ does; end the oldest of too many such leases."""
        self._refused.append((seat, lease))
        if len(self._refused) > _MAX_REFUSED:
            oldest, refused = self._refused.popleft()
            if self._leases.get(oldest) is refused:
                self.end(oldest)

    def renew(self, lease: GrantedLease) -> None:
        """Start the lease's time again, because its consumer sent a request."""
        lease.expires_at_ms = self._now_ms() + self._timeout_ms
        lease.heard_at_ms = wall_ms()

    def has_expired(self, lease: GrantedLease) -> bool:
        """Whether the consumer has been silent for too long."""
        return self._now_ms() >= lease.expires_at_ms

    def end(self, seat: Seat) -> None:
        """Free a seat."""
        self._leases.pop(seat, None)

    def expired(self) -> list[Seat]:
        """Return the seats whose leases have expired; they are held until ``end``."""
        return [seat for seat, lease in self._leases.copy().items() if self.has_expired(lease)]

    def forget_topic(self, topic: str) -> None:
        """Free the seats of a removed topic."""
        for seat in [seat for seat in list(self._leases) if seat.topic == topic]:
            self.end(seat)

    def all(self) -> dict[Seat, GrantedLease]:
        """Return all leases."""
        return dict(self._leases)
