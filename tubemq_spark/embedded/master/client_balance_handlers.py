"""Requests of consumers that balance themselves: register, heartbeat, layout, close (TMaster)."""

from collections.abc import Mapping
from typing import Any, Final

from tubemq_spark.embedded.dispatch import MAX_NAME_CHARACTERS, Operation, RefusedError, required
from tubemq_spark.embedded.master.groups import Group, GroupTerms, RegisteredConsumer
from tubemq_spark.embedded.master.state import (
    MAX_HOST_CHARACTERS,
    MasterState,
    check_authorized,
    deployed_topics,
    disabled_topics,
    filters_of,
    ops_task,
)
from tubemq_spark.embedded.scheduler import wall_ms
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol import packed_strings
from tubemq_spark.protocol.constants import UNDEFINED, Method
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.pb import master_pb2 as pb

_STALE_LAYOUT_MS: Final = 180_000
"""A heartbeat repeats the layout to a client whose own is older (maxMetaForceUpdatePeriodMs)."""


class ClientBalanceHandlers:
    """Answers methods 20 to 22 and 6; their answers have no ``success``, only a code."""

    def __init__(self, state: MasterState) -> None:
        """Take what the master's handlers share."""
        self._state = state
        self.operations: Mapping[int, Operation[Any]] = {
            Method.BALANCE_REGISTER: Operation(pb.RegisterRequestC2MV2, self.register, _register_failure),
            Method.BALANCE_HEARTBEAT: Operation(pb.HeartRequestC2MV2, self.heartbeat, _heartbeat_failure),
            Method.BALANCE_PARTITION_META: Operation(pb.GetPartMetaRequestC2M, self.layout, _layout_failure),
            Method.CONSUMER_CLOSE: Operation(pb.CloseRequestC2M, self.close, _close_failure),
        }

    def register(self, request: pb.RegisterRequestC2MV2) -> pb.RegisterResponseM2CV2:
        """Add a consumer to its group."""
        state = self._state
        proof = state.authentication.at_master(request.authInfo, producer=False)
        client_id = required("clientId", request.clientId, MAX_NAME_CHARACTERS)
        required("hostName", request.hostName, MAX_HOST_CHARACTERS)
        name = required("groupName", request.groupName, MAX_NAME_CHARACTERS)
        state.check_leads(client_id)
        topics = deployed_topics(state, request.topicList)
        filters = filters_of(request.topicCondition)
        if request.sourceCount > 0 and not 0 <= request.nodeId < request.sourceCount:
            text = "Request nodeId value must be between in [0, sourceCount-1]!"
            raise RefusedError(ErrCode.BAD_REQUEST, text)
        check_authorized(state.controls, client_id, name, topics, filters)
        report = request.subRepInfo
        consumer = RegisteredConsumer(
            client_id,
            request.nodeId,
            assigned_at_ms=_assigned_at(report),
            held=_held(report) or (),
            from_max_id=_from_max_id(request.opsTaskInfo),
            source_count=request.sourceCount,
        )
        with state.lock:
            terms = GroupTerms(topics, filters, request.sourceCount)
            group = state.members.add_consumer(name, terms, consumer)
            group.not_allocated = False
            from_max_id = group.from_max_id
        return pb.RegisterResponseM2CV2(
            errCode=ErrCode.SUCCESS,
            errMsg="OK!",
            brokerConfigId=state.brokers.list_id,
            brokerConfigList=state.brokers_for(_known_brokers(report)),
            opsTaskInfo=self._ops_task(name, request.opsTaskInfo, from_max_id, consumer.from_max_id),
            authorizedInfo=state.authorized(proof),
        )

    def heartbeat(self, request: pb.HeartRequestC2MV2) -> pb.HeartResponseM2CV2:
        """Record that a consumer is alive and what it holds; repeat the layout from time to time."""
        state = self._state
        proof = state.authentication.at_master(request.authInfo, producer=False)
        client_id = required("clientId", request.clientId, MAX_NAME_CHARACTERS)
        name = required("groupName", request.groupName, MAX_NAME_CHARACTERS)
        state.check_leads(client_id)
        report = request.subRepInfo
        partitions = _held(report)
        with state.lock:
            group, consumer = state.members.record_consumer_heartbeat(name, client_id, client_balanced=True)
            if report.HasField("lstAssignedTime"):
                consumer.assigned_at_ms = report.lstAssignedTime
            if partitions is not None:
                group.record_heartbeat(consumer, partitions)
            if request.opsTaskInfo.HasField("csmFrmMaxOffsetCtrlId"):
                consumer.from_max_id = _from_max_id(request.opsTaskInfo)
            stale = bool(group.held(consumer)) and 0 <= consumer.assigned_at_ms < wall_ms() - _STALE_LAYOUT_MS
            from_max_id, done_id = group.from_max_id, consumer.from_max_id
            layout = layout_texts(state, group) if stale else None
        response = pb.HeartResponseM2CV2(
            errCode=ErrCode.SUCCESS,
            errMsg="OK!",
            brokerConfigId=state.brokers.list_id,
            brokerConfigList=state.brokers_for(_known_brokers(report)),
            opsTaskInfo=self._ops_task(name, request.opsTaskInfo, from_max_id, done_id),
            authorizedInfo=state.authorized(proof),
        )
        if layout is not None:
            response.topicMetaInfoId, texts = layout
            if response.topicMetaInfoId != report.topicMetaInfoId:
                response.topicMetaInfoList.extend(texts)
        return response

    def layout(self, request: pb.GetPartMetaRequestC2M) -> pb.GetPartMetaResponseM2C:
        """Return the partitions of a consumer's topics, and their brokers."""
        self._state.authentication.at_master(request.authInfo, producer=False)
        client_id = required("clientId", request.clientId, MAX_NAME_CHARACTERS)
        name = required("groupName", request.groupName, MAX_NAME_CHARACTERS)
        self._state.check_leads(client_id)
        with self._state.lock:
            group, _ = self._state.members.record_consumer_heartbeat(name, client_id, client_balanced=True)
            layout_id, texts = layout_texts(self._state, group)
        return pb.GetPartMetaResponseM2C(
            errCode=ErrCode.SUCCESS,
            errMsg="OK!",
            brokerConfigId=self._state.brokers.list_id,
            topicMetaInfoId=layout_id,
            topicMetaInfoList=texts if request.topicMetaInfoId != layout_id else (),
            brokerConfigList=self._state.brokers_for(request.brokerConfigId),
        )

    def close(self, request: pb.CloseRequestC2M) -> pb.CloseResponseM2C:
        """Remove a consumer of either kind."""
        self._state.authentication.at_master(request.authInfo, producer=False)
        client_id = required("clientId", request.clientId, MAX_NAME_CHARACTERS)
        group = required("groupName", request.groupName, MAX_NAME_CHARACTERS)
        self._state.check_leads(client_id)
        with self._state.lock:
            self._state.members.remove_consumer(group, client_id)
        return pb.CloseResponseM2C(success=True, errCode=ErrCode.SUCCESS, errMsg="OK!")

    def _ops_task(self, group: str, info: pb.OpsTaskInfo, from_max_id: int, done_id: int) -> pb.OpsTaskInfo:
        """Return what a client is told about flow control, and whether to start from the latest message."""
        task = ops_task(self._state.controls, group, info)
        if from_max_id not in (UNDEFINED, done_id):
            task.csmFrmMaxOffsetCtrlId = from_max_id
        return task


