"""The gateways of one set of settings, and calls that any of them may serve.

A process has one ``Gateways`` for each set of settings. Its session is one client id. It is opened at a
gateway before the first call there, and again when the gateway says that it does not know it; then the call
is repeated.

**States of the session at one gateway.**

- *unknown*: there is no ``Use``;
- *opening*: there is one, for whose ``opened`` all calls to this gateway wait;
- *open*: that has its answer. Every call keeps it alive. When none was made for half of its lease, it is
  closed: a session that is silent for longer would count as lost;
- *closed*, which is *unknown* again: after that, by ``Gateways.close``, when the process ends, or when the
  connection was lost.

**Which gateway.** Each process has the list in an order of its own, so that many processes use all gateways.
Calls go to the current one, the same for all threads. ``attempts`` says when the next one becomes the
current one. What a gateway answers for TubeMQ, errors of masters and brokers among it, is the answer: no
other gateway is asked.

**Threads and loops.** Coroutines of several event loops may share a ``Gateways``, and threads, which call by
the process's loop. Locks are held for some lines only, and never while anything is waited for. What carries
the calls is a ``Channel`` (``channels``).
"""

import asyncio
import atexit
import contextlib
import os
import random
import secrets
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future, wait as wait_for_all
from typing import Final, TypeVar

from google.protobuf.message import Message

from tubemq_spark import __version__
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master.identity import RUNTIME, consumer_id
from tubemq_spark.client.remote import wire
from tubemq_spark.client.remote.attempts import Attempts, AwayError
from tubemq_spark.client.remote.channels import Answer, Channel, Channels, GrpcChannels, Metadata, Stream
from tubemq_spark.errors import GatewayError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.deadline import Clock, monotonic
from tubemq_spark.net.retry import LEAVE_MS
from tubemq_spark.protocol.gateway import gateway_pb2 as pb
from tubemq_spark.protocol.gateway.service import METHODS, SESSION_KEY


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
    def answer(self) -> pb.OpenSessionResponse | None:
        """What the gateway has answered; None: the session is not open."""
        is_open = self.opened.done() and self.opened.exception() is None
        return self.opened.result() if is_open else None

    @property
    def lease_s(self) -> float | None:
        """How long the session lives without calls; None: it is not open."""
        return None if self.answer is None else self.answer.lease_ms / 1000


class SessionUses:
    """The uses of one session, by the numbers of gateways; threads and event loops may share them."""

    def __init__(self, clock: Clock) -> None:
        """Begin without uses."""
        self._clock = clock
        self.reset()

    def reset(self) -> None:
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
        """Forget the use at a gateway, or only this one there; return whether there was one."""
        with self._lock:
            if gateway not in self._uses or self._uses[gateway] is not (use or self._uses[gateway]):
                return False
            del self._uses[gateway]
            return True

    def take_idle(self, gateway: int, use: Use) -> bool:
        """Forget a use without a call for half of its lease; return whether the caller closes it there."""
        half_s = None if use.lease_s is None else use.lease_s / 2
        is_idle = not use.calls and half_s is not None and self._clock() - use.used_at > half_s
        if not is_idle or not self.forget(gateway, use):
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


Result = TypeVar("Result")

_SECRET_BYTES: Final = 32
_MARGIN_MS: Final = 5_000
"""What a call may take beyond what TubeMQ may."""

shuffle: Callable[[list[Endpoint]], object] = random.shuffle
"""Puts the gateways into the order of this process; a test may replace it."""


