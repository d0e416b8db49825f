"""Puts together what a gateway is doing."""

import asyncio
import time
from typing import Final

from tubemq_spark import __version__
from tubemq_spark.gateway.operate.metrics import Metrics
from tubemq_spark.gateway.operate.overview import SHOWN, Overview, Rates, RouteRow, SessionRow
from tubemq_spark.gateway.operate.status_page import render
from tubemq_spark.gateway.session.sessions import Session, Sessions
from tubemq_spark.gateway.session.upstream import Upstream
from tubemq_spark.gateway.settings import GatewaySettings

_MARK_S: Final = 5.0
"""How long one measurement of rates takes."""
_PATIENCE_S: Final = 10.0
"""How long a thread waits for the event loop, which is then not well."""
_HTML: Final = "text/html; charset=utf-8"
_PLAIN: Final = "text/plain; charset=utf-8"


class Observer:
    """Looks at the parts of a gateway; begin and end it in the event loop."""

    def __init__(
        self, settings: GatewaySettings, sessions: Sessions, upstream: Upstream, metrics: Metrics
    ) -> None:
        self._settings = settings
        self._sessions = sessions
        self._upstream = upstream
        self._metrics = metrics
        self._rates = Rates()
        self._began = time.monotonic()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._marks: asyncio.Task[None] | None = None
        self.address = ""
        """Where clients reach the gateway."""
        self.draining = False
        """Whether it is about to stop."""

    def begin(self, address: str) -> None:
        """Measure rates from now on."""
        self.address = address
        self._loop = asyncio.get_running_loop()
        self._marks = asyncio.create_task(self._mark())

    def end(self) -> None:
        """Measure no longer."""
        if self._marks is not None:
            self._marks.cancel()

    async def _mark(self) -> None:
        while True:
            await asyncio.sleep(_MARK_S)
            self._rates.mark(dict(self._metrics.totals))

    def overview(self) -> Overview:
        """Return what the gateway is doing; in the event loop."""
        sessions = list(self._sessions)
        routes = [
            RouteRow(topic, access.config.group, partitions, brokers, age_ms)
            for access in self._upstream.accesses()
            for topic, partitions, brokers, age_ms in access.routes.shown()
        ]
        return Overview(
            name=self._settings.name,
            cluster=self._settings.cluster_name,
            version=__version__,
            address=self.address,
            masters=tuple(map(str, self._settings.masters())),
            uptime_ms=int((time.monotonic() - self._began) * 1000),
            draining=self.draining,
            flows=self._rates.flows(dict(self._metrics.totals)),
            numbers=self._metrics.watched(),
            sessions=tuple(map(self._session, sessions[:SHOWN])),
            session_count=len(sessions),
            routes=tuple(sorted(routes, key=lambda one: (one.topic, one.group))),
        )

    def _session(self, session: Session) -> SessionRow:
        return SessionRow(
            client_id=session.client_id,
            group=session.access.config.group,
            peer=session.peer,
            language=session.language,
            version=session.version,
            age_ms=self._sessions.age_ms(session.opened_at),
            silent_ms=self._sessions.age_ms(session.seen_at),
            calls=session.calls,
            running=session.running,
        )

    # Of the web server: in its threads.

    def page(self) -> tuple[bool, str, str]:
        """Return the status page."""
        return True, _HTML, render(self._asked())

    def health(self) -> tuple[bool, str, str]:
        """Return whether the gateway takes calls, for load balancers and containers."""
        draining = self._asked().draining
        return not draining, _PLAIN, "draining\n" if draining else "serving\n"

    def _asked(self) -> Overview:
        if self._loop is None:
            raise RuntimeError("the gateway has not started")

        async def look() -> Overview:
            return self.overview()

        return asyncio.run_coroutine_threadsafe(look(), self._loop).result(_PATIENCE_S)
