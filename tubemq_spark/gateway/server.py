"""The gateway as a whole: how it begins, drains and ends.

**Order.** It begins from the inside: connections to TubeMQ, then the handlers, then the listener, then health
says SERVING; so no call comes before the gateway can serve it. It ends from the outside:

1. Health says NOT_SERVING, and new calls are refused as draining, so clients go to another gateway.
2. Ranges that are read end with the same refusal; their clients go on elsewhere, where they stand. Publish
   streams end when all that they took is answered, at once if that is so already. Other calls come to their
   end.
3. After ``drain_ms`` what still runs is cancelled.
4. The listener is closed, then the connections to TubeMQ, and so the threads end that wait for it. One whose
   producer still tries to have messages stored may take longer: it does not hold up the end of the process.
"""

import asyncio
import contextlib
import datetime
import logging
import random
import resource
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from tubemq_spark import __version__
from tubemq_spark.errors import TubeMQConnectionError
from tubemq_spark.gateway.admission import Admission
from tubemq_spark.gateway.data.consuming import Consuming
from tubemq_spark.gateway.data.fetching import Arrivals
from tubemq_spark.gateway.data.publishing import Pipelines, Publishing
from tubemq_spark.gateway.data.reading import Ranges
from tubemq_spark.gateway.metrics import Metrics
from tubemq_spark.gateway.operate.overview import Observer
from tubemq_spark.gateway.operate.web import WebServer
from tubemq_spark.gateway.query.control import Control, Operations
from tubemq_spark.gateway.query.groups import Members, Topics
from tubemq_spark.gateway.session.calls import Calls, Handler, Hook
from tubemq_spark.gateway.session.events import Events
from tubemq_spark.gateway.session.sessions import LOST, REMOVED, Sessions
from tubemq_spark.gateway.session.upstream import Access, Discovery, RouteRefresh, Upstream
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import Endpoint
from tubemq_spark.net.loop import in_thread
from tubemq_spark.net.tls import ServerTls
from tubemq_spark.protocol.gateway.methods import SERVICE

logger = logging.getLogger("tubemq_spark.gateway")

_UNREAD_BYTES: Final = 64 << 10
_CLIENT_KEEPALIVE_MS: Final = 5_000
"""How often a client may ping."""
_PENDING_CALLS: Final = 20_000
"""gRPC cancels a burst of calls above its own limit; ours answer with a reason."""
_LOOK_S: Final = 0.05
_QUESTIONS_S: Final = 1.0
"""How long questions that are under way may take when the gateway stops."""
_THREADS_S: Final = 3.0
"""How long threads whose calls were cut may take to notice."""
LIMITS: Final = ("sessions", "reads", "publishes", "fetches", "waiting_calls", "total_bytes")
"""The settings that metrics show beside what there is."""


