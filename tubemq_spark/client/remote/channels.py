"""The wire to gateways, as ``Gateways`` uses it: a channel to each of them, made when it is first needed.

A channel stands for what was in the files of TLS when it was made. When these have changed, new calls get a
new channel, and calls that are under way keep the old one. A forked child has none of its parent's.

**gRPC** is used by its synchronous API, so several event loops may share a channel, and threads. It is loaded
when gateways are named. Calls are made in threads of gRPC, which tell the loop of their ends. The answers of
a stream are read in a daemon thread of its own, ``_AHEAD`` of them before they are asked for, and gRPC takes
its requests from a queue in another one.

**TLS** is that of gRPC, whose library reads no files, knows no limit of versions, and tells little. So the
files are checked, and their changes are seen, as for every other connection (``net/tls.py``): in a thread,
every ``_LOOK_S`` at most, and before the next call after one for which there was no connection. After a
connection has failed, our own TLS finds out why.
"""

import asyncio
import functools
import importlib
import os
import queue
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast

from google.protobuf.message import Message

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.remote.attempts import AwayError
from tubemq_spark.errors import GatewayError, OptionError, TlsError, TubeMQConnectionError, TubeMQError
from tubemq_spark.model import Endpoint
from tubemq_spark.net import loop
from tubemq_spark.net.deadline import Clock
from tubemq_spark.net.tls import TlsConfig, certificate_name, own_context_of
from tubemq_spark.net.tls_errors import answers_in_tls, handshake_error, hung_up
from tubemq_spark.protocol.gateway.failures import ERROR_TRAILER, parse_error
from tubemq_spark.protocol.gateway.service import ServiceMethod

Answer = TypeVar("Answer", bound=Message)
Answered: TypeAlias = Any
"""A message of a type that the method tells."""
Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]

