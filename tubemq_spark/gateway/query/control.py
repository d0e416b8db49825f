"""Sessions, routes and offsets: short questions and short answers."""

import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

from tubemq_spark import __version__
from tubemq_spark.client.metadata.routes import with_missing
from tubemq_spark.client.transport.direct import DirectTransport
from tubemq_spark.errors import (
    GatewayError,
    OptionError,
    RpcError,
    TubeMQConnectionError,
    TubeMQError,
)
from tubemq_spark.gateway.admission import Admission, WorkLimit
from tubemq_spark.gateway.data.consuming import ConsumeService
from tubemq_spark.gateway.session.calls import Call, Calls
from tubemq_spark.gateway.session.sessions import Session, Sessions
from tubemq_spark.gateway.session.upstream import Access, Upstream
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import StoreBounds, StoredOffsets, StoreId
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, limits, values
from tubemq_spark.protocol.gateway.methods import PROTOCOL_REVISION
from tubemq_spark.protocol.gateway.pages import page

Request = TypeVar("Request")
Result = TypeVar("Result")

_PROVES_OLD: Final = (TubeMQConnectionError, RpcError)
"""Errors of a broker after which a master is asked again where it is."""
_SETTLE_S: Final = 5.0
"""How long is waited for the calls of a session that has ended."""


class Control:
    """Serves the short calls of sessions."""

    def __init__(
        self,
        settings: GatewaySettings,
        sessions: Sessions,
        upstream: Upstream,
        questions: WorkLimit,
        calls: Calls,
        consuming: ConsumeService,
    ) -> None:
        self._settings = settings
        self._sessions = sessions
        self._upstream = upstream
        self._questions = questions
        self._calls = calls
        self._consuming = consuming
        self.capabilities: tuple[str, ...] = ()
        """The methods that this gateway serves."""
        self.query_route = self._asking(_route)
        self.query_bounds = self._asking(_bounds)
        self.query_first_readable = self._asking(_first_readable)
        self.query_group_positions = self._asking(_group_positions)
        self.reset_offsets = self._asking(_move_group)

    def _asking(
        self, ask: Callable[[Access, Request], Coroutine[Any, Any, Result]]
    ) -> Callable[[Request, Call], Coroutine[Any, Any, Result]]:
        """Return what serves a method by asking TubeMQ, as the call's session sees it."""

        async def serve(request: Request, call: Call) -> Result:
            return await self._ask(call, ask(call.owner().access, request))

        return serve

    async def _ask(self, call: Call, question: Coroutine[Any, Any, Result]) -> Result:
        """Return the answer to a question, which ends with its call."""
        with contextlib.closing(question):
            async with self._questions.place(call.who, call.patience_s):
                return await question

    def _administration(self, call: Call) -> DirectTransport:
        """Return what asks over HTTP for a call: those who wait for its few threads hold nothing else."""
        return self._upstream.administration(call.owner().access, call.who, call.patience_s)

    # Sessions: they wait for nothing, so that load cannot make one expire.

    async def open_session(self, request: pb.OpenSessionRequest, call: Call) -> pb.OpenSessionResponse:
        """Open a session under the id that its client chose."""
        if request.settings.password and self._settings.tls_cert is None:
            raise GatewayError("TUBEMQ_GATEWAY_PLAINTEXT", gateway=self._settings.name)
        older = self._sessions.known(request.client_id)
        call.session = self._sessions.open(
            request, lambda: self._upstream.access(request.settings), call.peer, call.client
        )
        call.session.caller = call.caller
        if older is not None and older.ended:
            # What the older one has under way comes to nothing from here on.
            await older.settled(_SETTLE_S)
        return pb.OpenSessionResponse(
            lease_ms=self._settings.lease_ms,
            heartbeat_ms=self._settings.heartbeat_ms,
            max_message_bytes=self._settings.max_message_bytes,
            gateway=self._settings.name,
            capabilities=self.capabilities,
            max_batch_bytes=self._settings.max_batch_bytes,
            protocol_revision=PROTOCOL_REVISION,
        )

    async def heartbeat(self, request: pb.HeartbeatRequest, call: Call) -> pb.HeartbeatResponse:
        """Note a sign of life; return the events that the client has not seen."""
        inbox = call.owner().inbox
        inbox.seen(request.seen)
        return pb.HeartbeatResponse(
            lease_ms=self._settings.lease_ms,
            draining=self._calls.draining,
            events=inbox.pending(),
            gateway=self._settings.name,
        )

    async def close_session(self, _: pb.CloseSessionRequest, call: Call) -> pb.CloseSessionResponse:
        """End a session and its calls; one that is not known has ended.

        Its partitions are free then, unless a broker does not answer.
        """
        try:
            session = self._sessions.use(call.ref, call.client)
        except GatewayError:
            return pb.CloseSessionResponse()
        self._sessions.close(session)
        await session.settled(_SETTLE_S)
        await self._consuming.closed(session, call)
        return pb.CloseSessionResponse()

    # Topics.

    async def list_topics(self, request: pb.ListTopicsRequest, call: Call) -> pb.ListTopicsResponse:
        """Name topics, a page at a time."""
        names = await self._administration(call).topics()
        visible = [name for name in names if call.may("see", name)]
        topics, token = page(visible, str, request.page_size, request.page_token, limits.ITEMS)
        return pb.ListTopicsResponse(topics=topics, next_page_token=token)

    # Offsets.

    async def query_stored_offsets(
        self, request: pb.QueryStoredOffsetsRequest, call: Call
    ) -> pb.QueryStoredOffsetsResponse:
        """Say where groups stand, without being one; a page at a time, of what brokers say now."""
        group = request.group if request.HasField("group") else None
        offsets = await self._administration(call).stored_offsets(group, tuple(request.topics))
        visible = tuple(
            item
            for item in offsets.offsets
            if call.may("group", item.group) and call.may("read", item.partition.topic)
        )
        failures: Mapping[int, TubeMQError] = offsets.failures
        if not call.may("group", _ALL_GROUPS):
            failures = {broker: _without_groups(error) for broker, error in failures.items()}
        offsets = StoredOffsets(visible, failures)
        return values.stored_offsets_to_proto(offsets, request.page_size, request.page_token)


