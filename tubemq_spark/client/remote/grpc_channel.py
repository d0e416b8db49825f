"""The wire to gateways by gRPC's synchronous API: several event loops may share it, and threads.

Calls are made in threads of gRPC, which tell the loop of their ends. The answers of a stream are read in a
daemon thread of its own, ``_AHEAD`` of them before they are asked for, and gRPC takes its requests from a
queue in another one. gRPC is loaded when gateways are named. Whether files of TLS have changed is looked at
in a thread, every ``_LOOK_S`` at most, and before the next call after one for which there was no connection.
"""

import asyncio
import functools
import importlib
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import ModuleType
from typing import Any, Final, TypeAlias, TypeVar, cast

from google.protobuf.message import Message

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.remote import credentials
from tubemq_spark.client.remote.attempts import AwayError
from tubemq_spark.client.remote.channels import Answer, Answered, Channels, Metadata, error_of
from tubemq_spark.errors import OptionError, TubeMQConnectionError
from tubemq_spark.model import Endpoint
from tubemq_spark.net import loop
from tubemq_spark.net.deadline import Clock
from tubemq_spark.net.tls import TlsConfig
from tubemq_spark.protocol.gateway.methods import Method

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
            credentials.credentials(self._grpc, config.tls.validate())

    def start_anew(self) -> None:
        """See ``Channels``."""
        super().start_anew()
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
            self._files = context, credentials.credentials(self._grpc, tls)


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
        self, method: Method, request: Message, answer: type[Answer], metadata: Metadata, timeout_s: float
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

    def begin(self, method: Method, request: Message, metadata: Metadata, timeout_s: float) -> "Future[None]":
        """See ``Channel``."""
        return self._begin(method, request, method.response, metadata, timeout_s)[1]

    def stream(self, method: Method, first: Message, metadata: Metadata, *, parsed: bool) -> "GrpcStream":
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
        self, method: Method, request: Message, answer: type[Message], metadata: Metadata, timeout_s: float
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
        look = functools.partial(
            credentials.tls_fault, self._gateway, self._config.tls, self._config.connect_timeout_ms
        )
        fault = await _in_thread(look)
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
    """Return what a function returns that reads files, or connects, in a thread of its own."""
    try:
        return await loop.in_thread(call, "tubemq-tls-gateway")
    except RuntimeError as error:
        raise TubeMQConnectionError("TUBEMQ_PROCESS_EXHAUSTED", cause=error) from error
