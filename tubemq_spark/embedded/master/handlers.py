"""Requests of clients to the master (TMaster): of producers, and of consumers of both kinds.

Producers register, ask for routes with heartbeats, and close. Of consumers, some are balanced by the master
and get events with their heartbeats; others balance themselves, and ask for the layout.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tubemq_spark.embedded.config.controls import Controls
from tubemq_spark.embedded.dispatch import (
    MAX_NAME_CHARACTERS,
    OK,
    Operation,
    RefusedError,
    failure,
    required,
    trimmed,
)
from tubemq_spark.embedded.master.balancing import (
    DEFAULT_BROKERS_PER_CLIENT,
    MemberEvent,
    Partitions,
    members_needed,
)
from tubemq_spark.embedded.master.groups import (
    ConsumeType,
    Group,
    GroupTerms,
    RegisteredConsumer,
    check_start,
    parse_starts,
)
from tubemq_spark.embedded.master.state import (
    MasterState,
    check_authorized,
    deployed_topics,
    disabled_topics,
    filters_of,
)
from tubemq_spark.embedded.scheduler import wall_ms
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.constants import MAX_TOPICS, OFFSET_HISTORY_TOPIC, UNDEFINED, Method
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.packed_strings import (
    MetaItem,
    PartitionInfo,
    RouteItem,
    SubscribeInfo,
    TopicMeta,
    TopicRoute,
    format_subscribe_info,
    format_topic_meta,
    format_topic_route,
    is_packable,
    parse_part_sub_info,
    parse_subscribe_info,
)
from tubemq_spark.protocol.pb import common_pb2, master_pb2 as pb

_MAX_HOST_CHARACTERS: Final = 256
_NO_CHECKSUM: Final = -1
_NOT_STATED: Final = -1
"""The member count of a group that does not state one."""
_STALE_LAYOUT_MS: Final = 180_000
"""A heartbeat repeats the layout to a client whose own is older (maxMetaForceUpdatePeriodMs)."""
_NO_FLOW: Final[Mapping[str, Any]] = {
    "ssdStoreId": UNDEFINED,
    "qryPriorityId": UNDEFINED,
    "defFlowCheckId": UNDEFINED,
    "defFlowControlInfo": " ",
    "groupFlowCheckId": UNDEFINED,
    "groupFlowControlInfo": " ",
}
"""What a server-balanced consumer is told without flow control; a blank says that no rules are new."""


_ProducerRequest = pb.RegisterRequestP2M | pb.HeartRequestP2M | pb.CloseRequestP2M
_ConsumerRequest = (
    pb.RegisterRequestC2M
    | pb.HeartRequestC2M
    | pb.RegisterRequestC2MV2
    | pb.HeartRequestC2MV2
    | pb.GetPartMetaRequestC2M
    | pb.CloseRequestC2M
)


def _caller(
    state: MasterState, request: _ProducerRequest | _ConsumerRequest, host: str | None, *, producer: bool
) -> tuple[str, str]:
    """Check who sends a request; return its proof and its client id. All requests begin so."""
    proof = state.authentication.at_master(request.authInfo, producer=producer)
    client_id = required("clientId", request.clientId, MAX_NAME_CHARACTERS)
    if host is not None:
        required("hostName", host, _MAX_HOST_CHARACTERS)
    return proof, client_id


def _consumer(
    state: MasterState, request: _ConsumerRequest, host: str | None = None, *, packs: bool = False
) -> tuple[str, str, str]:
    """Check which consumer sends a request; return its proof, its client id and its group.

    The master packs names into the texts of events, so that those of its own consumers (``packs``) must not
    break these texts. TubeMQ sends such names, and its clients fail.
    """
    proof, client_id = _caller(state, request, host, producer=False)
    group = required("groupName", request.groupName, MAX_NAME_CHARACTERS)
    for what, name in (("clientId", client_id), ("groupName", group)):
        if packs and not is_packable(name):
            raise RefusedError(ErrCode.BAD_REQUEST, f"{what} {name} has a character that separates fields!")
    state.check_leads(client_id)
    return proof, client_id, group


class ProducerHandlers:
    """Answers methods 1 to 3."""

    def __init__(self, state: MasterState) -> None:
        self._state = state
        no_list = failure(pb.RegisterResponseM2P, success=False, brokerCheckSum=_NO_CHECKSUM)
        no_routes = failure(pb.HeartResponseM2P, success=False, brokerCheckSum=_NO_CHECKSUM)
        not_closed = failure(pb.CloseResponseM2P, success=False)
        self.operations: Mapping[int, Operation[Any]] = {
            Method.PRODUCER_REGISTER: Operation(pb.RegisterRequestP2M, self.register, no_list),
            Method.PRODUCER_HEARTBEAT: Operation(pb.HeartRequestP2M, self.heartbeat, no_routes),
            Method.PRODUCER_CLOSE: Operation(pb.CloseRequestP2M, self.close, not_closed),
        }

    def register(self, request: pb.RegisterRequestP2M) -> pb.RegisterResponseM2P:
        """Register a producer; it gets the routes of its topics with its first heartbeat."""
        state = self._state
        proof, client_id = _caller(state, request, request.hostName, producer=True)
        _published_topics(request.topicList)
        state.check_leads(client_id)
        with state.lock:
            state.members.add_producer(client_id)
        return pb.RegisterResponseM2P(
            success=True,
            **OK,
            brokerCheckSum=state.brokers.list_id,
            brokerInfos=state.brokers.infos(),
            authorizedInfo=state.authorized(proof),
            appdConfig=self._client_config(request.appdConfig),
        )

    def heartbeat(self, request: pb.HeartRequestP2M) -> pb.HeartResponseM2P:
        """Tell a producer where each of its topics can be published at present."""
        state = self._state
        proof, client_id = _caller(state, request, request.hostName, producer=True)
        topics = _published_topics(request.topicList)
        state.check_leads(client_id)
        with state.lock:
            state.members.record_producer_heartbeat(client_id)
        return pb.HeartResponseM2P(
            success=True,
            **OK,
            brokerCheckSum=state.brokers.list_id,
            topicInfos=[route for topic in sorted(topics) if (route := self._route(topic)) is not None],
            brokerInfos=state.brokers_newer_than(request.brokerCheckSum),
            authorizedInfo=state.authorized(proof),
            appdConfig=self._client_config(request.appdConfig),
        )

    def close(self, request: pb.CloseRequestP2M) -> pb.CloseResponseM2P:
        """Remove a producer."""
        _, client_id = _caller(self._state, request, None, producer=True)
        self._state.check_leads(client_id)
        with self._state.lock:
            self._state.members.remove_producer(client_id)
        return pb.CloseResponseM2P(success=True, **OK)

    def _route(self, topic: str) -> str | None:
        """Return a topic's route; None is all that a producer learns about an unknown or closed topic."""
        open_to_all = [
            (broker.id, spec)
            for broker, spec in self._state.brokers.deployments(topic)
            if broker.publishes(spec)
        ]
        if not open_to_all:
            return None
        # TubeMQ keeps the limit with the topic. Here each broker has its own, and the lowest applies.
        least = min(spec.max_message_bytes for _, spec in open_to_all)
        limit = None if least == self._state.controls.cluster.max_message_bytes else least
        routes = tuple(RouteItem(broker_id, spec.partitions, spec.stores) for broker_id, spec in open_to_all)
        return format_topic_route(TopicRoute(topic, routes, limit))

    def _client_config(self, known: common_pb2.ApprovedClientConfig) -> common_pb2.ApprovedClientConfig:
        """Return the cluster's size limit, if the client does not know it."""
        cluster = self._state.controls.cluster
        config = common_pb2.ApprovedClientConfig(configId=cluster.stamp.serial_id)
        # A client that states no id at all, not even "none known", gets the limit too.
        if known.configId != cluster.stamp.serial_id:
            config.maxMsgSize = cluster.max_message_bytes
        return config


