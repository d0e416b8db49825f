"""The gateway as a whole: how it begins, drains and ends.

**Order.** It begins from the inside: connections to TubeMQ, then the handlers, then the listener, then health
says SERVING; so no call comes before the gateway can serve it. It ends from the outside:

1. Health says NOT_SERVING, and new calls are refused as draining, so clients go to another gateway.
2. Ranges that are read end with the same refusal; their clients go on elsewhere, where they stand. Publish
   streams end when all that they took is answered, at once if that is so already. Other calls come to their
   end.
3. After ``drain_ms`` what still runs is cancelled.
4. The listener is closed, then the connections to TubeMQ. A thread that asks over HTTP may take longer: it
   does not hold up the end of the process.
"""

import asyncio
import contextlib
import logging
import random
import resource
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, Protocol

from tubemq_spark import __version__
from tubemq_spark.gateway.admission import Admission
from tubemq_spark.gateway.calls import Calls, Handler, Hook, Servicer
from tubemq_spark.gateway.consume_stream import consume
from tubemq_spark.gateway.consuming import ConsumeService, EndOfLogWaiters
from tubemq_spark.gateway.control import ControlService, GroupService, TopicService
from tubemq_spark.gateway.listener import GrpcListener
from tubemq_spark.gateway.metrics import Metrics
from tubemq_spark.gateway.overview import Observer
from tubemq_spark.gateway.pipelines import Pipelines
from tubemq_spark.gateway.publishing import PublishService
from tubemq_spark.gateway.reading import RangeService
from tubemq_spark.gateway.sessions import LOST, REMOVED, Events, Sessions
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.gateway.upstream import Discovery, RouteRefresh, Upstream
from tubemq_spark.gateway.web import WebServer
from tubemq_spark.net.loop import in_thread

logger = logging.getLogger("tubemq_spark.gateway")

_LOOK_S: Final = 0.05
_QUESTIONS_S: Final = 1.0
"""How long questions that are under way may take when the gateway stops."""
_LATE_S: Final = 3.0
"""How long what was cut may take to end: producers that close, and threads that ask over HTTP."""
LIMITS: Final = ("sessions", "reads", "publishes", "fetches", "waiting_calls", "total_bytes")
"""The settings that metrics show beside what there is."""


class GatewayListener(Protocol):
    """Takes calls off a wire, and tells clients whether the gateway serves."""

    wire: str
    """What it is, for the log."""

    @property
    def certificate_expires_at(self) -> float:
        """When the certificate for clients expires, in seconds since 1970; 0: there is none."""

    def bind(self, servicers: Mapping[str, Servicer]) -> str:
        """Take the address, where calls wait until ``start``; return it."""

    async def start(self) -> None:
        """Serve calls, and say so."""

    async def drain(self) -> None:
        """Say that the gateway is about to stop; calls are served all the same."""

    async def stop(self) -> None:
        """End the calls that are left, and take no more."""


