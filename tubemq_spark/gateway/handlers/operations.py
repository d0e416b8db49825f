"""What operators ask: how the gateway is, and who its clients are."""

import time
from typing import Final

from tubemq_spark import __version__
from tubemq_spark.gateway.handlers.announcing import Announcing
from tubemq_spark.gateway.session.budget import ByteBudget
from tubemq_spark.gateway.session.calls import Call, Calls
from tubemq_spark.gateway.session.sessions import Session, Sessions
from tubemq_spark.gateway.session.upstream import Upstream
from tubemq_spark.gateway.session.workers import Workers
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.protocol.gateway import gateway_pb2 as pb

_PAGE: Final = 1_000
"""How many sessions are listed at once, at most."""


class Operations:
    """Serves ``DescribeGateway`` and ``ListSessions``; needs no session."""

    def __init__(
        self,
        settings: GatewaySettings,
        sessions: Sessions,
        budget: ByteBudget,
        reads: Workers,
        publishes: Workers,
        calls: Calls,
        upstream: Upstream,
        announcing: Announcing,
    ) -> None:
        """Look at the parts of a gateway."""
        self._settings = settings
        self._sessions = sessions
        self._budget = budget
        self._reads = reads
        self._publishes = publishes
        self._calls = calls
        self._upstream = upstream
        self._announcing = announcing
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
            open_reads=self._reads.running,
            open_publishes=self._publishes.running,
            bytes_in_flight=self._budget.used,
            uptime_ms=int((time.monotonic() - self._began) * 1000),
            capabilities=self.capabilities,
            degraded=self._upstream.degraded,
            peers=[
                pb.DescribeGatewayResponse.Peer(id=peer.id, name=peer.name, address=peer.address)
                for peer in self._announcing.peers()
            ],
        )

    async def list_sessions(self, request: pb.ListSessionsRequest, _: Call) -> pb.ListSessionsResponse:
        """List sessions in the order of their ids, a page at a time."""
        size = min(request.page_size or _PAGE, _PAGE)
        behind = [session for session in self._sessions if session.client_id > request.after]
        return pb.ListSessionsResponse(
            sessions=[self._described(session) for session in behind[:size]], more=len(behind) > size
        )

    def _described(self, session: Session) -> pb.ListSessionsResponse.Session:
        return pb.ListSessionsResponse.Session(
            session=pb.SessionRef(client_id=session.client_id, epoch=session.epoch),
            group=session.access.config.group,
            peer=session.peer,
            language=session.language,
            version=session.version,
            age_ms=self._sessions.age_ms(session.opened_at),
            silent_ms=self._sessions.age_ms(session.seen_at),
            calls=session.calls,
        )
