"""What the gateway shares among its clients: bytes, calls, sessions, producers, work that is under way.

**Owners.** A client is who the policy says; without a policy, the host of the peer. What the gateway does for
itself has the owner ``GATEWAY``.

**What an owner holds, and until when.**

- *bytes* of messages: from before a body is kept until its answer is written, or brokers have stored it. A
  request that is on its way holds as much as it may have, in a quota of its own: gRPC keeps what comes as
  soon as it is read, and says how long it is only when it is there;
- *reads*, *questions* and others (``WorkLimit``): one each, until the work has ended with all that it began;
- *publishes*: one for each producer, held by the session for which it was opened, until it is closed;
- a place in the *line* of those who wait for others to end: until they have begun, or wait no longer;
- *calls*: from their metadata until their status;
- *sessions*: until they end.

What closes what a client has left behind holds nothing of this, and is never refused. Who holds something and
does not move gives it back when others wait (``moving``).

Threads are begun in one place, ``WorkLimit.run_in_thread``: one belongs to its work until it has ended, also
when its caller waits no longer, so there are no more of them than the limit says.
"""

import asyncio
import contextlib
import functools
import ipaddress
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import unquote

from tubemq_spark.errors import GatewayError
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.net.fair_quota import FairQuota, Owner
from tubemq_spark.net.loop import in_thread

Result = TypeVar("Result")

_COMING: Final = 4
"""Which part of the bytes are for messages that are on their way; of these, which part is for one session."""
_FEWEST_ARRIVING: Final = 64
_FEWEST_ARRIVING_OF_ONE: Final = 12
"""So many publish streams, and those of one session, may read at a time, however few bytes may wait here."""
ADMINISTRATION_THREADS: Final = 4
"""A master that does not answer over HTTP is waited for by few, since its answers are used by all."""
_CHECKING_THREADS: Final = 2


GATEWAY: Final = Owner("the gateway itself")


@functools.lru_cache(maxsize=4_096)
def host_of(peer: str) -> str:
    """Return the host of a peer, as gRPC names it: ``ipv4:10.0.0.7`` of ``ipv4:10.0.0.7:43210``.

    Of an IPv6 address it is the network of 64 bits, in which each host has as many addresses as it likes.
    """
    host = peer.rpartition(":")[0] or peer
    kind, _, address = unquote(host).partition(":")
    if kind == "ipv6":
        with contextlib.suppress(ValueError):
            parsed = ipaddress.IPv6Address(address.strip("[]"))
            if parsed.ipv4_mapped is None:
                return f"ipv6:{ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64))}"
    return host


class Pressure(Protocol):
    """Something scarce of which a session holds a part."""

    @property
    def retry_after_ms(self) -> int:
        """When there may be some again."""

    def pressed(self, owner: Owner) -> bool:
        """Return whether others wait for what a session holds."""


class WorkLimit:
    """How much work of one kind is under way; what comes while that is enough waits in line."""

    def __init__(
        self, kind: str, at_once: int, line: FairQuota, patience_s: float | None, gateway: str
    ) -> None:
        """Begin with none."""
        self._kind = kind
        self._gateway = gateway
        self._line = line
        self._patience_s = patience_s
        self._threads: set[asyncio.Task[Any]] = set()
        self._ended = asyncio.Event()
        self._closed = False
        self.quota = FairQuota(at_once)
        """What is under way."""

    @contextlib.asynccontextmanager
    async def place(self, owner: Owner = GATEWAY, patience_s: float | None = None) -> AsyncIterator[None]:
        """Wait for a place among the work under way, and hold it in the block."""
        await self._begin(owner, patience_s)
        try:
            yield
        finally:
            self._end(owner)

    async def run_in_thread(
        self, function: Callable[[], Result], owner: Owner = GATEWAY, patience_s: float | None = None
    ) -> Result:
        """Run a function that may block in a thread of its own, within ``place``; return its result.

        It is under way until the thread has ended, also when the caller is cancelled.
        """
        await self._begin(owner, patience_s)
        name = f"tubemq-gateway-{self._kind.replace(' ', '-')}"
        task = asyncio.create_task(in_thread(function, name))
        self._threads.add(task)
        task.add_done_callback(lambda ended: self._end_thread(ended, owner))
        return await asyncio.shield(task)

    async def close(self, patience_s: float) -> int:
        """Begin nothing more, and wait for what is under way; return how much has not ended in time."""
        self._closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while self.quota.used:
                    self._ended.clear()
                    await self._ended.wait()
        late = self.quota.used
        # Their threads end when what they ask answers, which may be late.
        for task in self._threads:
            task.cancel()
        await asyncio.gather(*self._threads, return_exceptions=True)
        return late

    async def _begin(self, owner: Owner, patience_s: float | None) -> None:
        """Take a place for an owner, or wait in line for one; raise a busy error after that."""
        if self._closed:
            raise self._busy("it stops")
        if self.quota.take(owner):
            return
        if not self._line.take(owner):
            raise self._busy(f"{self._line.used} calls wait already")
        patiences = [seconds for seconds in (patience_s, self._patience_s) if seconds is not None]
        patience_s = min(patiences, default=None)
        try:
            if not await self.quota.acquire(owner, 1, patience_s):
                what = f"none of its {self.quota.limit} {self._kind} was free within {patience_s:.3g} s"
                raise self._busy(what)
        finally:
            self._line.give(owner)

    def _end(self, owner: Owner) -> None:
        self.quota.give(owner)
        self._ended.set()

    def _end_thread(self, ended: "asyncio.Task[Any]", owner: Owner) -> None:
        self._threads.discard(ended)
        self._end(owner)
        # Its caller may have gone.
        if not ended.cancelled():
            ended.exception()

    def _busy(self, what: str) -> GatewayError:
        return busy(self._gateway, what, self.quota.retry_after_ms)


