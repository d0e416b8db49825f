"""How a gateway is bound to gRPC: the listener, what it says of its health, and calls as handlers see them.

On the wire a client's only message is a stream of one message. So for gRPC all methods take streams, and it
is us who read what comes, and when. What comes are bytes, and so is what is written to a stream: it is us who
say what is wrong with them. A method of the service without a servicer is unimplemented.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from tubemq_spark.errors import TubeMQConnectionError
from tubemq_spark.gateway.calls import GoneError, Servicer
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import Endpoint
from tubemq_spark.net.tls import ServerTls
from tubemq_spark.net.tls_contexts import expiry_of
from tubemq_spark.protocol.gateway.failures import GrpcStatus
from tubemq_spark.protocol.gateway.service import METHODS, SERVICE, ServiceMethod

logger = logging.getLogger("tubemq_spark.gateway")

_UNREAD_BYTES: Final = 64 << 10
_CLIENT_KEEPALIVE_MS: Final = 5_000
"""How often a client may ping."""
_PENDING_CALLS: Final = 20_000
"""gRPC cancels a burst of calls above its own limit; ours answer with a reason."""
_STATUSES: Final = {status.value[0]: status for status in grpc.StatusCode}


class GrpcListener:
    """See ``server.GatewayListener``."""

    def __init__(self, settings: GatewaySettings) -> None:
        """Listen nowhere."""
        self.wire = f"gRPC {grpc.__version__}"
        self._settings = settings
        self._certificates: Certificates | None = None
        self._health = health.aio.HealthServicer()
        self._server: Any = None

    @property
    def certificate_expires_at(self) -> float:
        """See ``server.GatewayListener``."""
        return 0.0 if self._certificates is None else self._certificates.expires_at

    def bind(self, servicers: Mapping[str, Servicer]) -> str:
        """See ``server.GatewayListener``."""
        server = grpc.aio.server(options=_options(self._settings))
        handlers = {name: _handler(METHODS[name], serve) for name, serve in servicers.items()}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection([SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
        self._server = server
        return self._listen(server)

    async def start(self) -> None:
        """See ``server.GatewayListener``."""
        # A server that was never started keeps its port even when it is stopped.
        await self._server.start()
        for service in ("", SERVICE):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)

    async def drain(self) -> None:
        """See ``server.GatewayListener``."""
        await self._health.enter_graceful_shutdown()

    async def stop(self) -> None:
        """See ``server.GatewayListener``."""
        await self._server.stop(0)

    def _listen(self, server: grpc.aio.Server) -> str:
        endpoint = self._settings.listen
        tls = self._settings.server_tls()
        try:
            if tls is None:
                port = server.add_insecure_port(str(endpoint))
            else:
                self._certificates = Certificates(tls)
                port = server.add_secure_port(str(endpoint), self._certificates.credentials())
        except RuntimeError as error:
            raise TubeMQConnectionError(
                "TUBEMQ_LISTEN_FAILED",
                endpoint=endpoint,
                cause=str(error).rstrip("."),
                setting="listen (--listen)",
            ) from error
        return str(Endpoint(endpoint.host, port))


class Certificates:
    """Reads the files of a listener when they have changed.

    gRPC asks before each handshake, in threads of its own, whether something is new. Connections that are
    open stay as they are. As long as the files do not fit together, because only one of them has been
    replaced, what was read before is used, and the log has a warning.
    """

    def __init__(self, tls: ServerTls) -> None:
        """Read them."""
        self._tls = tls
        self._read: ssl.SSLContext | None = None
        self.expires_at = 0.0
        """When the certificate in use expires, in seconds since 1970."""
        self._first = self._read_now()

    def credentials(self) -> grpc.ServerCredentials:
        """Return gRPC's credentials of the listener."""
        return grpc.dynamic_ssl_server_credentials(
            self._first,
            self._look,
            require_client_authentication=self._tls.client_ca_file is not None,
        )

    def _look(self) -> object | None:
        """Return new credentials if the files have changed; otherwise None."""
        try:
            if self._tls.context() is self._read:
                return None
            files = self._read_now()
        except Exception:  # (the handshake would fail, and so would all later ones)
            logger.exception("certificates could not be read again; those of before are used")
            return None
        logger.info("the certificate %s was read again", self._tls.cert_file)
        return files

    def _read_now(self) -> object:
        tls = self._tls
        while True:
            # A context is a new one only when the files have changed and fit together.
            context = tls.context()
            cert = Path(tls.cert_file).read_bytes()
            key = Path(tls.key_file or tls.cert_file).read_bytes()
            cas = None if tls.client_ca_file is None else Path(tls.client_ca_file).read_bytes()
            if tls.context() is context:
                self._read = context
                self.expires_at = expiry_of(cert)
                return grpc.ssl_server_certificate_configuration([(key, cert)], cas)


