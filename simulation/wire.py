"""The wire between clients and gateways in a simulated world: what gRPC does, over the simulated network.

The messages are those of the service, as bytes, in frames of our own: gRPC's core has threads. So delays,
cuts, resets, frozen processes and crashed hosts are those of the network. What is as with gRPC:

- a connection is made by the first call, and again after a pause; calls under way have the status UNAVAILABLE
  when it is lost, and so have those that come during the pause;
- while there are calls, a peer that answers no ping within ``_PING_S`` counts as lost;
- a deadline is kept by both sides; a call whose client cancels it, or goes, is cancelled at the gateway;
- who writes a stream waits when its reader is ``_AHEAD`` messages behind.

Law: a commit that is repeated is answered as the first one.
"""

import asyncio
import collections
import contextlib
import pickle
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

import simloom
from google.protobuf.message import Message

from simulation import chance
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.remote.attempts import AwayError
from tubemq_spark.client.remote.channels import Answer, Answered, Channels, Metadata, error_of
from tubemq_spark.client.tasks import OwnedTasks
from tubemq_spark.errors import GatewayError, TubeMQError
from tubemq_spark.gateway.calls import GoneError, Servicer
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import Endpoint
from tubemq_spark.net.deadline import Clock
from tubemq_spark.protocol.gateway.failures import GrpcStatus
from tubemq_spark.protocol.gateway.service import ServiceMethod

_PING_EACH_S: Final = 10.0
_PING_S: Final = 5.0
_CONNECT_S: Final = 1.0
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 1.0
_AHEAD: Final = 3
_REPEATED_PERCENT: Final = 5
"""How many of the commits are made twice, as by a client that has not heard the answer."""
_LENGTH_BYTES: Final = 4

Trailers = tuple[tuple[str, bytes], ...]


class _Begin(NamedTuple):
    """A call begins."""

    call: int
    method: str
    metadata: Metadata
    timeout_s: float | None


class _Data(NamedTuple):
    """A message of a call."""

    call: int
    data: bytes


class _Taken(NamedTuple):
    """A message of a call was read."""

    call: int


class _End(NamedTuple):
    """The client has ended its side of a call."""

    call: int


class _Cancel(NamedTuple):
    """The client wants no more of a call."""

    call: int


class _Status(NamedTuple):
    """The gateway has ended a call."""

    call: int
    status: str
    text: str
    trailers: Trailers


class _Ping(NamedTuple):
    """A peer is to show that it is there."""

    is_answer: bool


class _Connection(asyncio.Protocol):
    """One end of a connection: frames, in order."""

    def __init__(self) -> None:
        self.is_lost = False
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._watch: asyncio.TimerHandle | None = None
        self._awaits_answer = False

    # What the two ends do.

    def take(self, frame: Any) -> None:  # noqa: ANN401 (one of the frames)
        """Do what a frame says."""
        raise NotImplementedError

    def lose(self) -> None:
        """Take note that the connection is lost."""
        raise NotImplementedError

    def is_busy(self) -> bool:
        """Return whether there are calls, so that it matters whether the peer is there."""
        raise NotImplementedError

    # The network.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._watch = asyncio.get_running_loop().call_later(_PING_EACH_S, self._ping)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.close()

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= _LENGTH_BYTES:
            stop = _LENGTH_BYTES + int.from_bytes(self._received[:_LENGTH_BYTES])
            if len(self._received) < stop:
                return
            frame = pickle.loads(self._received[_LENGTH_BYTES:stop])
            del self._received[:stop]
            if isinstance(frame, _Ping):
                if frame.is_answer:
                    self._awaits_answer = False
                else:
                    self.send(_Ping(is_answer=True))
            elif not self.is_lost:
                self.take(frame)

    def send(self, frame: Any) -> None:  # noqa: ANN401
        """Send a frame."""
        if self._transport is not None and not self.is_lost:
            data = pickle.dumps(frame)
            self._transport.write(len(data).to_bytes(_LENGTH_BYTES) + data)

    def close(self) -> None:
        """End the connection and what uses it."""
        if self.is_lost:
            return
        self.is_lost = True
        if self._watch is not None:
            self._watch.cancel()
        if self._transport is not None:
            self._transport.close()
        self.lose()

    def _ping(self) -> None:
        loop = asyncio.get_running_loop()
        if self.is_busy():
            self._awaits_answer = True
            self.send(_Ping(is_answer=False))
            self._watch = loop.call_later(_PING_S, self._look)
        else:
            self._watch = loop.call_later(_PING_EACH_S, self._ping)

    def _look(self) -> None:
        if self._awaits_answer:
            self.close()
        else:
            self._watch = asyncio.get_running_loop().call_later(_PING_EACH_S - _PING_S, self._ping)


