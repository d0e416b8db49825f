"""A consumer's session with the masters, which assign partitions to it (methods 4, 5 and 6).

What the master wants from this consumer comes with the answers to heartbeats, as *events*; what became of
them, and what is held, goes out with the next heartbeat.

Invariants:

- An event is passed on once, under the session's lock. ``on_event`` returns at once: another task carries
  events out.
- Each event is answered once (``report``), and by then ``held`` must tell what is held because of it. A
  heartbeat that fails is repeated with the same answer: an answer that came twice costs at most one event,
  which the master plans again, and one that never came stops its balancing for minutes.
- The first heartbeat after each registration tells what is held. A master that knows the name from before
  keeps what it held then, as long as a registration names nothing, and would give that to no other member.
- ``not_allocated`` only falls. It does so as soon as *one* member has its partitions, maybe before the others
  have heard of theirs: so ``first_round`` says what comes with the same answer.
- A consumer that the master refuses for good (``refused``) holds nothing until the master takes it again,
  or answers its heartbeats after all.
"""

import logging
import time
from collections.abc import Callable, Iterable

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.flow_control import FlowControl
from tubemq_spark.client.consumer_config import Subscription
from tubemq_spark.client.master import identity
from tubemq_spark.client.master.session import MasterSession
from tubemq_spark.errors import RpcError, TubeMQError
from tubemq_spark.net.connections import Connections
from tubemq_spark.offsets.notation import listed
from tubemq_spark.protocol import packed_strings
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.messages import RebalanceEvent, format_event, parse_event, subscribe_infos
from tubemq_spark.protocol.packed_strings import PartitionInfo, format_required_partition
from tubemq_spark.protocol.pb import master_pb2

logger = logging.getLogger(__name__)


class GroupSession(MasterSession):
    """A registered member of a group that the master balances."""

    _holds_partitions = True

    def __init__(
        self,
        config: ClientConfig,
        connections: Connections,
        subscription: Subscription,
        control: FlowControl,
        *,
        partitions: Callable[[], Iterable[PartitionInfo]],
        on_event: Callable[[RebalanceEvent], object],
        client_id: str | None = None,
    ) -> None:
        """Reach no master; ``open`` registers. ``on_event`` is called in the loop, and returns at once."""
        super().__init__(config, connections, client_id or identity.consumer_id(config.group, "Pull"))
        self.not_allocated = True
        """Whether no member of the group has ever had a partition, as far as the master has told."""
        self.first_round = True
        """Whether partitions that come now are those of the group's first round: in that one, a master gives
        the members of a bound group what they have named offsets for, to all at once."""
        self.refused: RpcError | None = None
        """Why the master does not take us any more, if it does not."""
        self._subscription = subscription
        self._control = control
        self._partitions = partitions
        self._on_event = on_event
        self._subscribed_at_ms = time.time_ns() // 1_000_000
        self._finished: list[RebalanceEvent] = []
        self._report_wanted = False
        self._since_report = 0

    def report(self, finished: RebalanceEvent | None = None) -> None:
        """Tell the master, as soon as possible, what is held, and that an event was carried out."""
        self._report_wanted = True
        if finished is not None:
            self._finished.append(finished)
        self._is_due.set()

    async def _register(self) -> None:
        subscription, group = self._subscription, self._config.group
        request = master_pb2.RegisterRequestC2M(
            clientId=self.client_id,
            groupName=group,
            hostName=self.host,
            topicList=subscription.topics,
            subscribeInfo=subscribe_infos(self._partitions(), self.client_id, group),
            topicCondition=packed_strings.topic_conditions(subscription.message_types),
            requireBound=subscription.start is not None,
            sessionTime=self._subscribed_at_ms,
            groupFlowCheckId=self._control.group.check_id,
            defFlowCheckId=self._control.default.check_id,
            qryPriorityId=self._control.query_priority,
            authInfo=self._caller.credentials(),
            jdkVersion=identity.RUNTIME,
        )
        if (start := subscription.start) is not None:
            request.sessionKey = start.session_key
            request.totalCount = start.source_count
            request.requiredPartition = format_required_partition(start.offsets)
            request.notAllocated = self.not_allocated
            request.selectBig = start.select_big
        during = f"registering a member of group {group} for the topics {listed(subscription.topics)}"
        try:
            answer = await self._caller.call(
                Method.CONSUMER_REGISTER, request, master_pb2.RegisterResponseM2C, during
            )
        except RpcError as error:
            if not error.retriable:
                self.refused = error
            raise
        self.refused = None
        self._report_wanted = True
        self._keep(answer)
        self.first_round = self.not_allocated

    async def _heartbeat(self) -> None:
        answered, report = self._next_report()
        request = master_pb2.HeartRequestC2M(
            clientId=self.client_id,
            groupName=self._config.group,
            reportSubscribeInfo=report,
            defFlowCheckId=self._control.default.check_id,
            groupFlowCheckId=self._control.group.check_id,
            qryPriorityId=self._control.query_priority,
            authInfo=self._caller.credentials(),
        )
        if report:
            partitions = self._partitions()
            request.subscribeInfo.extend(subscribe_infos(partitions, self.client_id, self._config.group))
        if answered is not None:
            request.event.CopyFrom(format_event(answered, self.client_id, self._config.group))
        during = f"renewing the registration of a member of group {self._config.group}"
        try:
            answer = await self._caller.call(
                Method.CONSUMER_HEARTBEAT, request, master_pb2.HeartResponseM2C, during
            )
        except TubeMQError:
            self._report_wanted |= report
            raise
        self.refused = None
        self._since_report = 0 if report else self._since_report + 1
        if answered is not None:
            self._finished.remove(answered)
        self._keep(answer)
        event = parse_event(answer.event)
        if event is not None:
            self._take(event)
        elif not self.not_allocated:
            # The first round was without us: it would have brought its event by now.
            self.first_round = False
        if self._finished:
            self._is_due.set()

    def _next_report(self) -> tuple[RebalanceEvent | None, bool]:
        """Return the event to answer, if any, and whether to tell what is held."""
        due = self._since_report >= self._config.consumer.report_interval
        answered = self._finished[0] if self._finished else None
        asked_for, self._report_wanted = self._report_wanted, False
        return answered, asked_for or due or answered is not None

    def _take(self, event: RebalanceEvent) -> None:
        for text in event.unreadable:
            logger.warning("%s passes over a partition that it cannot read: %r", self.client_id, text)
        logger.info("%s is told: %s", self.client_id, event)
        self._on_event(event)

    def _keep(self, answer: master_pb2.RegisterResponseM2C | master_pb2.HeartResponseM2C) -> None:
        """Take over flow control, priority and tokens in a master's answer."""
        if answer.HasField("notAllocated") and not answer.notAllocated:
            self.not_allocated = False
        if answer.HasField("defFlowCheckId"):
            self._control.update_default(answer.defFlowCheckId, answer.defFlowControlInfo)
        if answer.HasField("groupFlowCheckId"):
            self._control.update_group(answer.groupFlowCheckId, answer.groupFlowControlInfo)
        if answer.HasField("qryPriorityId"):
            self._control.query_priority = answer.qryPriorityId
        if answer.HasField("authorizedInfo"):
            self._keep_token(answer.authorizedInfo)
