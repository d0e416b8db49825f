"""Connections to gateways, and calls that any of them may serve.

A process has one ``Gateways`` for each set of settings. Its session is one client id: it is opened at a
gateway when that says that it does not know it, and the call is repeated.

**Which gateway.** Calls go to the current one, the same for all threads. When that is away or about to stop,
the next one in the list becomes the current one; who noticed tries there. Only when all were tried, and after
a pause again, as often as masters would be asked, a call fails. What a gateway answers for TubeMQ, errors of
masters and brokers among it, is the answer: no other gateway is asked.

**Forks.** Connections are made when they are first needed. A forked child has none of its parent's.
"""

import importlib
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final, TypeAlias, TypeVar

from google.protobuf.message import Message

from tubemq_spark import __version__
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master.identity import RUNTIME, consumer_id
from tubemq_spark.client.remote import wire
from tubemq_spark.errors import GatewayError, OptionError, TubeMQConnectionError, TubeMQError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.retry import SLEEP, Wait
from tubemq_spark.protocol.gateway import gateway_pb2 as pb
from tubemq_spark.protocol.gateway.failures import ERROR_TRAILER, parse_error
from tubemq_spark.protocol.gateway.methods import METHODS, SESSION_KEY

Answer = TypeVar("Answer", bound=Message)
Answered: TypeAlias = Any
"""A message of a type that the method tells."""
Call: TypeAlias = Any
"""An object of gRPC, which has no types."""
Result = TypeVar("Result")

_KEEPALIVE_MS: Final = 10_000
_KEEPALIVE_TIMEOUT_MS: Final = 5_000
_LONGEST_RECONNECT_MS: Final = 1_000
_METADATA_BYTES: Final = 256 << 10
_SECRET_BYTES: Final = 32
_MARGIN_MS: Final = 5_000
"""What a call may take beyond what TubeMQ may."""


class AwayError(Exception):
    """A gateway cannot serve a call, which another one may."""

    def __init__(self, cause: TubeMQError | str) -> None:
        super().__init__(str(cause))


def grpc_module() -> ModuleType:
    """Return gRPC.

    Raises:
        OptionError: it is not installed.
    """
    # Otherwise each gateway that stops is a line on stderr. Who sets it gets what they set.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        return importlib.import_module("grpc")
    except ImportError:
        raise OptionError("TUBEMQ_GATEWAY_MISSING", package="grpcio") from None