_ITS_OWN_FAULT: Final = frozenset(
    {"UNIMPLEMENTED", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED"}
)
"""Statuses of gRPC itself that another gateway would give as well: a method it does not know, a message above
its limit."""
_ELSEWHERE: Final = frozenset({"TUBEMQ_GATEWAY_DRAINING", "TUBEMQ_GATEWAY_BUSY", "TUBEMQ_GATEWAY_DEADLINE"})
"""What a gateway says of itself and not of TubeMQ."""


class Stream(Protocol):
    """A call with a stream of answers, and perhaps one of requests; for the loop in which it was begun."""

    def write(self, request: Message) -> None:
        """Send a request after those before; returns at once."""

    def end_writing(self) -> None:
        """End our side; returns at once, and does no harm when that is so already."""

    async def read(self) -> Answered | None:
        """Return the next answer; None at the end."""

    def cancel(self) -> None:
        """End the call, if it has not ended; returns at once."""


class Channel(Protocol):
    """A connection to one gateway, which finds its way again by itself; threads and loops may share it.

    What fails raises ``AwayError`` if another gateway may serve it, otherwise the error of the gateway or of
    TubeMQ.
    """

    async def call(
        self,
        method: ServiceMethod,
        request: Message,
        answer: type[Answer],
        metadata: Metadata,
        timeout_s: float,
    ) -> Answer:
        """Return the answer of a call, which is cancelled when its caller is."""

    def begin(
        self, method: ServiceMethod, request: Message, metadata: Metadata, timeout_s: float
    ) -> "Future[None]":
        """Begin a call whose answer is not needed; return what is done when it has ended. Needs no loop."""

    def stream(self, method: ServiceMethod, first: Message, metadata: Metadata, *, parsed: bool) -> Stream:
        """Begin a call with streams, and send its first request; it has no deadline but keepalive."""

    def close(self) -> None:
        """End it, and the calls that use it. Needs no loop, so also when the process exits."""


class Channels:
    """The channels of one ``Gateways``; threads may share them. The lock is held for some lines only."""

    def __init__(self) -> None:
        """Make none."""
        self._refuses = False
        self.reset()

    def reset(self) -> None:
        """Forget the channels, which belong to the parent process; for a forked child."""
        self._lock = threading.Lock()
        self._channels: dict[Endpoint, tuple[Channel, object]] = {}
        """Each with what it was made from."""

    def connect(self, gateway: Endpoint, made_from: Any) -> Channel:  # noqa: ANN401 (its own)
        """Return a new channel."""
        raise NotImplementedError

    async def material(self) -> object:
        """Read the files from which a new channel is made, and return their contents."""

    def look_again(self) -> None:
        """Look at files before the next call: one has failed, maybe since they have changed."""

    async def reach(self, gateway: Endpoint) -> Channel:
        """Return the channel for a new call to a gateway."""
        if self._refuses:
            raise TubeMQConnectionError("TUBEMQ_CLIENT_CLOSED")
        material = await self.material()
        with self._lock:
            channel, made_from = self._channels.get(gateway, (None, None))
            if channel is None or made_from is not material:
                # The old one lives as long as calls use it.
                channel = self.connect(gateway, material)
                self._channels[gateway] = channel, material
        return channel

    def refuse(self) -> None:
        """Refuse all later calls."""
        self._refuses = True

    def existing(self, gateway: Endpoint) -> Channel | None:
        """Return the channel to a gateway if there is one."""
        return self._channels.get(gateway, (None, None))[0]

    def take_all(self) -> dict[Endpoint, Channel]:
        """Return all channels, which the caller closes; later calls make new ones."""
        with self._lock:
            channels, self._channels = self._channels, {}
        return {gateway: channel for gateway, (channel, _) in channels.items()}


def error_of(status: str, details: str | None, trailers: Mapping[str, Any]) -> Exception:
    """Return the error of a call; ``AwayError`` if another gateway may serve it."""
    if ERROR_TRAILER in trailers:
        failure = parse_error(trailers[ERROR_TRAILER])
        if failure.condition in _ELSEWHERE:
            return AwayError(failure)
        return failure
    what = f"{status}: {details or 'no details'}".rstrip(".")
    if status in _ITS_OWN_FAULT:
        return GatewayError("TUBEMQ_GATEWAY_ERROR", text=what)
    return AwayError(what)


_ANSWER_S: Final = 1.0
"""How long to wait for a gateway's word about our certificate."""


def grpc_credentials(grpc: ModuleType, tls: TlsConfig) -> Any:  # noqa: ANN401 (gRPC has no types)
    """Return gRPC's credentials for a new connection, from what is in the files now."""
    pair = (tls.key_file or tls.cert_file, tls.cert_file)
    return grpc.ssl_channel_credentials(
        _roots(tls), *(None if path is None else Path(path).read_bytes() for path in pair)
    )


def tls_fault(endpoint: Endpoint, tls: TlsConfig | None, timeout_ms: int) -> TubeMQError | None:
    """Return why a gateway and this client do not agree on TLS; None: they do, or it does not answer.

    It is connected to once more. No secret and no data is sent.
    """
    if tls is None:
        return OptionError("TUBEMQ_TLS_EXPECTED", endpoint=endpoint) if answers_in_tls(endpoint) else None
    try:
        # A gateway that was just stopping may hang up on one, not on the next.
        if _hangs_up(endpoint, tls, timeout_ms) and _hangs_up(endpoint, tls, timeout_ms):
            return hung_up(endpoint, tls)
    except OptionError as error:
        return error
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
        return None
    except ssl.SSLError as error:
        fault = handshake_error(error, endpoint, tls)
        return fault if isinstance(fault, TlsError) else None
    except OSError:
        return None
    return None


def _hangs_up(endpoint: Endpoint, tls: TlsConfig, timeout_ms: int) -> bool:
    """Whether a gateway closes the connection after the handshake: it does not like our certificate."""
    context = own_context_of(tls)
    context.set_alpn_protocols(["h2"])  # without it gRPC hangs up
    address, name = (endpoint.host, endpoint.port), certificate_name(tls, endpoint.host)
    with (
        socket.create_connection(address, timeout_ms / 1000) as connected,
        context.wrap_socket(connected, server_hostname=name) as secured,
    ):
        secured.settimeout(_ANSWER_S)
        try:
            # Only now, with TLS 1.3, a server says what it thinks of the client's certificate.
            return not secured.recv(1)
        except TimeoutError:
            return False
        except ConnectionResetError:
            return True


def _roots(tls: TlsConfig) -> bytes:
    """Return the CAs that are trusted; gRPC's own list is not used."""
    if tls.ca_file is not None:
        return Path(tls.ca_file).read_bytes()
    trusted = ssl.create_default_context().get_ca_certs(binary_form=True)
    roots = "".join(map(ssl.DER_cert_to_PEM_cert, trusted)).encode()
    folder = ssl.get_default_verify_paths().capath
    if not roots and folder is not None:  # OpenSSL looks into it for each certificate
        roots = b"\n".join(path.read_bytes() for path in sorted(Path(folder).glob("*.[0-9]")))
    if not roots:
        raise OptionError("TUBEMQ_OPTION_NEEDED", option="tubemq.tls.caFile", other="tubemq.tls.enabled")
    return roots


Result = TypeVar("Result")
_Grpc: TypeAlias = Any
"""An object of gRPC, which has no types."""

_KEEPALIVE_MS: Final = 10_000
_KEEPALIVE_TIMEOUT_MS: Final = 5_000
_LONGEST_RECONNECT_MS: Final = 1_000
_LOOK_S: Final = 1.0
"""For how long files of TLS count as they were."""
_AHEAD: Final = 2
_NOT_REACHED: Final = "Failed to connect to remote host"
"""gRPC's words when there is no connection at all, so that TLS is not the reason."""


class GrpcChannels(Channels):
    """See ``Channels``."""

    def __init__(self, config: ClientConfig, clock: Clock) -> None:
        """Make none."""
        super().__init__()
        # Otherwise each gateway that stops is a line on stderr. A value of the user stays.
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
        try:
            self._grpc: ModuleType = importlib.import_module("grpc")
        except ImportError:
            raise OptionError("TUBEMQ_GATEWAY_MISSING", package="grpcio") from None
        self._config = config
        self._clock = clock
        if config.tls is not None:
            grpc_credentials(self._grpc, config.tls.validate())

    def reset(self) -> None:
        """See ``Channels``."""
        super().reset()
        self._files: tuple[object, _Grpc] | None = None
        """What stands for the files as they were when they were looked at last, and credentials from them."""
        self._look_at = float("-inf")
        """When they are to be looked at next."""

    def look_again(self) -> None:
        """See ``Channels``."""
        self._look_at = float("-inf")

    async def material(self) -> object:
        """See ``Channels``."""
        tls = self._config.tls
        if tls is not None and (self._files is None or self._clock() >= self._look_at):
            try:
                async with asyncio.timeout(self._config.connect_timeout_ms / 1000):
                    await _in_thread(functools.partial(self._look, tls))
            except TimeoutError:
                raise AwayError("the files of TLS were not read in time") from None
        return self._files

    def connect(self, gateway: Endpoint, made_from: tuple[object, _Grpc] | None) -> "GrpcChannel":
        """See ``Channels``."""
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
        tls = self._config.tls
        if tls is None or made_from is None:
            channel = self._grpc.insecure_channel(str(gateway), options=options)
        else:
            if tls.server_name:
                options.append(("grpc.ssl_target_name_override", tls.server_name))
            channel = self._grpc.secure_channel(str(gateway), made_from[1], options=options)
        return GrpcChannel(channel, self._grpc.RpcError, gateway, self._config)

    def _look(self, tls: TlsConfig) -> None:
        self._look_at = self._clock() + _LOOK_S  # first: other calls need not look too
        context = tls.context()
        if self._files is None or self._files[0] is not context:
            self._files = context, grpc_credentials(self._grpc, tls)


class GrpcChannel:
    """See ``Channel``."""

    def __init__(
        self, channel: _Grpc, rpc_error: type[Exception], gateway: Endpoint, config: ClientConfig
    ) -> None:
        self._channel = channel
        self._rpc_error = rpc_error
        self._gateway = gateway
        self._config = config
        self._served = False
        """Whether the gateway has answered on it."""

    async def call(
        self,
        method: ServiceMethod,
        request: Message,
        answer: type[Answer],
        metadata: Metadata,
        timeout_s: float,
    ) -> Answer:
        """See ``Channel``."""
        call, ended = self._begin(method, request, answer, metadata, timeout_s)
        try:
            await asyncio.wrap_future(ended)
        finally:
            call.cancel()  # no harm when it has ended
        try:
            result = call.result()
        except self._rpc_error as error:
            raise await self._why(error) from None
        self._served = True
        return cast("Answer", result)

    def begin(
        self, method: ServiceMethod, request: Message, metadata: Metadata, timeout_s: float
    ) -> "Future[None]":
        """See ``Channel``."""
        return self._begin(method, request, method.response, metadata, timeout_s)[1]

    def stream(
        self, method: ServiceMethod, first: Message, metadata: Metadata, *, parsed: bool
    ) -> "GrpcStream":
        """See ``Channel``."""
        kind = self._channel.stream_stream if method.takes_stream else self._channel.unary_stream
        begin = kind(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString if parsed else None,
        )
        begin = functools.partial(begin, metadata=metadata)
        return GrpcStream(begin, first, self._rpc_error, is_alone=not method.takes_stream)

    def close(self) -> None:
        """See ``Channel``."""
        self._channel.close()

    def _begin(
        self,
        method: ServiceMethod,
        request: Message,
        answer: type[Message],
        metadata: Metadata,
        timeout_s: float,
    ) -> "tuple[_Grpc, Future[None]]":
        """Begin a call; the future is done when it has ended, and cannot be cancelled."""
        begin = self._channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=answer.FromString,
        )
        call = begin.future(request, timeout=timeout_s, metadata=metadata)
        ended: Future[None] = Future()
        ended.set_running_or_notify_cancel()
        call.add_done_callback(lambda _: ended.set_result(None))
        return call, ended

    async def _why(self, error: _Grpc) -> Exception:
        """Return why a call failed; when the connection did, find out whether TLS is the reason."""
        failure = _error_of(error)
        if not isinstance(failure, AwayError) or failure.failure is not None:
            return failure
        details = error.details() or ""
        if _NOT_REACHED in details or (self._served and "handshake" not in details.lower()):
            return failure
        config = self._config
        fault = await _in_thread(lambda: tls_fault(self._gateway, config.tls, config.connect_timeout_ms))
        return failure if fault is None else AwayError(fault)


