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
import threading
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
        self.at = 0.0
        """When the last one ended."""

    async def settled(self, timeout_ms: int) -> None:
        """Wait until the gateway has answered who opens the session, whose event loop may hang.

        Raises:
            AwayError: that takes too long.
            TubeMQError: that of the gateway.
        """
        if self.opened.done():
            return
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await asyncio.wrap_future(self.opened)
        except TimeoutError:
            raise AwayError("the session was not opened in time") from None

    def is_idle(self, now: float) -> bool:
        """Whether no call was made for half of its lease."""
        if self.calls or not self.is_open or (answer := self.opened.result()) is None:
            return False
        return now - self.at > answer.lease_ms / 2000

    @property
    def is_open(self) -> bool:
        """Whether the gateway has opened the session."""
        return self.opened.done() and self.opened.exception() is None and self.opened.result() is not None


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
        self._sweeping_in: asyncio.AbstractEventLoop | None = None
        """The loop with a timer that closes the session where it is idle."""

    def begin(self, gateway: int) -> tuple[Use, bool]:
        """Return the use at a gateway, and whether it is new, so that the caller opens the session."""
        with self._lock:
            use = self._uses.get(gateway)
            if use is not None:
                return use, False
            use = self._uses[gateway] = Use()
            return use, True

    def note_opened(self, use: Use, answer: pb.OpenSessionResponse) -> None:
        """Note that a gateway has opened the session."""
        use.at = self._clock()
        use.opened.set_result(answer)

    def forget(self, gateway: int, use: Use | None = None) -> None:
        """Forget the use at a gateway, or only this one there."""
        with self._lock:
            if use is None or self._uses.get(gateway) is use:
                self._uses.pop(gateway, None)

    def take_all(self) -> dict[int, Use]:
        """Forget all uses, and return them."""
        with self._lock:
            uses, self._uses = self._uses, {}
        return uses

    def count(self, gateway: int, ended: "Future[None]") -> None:
        """Count a call until it has ended, so that the session is not closed while it runs."""
        with self._lock:
            use = self._uses.get(gateway)
            if use is not None:
                use.calls += 1
        if use is not None:
            ended.add_done_callback(lambda _: self._note_end(use))

    def _note_end(self, use: Use) -> None:
        with self._lock:
            use.calls -= 1
            use.at = self._clock()

    def begin_to_sweep(self) -> bool:
        """Return whether the loop that runs is to look for idle uses, since no other loop does."""
        with self._lock:
            if self._sweeping_in is not None and not self._sweeping_in.is_closed():
                return False
            self._sweeping_in = asyncio.get_running_loop()
            return True

    def take_idle(self) -> tuple[list[int], bool]:
        """Forget the idle uses; return where they were, and whether there are others to look for later."""
        now = self._clock()
        with self._lock:
            idle = [gateway for gateway, use in self._uses.items() if use.is_idle(now)]
            for gateway in idle:
                del self._uses[gateway]
            if not self._uses:
                self._sweeping_in = None
            return idle, bool(self._uses)