_ALL_GROUPS: Final = "*"
"""A name that only fits a pattern for any name."""


def _without_groups(error: TubeMQError) -> TubeMQError:
    """Return why a broker does not tell of some groups, without their names."""
    if error.condition != "TUBEMQ_GROUPS_NOT_TOLD":
        return error
    return type(error)(error.condition, **{**error.parameters, "groups": "some groups", "reason": "refused"})


async def _route(access: Access, request: pb.QueryRouteRequest) -> pb.QueryRouteResponse:
    """Say where partitions are; a master is asked unless an older answer will do."""
    routes, topics, layout = access.routes, tuple(request.topics), None
    if request.max_age_ms and routes.age_ms(topics) <= request.max_age_ms:
        layout = with_missing(await routes.known(topics), topics)
    if layout is None or (layout.missing_topics and not request.missing_ok):
        layout = await routes.layout(topics, missing_ok=request.missing_ok)
    response = values.layout_to_proto(layout)
    response.age_ms = routes.age_ms(topics)
    return response


async def _first_readable(
    access: Access, request: pb.QueryFirstReadableRequest
) -> pb.QueryFirstReadableResponse:
    """Say where the first record is that can still be read."""
    begins = {
        values.partition_from_proto(item.partition): values.bounds_from_proto(item.bounds)
        for item in request.begins
    }
    offsets = await access.transport.first_readable(await access.routes.find(begins), begins)
    return pb.QueryFirstReadableResponse(offsets=values.offsets_to_proto(offsets))