class GrpcStream:
    """See ``Stream``.

    The thread ends when the stream does. ``_is_cancelled`` is set before the call is looked for, and looked
    at after the call was made: so one of the two threads cancels it.
    """

    def __init__(self, begin: _Grpc, first: Message, rpc_error: type[Exception], *, is_alone: bool) -> None:
        """Begin the call in the thread; ``is_alone`` says whether the first request is the only one."""
        self._requests: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        """What gRPC sends; None ends that."""
        self._begin = functools.partial(begin, first if is_alone else iter(self._requests.get, None))
        self._rpc_error = rpc_error
        self._call: _Grpc = None
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[Answered | Exception | None] = asyncio.Queue()
        """Answers, and behind them why there are no more; None: the gateway has ended the stream."""
        self._room = threading.Semaphore(_AHEAD)
        self._is_cancelled = False
        self.write(first)
        try:
            threading.Thread(target=self._run, name="tubemq-answers", daemon=True).start()
        except RuntimeError as error:
            raise TubeMQConnectionError("TUBEMQ_PROCESS_EXHAUSTED", cause=error) from error

    def write(self, request: Message) -> None:
        """See ``Stream``."""
        self._requests.put(request)

    def end_writing(self) -> None:
        """See ``Stream``."""
        self._requests.put(None)

    async def read(self) -> Answered | None:
        """See ``Stream``."""
        message = await self._arrived.get()
        if isinstance(message, Exception):
            raise message
        self._room.release()
        return message

    def cancel(self) -> None:
        """See ``Stream``."""
        self._is_cancelled = True
        self.end_writing()
        if self._call is not None:
            self._call.cancel()
        self._room.release()

    def _run(self) -> None:
        message: Answered | Exception | None = None
        try:
            self._call = self._begin()
            while not self._is_cancelled and (message := next(self._call, None)) is not None:
                self._hand_over(message)
                self._room.acquire()
        except self._rpc_error as error:
            message = _error_of(error)
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


def _error_of(error: _Grpc) -> Exception:
    return error_of(error.code().name, error.details(), dict(error.trailing_metadata() or ()))


async def _in_thread(call: Callable[[], Result]) -> Result:
    """Run a function that reads files, or connects, in a thread of its own, and return its result."""
    try:
        return await loop.in_thread(call, "tubemq-tls-gateway")
    except RuntimeError as error:
        raise TubeMQConnectionError("TUBEMQ_PROCESS_EXHAUSTED", cause=error) from error