class Gateways:
    """The gateways of one set of settings; threads may share it."""

    def __init__(
        self, addresses: tuple[Endpoint, ...], config: ClientConfig, token: str | None = None
    ) -> None:
        """Make no connection; the first call does.

        Args:
            addresses: where they are.
            config: how they deal with TubeMQ, and how they are reached.
            token: what shows them who calls.

        Raises:
            OptionError: gRPC is not installed, or a file of TLS cannot be used.
        """
        self._grpc = grpc_module()
        self.config = config
        self._settings = wire.settings_to_proto(config)
        self._credentials = _credentials(self._grpc, config)
        self._shown = () if token is None else (("authorization", f"Bearer {token}"),)
        self._addresses = addresses
        self._lock = threading.Lock()
        self._start()
        _all.add(self)

    def _start(self) -> None:
        self._current_index = 0
        self._channels: dict[int, Any] = {}
        # A client of its own, also in a forked child: two must never share an id.
        self.session = pb.SessionRef(
            client_id=consumer_id(self.config.group, "Pull"),
            epoch=time.time_ns(),
            secret=secrets.token_bytes(_SECRET_BYTES),
        )
        self._metadata = (*self._shown, (SESSION_KEY, self.session.SerializeToString()))

    def start_anew(self) -> None:
        """Forget the connections, which belong to the parent process; for a forked child."""
        self._lock = threading.Lock()
        self._start()

    def close(self) -> None:
        """Close the connections; later calls make new ones."""
        with self._lock:
            channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.close()

    @property
    def several(self) -> bool:
        """Whether there is another gateway to go to."""
        return len(self._addresses) > 1

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
            TubeMQError: that of the gateway, or of TubeMQ.
        """
        timeout_s = (self._patience_ms() + extra_ms) / 1000

        def ask(gateway: int) -> Answer:
            return self.ask(gateway, name, request, answer, timeout_s)

        return self.with_any(ask, during)

    def with_any(self, attempt: Callable[[int], Result], during: str, wait: Wait = SLEEP) -> Result:
        """Return what an attempt returns at the first gateway that can serve it.

        Raises:
            TubeMQConnectionError: none could.
            TubeMQError: that of the attempt.
        """
        failures: list[AwayError] = []
        for number in range(self.config.register_attempts):
            if number:
                wait.pause(self.config.register_retry_ms / 1000)
            for _ in self._addresses:
                gateway = self._current_index
                try:
                    return attempt(gateway)
                except AwayError as error:
                    failures.append(error)
                    self.leave(gateway)
        cause = str(failures[-1]).rstrip(".")
        raise TubeMQConnectionError(
            "TUBEMQ_GATEWAY_AWAY", during=during, tried=self.tried, cause=cause
        ) from failures[-1]

    def ask(
        self, gateway: int, name: str, request: Message, answer: type[Answer], timeout_s: float
    ) -> Answer:
        """Call one gateway; open the session there if it does not know it.

        Raises:
            AwayError: another gateway may serve the call.
            TubeMQError: that of the gateway, or of TubeMQ.
        """
        method = METHODS[name]
        call = self._channel(gateway).unary_unary(
            method.path,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        result: Answer = self.in_session(gateway, lambda: self._checked(call, request, timeout_s))
        return result

    def _checked(self, call: Call, request: Message, timeout_s: float) -> Answered:
        try:
            return call(request, timeout=timeout_s, metadata=self._metadata)
        except self._grpc.RpcError as error:
            raise self._error_of(error) from None

    def in_session(self, gateway: int, attempt: Callable[[], Result]) -> Result:
        """Make an attempt at one gateway; open the session there if it does not know it, and try again.

        Raises:
            AwayError: another gateway may serve the call.
            TubeMQError: that of the attempt.
        """
        try:
            return attempt()
        except GatewayError as error:
            if error.condition != "TUBEMQ_SESSION_UNKNOWN":
                raise
        self._open_session(gateway)
        return attempt()

    def _open_session(self, gateway: int) -> None:
        method = METHODS["OpenSession"]
        call = self._channel(gateway).unary_unary(
            method.path,
            request_serializer=pb.OpenSessionRequest.SerializeToString,
            response_deserializer=pb.OpenSessionResponse.FromString,
        )
        request = pb.OpenSessionRequest(
            client_id=self.session.client_id,
            epoch=self.session.epoch,
            secret=self.session.secret,
            settings=self._settings,
            language=RUNTIME,
            version=__version__,
        )
        self._checked(call, request, self.config.rpc_timeout_ms / 1000)

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
        channel = self._channel(gateway)
        kind = channel.stream_stream if method.takes_stream else channel.unary_stream
        begin = kind(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString if parsed else None,
        )
        return begin(requests, metadata=self._metadata)

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

    def leave(self, gateway: int) -> None:
        """Go on to the next gateway, unless another thread has done so."""
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

    def _patience_ms(self) -> int:
        """Return what TubeMQ may take to answer, or not to, with these settings."""
        config = self.config
        attempt_ms = config.rpc_timeout_ms + config.connect_timeout_ms + config.register_retry_ms
        return config.register_attempts * attempt_ms + _MARGIN_MS

    def _channel(self, gateway: int) -> Call:
        with self._lock:
            channel = self._channels.get(gateway)
            if channel is None:
                channel = self._channels[gateway] = self._connect(self._addresses[gateway])
            return channel

    def _connect(self, address: Endpoint) -> Call:
        options: list[tuple[str, int | str]] = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", _METADATA_BYTES),
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
        if self._credentials is None:
            return self._grpc.insecure_channel(str(address), options=options)
        if self.config.tls is not None and self.config.tls.server_name:
            options.append(("grpc.ssl_target_name_override", self.config.tls.server_name))
        return self._grpc.secure_channel(str(address), self._credentials, options=options)


_ITS_OWN_FAULT: Final = frozenset(
    {"UNIMPLEMENTED", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED"}
)
"""Statuses of gRPC itself that another gateway would give as well: a method it does not know, a message above
its limit."""
_ELSEWHERE: Final = frozenset({"TUBEMQ_GATEWAY_DRAINING", "TUBEMQ_GATEWAY_BUSY", "TUBEMQ_GATEWAY_DEADLINE"})
"""What a gateway says of itself and not of TubeMQ."""


def _credentials(grpc: ModuleType, config: ClientConfig) -> Call:
    """Return gRPC's credentials of a client; None without TLS.

    Raises:
        OptionError: a file cannot be used.
    """
    tls = config.tls
    if tls is None:
        return None
    tls.validate()
    files = (tls.ca_file, tls.key_file or tls.cert_file, tls.cert_file)
    return grpc.ssl_channel_credentials(*(None if path is None else _content(path) for path in files))


def _content(path: str) -> bytes:
    with open(path, "rb") as opened:  # noqa: PTH123 (a path as the user wrote it)
        return opened.read()


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
    """Close the connections of the whole process; later calls make new ones."""
    with _making:
        gateways = list(_of_settings.values())
        _of_settings.clear()
    for group in gateways:
        group.close()


def _after_fork_in_child() -> None:
    global _making
    _making = threading.Lock()
    for gateways in list(_all):
        gateways.start_anew()


os.register_at_fork(after_in_child=_after_fork_in_child)