async def _group_positions(
    access: Access, request: pb.QueryGroupPositionsRequest
) -> pb.QueryGroupPositionsResponse:
    """Say where the session's group stands."""
    partitions = [values.partition_from_proto(item) for item in request.partitions]
    offsets = await access.transport.group_positions(await access.routes.find(partitions))
    return pb.QueryGroupPositionsResponse(offsets=values.offsets_to_proto(offsets))


async def _move_group(access: Access, request: pb.ResetOffsetsRequest) -> pb.ResetOffsetsResponse:
    """Move the session's group."""
    positions = values.offsets_from_proto(request.positions)
    failures = await access.transport.move_group(await access.routes.find(positions), positions)
    return values.reset_failures_to_proto(failures)


async def _bounds(access: Access, request: pb.QueryBoundsRequest) -> pb.QueryBoundsResponse:
    """Say where stores begin and end; brokers that are away are part of the answer."""
    stores = values.stores_from_proto(request.stores)
    layout = await access.routes.known({store.topic for store in stores})
    bounds = await access.transport.bounds(
        layout,
        [store for store in stores if store in layout.stores],
        flushed=request.flushed,
        timeout_ms=request.timeout_ms if request.HasField("timeout_ms") else None,
    )
    failures: dict[StoreId, TubeMQError] = {**bounds.failures}
    access.routes.forget(
        {store.topic for store, error in bounds.failures.items() if isinstance(error, _PROVES_OLD)}
    )
    for store in stores:
        if store not in bounds.by_store and store not in failures:
            failures[store] = OptionError("TUBEMQ_PARTITION_NOT_LISTED", partition=store)
    return values.store_bounds_to_proto(StoreBounds(bounds.by_store, failures), stores)


_PAGE: Final = 1_000
"""How many sessions are listed at once, at most."""


class Operations:
    """Serves ``DescribeGateway`` and ``ListSessions``; needs no session."""

    def __init__(
        self,
        settings: GatewaySettings,
        sessions: Sessions,
        admission: Admission,
        calls: Calls,
        upstream: Upstream,
    ) -> None:
        """Look at the parts of a gateway."""
        self._settings = settings
        self._sessions = sessions
        self._admission = admission
        self._calls = calls
        self._upstream = upstream
        self._began = time.monotonic()
        self.advertised = ""
        """The address that clients are told."""
        self.capabilities: tuple[str, ...] = ()

    async def describe_gateway(self, _: pb.DescribeGatewayRequest, __: Call) -> pb.DescribeGatewayResponse:
        """Say how the gateway is."""
        return pb.DescribeGatewayResponse(
            name=self._settings.name,
            advertised=self.advertised,
            cluster=self._settings.cluster_name,
            version=__version__,
            draining=self._calls.draining,
            sessions=len(self._sessions),
            open_reads=self._admission.reads.running,
            open_publishes=self._admission.publishes.used,
            bytes_in_flight=self._admission.bytes.used,
            uptime_ms=int((time.monotonic() - self._began) * 1000),
            capabilities=self.capabilities,
            degraded=self._upstream.degraded,
        )

    async def list_sessions(self, request: pb.ListSessionsRequest, _: Call) -> pb.ListSessionsResponse:
        """List sessions in the order of their ids, a page at a time."""
        sessions = {session.client_id: session for session in self._sessions}

        def described(client_id: str) -> pb.ListSessionsResponse.Session:
            return self._described(sessions[client_id])

        shown, token = page(sessions, described, request.page_size, request.page_token, _PAGE)
        return pb.ListSessionsResponse(sessions=shown, next_page_token=token)

    def _described(self, session: Session) -> pb.ListSessionsResponse.Session:
        return pb.ListSessionsResponse.Session(
            client_id=session.client_id,
            group=session.access.config.group,
            peer=session.peer,
            language=session.language,
            version=session.version,
            age_ms=self._sessions.age_ms(session.opened_at),
            silent_ms=self._sessions.age_ms(session.seen_at),
            calls=session.calls,
        )
