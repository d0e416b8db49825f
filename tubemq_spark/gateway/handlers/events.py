"""What sessions are told by themselves: that the gateway drains, and what happens to what they use.

Events come from the event loop and from threads; ``from_thread`` brings the latter over. Who is told:

- *draining*: all sessions;
- *route changed*: sessions with the settings under which the change was noticed;
- *partition lost*, *offset corrected*: the session whose partition it is;
- *members changed*: the other sessions of the group on this gateway. Those elsewhere learn it from the
  master.
"""

import asyncio
import contextlib
from collections.abc import Callable

from tubemq_spark.client.remote import wire
from tubemq_spark.errors import GatewayError, TubeMQError
from tubemq_spark.gateway.session.calls import Call, Calls
from tubemq_spark.gateway.session.sessions import Session, Sessions
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
        sessions.on_end.append(_wake)

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
        """Tell everybody that the gateway is about to stop."""
        for session in self._sessions:
            self._put(session, ("draining",), pb.SessionEvent(draining=pb.SessionEvent.Draining()))

    def route_changed(self, access: Access, topic: str, partitions: int) -> None:
        """Tell that a topic's partitions are elsewhere, or others."""
        for session in self._sessions:
            if session.access is access:
                changed = pb.SessionEvent.RouteChanged(topic=topic, partitions=partitions)
                self._put(session, ("route", topic), pb.SessionEvent(route_changed=changed))

    def partition_lost(self, session: Session, partition: TopicPartition, error: TubeMQError | None) -> None:
        """Tell that an attached partition was given up."""
        lost = pb.SessionEvent.PartitionLost(
            partition=values.partition_to_proto(partition),
            error=None if error is None else failures.to_proto(error),
        )
        self._put(session, ("lost", str(partition)), pb.SessionEvent(partition_lost=lost))

    def offset_corrected(self, session: Session, loss: LossRecord) -> None:
        """Tell that records of an attached partition are gone."""
        corrected = pb.SessionEvent.OffsetCorrected(
            partition=values.partition_to_proto(loss.partition), loss=wire.loss_to_proto(loss)
        )
        about = "corrected", str(loss.partition), str(loss.start)
        self._put(session, about, pb.SessionEvent(offset_corrected=corrected))

    def members_changed(self, group: str, by: Session) -> None:
        """Tell the others of a group that a member came or went."""
        if not self._members:
            return
        for session in self._sessions:
            if session.client_id != by.client_id and session.access.config.group == group:
                changed = pb.SessionEvent.MembersChanged(group=group)
                self._put(session, ("members",), pb.SessionEvent(members_changed=changed))

    # Telling it.

    async def session_events(self, request: pb.SessionEventsRequest, call: Call) -> None:
        """Stream the events of a session, as they happen."""
        session = call.owner()
        try:
            # So the client knows that it will hear of what happens from now on.
            await call.context.send_initial_metadata(())
            await self._tell(session, call)
        except asyncio.CancelledError:
            if request.close_when_lost and not session.ended:
                asyncio.get_running_loop().call_later(
                    self._grace_s, self._close_if_silent, session, session.calls
                )
            raise
        self._calls.refuse_ended(call)

    async def _tell(self, session: Session, call: Call) -> None:
        inbox = session.inbox
        inbox.reader = call
        inbox.news.set()
        while not session.ended:
            await inbox.news.wait()
            inbox.news.clear()
            if inbox.reader is not call:
                inbox.news.set()
                raise GatewayError("TUBEMQ_GATEWAY_REQUEST", what="a newer call tells the session's events")
            for event in inbox.pending():
                await call.context.write(pb.SessionEventsResponse(event=event).SerializeToString())
                inbox.seen(event.number)
            self._calls.refuse_when_draining()

    def _close_if_silent(self, session: Session, calls: int) -> None:
        if not session.running and session.calls == calls:
            self._sessions.close(session)

    def _put(self, session: Session, about: tuple[str, ...], event: pb.SessionEvent) -> None:
        session.inbox.put(about, event)


def _wake(session: Session) -> None:
    session.inbox.news.set()
