"""Consumers that balance by themselves, at the master: register, heartbeat, layout, close (TMaster)."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tubemq_spark.embedded.dispatch import MAX_NAME_CHARACTERS, Operation, RefusedError, required, trimmed
from tubemq_spark.embedded.master_state import MAX_HOST_CHARACTERS, MAX_TOPICS, MasterState
from tubemq_spark.embedded.members import Consumer, Group, GroupTerms
from tubemq_spark.embedded.settings import BROKER_ID
from tubemq_spark.embedded.store import wall_ms
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol import infostrings
from tubemq_spark.protocol.constants import UNDEFINED, Method
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.pb import master_pb2 as pb

_STALE_LAYOUT_MS: Final = 180_000
"""A heartbeat repeats the layout to a client that took its own longer ago (maxMetaForceUpdatePeriodMs)."""


class BalanceHandlers:
    """Answers methods 20 to 22 and 6; their answers have no ``success``, the code says it."""

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
        """Take a consumer into its group."""
        client_id = required("clientId", request.clientId, MAX_NAME_CHARACTERS)
        required("hostName", request.hostName, MAX_HOST_CHARACTERS)
        group = required("groupName", request.groupName, MAX_NAME_CHARACTERS)
        topics = _topics(request.topicList)
        filters = _filters(request.topicCondition, topics)
        if request.sourceCount > 0 and not 0 <= request.nodeId < request.sourceCount:
            text = "Request nodeId value must be between in [0, sourceCount-1]!"
            raise RefusedError(ErrCode.BAD_REQUEST, text)
        if missing := sorted(topic for topic in topics if self._state.catalog.get(topic) is None):
            text = f"Topic {', '.join(missing)} not deployed, please check the topics of your client"
            raise RefusedError(ErrCode.TOPIC_NOT_DEPLOYED, text)
        report = request.subRepInfo
        consumer = Consumer(client_id, request.nodeId, 0, _assigned_at(report), _held(report) or ())
        with self._state.lock:
            terms = GroupTerms(topics, filters, request.sourceCount)
            self._state.members.add_consumer(group, terms, consumer)
        return pb.RegisterResponseM2CV2(
            errCode=ErrCode.SUCCESS,
            errMsg="OK!",
            brokerConfigId=self._state.broker_config_id,
            brokerConfigList=self._state.brokers_for(_known_brokers(report)),
            opsTaskInfo=pb.OpsTaskInfo(),
            authorizedInfo=self._state.authorized(),
        )

    def heartbeat(self, request: pb.HeartRequestC2MV2) -> pb.HeartResponseM2CV2:
        """Note that a consumer lives and what it holds; repeat the layout now and then."""
        client_id = required("clientId", request.clientId, MAX_NAME_CHARACTERS)
        group_name = required("groupName", request.groupName, MAX_NAME_CHARACTERS)
        report = request.subRepInfo
        held = _held(report)
        with self._state.lock:
            group, consumer = self._state.members.hear_consumer(group_name, client_id)
            if report.HasField("lstAssignedTime"):
                consumer.assigned_at_ms = report.lstAssignedTime
            if held is not None:
                consumer.held = held
            stale = bool(consumer.held) and 0 <= consumer.assigned_at_ms < wall_ms() - _STALE_LAYOUT_MS
        response = pb.HeartResponseM2CV2(
            errCode=ErrCode.SUCCESS,
            errMsg="OK!",
            brokerConfigId=self._state.broker_config_id,
            brokerConfigList=self._state.brokers_for(_known_brokers(report)),
            opsTaskInfo=pb.OpsTaskInfo(),
            authorizedInfo=self._state.authorized(),
        )
        if stale:
            response.topicMetaInfoId = self._state.catalog.version
            response.topicMetaInfoList.extend(self._layout_for(group, report.topicMetaInfoId))
        return response

    def layout(self, request: pb.GetPartMetaRequestC2M) -> pb.GetPartMetaResponseM2C:
        """Return which partitions the topics of a consumer have, and where."""
        client_id = required("clientId", request.clientId, MAX_NAME_CHARACTERS)
        group_name = required("groupName", request.groupName, MAX_NAME_CHARACTERS)
        with self._state.lock:
            group, _ = self._state.members.hear_consumer(group_name, client_id)
        return pb.GetPartMetaResponseM2C(
            errCode=ErrCode.SUCCESS,
            errMsg="OK!",
            brokerConfigId=self._state.broker_config_id,
            topicMetaInfoId=self._state.catalog.version,
            topicMetaInfoList=self._layout_for(group, request.topicMetaInfoId),
            brokerConfigList=self._state.brokers_for(request.brokerConfigId),
        )

    def close(self, request: pb.CloseRequestC2M) -> pb.CloseResponseM2C:
        """Forget a consumer."""
        client_id = required("clientId", request.clientId, MAX_NAME_CHARACTERS)
        group = required("groupName", request.groupName, MAX_NAME_CHARACTERS)
        with self._state.lock:
            self._state.members.remove_consumer(group, client_id)
        return pb.CloseResponseM2C(success=True, errCode=ErrCode.SUCCESS, errMsg="OK!")

    def _layout_for(self, group: Group, known_id: int) -> list[str]:
        """Return the layout of a group's topics, empty for a client that has it already."""
        if known_id == self._state.catalog.version:
            return []
        specs = [(topic, self._state.catalog.get(topic)) for topic in sorted(group.terms.topics)]
        return [
            infostrings.format_topic_meta(
                infostrings.TopicMeta(
                    topic,
                    (infostrings.MetaItem(BROKER_ID, spec.stores, spec.partitions, spec.subscribable),),
                )
            )
            for topic, spec in specs
            if spec is not None
        ]


def _topics(names: Iterable[str]) -> frozenset[str]:
    """Return the topics of a request (PBParameterUtils.checkConsumerTopicList)."""
    topics = frozenset(trimmed("topicName", name) for name in names) - {""}
    if not topics:
        raise RefusedError(ErrCode.BAD_REQUEST, "Request miss necessary subscribed topicList data!")
    if len(topics) > MAX_TOPICS:
        text = f"Subscribed topicList size over max value, required max count is {MAX_TOPICS}"
        raise RefusedError(ErrCode.BAD_REQUEST, text)
    return topics


def _filters(conditions: Iterable[str], topics: frozenset[str]) -> dict[str, frozenset[str]]:
    filters: dict[str, frozenset[str]] = {}
    for text in conditions:
        condition = infostrings.parse_topic_condition(text)
        if condition.topic not in topics:
            what = f"filter of topic {condition.topic}, which is not subscribed"
            raise RefusedError(ErrCode.BAD_REQUEST, f"[Parameter error] {what}")
        if condition.message_types:
            filters[condition.topic] = frozenset(condition.message_types)
    return filters


def _held(report: pb.ClientSubRepInfo) -> tuple[TopicPartition, ...] | None:
    """Return what a client says it holds, or None when it does not say."""
    if not report.reportSubInfo:
        return None
    return tuple(held for text in report.partSubInfo for held in infostrings.parse_part_sub_info(text))


def _assigned_at(report: pb.ClientSubRepInfo) -> int:
    return report.lstAssignedTime if report.HasField("lstAssignedTime") else UNDEFINED


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
