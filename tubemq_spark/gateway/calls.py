"""What each call goes through: its session, its errors, metrics and the access log.

**Always a status.** Each call ends with the status of its error, and the error itself in a trailer; with
INTERNAL for a mistake of ours, which is logged with its traceback. That comes before the deadline of the
client, which otherwise would learn nothing of the reason; a client that names no deadline has
the usual one of the method. What a thread still does then comes to its end, and no call waits for it.

**A call that may not go on** is ended by ``Call.end``, which cancels its task: its session has ended, or the
policy has changed. The client gets the error that ``end`` was given.

**Not every refusal is a failure.** ``REDIRECTS`` tell a client to open its session, or to go to another
gateway, as happens to each of them when gateways are restarted; they are counted apart, and logged as calls
that went well.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol, TypeAlias, cast

from google.protobuf.message import DecodeError, Message

from tubemq_spark.errors import GatewayError, TubeMQError
from tubemq_spark.gateway.admission import Admission, host_of
from tubemq_spark.gateway.metrics import Metrics
from tubemq_spark.gateway.policy import NO_CALLER, Caller, Guard, Need
from tubemq_spark.gateway.sessions import CLOSED, Session, Sessions
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.net.fair_quota import Owner
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, service
from tubemq_spark.protocol.gateway.batches import MalformedMessageError
from tubemq_spark.protocol.gateway.failures import GrpcStatus, status_of, status_with_trailers, unexpected
from tubemq_spark.protocol.gateway.service import METHODS, SESSION_KEY, ServiceMethod

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
_ENDINGS: Final = frozenset({"CloseSession", "Commit", "DetachPartitions"})
"""Served however many calls are under way."""
_WITHOUT_SESSION: Final = frozenset({"OpenSession", "DescribeGateway", "ListSessions"})
USUAL_DEADLINES_S: Final[Mapping[str, float]] = {
    "Heartbeat": 3.0,
    "CloseSession": 5.0,
    "QueryRoute": 30.0,
    "ListTopics": 30.0,
    "QueryBounds": 30.0,
    "QueryFirstReadable": 60.0,
    "QueryGroupPositions": 30.0,
    "QueryStoredOffsets": 30.0,
    "ResetOffsets": 30.0,
    "CheckTopic": 150.0,
    "CreateTopic": 30.0,
    "Subscribe": 60.0,
    "AttachPartitions": 60.0,
    "DetachPartitions": 30.0,
    "Fetch": 25.0,
    "Commit": 30.0,
    "ListMembers": 30.0,
    "ListGroups": 30.0,
}
"""How long a call may take whose client names no deadline: what settings usually allow TubeMQ."""
REDIRECTS: Final = {
    "TUBEMQ_SESSION_UNKNOWN": "session_unknown",
    "TUBEMQ_GATEWAY_DRAINING": "draining",
}
"""Conditions that are no failures, and their names in metrics."""
_END_WITH_SESSION: Final = frozenset({"SessionEvents", "Consume"})
"""Streams that end well when their client closes the session; others would look complete."""
_RESERVE_S: Final = 0.2
"""How much earlier than its client's deadline a call is answered, or half of what is left."""
_TURN_RESERVE_S: Final = 1.0
"""How long before that deadline it is refused when it had no turn, so that its client can ask elsewhere."""
_BODY_S: Final = 10.0
"""How long the message of a call may take to come."""
_PRESSED_BODY_S: Final = 1.0
"""How long it may take when others wait for the room in which it comes."""
_SMALL_BYTES: Final = 16 << 10
"""Up to this size, the message of a call needs no room beside that of the call."""
_MOST_NEEDS: Final = 10_000
"""How many needs of the policy a call keeps; those of one message are no more."""

Request: TypeAlias = Any
"""A message, or a stream of messages."""
Answer: TypeAlias = Any
"""A message, or None at the end of a stream."""
Handler = Callable[[Request, "ServedCall"], Awaitable[Any]]
"""Serves a call: takes its request or its stream of requests; returns the response, unless it is a stream."""


class GoneError(Exception):
    """The client of a call has gone."""


