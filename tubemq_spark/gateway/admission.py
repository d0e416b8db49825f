"""Who holds what of a gateway, and for how long: bytes, threads, calls, sessions.

**Owners.** What is scarce is held by an owner: a session of a client. A client is who the policy says;
without a policy, the host of the peer. What the gateway does for itself has the owner ``GATEWAY``.

**What is held, and until when.**

- *bytes* of messages: from before a body is kept until its answer is written, or brokers have stored it. A
  request that is on its way holds as much as it may have, in a room of its own;
- *reads*, *questions* and others: a thread each, from the turn of the work until the work has ended;
- *publishes*: one for each producer, held by the session for which it was opened, until it is closed;
- a place in the *line* of those who wait for a thread: until the turn, or until the patience is over;
- *calls*: from their metadata until their status;
- *sessions*: until they end.

What closes what a client has left behind holds nothing of this, and is never refused.

**States of an ask.** *granted*, at once or later; *waiting* in the line; *withdrawn*, when its owner waits no
longer. A withdrawal tells whether it came too late, and then the caller has the amount to give back.

**Invariants of a room.**

- ``used`` is the sum of what is granted and not given back, and never above the limit, but for one owner that
  asked for more than that while nothing else was held.
- A session holds no more than ``per_session``, but for one amount that is larger.
- The last eighth of a room is for clients that hold no more than half of it. While others wait, a client gets
  no more than half.
- Clients take turns, and so do the sessions of one client. No ask is overtaken by a smaller one.
- No ask waits for which there is room.

Who holds something and does not move gives it back when others wait (``pressed``): that is the holder's part.

**Who may change what.** A room may be used by any thread. ``Turns`` belong to the event loop.
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import ipaddress
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, NamedTuple, NoReturn, TypeVar
from urllib.parse import unquote

from tubemq_spark.errors import GatewayError
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.net.deadline import Clock

Result = TypeVar("Result")
Key = TypeVar("Key", str, "Owner")

_RESERVE: Final = 8
"""Which part of a room is for clients that hold little: one of so many."""
_SOONEST_MS: Final = 100
_LATEST_MS: Final = 30_000
_USUAL_PACE_S: Final = 0.1
"""How long it takes until something is given back, as long as nothing is known of that."""
_COMING: Final = 4
"""Which part of the bytes are for messages that are on their way; of these, which part is for one session."""
ADMINISTRATION_THREADS: Final = 4
"""A master that does not answer over HTTP is waited for by few, since its answers are used by all."""


class Owner(NamedTuple):
    """Who holds something."""

    client: str
    """The client of the policy, or the host of the peer."""
    session: str = ""
    """The id of its session, if the call belongs to one."""


GATEWAY: Final = Owner("the gateway itself")


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


@dataclasses.dataclass(slots=True, eq=False)
class Ask:
    """An owner that wants an amount."""

    who: Owner
    amount: int
    tell: Callable[[], object]
    granted: bool = False


class Room:
    """An amount that clients share; threads may share it."""

    def __init__(self, limit: int, per_session: int | None = None, clock: Clock = time.monotonic) -> None:
        """Allow so much in all, and so much of it to each session."""
        self.limit = limit
        self._per_session = limit if per_session is None else per_session
        self._clock = clock
        self._lock = threading.Lock()
        self._of_client: Counter[str] = Counter()
        self._of_session: Counter[Owner] = Counter()
        self._line: dict[str, dict[str, dict[Ask, None]]] = {}
        self._given_at = clock()
        self._pace_s = _USUAL_PACE_S
        self.used = 0
        """How much is held."""
        self.waiting = 0
        """How many wait."""

    def take(self, who: Owner, amount: int = 1) -> bool:
        """Take an amount if there is room now and no other ask is first; return whether."""
        ask = self.ask(who, amount, lambda: None)
        return ask.granted or self.withdraw(ask)

    def ask(self, who: Owner, amount: int, tell: Callable[[], object]) -> Ask:
        """Take an amount, or wait in line for it.

        Returns:
            What says whether it was granted. If that is not at once, ``tell`` is called later, by the thread
            that gives something back; it must not block.
        """
        ask = Ask(who, amount, tell)
        with self._lock:
            self._line.setdefault(who.client, {}).setdefault(who.session, {})[ask] = None
            self.waiting += 1
            # No other is granted: none waited for which there was room.
            self._serve()
        return ask

    def withdraw(self, ask: Ask) -> bool:
        """Wait no longer; return whether the amount was granted before, and is to be given back."""
        with self._lock:
            if ask.granted:
                return True
            self._leave(ask, had_turn=False)
            # What stood behind may fit.
            granted = self._serve()
        for served in granted:
            served.tell()
        return False

    def give(self, who: Owner, amount: int = 1) -> None:
        """Give an amount back."""
        with self._lock:
            now = self._clock()
            self._pace_s += (now - self._given_at - self._pace_s) / 8
            self._given_at = now
        self._put_back(who, amount)

    async def look(self, who: Owner, amount: int) -> None:
        """Wait in the event loop, and in line, until there is room for an amount, and take none."""
        await self.enter(who, amount)
        self._put_back(who, amount)

    async def enter(self, who: Owner, amount: int = 1, patience_s: float | None = None) -> bool:
        """Wait in the event loop for an amount; return whether it was granted in time."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        ask = self.ask(who, amount, lambda: _tell(loop, turn))
        if ask.granted:
            return True
        try:
            async with asyncio.timeout(patience_s):
                await turn
        except TimeoutError:
            return self.withdraw(ask)
        except BaseException:
            if self.withdraw(ask):
                self.give(who, amount)
            raise
        return True

    def pressed(self, who: Owner) -> bool:
        """Return whether others wait for what a session holds."""
        with self._lock:
            return self.waiting > len(self._line.get(who.client, {}).get(who.session, ()))

    @property
    def retry_after_ms(self) -> int:
        """When an ask that comes now would have its turn, from how fast amounts are given back."""
        with self._lock:
            pace_s = max(self._pace_s, (self._clock() - self._given_at) / 8)
            return int(min(max(1000 * pace_s * (self.waiting + 1), _SOONEST_MS), _LATEST_MS))

    def _put_back(self, who: Owner, amount: int) -> None:
        with self._lock:
            self.used -= amount
            _subtract(self._of_client, who.client, amount)
            _subtract(self._of_session, who, amount)
            granted = self._serve()
        for served in granted:
            served.tell()

    def _serve(self) -> list[Ask]:
        """Grant what there is room for, in turn, and return it."""
        granted = []
        while (ask := self._next()) is not None:
            self._leave(ask, had_turn=True)
            ask.granted = True
            self.used += ask.amount
            self._of_client[ask.who.client] += ask.amount
            self._of_session[ask.who] += ask.amount
            granted.append(ask)
        return granted

    def _next(self) -> Ask | None:
        """Return whose turn it is, if there is room for it."""
        for client, sessions in self._line.items():
            for line in sessions.values():
                ask = next(iter(line))
                if self.used and self.used + ask.amount > self.limit:
                    # No smaller amount goes first.
                    return None
                if not self._has_share(client, ask.amount):
                    break
                own = self._of_session[ask.who]
                if not own or own + ask.amount <= self._per_session:
                    return ask
        return None

    def _has_share(self, client: str, amount: int) -> bool:
        own = self._of_client[client]
        if not own or own + amount <= self.limit // 2:
            return True
        return len(self._line) == 1 and self.used + amount <= self.limit - self.limit // _RESERVE

    def _leave(self, ask: Ask, *, had_turn: bool) -> None:
        """Take an ask out of the line; after a turn, the others of the line come first."""
        self.waiting -= 1
        client, session = ask.who
        sessions = self._line[client]
        line = sessions[session]
        del line[ask]
        if had_turn or not line:
            del sessions[session]
        if had_turn or not sessions:
            del self._line[client]
        if had_turn and line:
            sessions[session] = line
        if had_turn and sessions:
            self._line[client] = sessions


