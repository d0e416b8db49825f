"""What each call goes through: its session, its errors, metrics and the access log.

**Never silence.** Whatever happens in a call, its client gets a status: that of its error, with the error
itself in a trailer; INTERNAL for a mistake of ours, which is logged with its traceback.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Final, TypeAlias, cast

import grpc
import grpc.aio
from google.protobuf.message import Message

from tubemq_spark.errors import GatewayError, TubeMQError
from tubemq_spark.gateway.metrics import Metrics
from tubemq_spark.gateway.sessions import Session, Sessions
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.protocol.gateway.failures import ERROR_TRAILER, to_proto, unexpected
from tubemq_spark.protocol.gateway.methods import METHODS, SERVICE
from tubemq_spark.protocol.gateway.packed import MalformedMessageError
from tubemq_spark.protocol.gateway.statuses import Status, status_of

logger = logging.getLogger(__name__)
access_log = logging.getLogger("tubemq_spark.gateway.access")

_ALWAYS: Final = frozenset(
    {
        "Heartbeat",
        "SessionEvents",
        "CloseSession",
        "Commit",
        "DetachPartitions",
        "DescribeGateway",
        "ListSessions",
    }
)
"""Served while the gateway drains too."""
_WITHOUT_SESSION: Final = frozenset({"OpenSession", "DescribeGateway", "ListSessions"})
_SHOWN_TEXT: Final = 1_000
"""How much of an error's text goes into the status; the trailer has all of it."""
_STATUSES: Final = {status.value[0]: status for status in grpc.StatusCode}

Request: TypeAlias = Any
"""A message, or a stream of messages."""
Servicer = Callable[[Request, grpc.aio.ServicerContext], Awaitable[Message | None]]
Handler = Callable[[Request, "Call"], Awaitable[Any]]
"""Serves a call: takes its request or its stream of requests; returns the response, unless it is a stream."""


@dataclasses.dataclass(slots=True, eq=False)
class Call:
    """One call under way."""

    method: str
    context: grpc.aio.ServicerContext
    """gRPC's side of it."""
    session: Session | None = None
    rows: int = 0
    """How many messages it moved, for the access log."""

    def owner(self) -> Session:
        """Return the session of a call that needs one."""
        if self.session is None:
            raise GatewayError("TUBEMQ_GATEWAY_REQUEST", what="it names no session")
        return self.session


class Calls:
    """Binds the handlers of a gateway to gRPC."""

    def __init__(self, settings: GatewaySettings, sessions: Sessions, metrics: Metrics) -> None:
        """Serve nothing yet."""
        self._gateway = settings.name
        self._log_every = settings.access_log_every
        self._numbers: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
        self._sessions = sessions
        self._metrics = metrics
        self.draining = False
        """Whether the gateway is about to stop."""

    def refuse_when_draining(self) -> None:
        """Return while the gateway serves.

        Raises:
            GatewayError: it is about to stop.
        """
        if self.draining:
            raise GatewayError("TUBEMQ_GATEWAY_DRAINING", gateway=self._gateway)

    def generic_handler(self, handlers: dict[str, Handler]) -> grpc.GenericRpcHandler:
        """Return what gRPC calls; methods of the service without a handler are unimplemented."""
        bound = {}
        for name, handler in handlers.items():
            method = METHODS[name]
            # Streams take and give bytes: they convert in their own thread.
            if method.takes_stream:
                bound[name] = grpc.stream_stream_rpc_method_handler(
                    self._stream(name, handler), method.request.FromString, method.response.SerializeToString
                )
            elif method.gives_stream:
                bound[name] = grpc.unary_stream_rpc_method_handler(
                    self._stream(name, handler), method.request.FromString, None
                )
            else:
                bound[name] = grpc.unary_unary_rpc_method_handler(
                    self._unary(name, handler), method.request.FromString, method.response.SerializeToString
                )
        return grpc.method_handlers_generic_handler(SERVICE, bound)

    @contextlib.contextmanager
    def within(self, call: Call, session: Session) -> Iterator[Session]:
        """Give a call its session, which does not expire meanwhile."""
        call.session = session
        session.running += 1
        try:
            yield session
        finally:
            session.running -= 1
            self._sessions.seen(session)

    def _unary(self, name: str, handler: Handler) -> Servicer:
        async def serve(request: Request, context: grpc.aio.ServicerContext) -> Message:
            async with self._answered(name, context) as call:
                if name in _WITHOUT_SESSION:
                    return cast("Message", await handler(request, call))
                with self.within(call, self._sessions.use(request.session)):
                    return cast("Message", await handler(request, call))

        return serve

    def _stream(self, name: str, handler: Handler) -> Servicer:
        async def serve(request: Request, context: grpc.aio.ServicerContext) -> None:
            async with self._answered(name, context) as call:
                await handler(request, call)

        return serve

    @contextlib.asynccontextmanager
    async def _answered(self, name: str, context: grpc.aio.ServicerContext) -> AsyncIterator[Call]:
        call = Call(name, context)
        began, status, failure = time.monotonic(), "OK", None
        try:
            if name not in _ALWAYS:
                self.refuse_when_draining()
            yield call
        except asyncio.CancelledError:
            status = "CANCELLED"
            raise
        except Exception as error:  # noqa: BLE001 (an answer, whatever it is)
            failure = _as_error(name, error)
            status = status_of(failure).name
            await _abort(context, failure)
        finally:
            seconds = time.monotonic() - began
            self._metrics.ended(name, status, seconds)
            self._log(call, status, seconds, failure)

    def _log(self, call: Call, status: str, seconds: float, failure: TubeMQError | None) -> None:
        number = next(self._numbers[call.method])
        if failure is None and (not self._log_every or number % self._log_every):
            return
        access_log.info(
            "%s %s by %s (%s): %d rows in %.1f ms%s",
            call.method,
            status,
            call.session.client_id if call.session else "no session",
            call.context.peer(),
            call.rows,
            seconds * 1000,
            f"; {failure}" if failure else "",
        )


def _as_error(name: str, error: Exception) -> TubeMQError:
    if isinstance(error, TubeMQError):
        return error
    if isinstance(error, MalformedMessageError):
        return GatewayError("TUBEMQ_GATEWAY_REQUEST", what=str(error))
    logger.error("a call of %s failed because of a mistake in the gateway", name, exc_info=error)
    return unexpected(error)


async def _abort(context: grpc.aio.ServicerContext, error: TubeMQError) -> None:
    """End a call with the status of an error, and the error in a trailer."""
    text = str(error)
    shown = text if len(text) <= _SHOWN_TEXT else text[:_SHOWN_TEXT] + "..."
    trailers = ((ERROR_TRAILER, to_proto(error).SerializeToString()),)
    await context.abort(_STATUSES[Status(status_of(error)).value], shown, trailers)