class _Credit:
    """How many messages of one direction may be sent before one is read."""

    def __init__(self, send: Callable[[bytes], object]) -> None:
        self._send = send
        self._left = _AHEAD
        self._unsent: collections.deque[tuple[bytes, asyncio.Future[None]]] = collections.deque()

    def put(self, data: bytes) -> "asyncio.Future[None]":
        """Send a message as soon as that is possible; return what is done then."""
        sent = asyncio.get_running_loop().create_future()
        self._unsent.append((data, sent))
        self._go_on()
        return sent

    def note_taken(self) -> None:
        """Take note that the peer has read one."""
        self._left += 1
        self._go_on()

    @property
    def is_empty(self) -> bool:
        """Whether all was sent."""
        return not self._unsent

    def end(self) -> None:
        """Tell those that wait that nothing can be sent any more."""
        for _, sent in self._unsent:
            if not sent.done():
                sent.set_exception(GoneError())
                sent.exception()  # who wrote it may not wait
        self._unsent.clear()

    def _go_on(self) -> None:
        while self._unsent and self._left:
            data, sent = self._unsent.popleft()
            self._left -= 1
            self._send(data)
            if not sent.done():
                sent.set_result(None)


# The client's end.


class _ClientConnection(_Connection):
    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[int, _ClientCall] = {}
        self._numbers = 0

    def begin(self, method: ServiceMethod, metadata: Metadata, timeout_s: float | None) -> "_ClientCall":
        """Begin a call."""
        self._numbers += 1
        call = self.calls[self._numbers] = _ClientCall(self, self._numbers)
        self.send(_Begin(self._numbers, method.name, metadata, timeout_s))
        return call

    def take(self, frame: Any) -> None:  # noqa: ANN401
        call = self.calls.get(frame.call)
        if call is None:
            return
        if isinstance(frame, _Data):
            call.arrived.put_nowait(frame.data)
        elif isinstance(frame, _Taken):
            call.credit.note_taken()
        elif isinstance(frame, _Status):
            call.end(frame.status, frame.text, frame.trailers)

    def lose(self) -> None:
        for call in list(self.calls.values()):
            call.end("UNAVAILABLE", "the connection was lost")

    def is_busy(self) -> bool:
        return bool(self.calls)


