"""What sessions are told by themselves: that the gateway drains, and what happens to what they use.

Events come from the event loop and from threads; ``from_thread`` brings the latter over. Who is told:

- *draining*: all sessions;
- *route changed*: sessions with the settings under which the change was noticed;
- *partition lost*, *partitions changed*, *offset corrected*: the session whose partitions they are;
- *members changed*: the other sessions of the group on this gateway. Those elsewhere learn it from the
  master.

What concerns many sessions is put on a board (``session.inbox``) that they follow: one for all, one for each
access, and one for each group. So such an event costs what has changed, and not what there is.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable

from tubemq_spark.client.remote import wire
from tubemq_spark.errors import GatewayError, TubeMQError
from tubemq_spark.gateway.session.calls import Call, Calls
from tubemq_spark.gateway.session.inbox import Board
from tubemq_spark.gateway.session.sessions import IDLE, LOST, Session, Sessions
from tubemq_spark.gateway.session.upstream import Access
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import TopicPartition
from tubemq_spark.offsets.loss import LossRecord
from tubemq_spark.protocol.gateway import failures, gateway_pb2 as pb, values


class Events:
    """Tells the sessions of a gateway; serves ``SessionEvents``."""

    def __init__(self, settings: GatewaySettings, sessions: Sessions, calls: Calls) -> None:
        """Begin in the event loop, or before it runs."""
        self._members = settings.notify_members
        self._grace_s = settings.disconnect_ms / 1000
        self._sessions = sessions
        self._calls = calls
        self._loop: asyncio.AbstractEventLoop | None = None
        self._for_all = Board()
        self._of_access: dict[Access, Board] = {}
        self._of_group: dict[str, Board] = {}
        sessions.on_open.append(self._follow)
        sessions.on_end.append(self._leave)

    def start(self) -> None:
        """Take events of threads from now on; in the event loop."""
        self._loop = asyncio.get_running_loop()

    def from_thread(self, tell: Callable[[], object]) -> None:
        """Call a function in the event loop, from any thread."""
        loop = self._loop
        if loop is not None:
            # At the very end no session is left to tell.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(tell)

    # What happens.

    def draining(self) -> None:
        """Tell all sessions that the gateway is about to stop."""
        self._for_all.put(("draining",), pb.SessionEvent(draining=pb.SessionEvent.Draining()))

    def route_changed(self, access: Access, topic: str, partitions: int) -> None:
        """Tell that a topic's partitions are elsewhere, or others."""
        if (board := self._of_access.get(access)) is not None:
            changed = pb.SessionEvent.RouteChanged(topic=topic, partitions=partitions)
            board.put(("route", topic), pb.SessionEvent(route_changed=changed))

    def partition_lost(self, session: Session, partition: TopicPartition, error: TubeMQError | None) -> None:
        """Tell that an attached partition was given up."""
        lost = pb.SessionEvent.PartitionLost(
            partition=values.partition_to_proto(partition),
            error=None if error is None else failures.to_proto(error),
        )
        self._put(session, ("lost", str(partition)), pb.SessionEvent(partition_lost=lost))

    def partitions_changed(self, session: Session, partitions: Iterable[pb.PartitionOffset]) -> None:
        """Tell a member of a group which partitions it has now."""
        changed = pb.SessionEvent.PartitionsChanged(partitions=partitions)
        self._put(session, ("partitions",), pb.SessionEvent(partitions_changed=changed))

    def offset_corrected(self, session: Session, loss: LossRecord) -> None:
        """Tell that records of an attached partition are gone."""
        corrected = pb.SessionEvent.OffsetCorrected(
            partition=values.partition_to_proto(loss.partition), loss=wire.loss_to_proto(loss)
        )
        about = "corrected", str(loss.partition), str(loss.start)
        self._put(session, about, pb.SessionEvent(offset_corrected=corrected))

    def members_changed(self, group: str, by: Session) -> None:
        """Tell the others of a group that a member came or went."""
        if self._members and (board := self._of_group.get(group)) is not None:
            changed = pb.SessionEvent.MembersChanged(group=group)
            # The client that left may have a newer session, to which its own leaving is no news.
            member = self._sessions.known(by.client_id) or by
            member.inbox.put_for_others(board, ("members",), pb.SessionEvent(members_changed=changed))

    def _follow(self, session: Session) -> None:
        for board in (
            self._for_all,
            self._of_access.setdefault(session.access, Board()),
            self._of_group.setdefault(session.group, Board()),
        ):
            session.inbox.follow(board)

    def _leave(self, session: Session) -> None:
        session.inbox.leave()
        if not self._of_access[session.access].followers:
            del self._of_access[session.access]
        if not self._of_group[session.group].followers:
            del self._of_group[session.group]

    # Telling it.

    async def session_events(self, request: pb.SessionEventsRequest, call: Call) -> None:
        """Stream the events of a session, as they happen."""
        session = call.owner()
        try:
            # So the client knows that it will hear of what happens from now on.
            await call.context.send_initial_metadata(())
            await self._tell(session, call)
        except asyncio.CancelledError:
            if request.close_when_lost and call.ended_by is None:
                asyncio.get_running_loop().call_later(
                    self._grace_s, self._close_if_silent, session, session.calls
                )
            raise

    async def _tell(self, session: Session, call: Call) -> None:
        inbox = session.inbox
        inbox.begin_reading(call)
        try:
            while True:
                await inbox.news.wait()
                inbox.news.clear()
                if inbox.reader is not call:
                    inbox.news.set()
                    raise GatewayError(
                        "TUBEMQ_GATEWAY_REQUEST", what="a newer call tells the session's events"
                    )
                for event in inbox.pending():
                    response = pb.SessionEventsResponse(event=event)
                    await call.context.write(response.SerializeToString())
                    inbox.seen(event.number)
                self._calls.refuse_when_draining()
        finally:
            inbox.end_reading(call)

    def _close_if_silent(self, session: Session, calls: int) -> None:
        if not session.running and session.calls == calls:
            self._sessions.close(session, LOST if session.attached else IDLE)

    def _put(self, session: Session, about: tuple[str, ...], event: pb.SessionEvent) -> None:
        session.inbox.put(about, event)