class CallContext(Protocol):
    """What carries one call, as the gateway needs it; writing to a client that has gone: ``GoneError``."""

    peer: str
    """Where its client is."""
    metadata: Iterable[tuple[str, str | bytes]]

    @property
    def auth(self) -> Mapping[str, Iterable[bytes]]:
        """What the connection says of the client, in gRPC's words."""

    def time_remaining(self) -> float | None:
        """Return how long the client still waits, in seconds; None: it names no deadline."""

    async def read(self) -> bytes | None:
        """Return the next message of the client; None at its end."""

    async def start_answering(self) -> None:
        """Tell the client that the call was taken, before anything is written."""

    async def write(self, answer: Message | bytes) -> None:
        """Write an answer to a stream, as soon as its client takes it."""

    async def end(self, status: GrpcStatus, text: str, trailers: tuple[tuple[str, bytes], ...]) -> None:
        """Give the call its status, which is not OK; may raise what the wire needs for that."""


Servicer = Callable[[CallContext], Awaitable[Message | None]]
"""Carries out a call; returns its answer, unless that is a stream."""


@dataclasses.dataclass(slots=True, eq=False)
class ServedCall:
    """One call under way."""

    method: ServiceMethod
    context: CallContext
    ref: pb.SessionRef = dataclasses.field(default_factory=pb.SessionRef, repr=False)
    """The session that it names."""
    session: Session | None = None
    caller: Caller = NO_CALLER
    rows: int = 0
    """How many messages it moved, for the access log."""
    needs: set[Need] = dataclasses.field(default_factory=set)
    """What its latest messages have needed of the policy."""
    calls: "Calls | None" = None
    task: "asyncio.Task[Any] | None" = dataclasses.field(default_factory=asyncio.current_task)
    ended_by: TubeMQError | None = None
    """Why it may not go on."""

    def end(self, error: TubeMQError) -> None:
        """End the call; its client is told why."""
        if self.ended_by is None and self.task is not None:
            self.ended_by = error
            self.task.cancel()

    def judge(self, message: Request) -> None:
        """Raise if the policy does not allow what a message asks for."""
        if self.calls is not None:
            needs = self.calls.guard.needs(self.method.name, message, self.caller, self.session)
            if len(self.needs) + len(needs) > _MOST_NEEDS:
                self.needs.clear()
            self.needs.update(needs)

    def may(self, right: str, name: str) -> bool:
        """Whether the policy gives the caller a right."""
        return self.calls is None or self.calls.guard.may(self.caller, right, name)

    @property
    def client(self) -> str:
        """Who calls, as the policy names it."""
        return self.caller.name

    @property
    def peer(self) -> str:
        """Where its client is."""
        return self.context.peer

    async def read(self) -> Request | None:
        """Return the next message of the client's stream; None at its end."""
        data = await self.context.read()
        return None if data is None else parsed(self.method, data)

    @property
    def who(self) -> Owner:
        """Who holds what this call needs."""
        if self.session is not None:
            return self.session.who
        return Owner(self.client or host_of(self.peer))

    @property
    def patience_s(self) -> float | None:
        """How long its client waits for a turn, as far as that is known."""
        remaining: float | None = self.context.time_remaining()
        if remaining is None:
            remaining = USUAL_DEADLINES_S.get(self.method.name)
        return None if remaining is None else remaining - min(_TURN_RESERVE_S, remaining / 2)

    def owner(self) -> Session:
        """Return the session of a call that needs one."""
        if self.session is None:
            raise refusal(f"its metadata have no {SESSION_KEY}")
        return self.session


class Hook(Protocol):
    """What an embedding program wants to know of each call; both are called in the event loop."""

    def before(self, call: ServedCall) -> None:
        """Called when a call has come."""

    def after(self, call: ServedCall, status: str, seconds: float) -> None:
        """Called when it has ended; with its messages (``rows``), its status and how long it took."""