class GatewayServer:
    """A gateway in the running event loop."""

    def __init__(
        self,
        settings: GatewaySettings,
        hooks: Iterable[Hook] = (),
        listener: Callable[[GatewaySettings], GatewayListener] = GrpcListener,
    ) -> None:
        """Create all parts; ``start`` listens."""
        self._settings = settings
        self.metrics = Metrics()
        self._admission = admission = Admission(settings)
        self._upstream = Upstream(settings, admission)
        self._sessions = sessions = Sessions(settings, quota=admission.sessions)
        sessions.on_end.append(lambda session: self.metrics.session_ended(session.end))
        self._calls = calls = Calls(settings, sessions, admission, self.metrics)
        calls.hooks.extend(hooks)
        calls.guard.on_failure = self.metrics.policy_failed
        self._route_refresh = RouteRefresh()
        self._events = Events(settings, sessions)
        self._upstream.on_route_change = self._events.route_changed
        self._waiters = EndOfLogWaiters()
        self._ranges = RangeService(settings, admission, self.metrics, calls)
        self._pipelines = Pipelines(settings, admission.publishes)
        self._publishing = PublishService(
            settings, self._pipelines, admission, self.metrics, calls, self._waiters
        )
        self._members = GroupService(settings, admission.administration)
        self._discovery = Discovery(settings, admission.administration)
        self._topics = TopicService(settings, admission.administration)
        told = calls, self._events, self._waiters
        self._consuming = ConsumeService(
            settings, sessions, self._upstream, self.metrics, *told, self._members.admit
        )
        self._control = ControlService(
            settings, sessions, self._upstream, admission.questions, calls, self._consuming
        )
        self.observer = Observer(settings, sessions, admission, calls, self._upstream, self.metrics)
        """What the gateway is doing."""
        self._web: WebServer | None = None
        self._listener = listener(settings)
        self._is_bound = False
        self._periodic: list[asyncio.Task[None]] = []
        self._hurried = False
        self.address = ""
        """Where clients reach the gateway, once it has started."""
        self.metrics_address: str | None = None
        """Where metrics and the status page are, if anywhere."""
        self._watch()

    def _watch(self) -> None:
        """Tell the metrics which numbers to ask for at each look."""
        watch, admission = self.metrics.watch, self._admission
        watch("sessions", "Open sessions", lambda: len(self._sessions))
        watch("open_reads", "Ranges that are read now", lambda: admission.reads.quota.used)
        producers = "Producers, one for sessions of equal settings"
        watch("open_publishes", producers, lambda: admission.publishes.used)
        watch("bytes_in_flight", "Bytes of messages that wait in the gateway", lambda: admission.bytes.used)
        watch("consumers", "Sessions that consume", lambda: len(self._consuming))
        watch("waiting_fetches", "Fetches that wait for messages", lambda: self._consuming.places.used)
        # Of these two the page has the gateway's state in words.
        watch("degraded", "Whether no master answers", lambda: int(self._upstream.degraded), on_page=False)
        stops = "Whether the gateway is about to stop"
        watch("draining", stops, lambda: int(self._calls.draining), on_page=False)
        watch("waiting_calls", "Calls that wait until others have ended", lambda: admission.waiting)
        left_behind = "What clients have left behind and is being closed"
        watch("endings", left_behind, lambda: self._pipelines.closing + self._consuming.endings)
        watch(
            "upstream_connections",
            "Connections to masters and brokers that all sessions share",
            lambda: self._upstream.connections + self._pipelines.connections,
        )
        watch(
            "certificate_expires_seconds",
            "When the certificate for clients expires, in seconds since 1970 (0: no TLS)",
            lambda: self._listener.certificate_expires_at,
            on_page=False,
        )
        for name in LIMITS:
            self.metrics.limited(name, getattr(self._settings, name))

    async def start(self) -> None:
        """Begin to serve."""
        try:
            await self._begin()
        except BaseException:
            await self.observer.end()
            if self._is_bound:
                await self._listener.stop()
            await self._upstream.close()
            raise

    async def _begin(self) -> None:
        """Find masters, bind the ports, serve, and start all that is periodic."""
        await self._discovery.refresh()
        if (failure := await self._upstream.contact()) is not None:
            if self._settings.require_master:
                raise failure
            name = self._settings.name
            logger.warning("gateway %s starts although no master can be reached: %s", name, failure)
        self._look_at_open_files()
        handlers = self._handlers()
        self._control.capabilities = self.observer.capabilities = tuple(sorted(handlers))
        self.address = self._listener.bind(self._calls.servicers(handlers))
        self._is_bound = True
        self.observer.begin(self.address)
        await self._listener.start()
        if self._settings.metrics is not None:
            names, observer = self._settings.web_names(), self.observer
            self._web = WebServer(
                self._settings.metrics, names, observer.asked, self.metrics.text, observer.takes_calls
            )
            self.metrics_address = str(self._web.endpoint)
        settings = self._settings
        periodic = [
            (settings.housekeeping_ms, self._end_silent_sessions, "looking for silent sessions"),
            (settings.housekeeping_ms, self._look_at_policy, "looking at the policy"),
            (settings.route_refresh_ms, self._refresh_routes, "refreshing the routes"),
        ]
        if self._discovery.is_on:
            periodic.append(
                (settings.master_discovery_ms, self._discovery.refresh, "looking for the masters")
            )
        self._periodic = [asyncio.create_task(repeat(*concern)) for concern in periodic]
        shown = [f"{name}={text}" for name, text in self._settings.shown().items()]
        logger.info(", ".join(["settings: %s", *["%s"] * (len(shown) - 1)]), *shown)
        logger.info(
            "gateway %s (tubemq_spark %s, %s) serves at %s%s for the masters %s%s; metrics: %s",
            self._settings.name,
            __version__,
            self._listener.wire,
            self.address,
            " over TLS" if self._settings.tls_cert else "",
            ", ".join(map(str, self._settings.masters())),
            " over TLS" if self._settings.master_tls else "",
            self.metrics_address or "none",
        )

    async def stop(self, drain_ms: int | None = None) -> None:
        """Drain, and end; after ``drain_ms``, by default that of the settings, without waiting any longer."""
        grace_s = (self._settings.drain_ms if drain_ms is None else drain_ms) / 1000
        self._calls.draining = True
        if self._is_bound:
            logger.info("gateway %s drains for up to %.1f s", self._settings.name, grace_s)
            await self._listener.drain()
            self._events.draining()
            self._consuming.release()
            self._publishing.drain()
            await self._quiet(grace_s)
            await self._listener.stop()
        for task in self._periodic:
            task.cancel()
        await asyncio.gather(*self._periodic, return_exceptions=True)
        await self._route_refresh.stop()
        # Consumers give their partitions up while there are connections.
        await self._consuming.close()
        await self._pipelines.close(_LATE_S)
        # Who asks where partitions are is a member of its group for a moment. If it could not leave, the
        # master would refuse the group other topics for 30 s.
        await self._admission.questions.close(_QUESTIONS_S)
        await self._upstream.close()
        late = await self._admission.close(_LATE_S)
        await self.observer.end()
        if self._web is not None:
            # In a thread: a request under way asks this loop.
            await in_thread(self._web.close, "tubemq-gateway-web")
        logger.info("gateway %s has stopped", self._settings.name)
        if late:
            logger.warning("%d of its threads still wait for TubeMQ", late)

    def hurry(self) -> None:
        """Wait no longer for calls to end; for a gateway that drains."""
        self._hurried = True

    async def _quiet(self, grace_s: float) -> None:
        """Wait until no call of a session is under way, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while not self._hurried and any(session.under_way for session in self._sessions):
                    await asyncio.sleep(_LOOK_S)

    def _look_at_open_files(self) -> None:
        """Warn when fewer files may be open than sessions, each of which may have a connection of its own."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit != resource.RLIM_INFINITY and limit < self._settings.sessions:
            logger.warning(
                "gateway %s may have %d open files and %d sessions, each with a connection: raise the limit "
                "of open files (ulimit -n, LimitNOFILE), or lower the setting sessions",
                self._settings.name,
                limit,
                self._settings.sessions,
            )

    def _handlers(self) -> dict[str, Handler]:
        control, publishing = self._control, self._publishing
        return {
            "OpenSession": control.open_session,
            "Heartbeat": control.heartbeat,
            "SessionEvents": control.session_events,
            "CloseSession": control.close_session,
            "QueryRoute": control.query_route,
            "ListTopics": control.list_topics,
            "CheckTopic": publishing.check_topic,
            "CreateTopic": self._topics.create_topic,
            "QueryBounds": control.query_bounds,
            "QueryFirstReadable": control.query_first_readable,
            "QueryGroupPositions": control.query_group_positions,
            "QueryStoredOffsets": control.query_stored_offsets,
            "ResetOffsets": control.reset_offsets,
            "ReadRange": self._ranges.read_range,
            "PublishStream": publishing.publish_stream,
            "Subscribe": self._consuming.subscribe,
            "AttachPartitions": self._consuming.attach_partitions,
            "DetachPartitions": self._consuming.detach_partitions,
            "Fetch": self._consuming.fetch,
            "Commit": self._consuming.commit,
            "Consume": lambda _, call: consume(self._consuming, self._calls, call),
            "ListMembers": self._members.list_members,
            "ListGroups": self._members.list_groups,
            "DescribeGateway": self.observer.describe_gateway,
            "ListSessions": self.observer.list_sessions,
        }

    async def _end_silent_sessions(self) -> None:
        for session in self._sessions.expire():
            level = logging.INFO if session.end == LOST else logging.DEBUG
            text = "session %s of %s was silent for too long"
            logger.log(level, text, session.client_id, session.peer, extra={"kind": "silent sessions"})

    async def _look_at_policy(self) -> None:
        """Judge all sessions and calls by the policy as its file is now."""
        if await self._calls.guard.look():
            for session in self._sessions:
                if (refusal := self._calls.guard.refused(session.caller)) is not None:
                    self._sessions.close(session, REMOVED, refusal)
            self._calls.judge_again()

    async def _refresh_routes(self) -> None:
        self._route_refresh.begin(self._upstream.accesses())


async def repeat(period_ms: int, work: Callable[[], Awaitable[object]], what: str) -> None:
    """Do something in each period; a mistake in it is logged, and it is done again in the next one."""
    while True:
        # Gateways that were started together do not work together.
        jitter = random.uniform(0.9, 1.1)  # noqa: S311 (no secret)
        await asyncio.sleep(period_ms / 1000 * jitter)
        try:
            await work()
        except Exception:  # (one mistake must not end it for good)
            logger.exception("%s failed; the next attempt follows", what)