def layout_texts(state: MasterState, group: Group) -> tuple[int, list[str]]:
    """Return the partitions of a group's topics, and an id that changes when they do.

    Brokers that the master does not list are included, as not subscribable. Hold the state's lock.
    """
    disabled = disabled_topics(state.controls, group.name, group.terms.topics)
    metas = (_meta(state, topic, may_read=topic not in disabled) for topic in sorted(group.terms.topics))
    texts = [text for text in metas if text is not None]
    if texts != group.layout:
        group.layout, group.layout_id = texts, state.next_layout_id()
    return group.layout_id, texts


def _meta(state: MasterState, topic: str, *, may_read: bool) -> str | None:
    items = tuple(
        packed_strings.MetaItem(broker.id, spec.stores, spec.partitions, may_read and broker.subscribes(spec))
        for broker, spec in state.brokers.deployments(topic)
    )
    return packed_strings.format_topic_meta(packed_strings.TopicMeta(topic, items)) if items else None


def _held(report: pb.ClientSubRepInfo) -> tuple[TopicPartition, ...] | None:
    """Return what a client reports to hold, or None if it does not report."""
    if not report.reportSubInfo:
        return None
    return tuple(
        partition for text in report.partSubInfo for partition in packed_strings.parse_part_sub_info(text)
    )


def _assigned_at(report: pb.ClientSubRepInfo) -> int:
    return report.lstAssignedTime if report.HasField("lstAssignedTime") else UNDEFINED


def _from_max_id(info: pb.OpsTaskInfo) -> int:
    return info.csmFrmMaxOffsetCtrlId if info.HasField("csmFrmMaxOffsetCtrlId") else UNDEFINED


def _known_brokers(report: pb.ClientSubRepInfo) -> int:
    return report.brokerConfigId if report.HasField("brokerConfigId") else UNDEFINED


def _register_failure(code: int, text: str) -> pb.RegisterResponseM2CV2:
    return pb.RegisterResponseM2CV2(errCode=code, errMsg=text)


def _heartbeat_failure(code: int, text: str) -> pb.HeartResponseM2CV2:
    return pb.HeartResponseM2CV2(errCode=code, errMsg=text)


def _layout_failure(code: int, text: str) -> pb.GetPartMetaResponseM2C:
    return pb.GetPartMetaResponseM2C(errCode=code, errMsg=text)


def _close_failure(code: int, text: str) -> pb.CloseResponseM2C:
    return pb.CloseResponseM2C(success=False, errCode=code, errMsg=text)