def _published_topics(names: Iterable[str]) -> set[str]:
    """Return the topics of a request (PBParameterUtils.checkProducerTopicList)."""
    topics = {trimmed("topicName", name) for name in names} - {""}
    if OFFSET_HISTORY_TOPIC in topics:
        text = f"System Topic {OFFSET_HISTORY_TOPIC} does not allow client produce data!"
        raise RefusedError(ErrCode.BAD_REQUEST, text)
    if len(topics) > MAX_TOPICS:
        text = f"Booked topic's count over max value, required max count is {MAX_TOPICS}"
        raise RefusedError(ErrCode.BAD_REQUEST, text)
    return topics


class ServerBalanceHandlers:
    """Answers methods 4 and 5, of consumers that the master balances; the events come from its rounds."""

    def __init__(self, state: MasterState) -> None:
        self._state = state
        refused = failure(pb.RegisterResponseM2C, success=False)
        not_heard = failure(pb.HeartResponseM2C, success=False)
        self.operations: Mapping[int, Operation[Any]] = {
            Method.CONSUMER_REGISTER: Operation(pb.RegisterRequestC2M, self.register, refused),
            Method.CONSUMER_HEARTBEAT: Operation(pb.HeartRequestC2M, self.heartbeat, not_heard),
        }

    def register(self, request: pb.RegisterRequestC2M) -> pb.RegisterResponseM2C:
        """Add a consumer to its group; it gets partitions after its first heartbeat."""
        state = self._state
        proof, client_id, name = _consumer(state, request, request.hostName, packs=True)
        topics = deployed_topics(state, request.topicList)
        terms = _terms(request, topics)
        consumer = RegisteredConsumer(client_id, source_count=terms.source_count)
        partitions = self._held(request.subscribeInfo)
        if terms.kind is ConsumeType.BOUND:
            consumer.starts = parse_starts(request.requiredPartition, topics)
            check_start(terms.session_key, terms.source_count)
            self._check_resources(name, terms)
        check_authorized(state.controls, client_id, name, topics, terms.filters)
        with state.lock:
            group = state.members.add_consumer(name, terms, consumer)
            group.events.join(client_id, partitions)
            if partitions or (request.HasField("notAllocated") and not request.notAllocated):
                group.not_allocated = False
            not_allocated = group.not_allocated
        return pb.RegisterResponseM2C(
            success=True,
            **OK,
            notAllocated=not_allocated,
            authorizedInfo=state.authorized(proof),
            **self._flow(name, request),
        )

    def heartbeat(self, request: pb.HeartRequestC2M) -> pb.HeartResponseM2C:
        """Record what a consumer holds and which event it has finished; return its next event, if any."""
        state = self._state
        proof, client_id, name = _consumer(state, request)
        partitions = self._held(request.subscribeInfo) if request.reportSubscribeInfo else None
        with state.lock:
            group, consumer = state.members.record_consumer_heartbeat(name, client_id, client_balanced=False)
            group.record_heartbeat(consumer, partitions, request.event.rebalanceId)
            event = group.next_event(consumer)
            not_allocated = group.not_allocated
        response = pb.HeartResponseM2C(
            success=True,
            **OK,
            notAllocated=not_allocated,
            authorizedInfo=state.authorized(proof),
            **self._flow(name, request),
        )
        if event is not None:
            response.event.CopyFrom(self._packed(event, client_id, name))
        return response

    def _flow(self, group: str, request: pb.RegisterRequestC2M | pb.HeartRequestC2M) -> Mapping[str, Any]:
        """Return what a consumer is told about flow control; nothing unless it says what it already knows."""
        if not (request.HasField("defFlowCheckId") or request.HasField("groupFlowCheckId")):
            return {}
        return {**_NO_FLOW, **_flow_fields(self._state.controls, group, request)}

    def _check_resources(self, group: str, terms: GroupTerms) -> None:
        """Refuse (400) a bound group that will have too few members for its brokers."""
        control = self._state.controls.group(group)
        own_rate = control.allowed_broker_client_rate if control else 0
        rate = own_rate if own_rate > 0 else DEFAULT_BROKERS_PER_CLIENT
        needed = members_needed(self._state.brokers.most_subscribed(terms.topics), terms.source_count, rate)
        if needed is not None:
            text = f"[Parameter error] System requires at least {needed} clients to consume data together, "
            raise RefusedError(ErrCode.BAD_REQUEST, f"{text}please add client resources!")

    def _held(self, texts: Iterable[str]) -> Partitions:
        """Return the listed partitions, without those of brokers that this cluster does not have."""
        parts = (parse_subscribe_info(text).held.partition for text in texts if text.strip())
        return frozenset(part for part in parts if self._state.brokers.get(part.broker_id) is not None)

    def _packed(self, event: MemberEvent, client_id: str, group: str) -> common_pb2.EventProto:
        infos = [
            PartitionInfo(broker.id, broker.endpoint, partition.topic, partition.partition_id)
            for partition in sorted(event.partitions)
            if (broker := self._state.brokers.get(partition.broker_id)) is not None
        ]
        return common_pb2.EventProto(
            rebalanceId=event.rebalance_id,
            opType=event.type,
            subscribeInfo=[format_subscribe_info(SubscribeInfo(client_id, group, info)) for info in infos],
        )