class Admission:
    """All quotas of a gateway."""

    def __init__(self, settings: GatewaySettings) -> None:
        """Make them as large as the settings want."""
        self._gateway = settings.name
        self._patience_s = settings.queue_ms / 1000
        self.bytes = FairQuota(settings.total_bytes, settings.session_bytes)
        """Bytes of messages."""
        at_once = max(settings.total_bytes // _COMING, settings.max_message_bytes)
        per_session = max(at_once // _COMING, settings.max_message_bytes)
        self.arriving = FairQuota(
            max(settings.total_bytes // settings.max_message_bytes, _FEWEST_ARRIVING),
            max(settings.session_bytes * 3 // 4 // settings.max_message_bytes, _FEWEST_ARRIVING_OF_ONE),
        )
        """Requests of publish streams that are read next, or have come and wait for their room."""
        self._coming = FairQuota(at_once, per_session)
        self._coming_of_strangers = FairQuota(per_session)
        self.longest = settings.max_message_bytes
        """What a message that is on its way holds."""
        self.sessions = FairQuota(settings.sessions)
        self.calls = FairQuota(settings.calls)
        self._line = FairQuota(settings.waiting_calls)
        self.questions = self._work("questions", settings.questions)
        """What asks a master or a broker something, and is answered soon."""
        self.administration = self._work("questions over HTTP", ADMINISTRATION_THREADS)
        """What asks the masters' administration API, or looks names up: it blocks, so threads do it."""
        self.checks = self._work("checks over HTTP", _CHECKING_THREADS)
        """What looks there which logs are whole; a range that begins waits for that, but never for long."""
        self.reads = self._work("reads", settings.reads)
        """Ranges that are read."""
        self.long_batches = WorkLimit("long batches", 1, FairQuota(settings.calls), None, settings.name)
        """What would hold up the event loop; a batch waits as long as its stream."""
        self.publishes = FairQuota(settings.publishes)
        """Producers."""

    @property
    def waiting(self) -> int:
        """How many calls wait for others to end."""
        return self._line.used

    @contextlib.contextmanager
    def calling(self, owner: Owner, *, always: bool = False) -> Iterator[None]:
        """Count a call as long as it is under way."""
        if always:
            yield
            return
        if not self.calls.take(owner):
            raise busy(self._gateway, f"{self.calls.used} calls are under way", self.calls.retry_after_ms)
        try:
            yield
        finally:
            self.calls.give(owner)

    async def close(self, patience_s: float) -> int:
        """Take no more work; return how much has not ended in time."""
        limits = (self.questions, self.administration, self.checks, self.long_batches, self.reads)
        return sum(await asyncio.gather(*(limit.close(patience_s) for limit in limits)))

    async def hold(self, quota: FairQuota, owner: Owner, size: int, patience_s: float | None) -> None:
        """Take bytes of a quota, to be given back; wait until there is room for them."""
        if not quota.take(owner, size):
            patience_s = self._patience_s if patience_s is None else min(patience_s, self._patience_s)
            if not await quota.acquire(owner, size, patience_s):
                what = "the bytes that may wait in it are used up"
                raise busy(self._gateway, what, quota.retry_after_ms)

    def coming(self, owner: Owner) -> FairQuota:
        """Return the quota of messages on their way, of which each holds ``longest`` bytes.

        gRPC takes so much for any method, and says how long a message is only when it is there. Callers
        without a session have a quota of their own: as many hosts as they may call from, no session waits for
        messages of theirs that do not come.
        """
        return self._coming if owner.session else self._coming_of_strangers

    async def moving(
        self,
        step: Awaitable[Result],
        owner: Owner,
        what: str,
        scarce: Sequence[Pressure],
        patience_s: float,
        longest_s: float | None = None,
    ) -> Result:
        """Return the result of a client's step, which may be slow until others wait for ``scarce``.

        It may stand still for ``patience_s`` in any case. After ``longest_s`` it raises ``TimeoutError``
        although no others wait.
        """
        loop, limit = asyncio.get_running_loop(), asyncio.timeout(None)
        ends_at = math.inf if longest_s is None else loop.time() + longest_s
        pressure: Pressure | None = None
        timer: asyncio.TimerHandle

        def look() -> None:
            nonlocal pressure, timer
            pressure = next((each for each in scarce if each.pressed(owner)), None)
            if pressure is None and loop.time() < ends_at:
                timer = loop.call_at(min(loop.time() + patience_s, ends_at), look)
            else:
                limit.reschedule(loop.time())

        # No task of its own, and one timer: most steps are over at once, and each call has one.
        timer = loop.call_later(patience_s, look)
        try:
            async with limit:
                return await step
        except TimeoutError:
            if pressure is None:
                raise
            raise busy(self._gateway, f"{what}, and others wait", pressure.retry_after_ms) from None
        finally:
            timer.cancel()

    def _work(self, kind: str, at_once: int) -> WorkLimit:
        return WorkLimit(kind, at_once, self._line, self._patience_s, self._gateway)


def busy(gateway: str, what: str, retry_after_ms: int) -> GatewayError:
    """Return the error for a call that has no place."""
    return GatewayError("TUBEMQ_GATEWAY_BUSY", gateway=gateway, what=what, retry_after_ms=retry_after_ms)