class Calls:
    """Carries out the calls of a gateway by its handlers."""

    def __init__(
        self, settings: GatewaySettings, sessions: Sessions, admission: Admission, metrics: Metrics
    ) -> None:
        self._gateway = settings.name
        self._admission = admission
        self._log_every = settings.access_log_every
        self._numbers: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
        self._sessions = sessions
        self._metrics = metrics
        self.guard = Guard(settings.name, settings.policy, certificates=settings.tls_client_ca is not None)
        """Who may call, and what."""
        self.hooks: list[Hook] = []
        """Called with each call; what they raise is logged and counted, and changes nothing."""
        self.draining = False
        """Whether the gateway is about to stop."""
        self._running: set[ServedCall] = set()

    def refuse_when_draining(self) -> None:
        """Return while the gateway serves."""
        if self.draining:
            raise GatewayError("TUBEMQ_GATEWAY_DRAINING", gateway=self._gateway)

    def servicers(self, handlers: Mapping[str, Handler]) -> dict[str, Servicer]:
        """Return the servicer of each method, by the method's name."""
        return {name: self._servicer(METHODS[name], handler) for name, handler in handlers.items()}

    @contextlib.contextmanager
    def _in_session(self, call: ServedCall) -> Iterator[None]:
        """Give a call the session that its metadata name, which does not expire during it."""
        if call.method.name not in _WITHOUT_SESSION:
            call.ref = _session_ref(call.context)
        # CloseSession ends calls of its session, and is none of them.
        if call.method.name in _WITHOUT_SESSION or call.method.name == "CloseSession":
            yield
            return
        call.session = session = self._sessions.use(call.ref, call.client)
        session.caller = call.caller
        with session.during(call):
            try:
                yield
            finally:
                session.seen_at = self._sessions.clock()

    def judge_again(self) -> None:
        """End the calls that the policy allows no longer."""
        for call in list(self._running):
            if (refusal := self.guard.refused(call.caller, call.needs)) is not None:
                call.end(refusal)

    def _servicer(self, method: ServiceMethod, handler: Handler) -> Servicer:
        async def serve(context: CallContext) -> Message | None:
            call = ServedCall(method, context, calls=self)
            began, status, failure, answer = time.monotonic(), "OK", None, None
            self._running.add(call)
            self._tell(lambda hook: hook.before(call))
            try:
                answer = await self._carry_out(call, handler)
            except asyncio.CancelledError:
                failure = call.ended_by
                if failure is None or call.task is None:
                    status = "CANCELLED"
                    raise
                call.task.uncancel()
                if call.session and call.session.end == CLOSED and method.name in _END_WITH_SESSION:
                    failure = None
            except GoneError:
                status = "CANCELLED"
            except Exception as error:  # noqa: BLE001 (any of them is an answer)
                failure = _as_error(method.name, error)
            finally:
                if failure is not None:
                    status = status_of(failure).name
                self._running.discard(call)
                self._note(call, status, time.monotonic() - began, failure)
            if failure is not None:
                await context.end(*status_with_trailers(failure))
            return answer

        return serve

    async def _carry_out(self, call: ServedCall, handler: Handler) -> Message | None:
        """Judge a call by its metadata, and only then take its message."""
        method = call.method
        if method.name not in _ALWAYS:
            self.refuse_when_draining()
        call.caller = self.guard.caller(call.context.metadata, call.context.auth)
        with self._admission.calling(call.who, always=method.name in _ENDINGS), self._in_session(call):
            if method.takes_stream:
                return cast("Message | None", await handler(None, call))
            if method.gives_stream:
                return await self._answer(call, handler)
            # A little before its client's own deadline.
            limit_s = _earlier(call, _RESERVE_S)
            limit = asyncio.timeout(limit_s)
            try:
                async with limit:
                    return await self._answer(call, handler)
            except TimeoutError:
                if not limit.expired():
                    raise
                raise _late(call, limit_s) from None

    async def _answer(self, call: ServedCall, handler: Handler) -> Message | None:
        """Take the only message of a call, and carry it out; the bytes of a long one are held."""
        request, size = await self._request(call)
        # A handler may give the call its session, which is another owner.
        who, quota = call.who, self._admission.bytes if size > _SMALL_BYTES else None
        if quota is not None:
            await self._admission.hold(quota, who, size, call.patience_s)
        try:
            call.judge(request)
            return cast("Message | None", await handler(request, call))
        finally:
            if quota is not None:
                quota.give(who, size)

    async def _request(self, call: ServedCall) -> tuple[Request, int]:
        """Return the only message of a call, and its size in bytes."""
        who, admission = call.who, self._admission
        quota = admission.coming(who)
        await admission.hold(quota, who, admission.longest, call.patience_s)
        try:
            what = "the message of the call does not come"
            read = call.context.read()
            data = await admission.moving(read, who, what, (quota,), _PRESSED_BODY_S, _BODY_S)
        except TimeoutError:
            raise _late(call, _BODY_S) from None
        finally:
            quota.give(who, admission.longest)
        if data is None:
            raise MalformedMessageError("it has no message")
        return parsed(call.method, data), len(data)

    def _note(self, call: ServedCall, status: str, seconds: float, failure: TubeMQError | None) -> None:
        redirect = None if failure is None else REDIRECTS.get(failure.condition)
        if redirect is not None:
            self._metrics.redirected(call.method.name, redirect)
            failure = None
        else:
            self._metrics.ended(call.method.name, status, seconds)
        number = next(self._numbers[call.method.name])
        if failure is not None or (self._log_every and number % self._log_every == 0):
            _log(call, status, seconds, failure)
        self._tell(lambda hook: hook.after(call, status, seconds))

    def _tell(self, tell: Callable[[Hook], object]) -> None:
        """Call each hook; an error of a hook is logged and counted."""
        for hook in self.hooks:
            try:
                tell(hook)
            except Exception:  # (a mistake in a hook must not be the client's trouble)
                self._metrics.hook_failed()
                logger.exception("a hook failed")


