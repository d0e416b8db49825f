"""Connections to gateways, and calls that any of them may serve.

A process has one ``Gateways`` for each set of settings. Its session is one client id. It is opened at a
gateway before the first call there, and again when the gateway says that it does not know it; then the call
is repeated.

**Which gateway.** Each process has the list in an order of its own, so that many processes use all gateways.
Calls go to the current one, the same for all threads. ``attempts`` says when the next one becomes the
current one. What a gateway answers for TubeMQ, errors of masters and brokers among it, is the answer: no
other gateway is asked.

**States of the session at one gateway.**

- *unknown*: not in ``_opened``;
- *opening*: a future is there, for which all calls to this gateway wait;
- *open*: the future has its answer. Every call keeps it alive. When none was made for half of its lease, it
  is closed: a session that is silent for longer would count as lost;
- *closed*, which is *unknown* again: after that, by ``close``, when the process ends, or when the connection
  was lost.

**Connections.** They are made when they are first needed, from what is in the files of TLS then. When these
have changed, new calls get a new connection, and calls that are under way keep the old one. A forked child
has none of its parent's.

**Threads and loops.** Coroutines of several event loops may share a ``Gateways``, and threads, which call by
the process's loop. gRPC makes the calls in threads of its own and tells the loop of their ends. The lock is
held for some lines only, and never while anything is waited for. Streams have a thread each that reads them,
since gRPC has no other way.
"""

import asyncio
import atexit
import functools
import importlib
import os
import random
import secrets
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from concurrent.futures import Future, wait as wait_for_all
from types import ModuleType
from typing import Any, Final, TypeAlias, TypeVar

from google.protobuf.message import Message

from tubemq_spark import __version__
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master.identity import RUNTIME, consumer_id
from tubemq_spark.client.remote import credentials, wire
from tubemq_spark.client.remote.attempts import Attempts, AwayError
from tubemq_spark.errors import GatewayError, OptionError, TubeMQConnectionError
from tubemq_spark.model import Endpoint
from tubemq_spark.net import loop
from tubemq_spark.net.deadline import Clock
from tubemq_spark.net.retry import LEAVE_MS
from tubemq_spark.protocol.gateway import gateway_pb2 as pb
from tubemq_spark.protocol.gateway.failures import ERROR_TRAILER, parse_error
from tubemq_spark.protocol.gateway.methods import METHODS, SESSION_KEY

__all__ = ["AwayError", "Gateways", "close_process_gateways", "grpc_module", "process_gateways"]

Answer = TypeVar("Answer", bound=Message)
Answered: TypeAlias = Any
"""A message of a type that the method tells."""
Call: TypeAlias = Any
"""An object of gRPC, which has no types."""
Result = TypeVar("Result")

_KEEPALIVE_MS: Final = 10_000
_KEEPALIVE_TIMEOUT_MS: Final = 5_000
_LONGEST_RECONNECT_MS: Final = 1_000
_SECRET_BYTES: Final = 32
_MARGIN_MS: Final = 5_000
"""What a call may take beyond what TubeMQ may."""
_AHEAD: Final = 2
"""How many messages of a stream are read before they are asked for."""

shuffle: Callable[[list[Endpoint]], object] = random.shuffle
"""Puts the gateways into the order of this process; a test may replace it."""


def grpc_module() -> ModuleType:
    """Return gRPC.

    Raises:
        OptionError: it is not installed.
    """
    # Otherwise each gateway that stops is a line on stderr. A value of the user stays.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        return importlib.import_module("grpc")
    except ImportError:
        raise OptionError("TUBEMQ_GATEWAY_MISSING", package="grpcio") from None


class _Connection:
    """A connection to one gateway."""

    def __init__(self, channel: Call, context: object) -> None:
        self.channel = channel
        self.context = context
        """Stands for the content of the files of TLS; None without TLS."""
        self.served = False
        """Whether a gateway has answered on it."""


