"""What sessions are told by themselves: that the gateway drains, and what happens to what they use.

- *draining*: all sessions;
- *route changed*: sessions with the settings under which the change was noticed;
- *partition lost*, *partitions changed*, *offset corrected*: the session whose partitions they are;
- *members changed*: the other sessions of the group on this gateway. Those elsewhere learn it from the
  master.

What concerns many sessions is put among shared events (``sessions``): those of all, of each access, and
of each group. So such an event costs what has changed, and not what there is.

Used in the event loop only.
"""

import asyncio
import weakref
from collections.abc import Iterable

from tubemq_spark.client.remote import wire
from tubemq_spark.errors import GatewayError, TubeMQError
from tubemq_spark.gateway.session.calls import Call, Calls
from tubemq_spark.gateway.session.sessions import IDLE, LOST, Inbox, Session, Sessions, SharedEvents
from tubemq_spark.gateway.session.upstream import Access
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import TopicPartition
from tubemq_spark.offsets.loss import LossRecord
from tubemq_spark.protocol.gateway import failures, gateway_pb2 as pb, values


class Events:
    """Tells the sessions of a gateway; serves ``SessionEvents``."""

    def __init__(self, settings: GatewaySettings, sessions: Sessions, calls: Calls) -> None:
        self._members = settings.notify_members
        self._grace_s = settings.disconnect_ms / 1000
        self._sessions = sessions
        self._calls = calls
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
        """Tell that a topic's partitions are elsewhere, or others."""
        if (shared := self._of_access.get(access)) is not None:
            changed = pb.SessionEvent.RouteChanged(topic=topic, partitions=partitions)
            shared.put(("route", topic), pb.SessionEvent(route_changed=changed))

    def partition_lost(self, session: Session, partition: TopicPartition, error: TubeMQError | None) -> None:
        """Tell that an attached partition was given up."""
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
        """Tell that records of an attached partition are gone."""
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

    # Telling it.

    async def session_events(self, request: pb.SessionEventsRequest, call: Call) -> None:
        """Stream the events of a session, as they happen."""
        session = call.owner()
        newer = GatewayError("TUBEMQ_GATEWAY_REQUEST", what="a newer call tells the session's events")
        session.inbox.begin_reading(call.end, newer)
        try:
            # So the client knows that it will hear of what happens from now on.
            await call.context.start_answering()
            await self._tell(session.inbox, call)
        except asyncio.CancelledError:
            if request.close_when_lost and call.ended_by is None:
                asyncio.get_running_loop().call_later(
                    self._grace_s, self._close_if_silent, session, session.calls
                )
            raise
        finally:
            session.inbox.end_reading(call.end)

    async def _tell(self, inbox: Inbox, call: Call) -> None:
        while True:
            await inbox.news.wait()
            inbox.news.clear()
            for event in inbox.pending():
                response = pb.SessionEventsResponse(event=event)
                await call.context.write(response.SerializeToString())
                inbox.seen(event.number)
            self._calls.refuse_when_draining()

    def _close_if_silent(self, session: Session, calls: int) -> None:
        if not session.running and session.calls == calls:
            self._sessions.close(session, LOST if session.attached else IDLE)
