"""Which consumer holds which partition of its group, for as long as it is heard of (HeartbeatManager)."""

import collections
import dataclasses
from collections.abc import Callable
from typing import Final

from tubemq_spark.embedded.broker.flow_control import Allowance
from tubemq_spark.embedded.broker.offsets import Seat
from tubemq_spark.embedded.clock import monotonic_ms, wall_ms

_MOST_REFUSED: Final = 1000
"""Groups have any names, so refused registers could fill the memory before their leases run out."""


@dataclasses.dataclass(slots=True)
class GrantedLease:
    """A consumer's hold on a partition; change it under the lock of the seat's position."""

    client_id: str
    key_codes: frozenset[int]
    """Hashes of the message types it wants; none means all."""
    query_priority: int
    """What it may see, by TubeMQ's rules; not above 0: the broker decides."""
    allowance: Allowance = dataclasses.field(default_factory=Allowance)
    """What it may read, and has read since it registered."""
    expires_at_ms: int = 0
    heard_at_ms: int = 0
    """When it was heard of last, in ms since the epoch."""


class LeaseTable:
    """The leases of a broker. Change a seat's under the lock of its position; looking needs none."""

    def __init__(self, timeout_ms: int, now_ms: Callable[[], int] = monotonic_ms) -> None:
        self._timeout_ms = timeout_ms
        self._now_ms = now_ms
        self._leases: dict[Seat, GrantedLease] = {}
        self._refused: collections.deque[tuple[Seat, GrantedLease]] = collections.deque()

    def find(self, seat: Seat) -> GrantedLease | None:
        """Return the lease of a seat, running or not."""
        return self._leases.get(seat)

    def grant(self, seat: Seat, lease: GrantedLease) -> None:
        """Give a seat to a consumer; whoever had it has it no more."""
        self.renew(lease)
        self._leases[seat] = lease

    def keep_for_a_while(self, seat: Seat, lease: GrantedLease) -> None:
        """Keep a lease whose register was refused, as TubeMQ does, until there are many younger ones."""
        self._refused.append((seat, lease))
        if len(self._refused) > _MOST_REFUSED:
            oldest, refused = self._refused.popleft()
            if self._leases.get(oldest) is refused:
                self.end(oldest)

    def renew(self, lease: GrantedLease) -> None:
        """Start the lease's time anew: its consumer was heard of."""
        lease.expires_at_ms = self._now_ms() + self._timeout_ms
        lease.heard_at_ms = wall_ms()

    def has_expired(self, lease: GrantedLease) -> bool:
        """Whether the consumer has not been heard of for too long."""
        return self._now_ms() >= lease.expires_at_ms

    def end(self, seat: Seat) -> None:
        """Free a seat."""
        self._leases.pop(seat, None)

    def expired(self) -> list[Seat]:
        """Return the seats whose leases have run out; they stay taken until ``end``."""
        return [seat for seat, lease in list(self._leases.items()) if self.has_expired(lease)]

    def forget_topic(self, topic: str) -> None:
        """Free the seats of a topic that is gone."""
        for seat in [seat for seat in list(self._leases) if seat.topic == topic]:
            self.end(seat)

    def all(self) -> dict[Seat, GrantedLease]:
        """Return all leases."""
        return dict(self._leases)
