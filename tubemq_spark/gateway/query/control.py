"""Sessions, routes and offsets: short questions and short answers."""

import time
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from tubemq_spark import __version__
from tubemq_spark.errors import (
    GatewayError,
    OptionError,
    RpcError,
    TubeMQConnectionError,
    TubeMQError,
)
from tubemq_spark.gateway.admission import Admission, Stop, Turns
from tubemq_spark.gateway.data.consuming import Consuming
from tubemq_spark.gateway.session.calls import Call, Calls
from tubemq_spark.gateway.session.routes import with_missing
from tubemq_spark.gateway.session.sessions import Session, Sessions
from tubemq_spark.gateway.session.upstream import Access, Upstream
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import StoreBounds, StoredOffsets, StoreId
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, limits, values
from tubemq_spark.protocol.gateway.methods import PROTOCOL_REVISION
from tubemq_spark.protocol.gateway.pages import page

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
        questions: Turns,
        calls: Calls,
        consuming: Consuming,
    ) -> None:
        self._settings = settings
        self._sessions = sessions
        self._upstream = upstream
        self._questions = questions
        self._calls = calls
        self._consuming = consuming
        self.capabilities: tuple[str, ...] = ()
        """The methods that this gateway serves."""

    async def _ask(self, call: Call, ask: Callable[[Stop], Result]) -> Result:
        stop = Stop()
        try:
            return await self._questions.run(lambda: ask(stop), call.who, call.patience_s)
        finally:
            # A thread whose call has ended leaves the line for a master, and waits for no broker.
            stop.set()

    # Sessions: no thread, so that load cannot make one expire.

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

    async def query_route(self, request: pb.QueryRouteRequest, call: Call) -> pb.QueryRouteResponse:
        """Say where partitions are; a master is asked unless an older answer will do."""
        access, topics = call.owner().access, tuple(request.topics)

        def ask(stop: Stop) -> pb.QueryRouteResponse:
            routes = access.routes
            layout = None
            if request.max_age_ms and routes.age_ms(topics) <= request.max_age_ms:
                layout = with_missing(routes.known(topics, stop), topics)
            if layout is None or (layout.missing_topics and not request.missing_ok):
                layout = routes.layout(topics, missing_ok=request.missing_ok, wait=stop)
            response = values.layout_to_proto(layout)
            response.age_ms = routes.age_ms(topics)
            return response

        return await self._ask(call, ask)

    async def list_topics(self, request: pb.ListTopicsRequest, call: Call) -> pb.ListTopicsResponse:
        """Name topics, a page at a time."""
        cluster = call.owner().access.cluster
        names = await self._ask(call, lambda _: cluster.topics())
        visible = [name for name in names if call.may("see", name)]
        topics, token = page(visible, str, request.page_size, request.page_token, limits.ITEMS)
        return pb.ListTopicsResponse(topics=topics, next_page_token=token)

    # Offsets.

    async def query_bounds(self, request: pb.QueryBoundsRequest, call: Call) -> pb.QueryBoundsResponse:
        """Say where stores begin and end; brokers that are away are part of the answer."""
        access = call.owner().access
        return await self._ask(call, lambda stop: _bounds(access, request, stop))

    async def query_first_readable(
        self, request: pb.QueryFirstReadableRequest, call: Call
    ) -> pb.QueryFirstReadableResponse:
        """Say where the first record is that can still be read."""
        access = call.owner().access

        def ask(stop: Stop) -> pb.QueryFirstReadableResponse:
            begins = {
                values.partition_from_proto(item.partition): values.bounds_from_proto(item.bounds)
                for item in request.begins
            }
            offsets = access.cluster.first_readable(access.routes.find(begins, stop), begins, stop)
            return pb.QueryFirstReadableResponse(offsets=values.offsets_to_proto(offsets))

        return await self._ask(call, ask)

    async def query_group_positions(
        self, request: pb.QueryGroupPositionsRequest, call: Call
    ) -> pb.QueryGroupPositionsResponse:
        """Say where the session's group stands."""
        access = call.owner().access

        def ask(stop: Stop) -> pb.QueryGroupPositionsResponse:
            partitions = [values.partition_from_proto(item) for item in request.partitions]
            offsets = access.cluster.group_positions(access.routes.find(partitions, stop), stop)
            return pb.QueryGroupPositionsResponse(offsets=values.offsets_to_proto(offsets))

        return await self._ask(call, ask)

    async def query_stored_offsets(
        self, request: pb.QueryStoredOffsetsRequest, call: Call
    ) -> pb.QueryStoredOffsetsResponse:
        """Say where groups stand, without being one; a page at a time, of what brokers say now."""
        cluster, group = call.owner().access.cluster, request.group if request.HasField("group") else None

        def ask(_: Stop) -> pb.QueryStoredOffsetsResponse:
            offsets = cluster.stored_offsets(group, tuple(request.topics))
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

        return await self._ask(call, ask)

    async def reset_offsets(self, request: pb.ResetOffsetsRequest, call: Call) -> pb.ResetOffsetsResponse:
        """Move the session's group."""
        access = call.owner().access

        def move(stop: Stop) -> pb.ResetOffsetsResponse:
            positions = values.offsets_from_proto(request.positions)
            failures = access.cluster.move_group(access.routes.find(positions, stop), positions, stop)
            return values.reset_failures_to_proto(failures)

        return await self._ask(call, move)


_ALL_GROUPS: Final = "*"
"""A name that only fits a pattern for any name."""


def _without_groups(error: TubeMQError) -> TubeMQError:
    """Return why a broker does not tell of some groups, without their names."""
    if error.condition != "TUBEMQ_GROUPS_NOT_TOLD":
        return error
    return type(error)(error.condition, **{**error.parameters, "groups": "some groups", "reason": "refused"})


def _bounds(access: Access, request: pb.QueryBoundsRequest, stop: Stop) -> pb.QueryBoundsResponse:
    stores = values.stores_from_proto(request.stores)
    layout = access.routes.known({store.topic for store in stores}, stop)
    bounds = access.cluster.bounds(
        layout,
        [store for store in stores if store in layout.stores],
        flushed=request.flushed,
        timeout_ms=request.timeout_ms if request.HasField("timeout_ms") else None,
        wait=stop,
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