def _terms(request: pb.RegisterRequestC2M, topics: frozenset[str]) -> GroupTerms:
    """Return what a request says about its group; some fields are used for bound groups only."""
    filters = filters_of(request.topicCondition)
    if not request.requireBound:
        return GroupTerms(topics, filters, _NOT_STATED, ConsumeType.NORMAL)
    return GroupTerms(
        topics,
        filters,
        request.totalCount if request.HasField("totalCount") else _NOT_STATED,
        ConsumeType.BOUND,
        trimmed("sessionKey", request.sessionKey),
        request.selectBig if request.HasField("selectBig") else True,
    )


class ClientBalanceHandlers:
    """Answers methods 20 to 22 and 6, of consumers that balance themselves.

    Their answers have no ``success``, only a code.
    """

    def __init__(self, state: MasterState) -> None:
        self._state = state
        refused, not_heard = failure(pb.RegisterResponseM2CV2), failure(pb.HeartResponseM2CV2)
        no_layout, not_closed = (
            failure(pb.GetPartMetaResponseM2C),
            failure(pb.CloseResponseM2C, success=False),
        )
        self.operations: Mapping[int, Operation[Any]] = {
            Method.BALANCE_REGISTER: Operation(pb.RegisterRequestC2MV2, self.register, refused),
            Method.BALANCE_HEARTBEAT: Operation(pb.HeartRequestC2MV2, self.heartbeat, not_heard),
            Method.BALANCE_PARTITION_META: Operation(pb.GetPartMetaRequestC2M, self.layout, no_layout),
            Method.CONSUMER_CLOSE: Operation(pb.CloseRequestC2M, self.close, not_closed),
        }

    def register(self, request: pb.RegisterRequestC2MV2) -> pb.RegisterResponseM2CV2:
        """Add a consumer to its group."""
        state, report = self._state, request.subRepInfo
        proof, client_id, name = _consumer(state, request, request.hostName)
        topics = deployed_topics(state, request.topicList)
        filters = filters_of(request.topicCondition)
        if request.sourceCount > 0 and not 0 <= request.nodeId < request.sourceCount:
            text = "Request nodeId value must be between in [0, sourceCount-1]!"
            raise RefusedError(ErrCode.BAD_REQUEST, text)
        check_authorized(state.controls, client_id, name, topics, filters)
        consumer = RegisteredConsumer(
            client_id,
            request.nodeId,
            assigned_at_ms=_stated(report, "lstAssignedTime"),
            held=_reported_partitions(report) or (),
            from_max_id=_stated(request.opsTaskInfo, "csmFrmMaxOffsetCtrlId"),
            source_count=request.sourceCount,
        )
        with state.lock:
            terms = GroupTerms(topics, filters, request.sourceCount)
            group = state.members.add_consumer(name, terms, consumer)
            group.not_allocated = False
            from_max_id = group.from_max_id
        return pb.RegisterResponseM2CV2(
            **OK,
            brokerConfigId=state.brokers.list_id,
            brokerConfigList=state.brokers_newer_than(_stated(report, "brokerConfigId")),
            opsTaskInfo=self._ops_task(name, request.opsTaskInfo, from_max_id, consumer.from_max_id),
            authorizedInfo=state.authorized(proof),
        )

    def heartbeat(self, request: pb.HeartRequestC2MV2) -> pb.HeartResponseM2CV2:
        """Record that a consumer is alive and what it holds; repeat the layout from time to time."""
        state, report = self._state, request.subRepInfo
        proof, client_id, name = _consumer(state, request)
        partitions = _reported_partitions(report)
        with state.lock:
            group, consumer = state.members.record_consumer_heartbeat(name, client_id, client_balanced=True)
            if report.HasField("lstAssignedTime"):
                consumer.assigned_at_ms = report.lstAssignedTime
            if partitions is not None:
                group.record_heartbeat(consumer, partitions)
            if request.opsTaskInfo.HasField("csmFrmMaxOffsetCtrlId"):
                consumer.from_max_id = request.opsTaskInfo.csmFrmMaxOffsetCtrlId
            stale = bool(group.held(consumer)) and 0 <= consumer.assigned_at_ms < wall_ms() - _STALE_LAYOUT_MS
            from_max_id, done_id = group.from_max_id, consumer.from_max_id
            layout = layout_texts(state, group) if stale else None
        response = pb.HeartResponseM2CV2(
            **OK,
            brokerConfigId=state.brokers.list_id,
            brokerConfigList=state.brokers_newer_than(_stated(report, "brokerConfigId")),
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
        state = self._state
        _, client_id, name = _consumer(state, request)
        with state.lock:
            group, _ = state.members.record_consumer_heartbeat(name, client_id, client_balanced=True)
            layout_id, texts = layout_texts(state, group)
        return pb.GetPartMetaResponseM2C(
            **OK,
            brokerConfigId=state.brokers.list_id,
            topicMetaInfoId=layout_id,
            topicMetaInfoList=texts if request.topicMetaInfoId != layout_id else (),
            brokerConfigList=state.brokers_newer_than(request.brokerConfigId),
        )

    def close(self, request: pb.CloseRequestC2M) -> pb.CloseResponseM2C:
        """Remove a consumer of either kind."""
        _, client_id, group = _consumer(self._state, request)
        with self._state.lock:
            self._state.members.remove_consumer(group, client_id)
        return pb.CloseResponseM2C(success=True, **OK)

    def _ops_task(self, group: str, known: pb.OpsTaskInfo, from_max_id: int, done_id: int) -> pb.OpsTaskInfo:
        """Return what a client is told about flow control, and whether to start from the latest message."""
        task = pb.OpsTaskInfo(**_flow_fields(self._state.controls, group, known))
        if from_max_id not in (UNDEFINED, done_id):
            task.csmFrmMaxOffsetCtrlId = from_max_id
        return task


def _flow_fields(
    controls: Controls, group: str, known: pb.RegisterRequestC2M | pb.HeartRequestC2M | pb.OpsTaskInfo
) -> dict[str, Any]:
    """Return the flow control and query priority that apply to a consumer, and the rules that it lacks."""
    cluster, own = controls.cluster, controls.group(group)
    fields: dict[str, Any] = {}
    if cluster.flow_control:
        fields["defFlowCheckId"] = cluster.flow_id
        if known.defFlowCheckId != cluster.flow_id:
            fields["defFlowControlInfo"] = cluster.flow_rules
    if own is not None and own.flow_control:
        fields["groupFlowCheckId"] = own.flow_id
        fields["qryPriorityId"] = own.query_priority
        if known.groupFlowCheckId != own.flow_id:
            fields["groupFlowControlInfo"] = own.flow_rules
    return fields


def layout_texts(state: MasterState, group: Group) -> tuple[int, list[str]]:
    """Return the partitions of a group's topics, and an id that changes when they do.

    Brokers that the master does not list are included, as not subscribable. Hold the state's lock.
    """
    disabled = disabled_topics(state.controls, group.name, group.terms.topics)
    texts = []
    for topic in sorted(group.terms.topics):
        items = tuple(
            MetaItem(
                broker.id, spec.stores, spec.partitions, topic not in disabled and broker.subscribes(spec)
            )
            for broker, spec in state.brokers.deployments(topic)
        )
        if items:
            texts.append(format_topic_meta(TopicMeta(topic, items)))
    if texts != group.layout:
        group.layout, group.layout_id = texts, state.next_layout_id()
    return group.layout_id, texts


def _reported_partitions(report: pb.ClientSubRepInfo) -> tuple[TopicPartition, ...] | None:
    """Return the partitions that a client reports, or None if it does not report."""
    if not report.reportSubInfo:
        return None
    return tuple(partition for text in report.partSubInfo for partition in parse_part_sub_info(text))


def _stated(report: pb.ClientSubRepInfo | pb.OpsTaskInfo, field: str) -> int:
    return int(getattr(report, field)) if report.HasField(field) else UNDEFINED