class _Use:
    """How the session is used at one gateway."""

    def __init__(self) -> None:
        self.opened: Future[pb.OpenSessionResponse | None] = Future()
        """What the gateway has answered; None: who opened the session was cancelled."""
        self.opened.set_running_or_notify_cancel()  # one that waits no more does not cancel it
        self.calls = 0
        """How many are under way."""
        self.at = 0.0
        """When the last one ended."""

    def is_idle(self, now: float) -> bool:
        """Whether no call was made for half of its lease."""
        if self.calls or not self.is_open or (answer := self.opened.result()) is None:
            return False
        return now - self.at > answer.lease_ms / 2000

    @property
    def is_open(self) -> bool:
        """Whether the gateway has opened the session."""
        return self.opened.done() and self.opened.exception() is None and self.opened.result() is not None


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
        if config.tls is not None:
            credentials.credentials(self._grpc, config.tls.validate())
        self._token = () if token is None else (("authorization", f"Bearer {token}"),)
        self._named = addresses
        self._kind = kind
        self._ended = False
        self._lock = threading.Lock()
        self._start()
        _all.add(self)

    def _start(self) -> None:
        addresses = list(self._named)
        shuffle(addresses)
        self._addresses = tuple(addresses)
        self._current_index = 0
        self._connections: dict[int, _Connection] = {}
        self._opened: dict[int, _Use] = {}
        self._sweeping_in: asyncio.AbstractEventLoop | None = None
        """The loop with a timer that closes the session where it is idle."""
        # A client of its own, also in a forked child: two must never share an id.
        self.session = pb.SessionRef(
            client_id=consumer_id(self.config.group, self._kind),
            epoch=time.time_ns(),
            secret=secrets.token_bytes(_SECRET_BYTES),
        )

    def restart_in_child(self) -> None:
        """Forget the connections, which belong to the parent process; for a forked child."""
        self._lock = threading.Lock()
        self._start()

    def close(self, timeout_s: float = LEAVE_MS / 1000) -> None:
        """As ``closing``, for threads; needs no event loop, so also when the process exits."""
        ended, connections = self._leave(timeout_s)
        wait_for_all(ended, timeout_s)
        for connection in connections:
            connection.channel.close()

    async def closing(self, timeout_s: float = LEAVE_MS / 1000) -> None:
        """Close the session and the connections; later calls make new ones.

        Args:
            timeout_s: how long to wait for gateways that do not answer, in seconds.
        """
        ended, connections = self._leave(timeout_s)
        try:
            if ended:
                await asyncio.wait(map(asyncio.wrap_future, ended), timeout=timeout_s)
        finally:
            for connection in connections:
                connection.channel.close()

    def refuse_calls(self) -> None:
        """Refuse all later calls."""
        self._ended = True

    def _leave(self, timeout_s: float) -> "tuple[list[Future[None]], list[_Connection]]":
        """Begin to close the session everywhere; return what is done then, and what is to be closed."""
        with self._lock:
            connections, self._connections = self._connections, {}
            uses, self._opened = self._opened, {}
        ended = [
            self._begin_to_close(connections[gateway].channel, timeout_s)
            for gateway, use in uses.items()
            if use.is_open and gateway in connections
        ]
        return ended, list(connections.values())

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
            return self.asking(gateway, name, request, answer, timeout_s)

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

    async def asking(
        self, gateway: int, name: str, request: Message, answer: type[Answer], timeout_s: float
    ) -> Answer:
        """Call one gateway, in the session.

        Raises:
            AwayError: another gateway may serve the call.
            TubeMQError: that of the gateway, or of TubeMQ.
        """
        return await self.in_session(gateway, lambda: self.ask_at(gateway, name, request, answer, timeout_s))

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
        self._forget(gateway, use)
        await self.opening(gateway)
        return await attempt()

    async def opening(self, gateway: int) -> _Use:
        """Return when the session is open at a gateway.

        Raises:
            AwayError: another gateway may take it.
            TubeMQError: that of the gateway.
        """
        while True:
            with self._lock:
                use = self._opened.get(gateway)
                begins = use is None
                if use is None:
                    use = self._opened[gateway] = _Use()
            if begins:
                await self._open(gateway, use)
                return use
            if not use.opened.done():
                await asyncio.wrap_future(use.opened)
            if use.opened.result() is not None:
                return use

    async def _open(self, gateway: int, use: _Use) -> None:
        try:
            answer = await self._open_session(gateway)
        except Exception as error:
            self._forget(gateway, use)
            use.opened.set_exception(error)
            raise
        except BaseException:
            self._forget(gateway, use)
            use.opened.set_result(None)
            raise
        use.at = self._clock()
        use.opened.set_result(answer)
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
        """Call one gateway, whether it knows the session or not; as ``asking``.

        When its caller is cancelled, the call is.
        """
        if self.config.tls is None:
            connection = self._connection(gateway)
        else:  # which reads files
            connection = await _in_thread(functools.partial(self._connection, gateway), "tubemq-tls-gateway")
        call, ended = self._begin(connection.channel, name, request, answer, timeout_s)
        self._count(gateway, ended)
        try:
            await asyncio.wrap_future(ended)
        finally:
            call.cancel()  # no harm when it has ended
        try:
            result: Answer = call.result()
        except self._grpc.RpcError as error:
            raise (await self._why(gateway, connection, error)) from None
        connection.served = True
        return result

    def _begin(
        self, channel: Call, name: str, request: Message, answer: type[Message], timeout_s: float
    ) -> tuple[Call, "Future[None]"]:
        """Begin a call; the future is done when it has ended, and cannot be cancelled."""
        begin = channel.unary_unary(
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
        return (*self._token, (SESSION_KEY, self.session.SerializeToString()))

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
        reader = _Reader(self, functools.partial(self.stream, gateway, name, requests, parsed=parsed))
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
        channel = self._connection(gateway).channel
        kind = channel.stream_stream if method.takes_stream else channel.unary_stream
        begin = kind(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString if parsed else None,
        )
        call = begin(requests, metadata=self._metadata)
        ended: Future[None] = Future()
        self._count(gateway, ended)
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
            raise self._error_of(error) from None

    # Errors.

    async def _why(self, gateway: int, connection: _Connection, error: Call) -> Exception:
        """Return why a call failed; when the connection did, find out whether TLS is the reason."""
        failure = self._error_of(error)
        if isinstance(failure, AwayError) and failure.failure is None:
            with self._lock:  # another process may answer there next
                self._opened.pop(gateway, None)
            details = error.details() or ""
            if _NOT_REACHED not in details and (not connection.served or "handshake" in details.lower()):
                look = functools.partial(
                    credentials.tls_fault,
                    self._addresses[gateway],
                    self.config.tls,
                    self.config.connect_timeout_ms,
                )
                fault = await _in_thread(look, "tubemq-tls-gateway")
                if fault is not None:
                    return AwayError(fault)
        return failure

    def _error_of(self, error: Call) -> Exception:
        """Return why a call failed: an error of TubeMQ or of the gateway, or that another may serve it."""
        trailers = dict(error.trailing_metadata() or ())
        if ERROR_TRAILER in trailers:
            failure = parse_error(trailers[ERROR_TRAILER])
            if failure.condition in _ELSEWHERE:
                return AwayError(failure)
            return failure
        code, details = error.code(), error.details() or "no details"
        what = f"{code.name}: {details}".rstrip(".")
        if code.name in _ITS_OWN_FAULT:
            return GatewayError("TUBEMQ_GATEWAY_ERROR", text=what)
        return AwayError(what)

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
        with self._lock:
            use, connection = self._opened.get(gateway), self._connections.get(gateway)
            self._opened.clear()
        if use is not None and connection is not None:
            self._begin_to_close(connection.channel)
        self.session.epoch = max(self.session.epoch + 1, time.time_ns())

    def _forget(self, gateway: int, use: _Use) -> None:
        with self._lock:
            if self._opened.get(gateway) is use:
                del self._opened[gateway]

    def _count(self, gateway: int, ended: "Future[None]") -> None:
        """Count a call until it has ended, so that the session is not closed while it runs."""
        with self._lock:
            use = self._opened.get(gateway)
            if use is not None:
                use.calls += 1
        if use is not None:
            ended.add_done_callback(lambda _: self._note_end(use))

    def _note_end(self, use: _Use) -> None:
        with self._lock:
            use.calls -= 1
            use.at = self._clock()

    def _sweep_every(self, lease_ms: int) -> None:
        """Look in this loop for what is idle while a session is open, unless another loop does."""
        running = asyncio.get_running_loop()
        with self._lock:
            if self._sweeping_in is not None and not self._sweeping_in.is_closed():
                return
            self._sweeping_in = running
        # The loop must not keep a session that none uses any more.
        period_s = max(1, lease_ms) / 8000
        running.call_later(period_s, _close_idle, weakref.ref(self), running, period_s)

    def close_idle(self) -> bool:
        """Close the session where it is not used; return whether it is open elsewhere."""
        now = self._clock()
        with self._lock:
            idle = [gateway for gateway, use in self._opened.items() if use.is_idle(now)]
            for gateway in idle:
                del self._opened[gateway]
            channels = [
                self._connections[gateway].channel for gateway in idle if gateway in self._connections
            ]
            is_open = bool(self._opened)
            if not is_open:
                self._sweeping_in = None
        for channel in channels:
            self._begin_to_close(channel)
        return is_open

    def _begin_to_close(self, channel: Call, timeout_s: float = LEAVE_MS / 1000) -> "Future[None]":
        request = pb.CloseSessionRequest()
        return self._begin(channel, "CloseSession", request, pb.CloseSessionResponse, timeout_s)[1]

    # Connections.

    def _connection(self, gateway: int) -> _Connection:
        if self._ended:
            raise TubeMQConnectionError("TUBEMQ_CLIENT_CLOSED")
        tls = self.config.tls
        context = None if tls is None else tls.context()
        with self._lock:
            connection = self._connections.get(gateway)
            if connection is None or connection.context is not context:
                # The old one lives as long as calls use it.
                channel = self._connect(self._addresses[gateway])
                connection = self._connections[gateway] = _Connection(channel, context)
            return connection

    def _connect(self, address: Endpoint) -> Call:
        options: list[tuple[str, int | str]] = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
            ("grpc.http2.ping_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.max_reconnect_backoff_ms", _LONGEST_RECONNECT_MS),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.enable_http_proxy", 0),
            # Each Gateways has its own connection, which it may close.
            ("grpc.use_local_subchannel_pool", 1),
        ]
        tls = self.config.tls
        if tls is None:
            return self._grpc.insecure_channel(str(address), options=options)
        if tls.server_name:
            options.append(("grpc.ssl_target_name_override", tls.server_name))
        shown = credentials.credentials(self._grpc, tls)
        return self._grpc.secure_channel(str(address), shown, options=options)