class GrpcContext:
    """See ``session.calls.CallContext``.

    When what begins the answers of a stream is cancelled while it is sent, gRPC sends it again with the
    status. That fails, and the client would wait for ever. So ``started`` waits until it was sent.
    """

    def __init__(self, context: grpc.aio.ServicerContext, method: ServiceMethod) -> None:
        self.peer: str = context.peer()
        self.metadata: Iterable[tuple[str, str | bytes]] = context.invocation_metadata() or ()
        self._context = context
        self._gives_stream = method.gives_stream
        self._starting: asyncio.Future[None] | None = None

    @property
    def auth(self) -> Mapping[str, Iterable[bytes]]:
        """See ``CallContext``."""
        auth: Mapping[str, Iterable[bytes]] = self._context.auth_context()
        return auth

    def time_remaining(self) -> float | None:
        """See ``CallContext``."""
        remaining: float | None = self._context.time_remaining()
        return remaining

    async def read(self) -> bytes | None:
        """See ``CallContext``."""
        data = await self._context.read()
        return data if isinstance(data, bytes) else None

    async def start_answering(self) -> None:
        """See ``CallContext``."""
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._context.send_initial_metadata(()))
            await _arrives(asyncio.shield(self._starting))

    async def started(self) -> None:
        """Wait until the initial metadata, if their sending has begun, are sent."""
        if self._starting is not None:
            await asyncio.gather(self._starting, return_exceptions=True)

    async def write(self, answer: Message | bytes) -> None:
        """See ``CallContext``."""
        await self.start_answering()
        data = answer if isinstance(answer, bytes) else answer.SerializeToString()
        await _arrives(self._context.write(data))

    async def end(self, status: GrpcStatus, text: str, trailers: tuple[tuple[str, bytes], ...]) -> None:
        """See ``CallContext``."""
        if not self._gives_stream:
            await self._context.abort(_STATUSES[status], text, trailers)
        # This costs less, but a call that is to have a message would get a blank one too.
        self._context.set_code(_STATUSES[status])
        self._context.set_details(text)
        self._context.set_trailing_metadata(trailers)


def _handler(method: ServiceMethod, serve: Servicer) -> grpc.RpcMethodHandler:
    """Return a method's handler, as gRPC calls it."""

    async def call(_: object, context: grpc.aio.ServicerContext) -> Message | None:
        calls_context = GrpcContext(context, method)
        try:
            return await serve(calls_context)
        finally:
            await calls_context.started()

    if method.gives_stream:
        return grpc.stream_stream_rpc_method_handler(call)
    return grpc.stream_unary_rpc_method_handler(call, None, method.response.SerializeToString)


async def _arrives(sending: Awaitable[None]) -> None:
    """Wait until something was sent."""
    try:
        await sending
    except grpc.aio.InternalError as error:
        raise GoneError from error


def _options(settings: GatewaySettings) -> list[tuple[str, int]]:
    """Return gRPC's options."""
    return [
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        # Further calls wait at the client.
        ("grpc.max_concurrent_streams", settings.streams),
        # What gRPC takes of a message before the call is judged; by default that grows up to 16 MiB.
        ("grpc.http2.lookahead_bytes", _UNREAD_BYTES),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.keepalive_time_ms", settings.keepalive_ms),
        # For every ping, those of keepalive among them; gRPC waits a minute otherwise.
        ("grpc.http2.ping_timeout_ms", settings.keepalive_timeout_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        # Otherwise gRPC stops asking while there is nothing to send, as in a call that waits.
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", _CLIENT_KEEPALIVE_MS),
        ("grpc.server.max_pending_requests", _PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", 2 * _PENDING_CALLS),
        ("grpc.so_reuseport", int(settings.reuse_port)),
    ]
