"""What operators ask: how the gateway is, and who its clients are."""

import time
from typing import Final

from tubemq_spark import __version__
from tubemq_spark.gateway.admission import Admission
from tubemq_spark.gateway.session.calls import Call, Calls
from tubemq_spark.gateway.session.sessions import Session, Sessions
from tubemq_spark.gateway.session.upstream import Upstream
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.protocol.gateway import gateway_pb2 as pb
from tubemq_spark.protocol.gateway.pages import page

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
            open_publishes=self._admission.publishes.running,
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