class _ClientCall:
    """A call under way; its messages, and behind them how it ended."""

    def __init__(self, connection: _ClientConnection, number: int) -> None:
        self.arrived: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self.credit = _Credit(lambda data: connection.send(_Data(number, data)))
        self._connection = connection
        self._number = number
        self._wants_end = False

    def write(self, data: bytes) -> None:
        """Send a message as soon as the gateway has room for it."""
        self.credit.put(data).add_done_callback(lambda _: self._end_perhaps())

    def end_writing(self) -> None:
        """End the client's side when all was sent."""
        self._wants_end = True
        self._end_perhaps()

    async def read(self) -> bytes | None:
        """Return the next message; None at the end."""
        message = await self.arrived.get()
        if isinstance(message, Exception):
            raise message
        if message is not None:
            self._connection.send(_Taken(self._number))
        return message

    def end(self, status: str, text: str, trailers: Iterable[tuple[str, bytes]] = ()) -> None:
        """Take note of its end."""
        if self._connection.calls.pop(self._number, None) is not None:
            self.credit.end()
            self.arrived.put_nowait(None if status == "OK" else error_of(status, text, dict(trailers)))

    def cancel(self) -> None:
        """Tell the gateway that nothing more is wanted, if it has not ended."""
        if self._number in self._connection.calls:
            self._connection.send(_Cancel(self._number))
            self.end("CANCELLED", "the client has cancelled it")

    def _end_perhaps(self) -> None:
        if self._wants_end and self.credit.is_empty:
            self._wants_end = False
            self._connection.send(_End(self._number))


