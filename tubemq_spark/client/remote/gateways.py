"""The gateways of one set of settings, and calls that any of them may serve.

A process has one ``Gateways`` for each set of settings. Its session is one client id. It is opened at a
gateway before the first call there, and again when the gateway says that it does not know it; then the call
is repeated (``session_uses``).

**Which gateway.** Each process has the list in an order of its own, so that many processes use all gateways.
Calls go to the current one, the same for all threads. ``attempts`` says when the next one becomes the
current one. What a gateway answers for TubeMQ, errors of masters and brokers among it, is the answer: no
other gateway is asked.

**Threads and loops.** Coroutines of several event loops may share a ``Gateways``, and threads, which call by
the process's loop. gRPC makes the calls in threads of its own and tells the loop of their ends. Locks are
held for some lines only, and never while anything is waited for. Streams have a thread each that reads them
(``stream_reader``).
"""

import asyncio
import functools
import os
import random
import secrets
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from concurrent.futures import Future, wait as wait_for_all
from typing import Final, Self, TypeVar

from google.protobuf.message import Message

from tubemq_spark import __version__
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master.identity import RUNTIME, consumer_id
from tubemq_spark.client.remote import credentials, wire
from tubemq_spark.client.remote.attempts import Attempts, AwayError
from tubemq_spark.client.remote.call_errors import error_of, may_be_of_tls
from tubemq_spark.client.remote.channels import Call, Channel, Channels, grpc_module, in_thread
from tubemq_spark.client.remote.session_uses import SessionUses, Use
from tubemq_spark.client.remote.stream_reader import Answered, StreamReader
from tubemq_spark.errors import GatewayError
from tubemq_spark.model import Endpoint
from tubemq_spark.net import loop
from tubemq_spark.net.deadline import Clock
from tubemq_spark.net.retry import LEAVE_MS
from tubemq_spark.protocol.gateway import gateway_pb2 as pb
from tubemq_spark.protocol.gateway.methods import METHODS, SESSION_KEY

