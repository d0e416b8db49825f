"""Who the gateway's clients are.

A session belongs to the client id that its client chose; the gateway gives it nothing that another gateway
would need. Used in the event loop only.

**States of a session.**

- *open*: in ``_sessions`` under its client id; each call refreshes ``seen_at``;
- *ended*: closed by its client, silent for longer than its lease, or fenced. It never comes back, but its
  client may open another one under the same id.

**Invariants.**

- There is at most one session for each client id: that of the largest epoch that was ever seen while it
  lived.
- A call names client id, epoch and secret. With another secret than the session's, the session is not known.
  With a smaller epoch it is refused as fenced, so the older one of two clients with one id cannot go on; with
  any other that is not the session's, the session is not known.
- Who has another secret cannot take the id of an open session, unless the policy names both as one client.
- With client certificates and no policy, a session is also bound to the names of the certificate that opened
  it.
- No call goes on when its session has ended: its task is cancelled, and its client told why.
- A session that has calls under way does not expire; ``GatewayServer`` looks for others every
  ``housekeeping_ms``.

**What a session is to be told**: events about itself, and those that it shares with others.

An event is *pending* until it was written to the session's stream of events, or until a heartbeat says that
the client has seen it; so each is told at least once as long as the session lives. A newer event about the
same thing takes the place of the older one, so a client that never looks does not make the gateway grow; of
so many things that even this is too much, the oldest are left out, which the numbers show.

Each session has one queue, its *inbox*; heartbeats and streams are told from it. **Shared events**, such as
those of a group, are kept once for all inboxes that follow them. To put one there costs the same however many
follow: an inbox takes over what is new when it is looked at, and numbers it as its own. The streams that wait
for events are woken at once by the first one, and then at most once in ``WAKE_S``.

Shared events live as long as an inbox follows them. Used in the event loop only.
"""

import asyncio
import contextlib
import dataclasses
import hmac
import itertools
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol, TypeAlias

from tubemq_spark.client.remote import wire
from tubemq_spark.errors import GatewayError, TubeMQError
from tubemq_spark.gateway.admission import busy, host_of
from tubemq_spark.gateway.policy import NO_CALLER, Caller
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.gateway.upstream import Access
from tubemq_spark.model import TopicPartition
from tubemq_spark.net.deadline import Clock, monotonic
from tubemq_spark.net.fair_quota import FairQuota, Owner
from tubemq_spark.offsets.loss import LossRecord
from tubemq_spark.protocol.gateway import failures, gateway_pb2 as pb, service, values

logger = logging.getLogger(__name__)

About: TypeAlias = tuple[str, ...]
"""What an event is about: a newer one with an equal value takes its place."""
EndReader: TypeAlias = Callable[[TubeMQError], object]
"""Ends the call that tells events, and stands for it."""

WAKE_S: Final = 1.0
_MOST: Final = 1_000


class EventLog:
    """Numbered events: the newest about each thing, oldest first."""

    def __init__(self) -> None:
        self.last = 0
        """The number of the newest."""
        self._events: dict[About, pb.SessionEvent] = {}

    def add(self, about: About, event: pb.SessionEvent) -> None:
        """Number an event, which takes the place of one that is about the same."""
        self.last += 1
        event.number = self.last
        self._events.pop(about, None)
        self._events[about] = event
        if len(self._events) > _MOST:
            del self._events[next(iter(self._events))]

    def newer(self, number: int) -> list[tuple[About, pb.SessionEvent]]:
        """Return the events behind a number, oldest first."""
        newest = reversed(self._events.items())
        return list(itertools.takewhile(lambda item: item[1].number > number, newest))[::-1]