class SimulatedChannel:
    """See ``channels.Channel``."""

    def __init__(self, gateway: Endpoint) -> None:
        self._gateway = gateway
        self._connection: _ClientConnection | None = None
        self._connecting: asyncio.Task[_ClientConnection] | None = None
        self._tasks = OwnedTasks()
        self._pause_s = 0.0
        self._pause_until = 0.0
        self._is_closed = False

    async def call(
        self,
        method: ServiceMethod,
        request: Message,
        answer: type[Answer],
        metadata: Metadata,
        timeout_s: float,
    ) -> Answer:
        """See ``Channel``."""
        first = await self._call(method, request, answer, metadata, timeout_s)
        if method.name == "Commit" and chance.happens(_REPEATED_PERCENT):
            simloom.reached("a commit was repeated")
            again: Answer | TubeMQError
            try:
                again = await self._call(method, request, answer, metadata, timeout_s)
            except (AwayError, GatewayError):  # its gateway or its session may be gone
                return first
            except TubeMQError as error:
                again = error
            assert again == first, f"a commit is answered with {first}, and its repetition with {again}"
        return first

    async def _call(
        self,
        method: ServiceMethod,
        request: Message,
        answer: type[Answer],
        metadata: Metadata,
        timeout_s: float,
    ) -> Answer:
        try:
            async with asyncio.timeout(timeout_s) as limit:
                call = (await self._connected()).begin(method, metadata, timeout_s)
                try:
                    call.write(request.SerializeToString())
                    call.end_writing()
                    data = await call.read()
                    end = None if data is None else await call.read()
                finally:
                    call.cancel()
        except TimeoutError:
            if not limit.expired():  # the gateway has told of one
                raise
            raise error_of("DEADLINE_EXCEEDED", "Deadline Exceeded", {}) from None
        assert data is not None, f"{method.name} has no answer"
        assert end is None, f"{method.name} has two answers"
        return answer.FromString(data)

    def begin(
        self, method: ServiceMethod, request: Message, metadata: Metadata, timeout_s: float
    ) -> "Future[None]":
        """See ``Channel``."""
        ended: Future[None] = Future()
        ended.set_running_or_notify_cancel()

        async def call() -> None:
            with contextlib.suppress(Exception):
                await self.call(method, request, method.response, metadata, timeout_s)

        task = self._tasks.start(call(), method.name)
        task.add_done_callback(lambda _: ended.set_result(None))
        return ended

    def stream(
        self, method: ServiceMethod, first: Message, metadata: Metadata, *, parsed: bool
    ) -> "SimulatedStream":
        """See ``Channel``."""
        beginning = self._tasks.start(self._begin(method, metadata), method.name)
        return SimulatedStream(beginning, method, first, parsed=parsed)

    def close(self) -> None:
        """See ``Channel``."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.close()

    async def _begin(self, method: ServiceMethod, metadata: Metadata) -> _ClientCall:
        return (await self._connected()).begin(method, metadata, None)

    async def _connected(self) -> _ClientConnection:
        """Return the connection, which is made if there is none."""
        if self._is_closed:
            raise error_of("CANCELLED", "Channel closed!", {})
        if self._connection is not None and not self._connection.is_lost:
            return self._connection
        if self._connecting is None:
            if asyncio.get_running_loop().time() < self._pause_until:
                raise error_of("UNAVAILABLE", "Failed to connect to remote host: waiting", {})
            self._connecting = self._tasks.start(self._connect(), f"connecting to {self._gateway}")
        try:
            return await asyncio.shield(self._connecting)
        except asyncio.CancelledError:
            if not self._is_closed:
                raise
            raise error_of("CANCELLED", "Channel closed!", {}) from None

    async def _connect(self) -> _ClientConnection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, self._connection = await loop.create_connection(
                    _ClientConnection, self._gateway.host, self._gateway.port
                )
        except OSError as error:  # a TimeoutError too
            self._pause_s = min(_LONGEST_PAUSE_S, 2 * self._pause_s or _FIRST_PAUSE_S)
            self._pause_until = loop.time() + self._pause_s
            raise error_of("UNAVAILABLE", f"Failed to connect to remote host: {error}", {}) from None
        finally:
            self._connecting = None
        self._pause_s = 0.0
        return self._connection


class SimulatedStream:
    """See ``channels.Stream``."""

    def __init__(
        self, beginning: "asyncio.Task[_ClientCall]", method: ServiceMethod, first: Message, *, parsed: bool
    ) -> None:
        self._beginning = beginning
        self._method = method
        self._parsed = parsed
        self._call: _ClientCall | None = None
        self._unsent: list[bytes | None] = []
        """What was written before the call has begun; None: the end."""
        self._beginning.add_done_callback(self._begin)
        self.write(first)
        if not method.takes_stream:
            self.end_writing()

    def write(self, request: Message) -> None:
        """See ``Stream``."""
        self._unsent.append(request.SerializeToString())
        self._send()

    def end_writing(self) -> None:
        """See ``Stream``."""
        self._unsent.append(None)
        self._send()

    async def read(self) -> Answered | None:
        """See ``Stream``."""
        call = await asyncio.shield(self._beginning)
        data = await call.read()
        return data if data is None or not self._parsed else self._method.response.FromString(data)

    def cancel(self) -> None:
        """See ``Stream``."""
        self._beginning.cancel()
        if self._call is not None:
            self._call.cancel()

    def _begin(self, beginning: "asyncio.Task[_ClientCall]") -> None:
        if not beginning.cancelled() and beginning.exception() is None:
            self._call = beginning.result()
            self._send()

    def _send(self) -> None:
        if self._call is not None:
            unsent, self._unsent = self._unsent, []
            for data in unsent:
                if data is None:
                    self._call.end_writing()
                else:
                    self._call.write(data)


class SimulatedChannels(Channels):
    """See ``channels.Channels``."""

    def __init__(self, config: ClientConfig, clock: Clock) -> None:  # noqa: ARG002 (as those of gRPC)
        super().__init__()

    def connect(self, gateway: Endpoint, made_from: Any) -> SimulatedChannel:  # noqa: ANN401, ARG002
        """See ``Channels``."""
        return SimulatedChannel(gateway)


# The gateway's end.


class SimulatedListener:
    """See ``gateway.server.GatewayListener``."""

    certificate_expires_at = 0.0

    def __init__(self, settings: GatewaySettings) -> None:
        self.wire = "a simulated network"
        self.tasks = OwnedTasks()
        self.servicers: Mapping[str, Servicer] = {}
        self.connections: dict[_ServerConnection, None] = {}
        self._endpoint = settings.listen
        self._server: asyncio.Server | None = None

    def bind(self, servicers: Mapping[str, Servicer]) -> str:
        """See ``GatewayListener``."""
        self.servicers = servicers
        return str(self._endpoint)

    async def start(self) -> None:
        """See ``GatewayListener``."""
        loop = asyncio.get_running_loop()
        host, port = self._endpoint.host, self._endpoint.port
        self._server = await loop.create_server(lambda: _ServerConnection(self), host, port)

    async def drain(self) -> None:
        """See ``GatewayListener``."""

    async def stop(self) -> None:
        """See ``GatewayListener``."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close()
        await self.tasks.cancel()