class Gateways:
    """The gateways of one set of settings, and a session with them; threads and coroutines may share it."""

    def __init__(
        self,
        addresses: tuple[Endpoint, ...],
        config: ClientConfig,
        token: str | None = None,
        *,
        kind: str = "Pull",
        clock: Clock = monotonic,
        channels: Callable[[ClientConfig, Clock], Channels] = GrpcChannels,
    ) -> None:
        """Create it without connections: the first call connects."""
        self.config = config
        self.token = token
        """The secret by which gateways know the client."""
        self._settings = wire.settings_to_proto(config)
        self._clock = clock
        self._make_channels = channels
        self._channels = channels(config, clock)
        self._uses = SessionUses(clock)
        self._named = addresses
        self._kind = kind
        self._lock = threading.Lock()
        self._start()
        _all.add(self)

    def _start(self) -> None:
        """Choose the order of the gateways, and a new id and secret for the session."""
        addresses = list(self._named)
        shuffle(addresses)
        self.addresses = tuple(addresses)
        self.current_index = 0
        """The index of the gateway that calls go to."""
        # A client of its own, also in a forked child: two must never share an id.
        self.session = pb.SessionRef(
            client_id=consumer_id(self.config.group, self._kind),
            epoch=time.time_ns(),
            secret=secrets.token_bytes(_SECRET_BYTES),
        )

    def for_config(self, config: ClientConfig, kind: str = "Pull") -> "Gateways":
        """Return the same gateways with other settings, and a session of their own."""
        return Gateways(
            self._named, config, self.token, kind=kind, clock=self._clock, channels=self._make_channels
        )

    def restart_in_child(self) -> None:
        """Forget the connections, which belong to the parent process; for a forked child."""
        self._lock = threading.Lock()
        self._channels.reset()
        self._uses.reset()
        self._start()

    def close(self, timeout_s: float = LEAVE_MS / 1000) -> None:
        """Close the session as ``closing`` does, from a thread and without a loop: at exit too."""
        ended, channels = self._leave(timeout_s)
        wait_for_all(ended, timeout_s)
        for channel in channels:
            channel.close()

    async def closing(self, timeout_s: float = LEAVE_MS / 1000) -> None:
        """Close the session and the connections; later calls make new ones."""
        ended, channels = self._leave(timeout_s)
        try:
            if ended:
                await asyncio.wait(map(asyncio.wrap_future, ended), timeout=timeout_s)
        finally:
            for channel in channels:
                channel.close()

    def refuse_calls(self) -> None:
        """Refuse all later calls."""
        self._channels.refuse()

    def _leave(self, timeout_s: float) -> "tuple[list[Future[None]], list[Channel]]":
        """Begin to close the session everywhere; return what is done then, and what is to be closed."""
        open_at = [self.addresses[gateway] for gateway in self._uses.take_all()]
        channels = self._channels.take_all()
        ended = [self._begin_to_close(channels[at], timeout_s) for at in open_at if at in channels]
        return ended, list(channels.values())

    # Calls with one answer.

    async def calling(
        self, name: str, request: Message, answer: type[Answer], during: str, extra_ms: int = 0
    ) -> Answer:
        """Make a call, at any gateway, that does no harm when it is repeated.

        ``extra_ms`` is what TubeMQ may take beyond asking masters or brokers; ``during`` says in errors what
        this is.
        """
        timeout_s = self.patience_s + extra_ms / 1000

        def ask(gateway: int) -> Awaitable[Answer]:
            return self.in_session(gateway, lambda: self.ask_at(gateway, name, request, answer, timeout_s))

        return await self.with_any(ask, during, timeout_s)

    async def with_any(
        self, attempt: Callable[[int], Awaitable[Result]], during: str, patience_s: float
    ) -> Result:
        """Return the result of ``attempt`` at the first gateway that can serve it."""
        attempts = self.attempts(patience_s, self.config.register_attempts)
        while True:
            gateway = self.current_index
            try:
                return await attempt(gateway)
            except AwayError as error:
                pause_s = attempts.failed(gateway, error)
                if pause_s is None:
                    raise attempts.error(during, self.tried) from error
            if pause_s > 0:
                await asyncio.sleep(pause_s)

    def attempts(self, patience_s: float | None, rounds: int | None) -> Attempts:
        """Return the attempts of one call, which choose the next gateway; see ``Attempts``."""
        count, retry_s = len(self.addresses), self.config.register_retry_ms / 1000
        return Attempts(
            count, self.leave, rounds=rounds, retry_s=retry_s, patience_s=patience_s, clock=self._clock
        )

    async def in_session(self, gateway: int, attempt: Callable[[], Awaitable[Result]]) -> Result:
        """Make an attempt at one gateway, in the session; repeat it when the gateway does not know that."""
        use = await self.opening(gateway)
        try:
            return await attempt()
        except GatewayError as error:
            if error.condition != "TUBEMQ_SESSION_UNKNOWN":
                raise
        self._uses.forget(gateway, use)
        await self.opening(gateway)
        return await attempt()

    async def opening(self, gateway: int) -> Use:
        """Wait until the session is open at a gateway."""
        config = self.config
        while True:
            use, is_new = self._uses.begin(gateway)
            if is_new:
                await self._open(gateway, use)
                return use
            await use.settled(config.connect_timeout_ms + config.rpc_timeout_ms + _MARGIN_MS)
            if use.opened.result() is not None:
                return use

    async def _open(self, gateway: int, use: Use) -> None:
        session = self.session
        request = pb.OpenSessionRequest(
            client_id=session.client_id, epoch=session.epoch, secret=session.secret, settings=self._settings
        )
        request.language, request.version = RUNTIME, __version__
        timeout_s = self.config.rpc_timeout_ms / 1000
        try:
            answer = await self.ask_at(gateway, "OpenSession", request, pb.OpenSessionResponse, timeout_s)
        except BaseException as error:
            self._uses.forget(gateway, use)
            if isinstance(error, Exception):
                use.opened.set_exception(error)
            else:
                use.opened.set_result(None)
            raise
        self._uses.note_opened(gateway, use, answer)
        _look_later(weakref.ref(self), gateway, use)

    async def ask_at(
        self, gateway: int, name: str, request: Message, answer: type[Answer], timeout_s: float
    ) -> Answer:
        """Call one gateway, whether it knows the session or not.

        When its caller is cancelled, the call is.
        """
        channel = await self._channels.reach(self.addresses[gateway])
        with self._uses.during_a_call(gateway):
            try:
                return await channel.call(METHODS[name], request, answer, self._metadata, timeout_s)
            except AwayError as error:
                if error.lost:
                    self._uses.forget(gateway)  # another process may answer there next
                    self._channels.look_again()
                raise

    @contextlib.asynccontextmanager
    async def stream(
        self, gateway: int, name: str, first: Message, *, parsed: bool = True
    ) -> AsyncIterator[Stream]:
        """Begin a stream with its first request; it is cancelled at the end. Its deadline is keepalive."""
        channel = await self._channels.reach(self.addresses[gateway])
        with self._uses.during_a_call(gateway):
            stream = channel.stream(METHODS[name], first, self._metadata, parsed=parsed)
            try:
                yield stream
            finally:
                stream.cancel()

    @property
    def _metadata(self) -> Metadata:
        token = () if self.token is None else (("authorization", f"Bearer {self.token}"),)
        return (*token, (SESSION_KEY, self.session.SerializeToString()))

    # The list of gateways.

    def leave(self, gateway: int) -> None:
        """Go on to the next gateway, unless another caller has done so."""
        with self._lock:
            if self.current_index == gateway:
                self.current_index = (gateway + 1) % len(self.addresses)

    @property
    def tried(self) -> str:
        """All addresses, for errors."""
        return ", ".join(map(str, self.addresses))

    @property
    def patience_s(self) -> float:
        """What TubeMQ may take to answer, or not to, with these settings, in seconds."""
        config = self.config
        attempt_ms = config.rpc_timeout_ms + config.connect_timeout_ms + config.register_retry_ms
        return (config.register_attempts * attempt_ms + _MARGIN_MS) / 1000

    # The session.

    def begin_epoch(self) -> None:
        """Begin a new epoch, since the state at a gateway is lost; end the old session wherever it lives."""
        for each in self._uses.take_all():
            self._close_at(each)
        self.session.epoch = max(self.session.epoch + 1, time.time_ns())

    def close_if_idle(self, gateway: int, use: Use) -> bool:
        """Close the session where it is not used; return whether it is closed."""
        if self._uses.take_idle(gateway, use):
            self._close_at(gateway)
            return True
        return not self._uses.knows(gateway, use)

    def _close_at(self, gateway: int) -> None:
        if (channel := self._channels.existing(self.addresses[gateway])) is not None:
            self._begin_to_close(channel)

    def _begin_to_close(self, channel: Channel, timeout_s: float = LEAVE_MS / 1000) -> "Future[None]":
        return channel.begin(METHODS["CloseSession"], pb.CloseSessionRequest(), self._metadata, timeout_s)


