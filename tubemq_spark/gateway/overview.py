"""What a gateway is doing, as one value: for the status page, and as a line of text.

It lists a few hundred sessions and routes at most. Texts of clients are cut where they are shown.
"""

import asyncio
import dataclasses
import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from tubemq_spark import __version__
from tubemq_spark.gateway.admission import Admission
from tubemq_spark.gateway.calls import Calls, ServedCall
from tubemq_spark.gateway.metrics import DIRECTIONS, Metrics
from tubemq_spark.gateway.sessions import Session, Sessions
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.gateway.upstream import Upstream
from tubemq_spark.net.deadline import Clock, monotonic
from tubemq_spark.protocol.gateway import gateway_pb2 as pb
from tubemq_spark.protocol.gateway.service import page

Result = TypeVar("Result")

MEGABYTE: Final = 1_000_000
SHOWN: Final = 200
"""How many sessions, and how many routes, an overview lists."""
MARK_S: Final = 5.0
"""How long one measurement of rates takes."""
_LOOK_S: Final = 0.5
"""How often the event loop is asked how late it is."""
HISTORY_S: Final = 300.0
"""How long measurements are kept."""
_PAGE: Final = 1_000
"""How many sessions are listed at once, at most."""
_PATIENCE_S: Final = 10.0
"""How long a thread waits for the event loop, which is then not well."""


@dataclasses.dataclass(frozen=True, slots=True)
class Flow:
    """Messages that passed in one direction: in total, and per second of late."""

    rows: int
    bytes: int
    rows_per_second: float
    bytes_per_second: float


@dataclasses.dataclass(frozen=True, slots=True)
class SessionRow:
    """One session; times in ms."""

    client_id: str
    group: str
    peer: str
    language: str
    version: str
    age_ms: int
    silent_ms: int
    calls: int
    running: int
    """How many of its calls are under way."""


@dataclasses.dataclass(frozen=True, slots=True)
class RouteRow:
    """What a master said of one topic, for one kind of session."""

    topic: str
    group: str
    partitions: int
    brokers: int
    age_ms: int


@dataclasses.dataclass(frozen=True, slots=True)
class GatewayOverview:
    """A gateway at one moment."""

    name: str
    cluster: str
    version: str
    address: str
    masters: tuple[str, ...]
    uptime_ms: int
    draining: bool
    degraded: bool
    """Whether no master answers."""
    flows: Mapping[str, Flow]
    """By direction."""
    history: Mapping[str, tuple[float, ...]]
    """Messages per second in each measurement of the last minutes, the oldest first, by direction."""
    numbers: Mapping[str, int]
    """How much of each there is now, by what it is, such as ``open reads``."""
    sessions: tuple[SessionRow, ...]
    """In the order of their ids; not more than ``SHOWN``."""
    session_count: int
    routes: tuple[RouteRow, ...]
    """Not more than ``SHOWN``."""


class Rates:
    """Turns totals into rates.

    A look gives the rate since one of the last two marks, so that several may look as often as they
    like. Used in the event loop only.
    """

    def __init__(self, clock: Clock = monotonic) -> None:
        """Begin at 0."""
        self._clock = clock
        nothing = dict.fromkeys(DIRECTIONS, (0, 0))
        self._marks: deque[tuple[float, Mapping[str, tuple[int, int]]]] = deque(
            [(clock(), nothing)], maxlen=int(HISTORY_S / MARK_S) + 1
        )

    def mark(self, totals: Mapping[str, tuple[int, int]]) -> None:
        """Note messages and bytes that have passed by now, by direction."""
        self._marks.append((self._clock(), totals))

    def flows(self, totals: Mapping[str, tuple[int, int]]) -> dict[str, Flow]:
        """Return totals with their rates."""
        then, before = self._marks[max(0, len(self._marks) - 2)]
        seconds = max(self._clock() - then, 1e-3)
        return {
            direction: Flow(
                rows, size, (rows - before[direction][0]) / seconds, (size - before[direction][1]) / seconds
            )
            for direction, (rows, size) in totals.items()
        }

    def history(self) -> dict[str, tuple[float, ...]]:
        """Return messages per second between marks, the oldest first, by direction."""
        pairs = list(itertools.pairwise(self._marks))
        return {
            direction: tuple(
                (after[direction][0] - before[direction][0]) / max(end - begin, 1e-3)
                for (begin, before), (end, after) in pairs
            )
            for direction in DIRECTIONS
        }