class SharedEvents(EventLog):
    """Events for all inboxes that follow them."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: set[Inbox] = set()
        """The followers that a stream tells."""
        self._woken_at = float("-inf")
        self._waking: asyncio.TimerHandle | None = None

    def put(self, about: About, event: pb.SessionEvent) -> None:
        """Add an event, and wake the streams."""
        self.add(about, event)
        if self.readers and self._waking is None:
            loop = asyncio.get_running_loop()
            wait_s = self._woken_at + WAKE_S - loop.time()
            if wait_s <= 0:
                self._wake()
            else:
                self._waking = loop.call_later(wait_s, self._wake)

    def _wake(self) -> None:
        self._waking = None
        self._woken_at = asyncio.get_running_loop().time()
        for inbox in self.readers:
            inbox.news.set()


class Inbox(EventLog):
    """The events of one session."""

    def __init__(self) -> None:
        super().__init__()
        self._taken: dict[SharedEvents, int] = {}
        """What it follows, each with the number up to which it has taken events over."""
        self.news = asyncio.Event()
        """Set when there is something to tell."""
        self._reader: EndReader | None = None

    def follow(self, shared: SharedEvents) -> None:
        """Take over what is put there from now on."""
        self._taken[shared] = shared.last

    def leave(self) -> None:
        """Follow nothing any more."""
        for shared in self._taken:
            shared.readers.discard(self)
        self._taken.clear()

    def begin_reading(self, reader: EndReader, error: TubeMQError) -> None:
        """Tell events by a call from now on; a call of before ends with an error."""
        if self._reader is not None:
            self._reader(error)
        self._reader = reader
        self.news.set()
        for shared in self._taken:
            shared.readers.add(self)

    def end_reading(self, reader: EndReader) -> None:
        """Stop sending events by this call."""
        if self._reader == reader:
            self._reader = None
            for shared in self._taken:
                shared.readers.discard(self)

    def put(self, about: About, event: pb.SessionEvent) -> None:
        """Add an event, and wake the stream."""
        self.add(about, event)
        self.news.set()

    def put_for_others(self, shared: SharedEvents, about: About, event: pb.SessionEvent) -> None:
        """Put an event among shared ones for the other sessions: this one needs not hear of it."""
        self._take_over()
        shared.put(about, event)
        if shared in self._taken:
            self._taken[shared] = shared.last

    def pending(self) -> list[pb.SessionEvent]:
        """Return what is pending, oldest first."""
        self._take_over()
        return list(self._events.values())

    def seen(self, number: int) -> None:
        """Forget the events up to a number."""
        for about, event in list(self._events.items()):
            if event.number > number:
                return
            del self._events[about]

    def _take_over(self) -> None:
        for shared, number in self._taken.items():
            if shared.last > number:
                self._taken[shared] = shared.last
                for about, event in shared.newer(number):
                    own = pb.SessionEvent()
                    own.CopyFrom(event)
                    self.add(about, own)


class CallUnderWay(Protocol):
    """A call of a session."""

    def end(self, error: TubeMQError) -> None:
        """End it with an error."""


@dataclasses.dataclass(slots=True, eq=False, weakref_slot=True)
class Session:
    """One client, as long as it gives signs of life."""

    client_id: str
    epoch: int
    secret: bytes = dataclasses.field(repr=False)
    """What its calls show; it is never told nor logged."""
    access: Access
    """TubeMQ, as this client sees it."""
    peer: str
    language: str
    version: str
    opened_at: float
    seen_at: float
    """When it last gave a sign, in seconds of the clock."""
    under_way: set[CallUnderWay] = dataclasses.field(default_factory=set)
    """Its calls that have not ended."""
    at_rest: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    """Set when the last of them ends."""
    calls: int = 0
    """How many calls it has made."""
    end: str = ""
    """How it has ended, of those in ``ENDS``; blank as long as it is open."""
    inbox: Inbox = dataclasses.field(default_factory=Inbox)
    """What it is to be told."""
    owner: str = ""
    """Who opened it: the client of the policy; without one, the names of the certificate, if there is one."""
    caller: Caller = NO_CALLER
    """Who made its last call: what its client shows now, which may be newer than what opened it."""
    attached: set[str] = dataclasses.field(default_factory=set)
    """The topics of the partitions that it reads as a member of its group."""
    who: Owner = dataclasses.field(init=False)
    """In whose name its calls take from quotas."""

    def __post_init__(self) -> None:
        self.who = Owner(self.owner or host_of(self.peer), self.client_id)

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return bool(self.end)

    @contextlib.contextmanager
    def during(self, call: CallUnderWay) -> Iterator[None]:
        """Count a call as under way, which keeps the session from expiring."""
        self.under_way.add(call)
        self.at_rest.clear()
        try:
            yield
        finally:
            self.under_way.discard(call)
            if not self.under_way:
                self.at_rest.set()

    async def settled(self, timeout_s: float) -> None:
        """Wait until no call is under way, for ``timeout_s`` at most."""
        if self.under_way:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self.at_rest.wait()

    @property
    def group(self) -> str:
        """The group under which it deals with TubeMQ."""
        return self.access.config.group

    @property
    def reader_groups(self) -> tuple[str, ...]:
        """The groups under which its ranges are read."""
        return self.access.config.reader_groups


CLOSED: Final = "closed"
REPLACED: Final = "replaced"
IDLE: Final = "idle"
LOST: Final = "lost"
REMOVED: Final = "removed"
ENDS: Final = {
    CLOSED: "its client closed it",
    REPLACED: "its client opened a newer one",
    IDLE: "silent for longer than its lease, with nothing attached",
    LOST: "silent for longer than its lease, or its stream of events broke off, with partitions attached",
    REMOVED: "what its client shows is no longer in the policy",
}
"""How sessions end."""


class Sessions:
    """All sessions of a gateway."""

    def __init__(
        self, settings: GatewaySettings, clock: Clock = monotonic, quota: FairQuota | None = None
    ) -> None:
        self._gateway = settings.name
        self._lease_s = settings.lease_ms / 1000
        self._quota = quota or FairQuota(settings.sessions)
        self._policy = settings.policy is not None
        self.clock = clock
        self._sessions: dict[str, Session] = {}
        self._in_order: list[Session] | None = None
        """All of them, as long as none comes or goes."""
        self.on_open: list[Callable[[Session], object]] = []
        """Called with each new session."""
        self.on_end: list[Callable[[Session], object]] = []
        """Called with each session that has ended."""

    def __len__(self) -> int:
        """How many there are."""
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        """Return them in the order of their client ids."""
        if self._in_order is None:
            self._in_order = [self._sessions[name] for name in sorted(self._sessions)]
        return iter(self._in_order)

    def open(
        self, request: pb.OpenSessionRequest, access: Callable[[], Access], peer: str, owner: str = ""
    ) -> Session:
        """Open a session; an older one of the same client is fenced.

        One of the same id, epoch and settings stays as it is, since a client repeats what had no answer.
        """
        client_id = request.client_id
        _check_opening(request)
        older = self._sessions.get(client_id)
        if older is not None and not self._same_client(older, request.secret, owner):
            raise GatewayError("TUBEMQ_SESSION_TAKEN", gateway=self._gateway, session=client_id)
        if older is not None and older.epoch > request.epoch:
            raise self._fenced(client_id, request.epoch, older)
        now, there = self.clock(), access()
        if older is not None and _is_repeat(older, request, there):
            older.seen_at = now
            return older
        program = request.language, request.version
        opened = Session(
            client_id, request.epoch, request.secret, there, peer, *program, now, now, owner=owner
        )
        if older is not None:
            fenced = older.epoch < request.epoch
            self.close(older, REPLACED, self._fenced(client_id, older.epoch, opened) if fenced else None)
        if not self._quota.take(opened.who):
            what = f"it has {len(self._sessions)} sessions"
            raise busy(self._gateway, what, retry_after_ms=int(self._lease_s * 1000))
        self._in_order = None
        self._sessions[client_id] = opened
        for tell in self.on_open:
            tell(opened)
        return opened

    def known(self, client_id: str) -> Session | None:
        """Return the session of a client id, if there is one; this is no sign of life."""
        return self._sessions.get(client_id)

    def use(self, ref: pb.SessionRef, owner: str = "") -> Session:
        """Return the session of a call, which counts as a sign of life."""
        session = self._sessions.get(ref.client_id)
        # What another client shows is answered as an unknown session is, so neither secrets nor ids can be
        # tried; and it is no sign of life.
        if session is not None and not self._same_client(session, ref.secret, owner):
            session = None
        if session is not None and session.epoch > ref.epoch:
            raise self._fenced(ref.client_id, ref.epoch, session)
        if session is None or session.epoch != ref.epoch or not _same(session.secret, ref.secret):
            raise self._unknown(ref.client_id)
        session.seen_at = self.clock()
        session.calls += 1
        return session

    def close(self, session: Session, end: str = CLOSED, why: TubeMQError | None = None) -> None:
        """End a session, and its calls that are under way."""
        if session.ended:
            return
        session.end = end
        self._in_order = None
        del self._sessions[session.client_id]
        self._quota.give(session.who)
        for call in list(session.under_way):
            call.end(why or self._unknown(session.client_id))
        for tell in self.on_end:
            try:
                tell(session)
            except Exception:  # (the others have to be told all the same)
                logger.exception("the end of the session %s was not taken note of", session.client_id)

    def expire(self) -> list[Session]:
        """End the sessions that were silent for too long, and return them."""
        too_old = self.clock() - self._lease_s
        every = self._sessions.values()
        silent = [each for each in every if not each.under_way and each.seen_at < too_old]
        for session in silent:
            self.close(session, LOST if session.attached else IDLE)
        return silent

    def close_if_silent(self, session: Session, calls: int) -> None:
        """End a session that has made no more than so many calls, and has none under way."""
        if not session.under_way and session.calls == calls:
            self.close(session, LOST if session.attached else IDLE)

    def age_ms(self, moment: float) -> int:
        """Return how long ago a moment of the clock was."""
        return int((self.clock() - moment) * 1000)

    def _same_client(self, session: Session, secret: bytes, owner: str) -> bool:
        """Return whether a session belongs to the client that calls, by its name and its secret."""
        return session.owner == owner and (self._policy or _same(session.secret, secret))

    def _unknown(self, client_id: str) -> GatewayError:
        return GatewayError("TUBEMQ_SESSION_UNKNOWN", gateway=self._gateway, session=client_id)

    def _fenced(self, client_id: str, epoch: int, newer: Session) -> GatewayError:
        return GatewayError("TUBEMQ_SESSION_FENCED", session=client_id, epoch=epoch, newer=newer.epoch)


def _check_opening(request: pb.OpenSessionRequest) -> None:
    """Raise if a session may not have this client id or this secret."""
    what = None
    if not request.client_id.strip():
        what = "its session has no client_id"
    elif not request.client_id.isprintable():
        # Logs and pages show it.
        what = f"its client_id is {request.client_id!r}, and may have printable characters only"
    elif len(request.secret) not in service.SECRET_BYTES:
        least, most = service.SECRET_BYTES[0], service.SECRET_BYTES[-1]
        what = f"its secret has {len(request.secret)} bytes, and needs {least} to {most}"
    if what is not None:
        raise GatewayError("TUBEMQ_GATEWAY_REQUEST", what=what)


def _is_repeat(session: Session, request: pb.OpenSessionRequest, access: Access) -> bool:
    """Whether a session is what its client asks for; equal settings have the same access."""
    same = session.epoch == request.epoch and session.access is access
    return same and _same(session.secret, request.secret)


def _same(secret: bytes, shown: bytes) -> bool:
    """Return whether two secrets are equal, after a time that does not tell where they differ."""
    return hmac.compare_digest(secret, shown)


class Events:
    """Tells sessions what happens to what they use.

    - *draining*: all sessions;
    - *route changed*: sessions with the settings under which the change was noticed;
    - *partition lost*, *partitions changed*, *offset corrected*: the session whose partitions they are;
    - *members changed*: the other sessions of the group on this gateway. Those elsewhere learn it from the
      master.

    What concerns many sessions is put among shared events: those of all, of each access, and of each group.
    So such an event costs what has changed, and not what there is.
    """

    def __init__(self, settings: GatewaySettings, sessions: Sessions) -> None:
        self._members = settings.notify_members
        self._sessions = sessions
        self._for_all = SharedEvents()
        self._of_access: weakref.WeakValueDictionary[Access, SharedEvents] = weakref.WeakValueDictionary()
        self._of_group: weakref.WeakValueDictionary[str, SharedEvents] = weakref.WeakValueDictionary()
        sessions.on_open.append(self._follow)
        sessions.on_end.append(lambda session: session.inbox.leave())

    # What happens.

    def draining(self) -> None:
        """Tell all sessions that the gateway is about to stop."""
        self._for_all.put(("draining",), pb.SessionEvent(draining=pb.SessionEvent.Draining()))

    def route_changed(self, access: Access, topic: str, partitions: int) -> None:
        """Tell sessions of equal access that a topic has moved, or has other partitions."""
        if (shared := self._of_access.get(access)) is not None:
            changed = pb.SessionEvent.RouteChanged(topic=topic, partitions=partitions)
            shared.put(("route", topic), pb.SessionEvent(route_changed=changed))

    def partition_lost(self, session: Session, partition: TopicPartition, error: TubeMQError | None) -> None:
        """Tell a session that one of its partitions was given up."""
        lost = pb.SessionEvent.PartitionLost(
            partition=values.partition_to_proto(partition),
            error=None if error is None else failures.to_proto(error),
        )
        session.inbox.put(("lost", str(partition)), pb.SessionEvent(partition_lost=lost))

    def partitions_changed(self, session: Session, partitions: Iterable[pb.PartitionOffset]) -> None:
        """Tell a member of a group which partitions it has now."""
        changed = pb.SessionEvent.PartitionsChanged(partitions=partitions)
        session.inbox.put(("partitions",), pb.SessionEvent(partitions_changed=changed))

    def offset_corrected(self, session: Session, loss: LossRecord) -> None:
        """Tell a session that records of one of its partitions are gone."""
        corrected = pb.SessionEvent.OffsetCorrected(
            partition=values.partition_to_proto(loss.partition), loss=wire.loss_to_proto(loss)
        )
        about = "corrected", str(loss.partition), str(loss.start)
        session.inbox.put(about, pb.SessionEvent(offset_corrected=corrected))

    def members_changed(self, group: str, by: Session) -> None:
        """Tell the others of a group that a member came or went."""
        if self._members and (shared := self._of_group.get(group)) is not None:
            changed = pb.SessionEvent.MembersChanged(group=group)
            # The client that left may have a newer session, to which its own leaving is no news.
            member = self._sessions.known(by.client_id) or by
            member.inbox.put_for_others(shared, ("members",), pb.SessionEvent(members_changed=changed))

    def _follow(self, session: Session) -> None:
        session.inbox.follow(self._for_all)
        session.inbox.follow(self._of_access.setdefault(session.access, SharedEvents()))
        session.inbox.follow(self._of_group.setdefault(session.group, SharedEvents()))