Answer = TypeVar("Answer", bound=Message)
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
        clock: Clock = time.monotonic,
    ) -> None:
        """Make no connection; the first call does.

        Args:
            addresses: where they are.
            config: how they deal with TubeMQ, and how they are reached.
            token: what shows them who calls.
            kind: what kind of client the session's id tells of.
            clock: returns the time.

        Raises:
            OptionError: gRPC is not installed, or a file of TLS cannot be used.
        """
        self._grpc = grpc_module()
        self.config = config
        self._settings = wire.settings_to_proto(config)
        self._clock = clock
        self._channels = Channels(self._grpc, config, clock)
        self._uses = SessionUses(clock)
        self.token = token
        self._named = addresses
        self._kind = kind
        self._lock = threading.Lock()
        self._start()
        _all.add(self)

    def for_config(self, config: ClientConfig, kind: str = "Pull") -> Self:
        """Return the same gateways with other settings, and a session of its own."""
        return type(self)(self._named, config, self.token, kind=kind, clock=self._clock)

    def _start(self) -> None:
        addresses = list(self._named)
        shuffle(addresses)
        self._addresses = tuple(addresses)
        self._current_index = 0
        # A client of its own, also in a forked child: two must never share an id.
        self.session = pb.SessionRef(
            client_id=consumer_id(self.config.group, self._kind),
            epoch=time.time_ns(),
            secret=secrets.token_bytes(_SECRET_BYTES),
        )

    def restart_in_child(self) -> None:
        """Forget the connections, which belong to the parent process; for a forked child."""
        self._lock = threading.Lock()
        self._channels.start_anew()
        self._uses.start_anew()
        self._start()

    def close(self, timeout_s: float = LEAVE_MS / 1000) -> None:
        """As ``closing``, for threads; needs no event loop, so also when the process exits."""
        ended, channels = self._leave(timeout_s)
        wait_for_all(ended, timeout_s)
        for channel in channels:
            channel.close()

    async def closing(self, timeout_s: float = LEAVE_MS / 1000) -> None:
        """Close the session and the connections; later calls make new ones.

        Args:
            timeout_s: how long to wait for gateways that do not answer, in seconds.
        """
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
        uses = self._uses.take_all()
        channels = self._channels.take_all()
        open_at = [self._addresses[gateway] for gateway, use in uses.items() if use.is_open]
        ended = [self._begin_to_close(channels[at], timeout_s) for at in open_at if at in channels]
        return ended, list(channels.values())

    @property
    def several(self) -> bool:
        """Whether there is another gateway to go to."""
        return len(self._addresses) > 1

    # Calls with one answer.

    def call(
        self, name: str, request: Message, answer: type[Answer], during: str, extra_ms: int = 0
    ) -> Answer:
        """Make a call, at any gateway, that does no harm when it is repeated.

        Args:
            name: the method.
            request: its request.
            answer: the type of its answer.
            during: what this is, for errors.
            extra_ms: what TubeMQ may take beyond asking masters or brokers.

        Raises:
            TubeMQConnectionError: no gateway answered.
            GatewayError: all are busy, and were for as long as the call may take.
            TubeMQError: that of the gateway, or of TubeMQ.
        """
        return loop.run(self.calling(name, request, answer, during, extra_ms))

    async def calling(
        self, name: str, request: Message, answer: type[Answer], during: str, extra_ms: int = 0
    ) -> Answer:
        """As ``call``, for coroutines."""
        timeout_s = (self._patience_ms() + extra_ms) / 1000

        def ask(gateway: int) -> Awaitable[Answer]:
            return self.in_session(gateway, lambda: self.ask_at(gateway, name, request, answer, timeout_s))

        return await self.with_any(ask, during, timeout_s)

    async def with_any(
        self, attempt: Callable[[int], Awaitable[Result]], during: str, patience_s: float
    ) -> Result:
        """Return what an attempt returns at the first gateway that can serve it.

        Raises:
            TubeMQConnectionError: none could.
            GatewayError: all were busy for so long.
            TubeMQError: that of the attempt.
        """
        attempts = self.attempts(patience_s, self.config.register_attempts)
        while True:
            gateway = self._current_index
            try:
                return await attempt(gateway)
            except AwayError as error:
                pause_s = attempts.failed(gateway, error)
                if pause_s is None:
                    raise attempts.error(during, self.tried) from error
            if pause_s > 0:
                await asyncio.sleep(pause_s)

    def attempts(self, patience_s: float | None, rounds: int | None) -> Attempts:
        """Return what says where a call goes on that a gateway cannot serve; see ``Attempts``."""
        return Attempts(
            len(self._addresses),
            self.leave,
            rounds=rounds,
            retry_s=self.config.register_retry_ms / 1000,
            patience_s=patience_s,
            clock=self._clock,
        )

    async def in_session(self, gateway: int, attempt: Callable[[], Awaitable[Result]]) -> Result:
        """Make an attempt at one gateway, in the session; repeat it when the gateway does not know that.

        Raises:
            AwayError: another gateway may serve the call.
            TubeMQError: that of the attempt.
        """
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
        """Return when the session is open at a gateway.

        Raises:
            AwayError: another gateway may take it.
            TubeMQError: that of the gateway.
        """
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
        try:
            answer = await self._open_session(gateway)
        except Exception as error:
            self._uses.forget(gateway, use)
            use.opened.set_exception(error)
            raise
        except BaseException:
            self._uses.forget(gateway, use)
            use.opened.set_result(None)
            raise
        self._uses.note_opened(use, answer)
        self._sweep_every(answer.lease_ms)

    async def _open_session(self, gateway: int) -> pb.OpenSessionResponse:
        request = pb.OpenSessionRequest(
            client_id=self.session.client_id,
            epoch=self.session.epoch,
            secret=self.session.secret,
            settings=self._settings,
            language=RUNTIME,
            version=__version__,
        )
        timeout_s = self.config.rpc_timeout_ms / 1000
        return await self.ask_at(gateway, "OpenSession", request, pb.OpenSessionResponse, timeout_s)

    async def ask_at(
        self, gateway: int, name: str, request: Message, answer: type[Answer], timeout_s: float
    ) -> Answer:
        """Call one gateway, whether it knows the session or not.

        When its caller is cancelled, the call is.

        Raises:
            AwayError: another gateway may serve the call.
            TubeMQError: that of the gateway, or of TubeMQ.
        """
        channel = await self._channels.reach(self._addresses[gateway])
        call, ended = self._begin(channel, name, request, answer, timeout_s)
        self._uses.count(gateway, ended)
        try:
            await asyncio.wrap_future(ended)
        finally:
            call.cancel()  # no harm when it has ended
        try:
            result: Answer = call.result()
        except self._grpc.RpcError as error:
            raise (await self._why(gateway, channel, error)) from None
        channel.served = True
        return result

    def _begin(
        self, channel: Channel, name: str, request: Message, answer: type[Message], timeout_s: float
    ) -> tuple[Call, "Future[None]"]:
        """Begin a call; the future is done when it has ended, and cannot be cancelled."""
        begin = channel.calls.unary_unary(
            METHODS[name].path,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        call = begin.future(request, timeout=timeout_s, metadata=self._metadata)
        ended: Future[None] = Future()
        ended.set_running_or_notify_cancel()
        call.add_done_callback(lambda _: ended.set_result(None))
        return call, ended

    @property
    def _metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        token = () if self.token is None else (("authorization", f"Bearer {self.token}"),)
        return (*token, (SESSION_KEY, self.session.SerializeToString()))

    # Streams.

    async def messages(
        self, gateway: int, name: str, requests: Message | Iterator[Message], *, parsed: bool = True
    ) -> AsyncGenerator[Answered, None]:
        """Yield the messages of a stream, which a thread reads a few ahead; to close it cancels the call.

        The arguments are those of ``stream``.

        Raises:
            TubeMQConnectionError: no thread is left.
            AwayError: as ``next_of``.
            TubeMQError: as ``next_of``.
        """
        await self._channels.reach(self._addresses[gateway])
        begin = functools.partial(self.stream, gateway, name, requests, parsed=parsed)
        reader = StreamReader(begin, self.next_of)
        try:
            while (message := await reader.next()) is not None:
                yield message
        finally:
            reader.cancel()

    def stream(
        self, gateway: int, name: str, requests: Message | Iterator[Message], *, parsed: bool = True
    ) -> Call:
        """Begin a call with a stream in at least one direction; it has no deadline but keepalive.

        Args:
            gateway: which one is called.
            name: the method.
            requests: what is sent.
            parsed: whether what comes is parsed; otherwise it comes as bytes.
        """
        method = METHODS[name]
        channel = self._channels.get(self._addresses[gateway]).calls
        kind = channel.stream_stream if method.takes_stream else channel.unary_stream
        begin = kind(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString if parsed else None,
        )
        call = begin(requests, metadata=self._metadata)
        ended: Future[None] = Future()
        self._uses.count(gateway, ended)
        if not call.add_callback(functools.partial(ended.set_result, None)):
            ended.set_result(None)
        return call

    def next_of(self, call: Call) -> Answered | None:
        """Return the next message of a stream; None at its end.

        Raises:
            AwayError: the gateway was lost, or leaves the rest to another one.
            TubeMQError: that of the gateway, or of TubeMQ.
        """
        try:
            return next(call)
        except StopIteration:
            return None
        except self._grpc.RpcError as error:
            raise error_of(error) from None

    # Errors.

    async def _why(self, gateway: int, channel: Channel, error: Call) -> Exception:
        """Return why a call failed; when the connection did, find out whether TLS is the reason."""
        failure = error_of(error)
        if isinstance(failure, AwayError) and failure.failure is None:
            self._uses.forget(gateway)  # another process may answer there next
            self._channels.look_again()
            if may_be_of_tls(error, served=channel.served):
                look = functools.partial(
                    credentials.tls_fault,
                    self._addresses[gateway],
                    self.config.tls,
                    self.config.connect_timeout_ms,
                )
                fault = await in_thread(look, "tubemq-tls-gateway")
                if fault is not None:
                    return AwayError(fault)
        return failure

    # The list of gateways.

    def leave(self, gateway: int) -> None:
        """Go on to the next gateway, unless another caller has done so."""
        with self._lock:
            if self._current_index == gateway:
                self._current_index = (gateway + 1) % len(self._addresses)

    @property
    def tried(self) -> str:
        """Return the addresses of all gateways."""
        return ", ".join(map(str, self._addresses))

    def name(self, gateway: int) -> str:
        """Return the address of a gateway."""
        return str(self._addresses[gateway])

    @property
    def current_index(self) -> int:
        """The index of the gateway that calls go to."""
        return self._current_index

    def endpoint(self, gateway: int) -> Endpoint:
        """Return where a gateway is."""
        return self._addresses[gateway]

    @property
    def patience_s(self) -> float:
        """How long a call may take, in seconds."""
        return self._patience_ms() / 1000

    def _patience_ms(self) -> int:
        """Return what TubeMQ may take to answer, or not to, with these settings."""
        config = self.config
        attempt_ms = config.rpc_timeout_ms + config.connect_timeout_ms + config.register_retry_ms
        return config.register_attempts * attempt_ms + _MARGIN_MS

    # The session.

    def begin_epoch(self, gateway: int) -> None:
        """Begin a new epoch, since the state at a gateway is lost; end the old session there, if it lives."""
        if gateway in self._uses.take_all():
            self._close_at(gateway)
        self.session.epoch = max(self.session.epoch + 1, time.time_ns())

    def _sweep_every(self, lease_ms: int) -> None:
        """Look in this loop for what is idle while a session is open, unless another loop does."""
        if self._uses.begin_to_sweep():
            running, period_s = asyncio.get_running_loop(), max(1, lease_ms) / 8000
            # The loop must not keep a session that none uses any more.
            running.call_later(period_s, _close_idle, weakref.ref(self), running, period_s)

    def close_idle(self) -> bool:
        """Close the session where it is not used; return whether it is open elsewhere."""
        idle, is_open = self._uses.take_idle()
        for gateway in idle:
            self._close_at(gateway)
        return is_open

    def _close_at(self, gateway: int) -> None:
        if (channel := self._channels.existing(self._addresses[gateway])) is not None:
            self._begin_to_close(channel)

    def _begin_to_close(self, channel: Channel, timeout_s: float = LEAVE_MS / 1000) -> "Future[None]":
        request = pb.CloseSessionRequest()
        return self._begin(channel, "CloseSession", request, pb.CloseSessionResponse, timeout_s)[1]


def _close_idle(
    gateways: "weakref.ref[Gateways]", running: asyncio.AbstractEventLoop, period_s: float
) -> None:
    if (used := gateways()) is not None and used.close_idle():
        running.call_later(period_s, _close_idle, gateways, running, period_s)


_all: "weakref.WeakSet[Gateways]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for gateways in list(_all):
        gateways.restart_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