class _Reader:
    """Reads a stream in a daemon thread, for coroutines of the loop that runs; up to a few messages ahead.

    The thread ends when the stream does. ``_is_cancelled`` is set before the call is looked for, and looked
    at after the call was made: so one of the two threads cancels it.
    """

    def __init__(self, gateways: Gateways, begin: Callable[[], Call]) -> None:
        """Begin the call in the thread, which may read files.

        Raises:
            TubeMQConnectionError: no thread is left.
        """
        self._gateways = gateways
        self._begin = begin
        self._call: Call = None
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[Answered | Exception | None] = asyncio.Queue()
        """Messages, and behind them why there are no more; None: the gateway has ended the stream."""
        self._room = threading.Semaphore(_AHEAD)
        self._is_cancelled = False
        try:
            threading.Thread(target=self._run, name="tubemq-answers", daemon=True).start()
        except RuntimeError as error:
            raise TubeMQConnectionError("TUBEMQ_PROCESS_EXHAUSTED", cause=error) from error

    async def next(self) -> Answered | None:
        """Return the next message; None at the end. What ends the stream otherwise is raised."""
        message = await self._arrived.get()
        if isinstance(message, Exception):
            raise message
        self._room.release()
        return message

    def cancel(self) -> None:
        """End the call, if it has not ended; returns at once."""
        self._is_cancelled = True
        if self._call is not None:
            self._call.cancel()
        self._room.release()

    def _run(self) -> None:
        message: Answered | Exception | None = None
        try:
            self._call = self._begin()
            while not self._is_cancelled and (message := self._gateways.next_of(self._call)) is not None:
                self._hand_over(message)
                self._room.acquire()
        except Exception as error:  # noqa: BLE001 (who waits for messages gets it)
            message = error
        if self._is_cancelled and self._call is not None:
            self._call.cancel()
        else:
            self._hand_over(message)

    def _hand_over(self, message: Answered | Exception | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._arrived.put_nowait, message)
        except RuntimeError:  # the loop has ended
            self.cancel()