class Observer:
    """Looks at the parts of a gateway; begin and end it in the event loop.

    It serves ``DescribeGateway`` and ``ListSessions``, which need no session.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        sessions: Sessions,
        admission: Admission,
        calls: Calls,
        upstream: Upstream,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._sessions = sessions
        self._admission = admission
        self._calls = calls
        self._upstream = upstream
        self._metrics = metrics
        self._rates = Rates()
        self._began = time.monotonic()
        self._loop: asyncio.AbstractEventLoop
        self._marks: asyncio.Task[None] | None = None
        self.address = ""
        """Where clients reach the gateway."""
        self.capabilities: tuple[str, ...] = ()
        """The methods that the gateway serves."""

    def begin(self, address: str) -> None:
        """Measure rates from now on."""
        self.address = address
        self._loop = asyncio.get_running_loop()
        self._marks = asyncio.create_task(self._mark())

    async def end(self) -> None:
        """Measure no longer."""
        if self._marks is not None:
            self._marks.cancel()
            await asyncio.wait({self._marks})

    async def _mark(self) -> None:
        """Note how late the event loop is at each look, and the totals for rates, until this is cancelled."""
        for look in itertools.cycle(range(round(MARK_S / _LOOK_S))):
            began = time.monotonic()
            await asyncio.sleep(_LOOK_S)
            self._metrics.lagged(max(0.0, time.monotonic() - began - _LOOK_S))
            if look == 0:
                self._rates.mark(dict(self._metrics.totals))

    def overview(self) -> GatewayOverview:
        """Return the overview of the gateway; called in the event loop."""
        routes = itertools.chain.from_iterable(
            (RouteRow(topic, access.config.group, *numbers) for topic, *numbers in access.routes.shown(SHOWN))
            for access in self._upstream.accesses()
        )
        totals = dict(self._metrics.totals)
        return GatewayOverview(
            name=self._settings.name,
            cluster=self._settings.cluster_name,
            version=__version__,
            address=self.address,
            masters=tuple(map(str, self._settings.masters())),
            uptime_ms=self._uptime_ms,
            draining=self._calls.draining,
            degraded=self._upstream.degraded,
            flows=self._rates.flows(totals),
            history=self._rates.history(),
            numbers=self._metrics.watched(),
            sessions=tuple(map(self._session, itertools.islice(self._sessions, SHOWN))),
            session_count=len(self._sessions),
            routes=tuple(
                sorted(itertools.islice(routes, SHOWN), key=lambda route: (route.topic, route.group))
            ),
        )

    async def describe_gateway(
        self, _: pb.DescribeGatewayRequest, __: ServedCall
    ) -> pb.DescribeGatewayResponse:
        """Say how the gateway is."""
        return pb.DescribeGatewayResponse(
            name=self._settings.name,
            advertised=self._settings.advertise or self.address,
            cluster=self._settings.cluster_name,
            version=__version__,
            draining=self._calls.draining,
            sessions=len(self._sessions),
            open_reads=self._admission.reads.quota.used,
            open_publishes=self._admission.publishes.used,
            bytes_in_flight=self._admission.bytes.used,
            uptime_ms=self._uptime_ms,
            capabilities=self.capabilities,
            degraded=self._upstream.degraded,
        )

    async def list_sessions(self, request: pb.ListSessionsRequest, _: ServedCall) -> pb.ListSessionsResponse:
        """List sessions in the order of their ids, a page at a time."""
        sessions = {session.client_id: session for session in self._sessions}

        def described(client_id: str) -> pb.ListSessionsResponse.Session:
            fields = dataclasses.asdict(self._session(sessions[client_id]))
            del fields["running"]
            return pb.ListSessionsResponse.Session(**fields)

        shown, token = page(sessions, described, request.page_size, request.page_token, _PAGE)
        return pb.ListSessionsResponse(sessions=shown, next_page_token=token)

    @property
    def _uptime_ms(self) -> int:
        return int((time.monotonic() - self._began) * 1000)

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
            running=len(session.under_way),
        )

    # Of the web server: in its threads.

    def asked(self) -> GatewayOverview:
        """Return the overview of the gateway; called in another thread."""
        return self._in_loop(self.overview)

    def takes_calls(self) -> bool:
        """Tell from another thread whether the gateway takes calls; as cheap as that can be."""
        return self._in_loop(lambda: not self._calls.draining)

    def _in_loop(self, look: Callable[[], Result]) -> Result:
        async def call() -> Result:
            return look()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(_PATIENCE_S)


def sessions_in_words(overview: GatewayOverview) -> str:
    """Return how many sessions there are."""
    return "1 session" if overview.session_count == 1 else f"{overview.session_count:,} sessions"


def report(overview: GatewayOverview) -> str:
    """Return everything but sessions and routes, in one line."""
    state = "about to stop" if overview.draining else "serves"
    alone = ", but no master answers" if overview.degraded else ""
    head = f"gateway {overview.name} {state} at {overview.address}{alone}, {sessions_in_words(overview)}"
    flows = (f"{direction} {_flow(flow)}" for direction, flow in overview.flows.items())
    numbers = [f"{name}: {number:,}" for name, number in overview.numbers.items() if number]
    return "; ".join((head, *flows, *(numbers or ["idle"])))


def _flow(flow: Flow) -> str:
    speed = f"{flow.rows_per_second:,.0f} messages/s, {flow.bytes_per_second / MEGABYTE:,.1f} MB/s"
    return f"{speed} ({flow.rows:,} messages, {flow.bytes / MEGABYTE:,.1f} MB in total)"