def _subtract(counts: Counter[Key], key: Key, amount: int) -> None:
    rest = counts[key] - amount
    if rest < 0:
        raise KeyError(key)
    if rest:
        counts[key] = rest
    else:
        del counts[key]


def _tell(loop: asyncio.AbstractEventLoop, turn: "asyncio.Future[None]") -> None:
    # Once the loop has ended, no call waits.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(_settle, turn)


def _settle(turn: "asyncio.Future[None]") -> None:
    if not turn.done():
        turn.set_result(None)


class StoppedError(Exception):
    """The call for which a thread works has ended."""


class Stop:
    """Tells what runs in a thread that its call has ended; a ``Wait`` for the packages below."""

    def __init__(self) -> None:
        self._ended = threading.Event()

    def set(self) -> None:
        """Say so."""
        self._ended.set()

    def check(self) -> None:
        """Return as long as the call goes on.

        Raises:
            StoppedError: it does not.
        """
        if self._ended.is_set():
            raise StoppedError

    def pause(self, seconds: float) -> None:
        """Wait that long, or until the call ends."""
        self._ended.wait(seconds)
        self.check()


class Turns:
    """The threads for one kind of work; a call waits for its turn while all are at work."""

    def __init__(self, kind: str, threads: int, line: Room, patience_s: float, gateway: str) -> None:
        """Start no thread.

        Args:
            kind: what they do, for errors, such as ``reads``.
            threads: how many there are at most.
            line: the places of all who wait.
            patience_s: how long one waits at most.
            gateway: the gateway's name, for errors.
        """
        self._kind = kind
        self._gateway = gateway
        self._line = line
        self._patience_s = patience_s
        name = f"tubemq-gateway-{kind.replace(' ', '-')}"
        self._threads = concurrent.futures.ThreadPoolExecutor(threads, name)
        self._at_work: set[concurrent.futures.Future[Any]] = set()
        self.room = Room(threads)

    @property
    def running(self) -> int:
        """How many threads are at work."""
        return self.room.used

    @property
    def waiting(self) -> int:
        """How many wait for one."""
        return self.room.waiting

    async def run(
        self, work: Callable[[], Result], who: Owner = GATEWAY, patience_s: float | None = None
    ) -> Result:
        """Return what a function returns, which runs in a thread.

        The thread is the owner's until the function has ended, also when the caller is cancelled: ``Stop`` is
        for functions that may take long.

        Args:
            work: the function.
            who: for whom.
            patience_s: how long to wait for a turn, if that is less than usual.

        Raises:
            GatewayError: no thread was free in time, or too many wait already.
        """
        if not self.room.take(who):
            await self._queue(who, patience_s)
        try:
            future = self._threads.submit(work)
        except BaseException:
            self.room.give(who)
            raise
        self._at_work.add(future)
        # Not when this coroutine ends: when it is cancelled, the thread may still be at work.
        future.add_done_callback(lambda ended: self._leave(ended, who))
        return await asyncio.wrap_future(future)

    async def close(self, patience_s: float) -> int:
        """Take no more work, and wait for what runs; return how much has not ended in time."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        await _wait_for(self._at_work.copy(), patience_s)
        return self.running

    def _leave(self, ended: concurrent.futures.Future[Any], who: Owner) -> None:
        self._at_work.discard(ended)
        self.room.give(who)

    async def _queue(self, who: Owner, patience_s: float | None) -> None:
        if not self._line.take(who):
            self._refuse(f"{self._line.used} calls wait already for a thread")
        patience_s = self._patience_s if patience_s is None else min(patience_s, self._patience_s)
        try:
            if not await self.room.enter(who, 1, patience_s):
                self._refuse(f"none of its {self.room.limit} {self._kind} was free within {patience_s:.3g} s")
        finally:
            self._line.give(who)

    def _refuse(self, what: str) -> NoReturn:
        raise busy(self._gateway, what, self.room.retry_after_ms)


class Admission:
    """All rooms of a gateway."""

    def __init__(self, settings: GatewaySettings) -> None:
        """Make them as large as the settings want."""
        self._gateway = settings.name
        self._patience_s = settings.queue_ms / 1000
        self.bytes = Room(settings.total_bytes, settings.session_bytes)
        """Bytes of messages."""
        at_once = max(settings.total_bytes // _COMING, settings.max_message_bytes)
        per_session = max(at_once // _COMING, settings.max_message_bytes)
        self._coming = Room(at_once, per_session)
        self._coming_of_strangers = Room(per_session)
        self._longest = settings.max_message_bytes
        self.sessions = Room(settings.sessions)
        self.calls = Room(settings.calls)
        self._line = Room(settings.waiting_calls)
        self.questions = self._turns("questions", settings.question_threads)
        """Threads for what waits for a master or a broker a moment."""
        self.administration = self._turns("questions over HTTP", ADMINISTRATION_THREADS)
        """Threads for what waits for the masters' administration API, or for names."""
        self.reads = self._turns("reads", settings.reads)
        """Threads that read ranges."""
        self.publishes = Room(settings.publishes)
        """Producers."""

    @property
    def waiting(self) -> int:
        """How many calls wait for a thread."""
        return self._line.used

    @contextlib.contextmanager
    def calling(self, who: Owner, *, always: bool = False) -> Iterator[None]:
        """Count a call as long as it is under way.

        Raises:
            GatewayError: there are too many, unless it is to be served always.
        """
        if always:
            yield
            return
        if not self.calls.take(who):
            raise busy(self._gateway, f"{self.calls.used} calls are under way", self.calls.retry_after_ms)
        try:
            yield
        finally:
            self.calls.give(who)

    async def close(self, patience_s: float) -> int:
        """Take no more work; return how many threads have not ended in time."""
        turns = (self.questions, self.administration, self.reads)
        return sum([await kind.close(patience_s) for kind in turns])

    @contextlib.asynccontextmanager
    async def holding(self, who: Owner, size: int, patience_s: float | None = None) -> AsyncIterator[None]:
        """Hold bytes, after a wait until there is room for them.

        Raises:
            GatewayError: there was none in time.
        """
        async with self._inside(self.bytes, who, size, patience_s):
            yield

    def receiving(self, who: Owner, patience_s: float | None) -> AbstractAsyncContextManager[Room]:
        """Hold the bytes that a message has at most while it comes, as ``holding`` does; the room is given.

        gRPC takes so much for any method, and says how long a message is only when it is there. Callers
        without a session have a room of their own: as many hosts as they may call from, no session waits for
        messages of theirs that do not come.
        """
        room = self._coming if who.session else self._coming_of_strangers
        return self._inside(room, who, self._longest, patience_s)

    async def moving(
        self, step: Awaitable[Result], who: Owner, what: str, rooms: Sequence[Room], patience_s: float
    ) -> Result:
        """Return what a step of a client brings, which may take its time unless others wait for what it has.

        Args:
            step: what the client does next.
            who: the client's session.
            what: what it does not do, for errors.
            rooms: where it holds something.
            patience_s: how long it may stand still in any case.

        Raises:
            GatewayError: others wait.
        """
        loop, limit = asyncio.get_running_loop(), asyncio.timeout(None)
        pressed: Room | None = None
        timer: asyncio.TimerHandle

        def look() -> None:
            nonlocal pressed, timer
            pressed = next((room for room in rooms if room.pressed(who)), None)
            if pressed is None:
                timer = loop.call_later(patience_s, look)
            else:
                limit.reschedule(loop.time())

        # No task of its own: most steps are over at once, and each call has one.
        timer = loop.call_later(patience_s, look)
        try:
            async with limit:
                return await step
        except TimeoutError:
            if pressed is None:
                raise
            raise busy(self._gateway, f"{what}, and others wait", pressed.retry_after_ms) from None
        finally:
            timer.cancel()

    @contextlib.asynccontextmanager
    async def _inside(
        self, room: Room, who: Owner, size: int, patience_s: float | None
    ) -> AsyncIterator[Room]:
        if not room.take(who, size):
            patience_s = self._patience_s if patience_s is None else min(patience_s, self._patience_s)
            if not await room.enter(who, size, patience_s):
                what = "the bytes that may wait in it are used up"
                raise busy(self._gateway, what, room.retry_after_ms)
        try:
            yield room
        finally:
            room.give(who, size)

    def _turns(self, kind: str, threads: int) -> Turns:
        return Turns(kind, threads, self._line, self._patience_s, self._gateway)


def busy(gateway: str, what: str, retry_after_ms: int) -> GatewayError:
    """Return the error for a call that has no place."""
    return GatewayError("TUBEMQ_GATEWAY_BUSY", gateway=gateway, what=what, retry_after_ms=retry_after_ms)


async def _wait_for(futures: set[concurrent.futures.Future[Any]], patience_s: float) -> None:
    if futures:
        ends = [asyncio.wrap_future(future) for future in futures]
        for end in ends:
            # What one has raised is for its call.
            end.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        await asyncio.wait(ends, timeout=patience_s)
