"""Amounts that clients share: who holds how much of one, and who waits for it.

**Owners.** What is scarce is held by an owner: a session of a client.

**States of a reservation.** *granted*, at once or later; *waiting* in the line; *withdrawn*, when its owner
waits no longer. A withdrawal tells whether it came too late, and then the caller has the amount to give back.

**Invariants of a quota.**

- ``used`` is the sum of what is granted and not given back, and never above the limit, but for one owner that
  asked for more than that while nothing else was held.
- A session holds no more than ``per_session``, but for one amount that is larger.
- The last eighth of a quota is for clients that hold no more than half of it. While others wait, a client
  gets no more than half.
- Clients are served in rotation, and so are the sessions of one client. No reservation is overtaken by a
  smaller one.
- No reservation waits for which there is enough left.

Quotas belong to the event loop.
"""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from tubemq_spark.net.deadline import Clock, monotonic

Key = TypeVar("Key", str, "Owner")

_RESERVE: Final = 8
"""Which part of a quota is for clients that hold little: one of so many."""
SOONEST_MS: Final = 100
_LATEST_MS: Final = 30_000
_USUAL_PACE_S: Final = 0.1
"""How long it takes until something is given back, as long as nothing is known of that."""


class Owner(NamedTuple):
    """Who holds something."""

    client: str
    session: str = ""
    """The id of one of its sessions; blank: it belongs to none."""


@dataclasses.dataclass(slots=True, eq=False)
class Reservation:
    """An amount for an owner."""

    owner: Owner
    amount: int
    on_grant: Callable[[], object]
    granted: bool = False


class FairQuota:
    """An amount that clients share."""

    def __init__(self, limit: int, per_session: int | None = None, clock: Clock = monotonic) -> None:
        """Allow so much in all, and so much of it to each session."""
        self.limit = limit
        self._per_session = limit if per_session is None else per_session
        self._clock = clock
        self._of_client: Counter[str] = Counter()
        self._of_session: Counter[Owner] = Counter()
        self._line: dict[str, dict[str, dict[Reservation, None]]] = {}
        self._given_at = clock()
        self._pace_s = _USUAL_PACE_S
        self.used = 0
        """How much is held."""
        self.waiting = 0
        """How many reservations wait."""

    def take(self, owner: Owner, amount: int = 1) -> bool:
        """Take an amount if there is enough now and no other is first; return whether."""
        if self.waiting:
            reservation = self.reserve(owner, amount, lambda: None)
            return reservation.granted or self.withdraw(reservation)
        if self._is_free(amount) and self._has_share(owner.client, amount) and self._fits(owner, amount):
            self._hold(owner, amount)
            return True
        return False

    def reserve(self, owner: Owner, amount: int, on_grant: Callable[[], object]) -> Reservation:
        """Take an amount, or wait in line for it.

        Unless it is granted at once, ``on_grant`` is called later, by who gives something back; it must
        return at once.
        """
        reservation = Reservation(owner, amount, on_grant)
        self._line.setdefault(owner.client, {}).setdefault(owner.session, {})[reservation] = None
        self.waiting += 1
        # No other is granted: none waited for which there was enough.
        self._serve()
        return reservation

    def withdraw(self, reservation: Reservation) -> bool:
        """Wait no longer; return whether the amount was granted before, and is to be given back."""
        if reservation.granted:
            return True
        self._leave(reservation, was_served=False)
        # What stood behind may fit.
        self._grant()
        return False

    def give(self, owner: Owner, amount: int = 1) -> None:
        """Give an amount back."""
        now = self._clock()
        self._pace_s += (now - self._given_at - self._pace_s) / 8
        self._given_at = now
        self._put_back(owner, amount)

    async def await_room(self, owner: Owner, amount: int) -> None:
        """Wait in line until there is enough for an amount, and take nothing."""
        await self.acquire(owner, amount)
        self._put_back(owner, amount)

    async def acquire(self, owner: Owner, amount: int = 1, patience_s: float | None = None) -> bool:
        """Wait in line for an amount; return whether it was granted in time."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        reservation = self.reserve(owner, amount, lambda: _settle(granted))
        if reservation.granted:
            return True
        try:
            async with asyncio.timeout(patience_s):
                await granted
        except TimeoutError:
            return self.withdraw(reservation)
        except BaseException:
            if self.withdraw(reservation):
                self.give(owner, amount)
            raise
        return True

    def pressed(self, owner: Owner) -> bool:
        """Return whether others wait for what a session holds."""
        return self.waiting > len(self._line.get(owner.client, {}).get(owner.session, ()))

    @property
    def retry_after_ms(self) -> int:
        """When a reservation made now would be granted, from how fast amounts are given back."""
        pace_s = max(self._pace_s, (self._clock() - self._given_at) / 8)
        return int(min(max(1000 * pace_s * (self.waiting + 1), SOONEST_MS), _LATEST_MS))

    def _put_back(self, owner: Owner, amount: int) -> None:
        self.used -= amount
        _subtract(self._of_client, owner.client, amount)
        _subtract(self._of_session, owner, amount)
        self._grant()

    def _hold(self, owner: Owner, amount: int) -> None:
        self.used += amount
        self._of_client[owner.client] += amount
        self._of_session[owner] += amount

    def _grant(self) -> None:
        if self.waiting:
            for served in self._serve():
                served.on_grant()

    def _serve(self) -> list[Reservation]:
        """Grant what there is enough for, in rotation, and return it."""
        granted = []
        while (reservation := self._next()) is not None:
            self._leave(reservation, was_served=True)
            reservation.granted = True
            self._hold(reservation.owner, reservation.amount)
            granted.append(reservation)
        return granted

    def _next(self) -> Reservation | None:
        """Return the reservation to be granted next, if there is enough for it."""
        for client, sessions in self._line.items():
            for line in sessions.values():
                reservation = next(iter(line))
                amount = reservation.amount
                if not self._is_free(amount):
                    # No smaller amount goes first.
                    return None
                if not self._has_share(client, amount):
                    break
                if self._fits(reservation.owner, amount):
                    return reservation
        return None

    def _is_free(self, amount: int) -> bool:
        return not self.used or self.used + amount <= self.limit

    def _fits(self, owner: Owner, amount: int) -> bool:
        """Return whether a session may hold so much more."""
        own = self._of_session[owner]
        return not own or own + amount <= self._per_session

    def _has_share(self, client: str, amount: int) -> bool:
        own = self._of_client[client]
        if not own or own + amount <= self.limit // 2:
            return True
        return len(self._line) <= 1 and self.used + amount <= self.limit - self.limit // _RESERVE

    def _leave(self, reservation: Reservation, *, was_served: bool) -> None:
        """Take a reservation out of the line; when it was served, the others of the line come first."""
        self.waiting -= 1
        client, session = reservation.owner
        sessions = self._line[client]
        line = sessions[session]
        del line[reservation]
        if was_served or not line:
            del sessions[session]
        if was_served or not sessions:
            del self._line[client]
        if was_served and line:
            sessions[session] = line
        if was_served and sessions:
            self._line[client] = sessions


def _settle(granted: "asyncio.Future[None]") -> None:
    if not granted.done():
        granted.set_result(None)


def _subtract(counts: Counter[Key], key: Key, amount: int) -> None:
    rest = counts[key] - amount
    if rest < 0:
        raise KeyError(key)
    if rest:
        counts[key] = rest
    else:
        del counts[key]
