"""Clients that want to know where partitions are, now and whenever that changes.

The routes of their settings are asked again in each refresh period, and at once after a change was noticed by
anybody. A client is sent what is different from what it was sent last, and nothing otherwise.
"""

import asyncio
import contextlib

from tubemq_spark.gateway.session.calls import Call, Calls
from tubemq_spark.gateway.session.routes import with_missing
from tubemq_spark.gateway.session.sessions import Session, Sessions
from tubemq_spark.gateway.session.upstream import Access
from tubemq_spark.gateway.session.workers import Workers
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, values


class Watching:
    """Serves ``WatchRoute``; used in the event loop."""

    def __init__(self, settings: GatewaySettings, sessions: Sessions, workers: Workers, calls: Calls) -> None:
        self._refresh_s = settings.route_refresh_ms / 1000
        self._sessions = sessions
        self._workers = workers
        self._calls = calls
        self._watches: dict[asyncio.Event, Session] = {}
        sessions.on_end.append(self._wake_session)

    def route_changed(self, access: Access) -> None:
        """Look again for those who watch under these settings."""
        for news, session in self._watches.items():
            if session.access is access:
                news.set()

    def wake(self) -> None:
        """Look again for everybody; the gateway drains."""
        for news in self._watches:
            news.set()

    async def watch_route(self, request: pb.WatchRouteRequest, call: Call) -> None:
        """Send where partitions are, at once and whenever that has changed."""
        session = self._sessions.use(request.session)
        news = asyncio.Event()
        self._watches[news] = session
        try:
            with self._calls.within(call, session):
                await self._watch(request, session, news, call)
        finally:
            del self._watches[news]
        if not session.closed_by_client:
            self._sessions.use(request.session)

    async def _watch(
        self, request: pb.WatchRouteRequest, session: Session, news: asyncio.Event, call: Call
    ) -> None:
        routes, topics = session.access.routes, tuple(request.topics)
        # The master says which topics may be read at all.
        await self._workers.run(lambda: routes.layout(topics, missing_ok=request.missing_ok))
        last = None
        while not session.ended:
            self._calls.refuse_when_draining()
            current = values.layout_to_proto(
                with_missing(await self._workers.run(lambda: routes.known(topics)), topics)
            )
            if current != last:
                last = current
                answer = pb.QueryRouteResponse(age_ms=routes.age_ms(topics))
                answer.MergeFrom(current)
                await call.context.write(answer.SerializeToString())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._refresh_s):
                    await news.wait()
            news.clear()

    def _wake_session(self, session: Session) -> None:
        for news, watching in self._watches.items():
            if watching is session:
                news.set()
