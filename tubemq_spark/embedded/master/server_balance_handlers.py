"""Requests of consumers that the master balances: register, and heartbeats with events (TMaster)."""

from collections.abc import Iterable, Mapping
from typing import Any

from tubemq_spark.embedded.dispatch import MAX_NAME_CHARACTERS, Operation, RefusedError, required, trimmed
from tubemq_spark.embedded.master.balancing import (
    DEFAULT_BROKERS_PER_CLIENT,
    Partitions,
    RebalanceEvent,
    members_needed,
)
from tubemq_spark.embedded.master.groups import (
    ConsumeType,
    GroupTerms,
    RegisteredConsumer,
    check_start,
    parse_starts,
)
from tubemq_spark.embedded.master.state import (
    MAX_HOST_CHARACTERS,
    MasterState,
    check_authorized,
    deployed_topics,
    filters_of,
    flow_fields,
)
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.packed_strings import (
    PartitionInfo,
    SubscribeInfo,
    format_subscribe_info,
    is_packable,
    parse_subscribe_info,
)
from tubemq_spark.protocol.pb import common_pb2, master_pb2 as pb

_NOT_STATED = -1
"""The member count of a group that does not state one."""


class ServerBalanceHandlers:
    """Answers methods 4 and 5; the events come from ``balance_rounds``."""

    def __init__(self, state: MasterState) -> None:
        """Take what the master's handlers share."""
        self._state = state
        self.operations: Mapping[int, Operation[Any]] = {
            Method.CONSUMER_REGISTER: Operation(pb.RegisterRequestC2M, self.register, _register_failure),
            Method.CONSUMER_HEARTBEAT: Operation(pb.HeartRequestC2M, self.heartbeat, _heartbeat_failure),
        }

    def register(self, request: pb.RegisterRequestC2M) -> pb.RegisterResponseM2C:
        """Add a consumer to its group; it gets partitions after its first heartbeat."""
        state = self._state
        proof = state.authentication.at_master(request.authInfo, producer=False)
        client_id = required("clientId", request.clientId, MAX_NAME_CHARACTERS)
        required("hostName", request.hostName, MAX_HOST_CHARACTERS)
        name = required("groupName", request.groupName, MAX_NAME_CHARACTERS)
        _check_packable(clientId=client_id, groupName=name)
        state.check_leads(client_id)
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
            errCode=ErrCode.SUCCESS,
            errMsg="OK!",
            notAllocated=not_allocated,
            authorizedInfo=state.authorized(proof),
            **flow_fields(state.controls, name, request),
        )

    def heartbeat(self, request: pb.HeartRequestC2M) -> pb.HeartResponseM2C:
        """Record what a consumer holds and which event it has finished; return its next event, if any."""
        state = self._state
        proof = state.authentication.at_master(request.authInfo, producer=False)
        client_id = required("clientId", request.clientId, MAX_NAME_CHARACTERS)
        name = required("groupName", request.groupName, MAX_NAME_CHARACTERS)
        state.check_leads(client_id)
        partitions = self._held(request.subscribeInfo) if request.reportSubscribeInfo else None
        with state.lock:
            group, consumer = state.members.record_consumer_heartbeat(name, client_id, client_balanced=False)
            group.record_heartbeat(consumer, partitions, request.event.rebalanceId)
            event = group.next_event(consumer)
            not_allocated = group.not_allocated
        response = pb.HeartResponseM2C(
            success=True,
            errCode=ErrCode.SUCCESS,
            errMsg="OK!",
            notAllocated=not_allocated,
            authorizedInfo=state.authorized(proof),
            **flow_fields(state.controls, name, request),
        )
        if event is not None:
            response.event.CopyFrom(self._packed(event, client_id, name))
        return response

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

    def _packed(self, event: RebalanceEvent, client_id: str, group: str) -> common_pb2.EventProto:
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


def _check_packable(**names: str) -> None:
    """Refuse (400) names that break the texts in events; TubeMQ sends them, and its clients fail."""
    for what, name in names.items():
        if not is_packable(name):
            raise RefusedError(ErrCode.BAD_REQUEST, f"{what} {name} has a character that separates fields!")


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


def _register_failure(code: int, text: str) -> pb.RegisterResponseM2C:
    return pb.RegisterResponseM2C(success=False, errCode=code, errMsg=text)


def _heartbeat_failure(code: int, text: str) -> pb.HeartResponseM2C:
    return pb.HeartResponseM2C(success=False, errCode=code, errMsg=text)