class _ServerConnection(_Connection):
    def __init__(self, listener: SimulatedListener) -> None:
        super().__init__()
        self._listener = listener
        self._calls: dict[int, _ServerContext] = {}
        listener.connections[self] = None

    def take(self, frame: Any) -> None:  # noqa: ANN401
        if isinstance(frame, _Begin):
            self._begin(frame)
        elif (call := self._calls.get(frame.call)) is None:
            return
        elif isinstance(frame, _Data):
            call.arrived.put_nowait(frame.data)
        elif isinstance(frame, _Taken):
            call.credit.note_taken()
        elif isinstance(frame, _End):
            call.arrived.put_nowait(None)
        elif isinstance(frame, _Cancel):
            call.go()

    def lose(self) -> None:
        self._listener.connections.pop(self, None)
        for call in list(self._calls.values()):
            call.go()

    def is_busy(self) -> bool:
        return True

    def _begin(self, begin: _Begin) -> None:
        assert self._transport is not None
        host, port = self._transport.get_extra_info("peername")[:2]
        context = self._calls[begin.call] = _ServerContext(self, begin, f"ipv4:{host}:{port}")
        task = self._listener.tasks.start(self._serve(begin, context), f"{begin.method} at a gateway")
        context.go = task.cancel
        if begin.timeout_s is not None:
            asyncio.get_running_loop().call_later(begin.timeout_s, task.cancel)

    async def _serve(self, begin: _Begin, context: "_ServerContext") -> None:
        try:
            answer = await self._listener.servicers[begin.method](context)
            if context.status is None:
                if answer is not None:
                    self.send(_Data(begin.call, answer.SerializeToString()))
                context.status = _Status(begin.call, "OK", "", ())
        except asyncio.CancelledError:
            context.status = _Status(begin.call, "CANCELLED", "the call was cancelled", ())
            raise
        finally:
            context.credit.end()
            self._calls.pop(begin.call, None)
            if context.status is not None:
                self.send(context.status)


class _ServerContext:
    """See ``calls.CallContext``."""

    auth: Mapping[str, Iterable[bytes]] = {}

    def __init__(self, connection: _ServerConnection, begin: _Begin, peer: str) -> None:
        self.peer = peer
        self.metadata: Iterable[tuple[str, str | bytes]] = begin.metadata
        self.arrived: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.credit = _Credit(lambda data: connection.send(_Data(begin.call, data)))
        self.status: _Status | None = None
        self.go: Callable[[], object]
        self._connection = connection
        self._begin = begin
        self._began = asyncio.get_running_loop().time()

    def time_remaining(self) -> float | None:
        """See ``CallContext``."""
        if self._begin.timeout_s is None:
            return None
        return max(0.0, self._began + self._begin.timeout_s - asyncio.get_running_loop().time())

    async def read(self) -> bytes | None:
        """See ``CallContext``."""
        data = await self.arrived.get()
        if data is None:
            self.arrived.put_nowait(None)
        else:
            self._connection.send(_Taken(self._begin.call))
        return data

    async def start_answering(self) -> None:
        """See ``CallContext``."""
        self._check()

    async def write(self, answer: Message | bytes) -> None:
        """See ``CallContext``."""
        self._check()
        await self.credit.put(answer if isinstance(answer, bytes) else answer.SerializeToString())

    async def end(self, status: GrpcStatus, text: str, trailers: Trailers) -> None:
        """See ``CallContext``."""
        self.status = _Status(self._begin.call, status.name, text, trailers)

    def _check(self) -> None:
        if self._connection.is_lost:
            raise GoneError