def _look_later(gateways: "weakref.ref[Gateways]", gateway: int, use: Use) -> None:
    """Look now and then, in the loop that runs, whether an open session is idle; that does not keep it."""
    period_s = max(0.001, use.lease_s or 0.0) / 8

    def look() -> None:
        if (used := gateways()) is not None and not used.close_if_idle(gateway, use):
            _look_later(gateways, gateway, use)

    asyncio.get_running_loop().call_later(period_s, look)


_all: "weakref.WeakSet[Gateways]" = weakref.WeakSet()
_of_settings: Final[dict[tuple[tuple[Endpoint, ...], ClientConfig, str | None], Gateways]] = {}
"""Those that everything in this process shares which has the same settings."""
_sharing_lock = threading.Lock()


def process_gateways(
    addresses: tuple[Endpoint, ...], config: ClientConfig, token: str | None = None
) -> Gateways:
    """Return the gateways of these settings that everything in this process shares."""
    key = addresses, config, token
    with _sharing_lock:
        if key not in _of_settings:
            _of_settings[key] = Gateways(*key)
        return _of_settings[key]


def close_process_gateways() -> None:
    """Close the sessions and connections of the whole process; later calls make new ones."""
    with _sharing_lock:
        shared = list(_of_settings.values())
        _of_settings.clear()
    for gateways in shared:
        gateways.close()


def _after_fork_in_child() -> None:
    global _sharing_lock
    _sharing_lock = threading.Lock()
    for gateways in list(_all):
        gateways.restart_in_child()


atexit.register(close_process_gateways)
os.register_at_fork(after_in_child=_after_fork_in_child)