def _log(call: ServedCall, status: str, seconds: float, failure: TubeMQError | None) -> None:
    who = call.session.client_id if call.session else "no session"
    what = f"; {failure}" if failure else ""
    # A client that is refused again and again must not fill the log.
    kind = {"kind": failure.condition} if failure else None
    text = "%s %s by %s (%s): %d rows in %.1f ms%s"
    access_log.info(
        text, call.method.name, status, who, call.peer, call.rows, seconds * 1000, what, extra=kind
    )


def refusal(what: str) -> GatewayError:
    """Return the error of a call that the gateway cannot carry out as it is."""
    return GatewayError("TUBEMQ_GATEWAY_REQUEST", what=what)


def _session_ref(context: CallContext) -> pb.SessionRef:
    """Return the session that a call's metadata name."""
    for key, value in context.metadata:
        if key == SESSION_KEY and isinstance(value, bytes):
            with contextlib.suppress(DecodeError):
                return pb.SessionRef.FromString(value)
    raise refusal(f"its metadata have no {SESSION_KEY}")


def parsed(method: ServiceMethod, data: bytes) -> Request:
    """Return the message of a request."""
    if len(data) > service.REQUEST_BYTES and method.name != "PublishStream":
        raise MalformedMessageError(f"it has {len(data)} bytes, and {service.REQUEST_BYTES} is the most")
    try:
        request = method.request.FromString(data)
    except DecodeError as error:
        raise MalformedMessageError(f"its bytes are no {method.request.DESCRIPTOR.name}") from error
    service.check_bounds(request)
    return request


def _earlier(call: ServedCall, reserve_s: float) -> float | None:
    """Return how long a call may take if its client is to have so much left, or half of what is left."""
    remaining = call.context.time_remaining()
    if remaining is None:
        return USUAL_DEADLINES_S.get(call.method.name)
    return remaining - min(reserve_s, remaining / 2)


def _late(call: ServedCall, waited_s: float | None) -> GatewayError:
    waited_ms = round((waited_s or 0) * 1000)
    return GatewayError("TUBEMQ_GATEWAY_DEADLINE", method=call.method.name, waited_ms=waited_ms)


def _as_error(name: str, error: Exception) -> TubeMQError:
    if isinstance(error, TubeMQError):
        return error
    if isinstance(error, MalformedMessageError):
        return refusal(str(error))
    logger.error("a call of %s failed because of a mistake in the gateway", name, exc_info=error)
    return unexpected(error)
