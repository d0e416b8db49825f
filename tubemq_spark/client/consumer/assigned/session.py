"""An assigned consumer's session with the masters (methods 20, 21, 22 and 6).

It differs from other sessions that learn where partitions are in what it tells: which of how many consumers
of the group this one is, what it holds, and which flow control rules it knows.

Invariants:

- ``not known`` is told by leaving a field out: only ids from 0 on are sent.
- Rules that an answer does not mention do not apply any more: a master names the id of every rule that does,
  with each answer.
- ``known_layout`` is asked for after heartbeats, in the background, and by users (``refresh_layout``).
- What is held is told in the first heartbeat after it changed, and every ``report_interval`` heartbeats.
- A wish of an administrator that the group continues with the latest messages counts once (``take_reset``),
  and only if it was made after this consumer registered. The master gives the wish a number; the largest one
  known after the first heartbeat was made before that. No clock of ours is compared with a master's.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable
from typing import Final

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.flow_control import FlowControl
from tubemq_spark.client.consumer_config import Node, Subscription
from tubemq_spark.client.master.balance import BalanceSession, Layout
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.connections import Connections
from tubemq_spark.protocol.constants import UNDEFINED
from tubemq_spark.protocol.packed_strings import format_part_sub_info
from tubemq_spark.protocol.pb import master_pb2

logger = logging.getLogger(__name__)

_NO_NODE: Final = (UNDEFINED, UNDEFINED)
_JAVA_FACTOR: Final = 31
_UINT32: Final = (1 << 32) - 1


class AssignedSession(BalanceSession):
    """A registered consumer that chooses its partitions itself, and reads them under its own name."""

    _holds_partitions = True

    def __init__(
        self,
        config: ClientConfig,
        connections: Connections,
        subscription: Subscription,
        control: FlowControl,
        *,
        node: Node | None = None,
        partitions: Callable[[], Collection[TopicPartition]] = tuple,
        on_news: Callable[[], object] = lambda: None,
        client_id: str | None = None,
    ) -> None:
        """Reach no master; ``open`` registers. Without a ``node`` the master does not check it.

        ``on_news`` is called in the loop after each heartbeat that was answered, and returns at once.
        """
        super().__init__(config, connections, subscription.topics, client_id=client_id)
        self.registered_at: float | None = None
        """When the master last accepted this consumer, in seconds since 1970; None: never."""
        self._message_types = subscription.message_types
        self._control = control
        self._source_count, self._node_id = _NO_NODE if node is None else (node.source_count, node.node_id)
        self._partitions = partitions
        self._on_news = on_news
        self._reported: frozenset[TopicPartition] | None = None
        self._since_report = 0
        self._layout_changed_ms: int | None = None
        self._reset_id = UNDEFINED
        self._settled = False
        """Whether a heartbeat was answered, so that what comes now was not there when we came."""
        self._reset = False
        self.known_layout = Layout({}, frozenset())
        """What the master said last about partitions."""
        self._layout_at: float | None = None
        self._layout_lock = asyncio.Lock()
        """Held while the master is asked for the layout."""

    async def refresh_layout(self) -> None:
        """Ask the master where the partitions are, unless it said so less than ``layout_period_ms`` ago."""
        async with self._layout_lock:
            if self._layout_due():
                # Only an answer counts: after an error the next caller asks again, and gets the error too.
                self._keep_layout(await self.layout())

    def _layout_due(self) -> bool:
        period_s = self._config.consumer.layout_period_ms / 1000
        now = asyncio.get_running_loop().time()
        return self._layout_at is None or now - self._layout_at >= period_s

    def _keep_layout(self, layout: Layout) -> None:
        self.known_layout = layout
        self._layout_at = asyncio.get_running_loop().time()

    async def _after_heartbeat(self) -> None:
        """Ask where the partitions are, if that is due, and tell ``on_news``."""
        try:
            if self._layout_due():
                self._keep_layout(await self._find_layout())
        finally:
            self._on_news()

    def endpoint_of(self, partition: TopicPartition) -> Endpoint | None:
        """Return a partition's broker, as the master said last."""
        return self.known_layout.partitions.get(partition)

    def take_reset(self) -> bool:
        """Return whether an administrator wants the group to continue with the latest messages, once."""
        reset, self._reset = self._reset, False
        return reset

    async def _register(self) -> None:
        # Also after a master forgot us: it may be another one, whose numbers of wishes mean nothing here.
        self._reported, self._settled = None, False
        await super()._register()
        self.registered_at = time.time()

    async def _heartbeat(self) -> None:
        partitions = frozenset(self._partitions())
        await super()._heartbeat()
        # Only now: a heartbeat that failed told nothing.
        if self._wants_report(partitions):
            self._reported, self._since_report = partitions, 0
        else:
            self._since_report += 1
        self._settled = True

    def _wants_report(self, partitions: frozenset[TopicPartition]) -> bool:
        return partitions != self._reported or self._since_report >= self._config.consumer.report_interval

    def _report(self) -> master_pb2.ClientSubRepInfo:
        report = super()._report()
        if self._layout_changed_ms is not None:
            report.lstAssignedTime = self._layout_changed_ms
        partitions = frozenset(self._partitions())
        if self._wants_report(partitions):
            report.reportSubInfo = True
            for topic in self._topics:
                if of_topic := sorted(partition for partition in partitions if partition.topic == topic):
                    report.partSubInfo.append(format_part_sub_info(of_topic))
        return report

    def _complete(self, request: master_pb2.RegisterRequestC2MV2 | master_pb2.HeartRequestC2MV2) -> None:
        if isinstance(request, master_pb2.RegisterRequestC2MV2):
            request.sourceCount, request.nodeId = self._source_count, self._node_id
        numbers = {
            "defFlowCheckId": self._control.default.check_id,
            "groupFlowCheckId": self._control.group.check_id,
            "qryPriorityId": self._control.query_priority,
            "csmFrmMaxOffsetCtrlId": self._reset_id,
        }
        for name, number in numbers.items():
            if number >= 0:
                setattr(request.opsTaskInfo, name, number)

    def _keep(self, answer: master_pb2.RegisterResponseM2CV2 | master_pb2.HeartResponseM2CV2) -> None:
        """Take over the layout, the rules of flow control and resets in a master's answer."""
        super()._keep(answer)
        if isinstance(answer, master_pb2.HeartResponseM2CV2):
            self._keep_metas(answer)
        task, control = answer.opsTaskInfo, self._control
        control.update_default(_id(task, "defFlowCheckId"), task.defFlowControlInfo)
        control.update_group(_id(task, "groupFlowCheckId"), task.groupFlowControlInfo)
        control.query_priority = _id(task, "qryPriorityId")
        reset_id = _id(task, "csmFrmMaxOffsetCtrlId")
        if reset_id > self._reset_id:
            self._reset_id = reset_id
            self._reset |= self._settled

    def _keep_metas(self, answer: master_pb2.GetPartMetaResponseM2C | master_pb2.HeartResponseM2CV2) -> None:
        before = self._metas
        super()._keep_metas(answer)
        if self._metas != before or self._layout_changed_ms is None:
            self._layout_changed_ms = time.time_ns() // 1_000_000


def _id(task: master_pb2.OpsTaskInfo, name: str) -> int:
    """Return a number of an answer, which is -2 if it is left out."""
    return int(getattr(task, name)) if task.HasField(name) else UNDEFINED


def share_of(partitions: Iterable[TopicPartition], node: Node) -> tuple[TopicPartition, ...]:
    """Return the partitions of one of several consumers, in order: each partition is in exactly one share.

    A partition's share is the Java hash code of its key, as a number without sign, modulo the number of
    consumers: as in TubeMQ's own example (ClientBalanceConsumerExample), so that both can share a group.
    """
    return tuple(sorted(item for item in partitions if _hash(item) % node.source_count == node.node_id))


def _hash(partition: TopicPartition) -> int:
    """Return ``String.hashCode`` of ``brokerId:topic:partitionId``; the names in it are ASCII."""
    number = 0
    for character in f"{partition.broker_id}:{partition.topic}:{partition.partition_id}":
        number = (number * _JAVA_FACTOR + ord(character)) & _UINT32
    return number