class GatewayServer:
    """A gateway in the running event loop."""

    def __init__(self, settings: GatewaySettings, hooks: Iterable[Hook] = ()) -> None:
        """Create all parts; ``start`` listens.

        Args:
            settings: how it runs.
            hooks: called with each call.

        Raises:
            OptionError: a package or a file is missing.
        """
        self._settings = settings
        self.metrics = Metrics()
        self._upstream = Upstream(settings)
        self._admission = admission = Admission(settings)
        self._sessions = sessions = Sessions(settings, room=admission.sessions)
        sessions.on_end.append(lambda session: self.metrics.session_ended(session.end))
        self._calls = calls = Calls(settings, sessions, admission, self.metrics)
        calls.hooks.extend(hooks)
        calls.guard.on_failure = self.metrics.policy_failed
        questions = admission.questions
        self._route_refresh = RouteRefresh(questions.run)
        self._events = Events(settings, sessions, calls)
        self._upstream.on_route_change = lambda *change: self._events.from_thread(
            lambda: self._route_changed(*change)
        )
        self._arrivals = Arrivals()
        self._ranges = Ranges(settings, admission, self.metrics, calls)
        self._pipelines = Pipelines(settings, admission.publishes)
        self._publishing = Publishing(
            settings, self._pipelines, admission, self.metrics, calls, self._arrivals
        )
        self._members = Members(settings, admission.administration)
        self._discovery = Discovery(settings, admission.administration)
        self._topics = Topics(settings, admission.administration)
        self._consuming = Consuming(
            settings,
            sessions,
            self._upstream,
            self.metrics,
            calls,
            self._events,
            self._arrivals,
            self._members.admit,
        )
        self._control = Control(
            settings,
            sessions,
            self._upstream,
            questions,
            calls,
            self._consuming,
        )
        self._operations = Operations(settings, sessions, admission, calls, self._upstream)
        self.observer = Observer(settings, sessions, self._upstream, self.metrics)
        """What the gateway is doing."""
        self._web: WebServer | None = None
        self._certificates: Certificates | None = None
        self._health = health.aio.HealthServicer()
        self._server: Any = None
        self._periodic = Periodic()
        self._hurried = False
        self.left = 0
        """How many threads were still at work when it had stopped."""
        self.address = ""
        """Where clients reach the gateway, once it has started."""
        self.metrics_address: str | None = None
        """Where metrics and the status page are, if anywhere."""
        self._watch()

    def _watch(self) -> None:
        watch, admission = self.metrics.watch, self._admission
        watch("sessions", "Open sessions", lambda: len(self._sessions))
        watch("open_reads", "Ranges that are read now", lambda: admission.reads.running)
        watch(
            "open_publishes",
            "Producers, one for sessions of equal settings",
            lambda: admission.publishes.used,
        )
        watch("bytes_in_flight", "Bytes of messages that wait in the gateway", lambda: admission.bytes.used)
        watch("consumers", "Sessions that consume", lambda: len(self._consuming))
        watch("waiting_fetches", "Fetches that wait for messages", lambda: self._consuming.waiting)
        # Of these two the page has the gateway's state in words.
        watch("degraded", "Whether no master answers", lambda: int(self._upstream.degraded), on_page=False)
        watch(
            "draining",
            "Whether the gateway is about to stop",
            lambda: int(self._calls.draining),
            on_page=False,
        )
        watch("waiting_calls", "Calls that wait for a thread", lambda: admission.waiting)
        watch("endings", "What clients have left behind and is being closed", self._endings)
        watch(
            "upstream_connections",
            "Connections to masters and brokers that all sessions share",
            lambda: self._upstream.connections + self._pipelines.connections,
        )
        watch(
            "certificate_expires_seconds",
            "When the certificate for clients expires, in seconds since 1970 (0: no TLS)",
            lambda: self._certificates.expires_at if self._certificates else 0,
            on_page=False,
        )
        for name in LIMITS:
            self.metrics.limited(name, getattr(self._settings, name))

    def _endings(self) -> int:
        return self._pipelines.closing + self._consuming.endings

    async def start(self) -> None:
        """Begin to serve.

        Raises:
            TubeMQConnectionError: no master can be reached, and that is required; or nothing can listen at
                the address.
            OptionError: a package is missing that a setting needs.
        """
        try:
            await self._begin()
        except BaseException:
            await self.observer.end()
            if self._server is not None:
                await self._server.stop(0)
            await self._upstream.close()
            raise

    async def _begin(self) -> None:
        await self._discovery.refresh()
        await self._contact()
        self._look_at_open_files()
        self._events.start()
        self._server = server = grpc.aio.server(options=self._options())
        handlers = self._handlers()
        self._control.capabilities = self._operations.capabilities = tuple(sorted(handlers))
        server.add_generic_rpc_handlers((self._calls.generic_handler(handlers),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection([SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
        self.address = self._listen(server)
        self._operations.advertised = self._settings.advertise or self.address
        self.observer.begin(self.address)
        # A server that was never started keeps its port even when it is stopped.
        await server.start()
        if self._settings.metrics is not None:
            self.metrics_address = self._serve_web(self._settings.metrics)
        await self._say(health_pb2.HealthCheckResponse.SERVING)
        settings = self._settings
        self._periodic.every(
            settings.housekeeping_ms, self._end_silent_sessions, "looking for silent sessions"
        )
        self._periodic.every(settings.housekeeping_ms, self._look_at_policy, "looking at the policy")
        self._periodic.every(settings.route_refresh_ms, self._refresh_routes, "refreshing the routes")
        if self._discovery.is_on:
            self._periodic.every(
                settings.master_discovery_ms, self._discovery.refresh, "looking for the masters"
            )
        shown = [f"{name}={text}" for name, text in self._settings.shown().items()]
        logger.info(", ".join(["settings: %s", *["%s"] * (len(shown) - 1)]), *shown)
        logger.info(
            "gateway %s (tubemq_spark %s, gRPC %s) serves at %s%s for the masters %s%s; metrics: %s",
            self._settings.name,
            __version__,
            grpc.__version__,
            self.address,
            " over TLS" if self._settings.tls_cert else "",
            ", ".join(map(str, self._settings.masters())),
            " over TLS" if self._settings.master_tls else "",
            self.metrics_address or "none",
        )

    async def stop(self, drain_ms: int | None = None) -> None:
        """Drain, and end; after ``drain_ms``, by default that of the settings, without waiting any longer."""
        grace_s = (self._settings.drain_ms if drain_ms is None else drain_ms) / 1000
        self._calls.drain()
        self.observer.draining = True
        if self._server is not None:
            logger.info("gateway %s drains for up to %.1f s", self._settings.name, grace_s)
            await self._health.enter_graceful_shutdown()
            self._events.draining()
            self._consuming.release()
            self._publishing.drain()
            await self._quiet(grace_s)
            await self._server.stop(0)
        await self._periodic.stop()
        await self._route_refresh.stop()
        # Consumers give their partitions up while there are connections.
        await self._consuming.close()
        await self._pipelines.close(_THREADS_S)
        # Who asks where partitions are is a member of its group for a moment. If it could not leave, the
        # master would refuse the group other topics for 30 s.
        await self._admission.questions.close(_QUESTIONS_S)
        # Before the other threads: a call that waits for a server would go on for minutes.
        await self._upstream.close()
        self.left = await self._admission.close(_THREADS_S)
        await self.observer.end()
        if self._web is not None:
            # In a thread: a request under way asks this loop.
            await in_thread(self._web.close, "tubemq-gateway-web")
        logger.info("gateway %s has stopped", self._settings.name)
        if self.left:
            logger.warning("%d of its threads still wait for TubeMQ", self.left)

    def hurry(self) -> None:
        """Wait no longer for calls to end; for a gateway that drains."""
        self._hurried = True

    async def _quiet(self, grace_s: float) -> None:
        """Wait until no call of a session is under way, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while not self._hurried and any(session.running for session in self._sessions):
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

    async def _contact(self) -> None:
        failure = await in_thread(self._upstream.contact, "tubemq-gateway-contact")
        if failure is None:
            return
        if self._settings.require_master:
            raise failure
        logger.warning(
            "gateway %s starts although no master can be reached: %s", self._settings.name, failure
        )

    def _handlers(self) -> dict[str, Handler]:
        control, publishing, operations = self._control, self._publishing, self._operations
        return {
            "OpenSession": control.open_session,
            "Heartbeat": control.heartbeat,
            "SessionEvents": self._events.session_events,
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
            "Consume": self._consuming.consume,
            "ListMembers": self._members.list_members,
            "ListGroups": self._members.list_groups,
            "DescribeGateway": operations.describe_gateway,
            "ListSessions": operations.list_sessions,
        }

    def _options(self) -> list[tuple[str, int]]:
        return [
            ("grpc.max_receive_message_length", self._settings.max_message_bytes),
            ("grpc.max_send_message_length", -1),
            # Further calls wait at the client.
            ("grpc.max_concurrent_streams", self._settings.streams),
            # What gRPC takes of a message before the call is judged; by default that grows up to 16 MiB.
            ("grpc.http2.lookahead_bytes", _UNREAD_BYTES),
            ("grpc.http2.bdp_probe", 0),
            ("grpc.keepalive_time_ms", self._settings.keepalive_ms),
            # For every ping, those of keepalive among them; gRPC waits a minute otherwise.
            ("grpc.http2.ping_timeout_ms", self._settings.keepalive_timeout_ms),
            ("grpc.keepalive_permit_without_calls", 1),
            # Otherwise gRPC stops asking while there is nothing to send, as in a call that waits.
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", _CLIENT_KEEPALIVE_MS),
            ("grpc.server.max_pending_requests", _PENDING_CALLS),
            ("grpc.server.max_pending_requests_hard_limit", 2 * _PENDING_CALLS),
            ("grpc.so_reuseport", int(self._settings.reuse_port)),
        ]

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

    def _serve_web(self, endpoint: Endpoint) -> str:
        observer = self.observer
        self._web = WebServer(
            endpoint,
            self._settings.web_names(),
            observer.asked,
            self.metrics.text,
            observer.takes_calls,
        )
        return str(self._web.endpoint)

    async def _say(self, status: int) -> None:
        for service in ("", SERVICE):
            await self._health.set(service, status)

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

    def _route_changed(self, access: Access, topic: str, partitions: int) -> None:
        self._events.route_changed(access, topic, partitions)


class Periodic:
    """What a gateway does again and again, each concern in a task of its own; used in the event loop."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def every(self, period_ms: int, work: Callable[[], Awaitable[object]], what: str) -> None:
        """Do something in each period; a mistake in it is logged, and it is done again in the next one."""
        self._tasks.append(asyncio.create_task(_repeat(period_ms / 1000, work, what)))

    async def stop(self) -> None:
        """End all tasks."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def _repeat(period_s: float, work: Callable[[], Awaitable[object]], what: str) -> None:
    while True:
        # Gateways that were started together do not work together.
        jitter = random.uniform(0.9, 1.1)  # noqa: S311 (no secret)
        await asyncio.sleep(period_s * jitter)
        try:
            await work()
        except Exception:  # (one mistake must not end it for good)
            logger.exception("%s failed; the next attempt follows", what)


class Certificates:
    """Reads the files of a listener when they have changed.

    gRPC asks before each handshake, in threads of its own, whether something is new. Connections that are
    open stay as they are. As long as the files do not fit together, because only one of them has been
    replaced, what was read before is used, and the log has a warning.
    """

    def __init__(self, tls: ServerTls) -> None:
        """Read them.

        Raises:
            OptionError: they cannot be used.
        """
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
        """Return what to use from now on; None: as before."""
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


def expiry_of(pem: bytes) -> float:
    """Return when the first certificate of a file expires, in seconds since 1970 (RFC 5280, 4.1)."""
    start = pem.find(ssl.PEM_HEADER.encode())
    end = pem.find(ssl.PEM_FOOTER.encode(), start)
    if start < 0 or end < 0:
        return 0.0
    der = ssl.PEM_cert_to_DER_cert(pem[start : end + len(ssl.PEM_FOOTER)].decode("ascii"))
    ((_, certificate),) = _items(der)
    _, to_sign = next(_items(certificate))
    # A version that is not the first one has a field of its own, tagged 0.
    fields = [content for tag, content in _items(to_sign) if tag != 0xA0]
    _serial, _algorithm, _issuer, validity, *_ = fields
    _, (tag, until) = _items(validity)
    text = until.decode("ascii")
    if tag == 0x17:  # (a time with two digits for its year)
        text = ("20" if text < "50" else "19") + text
    return datetime.datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=datetime.UTC).timestamp()


def _items(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tags and contents of the items one behind the other (X.690)."""
    place = 0
    while place < len(der):
        tag, size, place = der[place], der[place + 1], place + 2
        if size >= 0x80:
            digits = size & 0x7F
            size, place = int.from_bytes(der[place : place + digits]), place + digits
        yield tag, der[place : place + size]
        place += size
