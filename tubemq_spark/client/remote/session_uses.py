"""At which gateways the session of a client is open, and how it is used there.

**States at one gateway.**

- *unknown*: there is no ``Use``;
- *opening*: there is one, for whose ``opened`` all calls to this gateway wait;
- *open*: that has its answer. Every call keeps it alive. When none was made for half of its lease, it is
  closed: a session that is silent for longer would count as lost;
- *closed*, which is *unknown* again: after that, by ``Gateways.close``, when the process ends, or when the
  connection was lost.
"""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future

from tubemq_spark.client.remote.attempts import AwayError
from tubemq_spark.net.deadline import Clock
from tubemq_spark.protocol.gateway import gateway_pb2 as pb


class Use:
    """How the session is used at one gateway."""

    def __init__(self) -> None:
        self.opened: Future[pb.OpenSessionResponse | None] = Future()
        """What the gateway has answered; None: who opened the session was cancelled."""
        self.opened.set_running_or_notify_cancel()  # one that waits no more does not cancel it
        self.calls = 0
        """How many are under way."""
        self.used_at = 0.0
        """When the last one ended."""

    async def settled(self, timeout_ms: int) -> None:
        """Wait until the gateway has answered who opens the session, whose event loop may hang."""
        if self.opened.done():
            return
        limit = asyncio.timeout(timeout_ms / 1000)
        try:
            async with limit:
                await asyncio.wrap_future(self.opened)
        except TimeoutError:
            if not limit.expired():  # the gateway tells of one
                raise
            raise AwayError("the session was not opened in time") from None

    @property
    def lease_s(self) -> float | None:
        """How long the session lives without calls; None: it is not open."""
        answer = self._answer
        return None if answer is None else answer.lease_ms / 1000

    def heartbeat_s(self, longest_s: float) -> float:
        """Return after how long without calls a heartbeat is due: a third of the lease at most."""
        answer = self._answer
        if answer is None:
            return longest_s
        lease_s, heartbeat_s = answer.lease_ms / 1000, answer.heartbeat_ms / 1000
        return min(longest_s, heartbeat_s or longest_s, lease_s / 3)

    @property
    def _answer(self) -> pb.OpenSessionResponse | None:
        if not self.opened.done() or self.opened.exception() is not None:
            return None
        return self.opened.result()


class SessionUses:
    """The uses of one session, by the numbers of gateways; threads and event loops may share them."""

    def __init__(self, clock: Clock) -> None:
        """Begin with none."""
        self._clock = clock
        self.start_anew()

    def start_anew(self) -> None:
        """Forget all; for a forked child."""
        self._lock = threading.Lock()
        self._uses: dict[int, Use] = {}
        self._open_at: set[int] = set()
        """Where the session was opened and not closed since; also where a call was lost: it may live on."""

    def begin(self, gateway: int) -> tuple[Use, bool]:
        """Return the use at a gateway, and whether it is new, so that the caller opens the session."""
        with self._lock:
            use = self._uses.get(gateway)
            if use is not None:
                return use, False
            use = self._uses[gateway] = Use()
            return use, True

    def note_opened(self, gateway: int, use: Use, answer: pb.OpenSessionResponse) -> None:
        """Note that a gateway has opened the session."""
        use.used_at = self._clock()
        with self._lock:
            self._open_at.add(gateway)
        use.opened.set_result(answer)

    def forget(self, gateway: int, use: Use | None = None) -> bool:
        """Forget the use at a gateway, or only this one there; return whether there was such a one."""
        with self._lock:
            if gateway not in self._uses or self._uses[gateway] is not (use or self._uses[gateway]):
                return False
            del self._uses[gateway]
            return True

    def take_idle(self, gateway: int, use: Use) -> bool:
        """Forget a use that is idle; return whether it was, so that the caller closes the session there."""
        if not self._is_idle(use) or not self.forget(gateway, use):
            return False
        with self._lock:
            self._open_at.discard(gateway)
        return True

    def take_all(self) -> set[int]:
        """Forget all uses; return where the session may be open, so that the caller closes it."""
        with self._lock:
            open_at, self._open_at, self._uses = self._open_at, set(), {}
        return open_at

    @contextlib.contextmanager
    def during_a_call(self, gateway: int) -> Iterator[None]:
        """Keep the session open at a gateway, as far as it is."""
        with self._lock:
            use = self._uses.get(gateway) or Use()
            use.calls += 1
        try:
            yield
        finally:
            with self._lock:
                use.calls -= 1
                use.used_at = self._clock()

    def knows(self, gateway: int, use: Use) -> bool:
        """Whether a use is still that at its gateway."""
        return self._uses.get(gateway) is use

    def _is_idle(self, use: Use) -> bool:
        """Whether no call was made for half of a session's lease."""
        return not use.calls and use.lease_s is not None and self._clock() - use.used_at > use.lease_s / 2