async def _in_thread(call: Callable[[], Result], name: str) -> Result:
    """Return what a function returns that reads files, or connects, in a thread of its own.

    Raises:
        TubeMQConnectionError: no thread is left.
    """
    try:
        return await loop.in_thread(call, name)
    except RuntimeError as error:
        raise TubeMQConnectionError("TUBEMQ_PROCESS_EXHAUSTED", cause=error) from error


def _close_idle(
    gateways: "weakref.ref[Gateways]", running: asyncio.AbstractEventLoop, period_s: float
) -> None:
    if (used := gateways()) is not None and used.close_idle():
        running.call_later(period_s, _close_idle, gateways, running, period_s)


_NOT_REACHED: Final = "Failed to connect to remote host"
"""gRPC's words when there is no connection at all, so that TLS is not the reason."""
_ITS_OWN_FAULT: Final = frozenset(
    {"UNIMPLEMENTED", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED"}
)
"""Statuses of gRPC itself that another gateway would give as well: a method it does not know, a message above
its limit."""
_ELSEWHERE: Final = frozenset({"TUBEMQ_GATEWAY_DRAINING", "TUBEMQ_GATEWAY_BUSY", "TUBEMQ_GATEWAY_DEADLINE"})
"""What a gateway says of itself and not of TubeMQ."""

_all: "weakref.WeakSet[Gateways]" = weakref.WeakSet()
_of_settings: Final[dict[tuple[tuple[Endpoint, ...], ClientConfig, str | None], Gateways]] = {}
_making = threading.Lock()


def process_gateways(
    addresses: tuple[Endpoint, ...], config: ClientConfig, token: str | None = None
) -> Gateways:
    """Return the gateways of these settings that everything in this process shares.

    Raises:
        OptionError: as ``Gateways``.
    """
    with _making:
        gateways = _of_settings.get((addresses, config, token))
        if gateways is None:
            gateways = _of_settings[addresses, config, token] = Gateways(addresses, config, token)
        return gateways


def close_process_gateways() -> None:
    """Close the sessions and connections of the whole process; later calls make new ones."""
    with _making:
        gateways = list(_of_settings.values())
        _of_settings.clear()
    for group in gateways:
        group.close()


def _after_fork_in_child() -> None:
    global _making
    _making = threading.Lock()
    for gateways in list(_all):
        gateways.restart_in_child()


atexit.register(close_process_gateways)
os.register_at_fork(after_in_child=_after_fork_in_child)
