"""Requests of producers to the master: register, heartbeat with routes, close (TMaster)."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tubemq_spark.embedded.dispatch import MAX_NAME_CHARACTERS, Operation, RefusedError, required, trimmed
from tubemq_spark.embedded.master.state import MAX_HOST_CHARACTERS, MasterState
from tubemq_spark.protocol.constants import MAX_TOPICS, OFFSET_HISTORY_TOPIC, Method
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.packed_strings import RouteItem, TopicRoute, format_topic_route
from tubemq_spark.protocol.pb import common_pb2, master_pb2 as pb

_NO_CHECKSUM: Final = -1


class ProducerHandlers:
    """Answers methods 1 to 3."""

    def __init__(self, state: MasterState) -> None:
        """Take what the master's handlers share."""
        self._state = state
        self.operations: Mapping[int, Operation[Any]] = {
            Method.PRODUCER_REGISTER: Operation(pb.RegisterRequestP2M, self.register, _register_failure),
            Method.PRODUCER_HEARTBEAT: Operation(pb.HeartRequestP2M, self.heartbeat, _heartbeat_failure),
            Method.PRODUCER_CLOSE: Operation(pb.CloseRequestP2M, self.close, _close_failure),
        }

    def register(self, request: pb.RegisterRequestP2M) -> pb.RegisterResponseM2P:
        """Register a producer; it gets the routes of its topics with its first heartbeat."""
        proof = self._state.authentication.at_master(request.authInfo, producer=True)
        client_id = required("clientId", request.clientId, MAX_NAME_CHARACTERS)
        required("hostName", request.hostName, MAX_HOST_CHARACTERS)
        _topics(request.topicList)
        self._state.check_leads(client_id)
        with self._state.lock:
            self._state.members.add_producer(client_id)
        return pb.RegisterResponseM2P(
            success=True,
            errCode=ErrCode.SUCCESS,
            errMsg="OK!",
            brokerCheckSum=self._state.brokers.list_id,
            brokerInfos=self._state.brokers.infos(),
            authorizedInfo=self._state.authorized(proof),
            appdConfig=self._client_config(request.appdConfig),
        )

    def heartbeat(self, request: pb.HeartRequestP2M) -> pb.HeartResponseM2P:
        """Tell a producer where each of its topics can be published at present."""
        proof = self._state.authentication.at_master(request.authInfo, producer=True)
        client_id = required("clientId", request.clientId, MAX_NAME_CHARACTERS)
        required("hostName", request.hostName, MAX_HOST_CHARACTERS)
        topics = _topics(request.topicList)
        self._state.check_leads(client_id)
        with self._state.lock:
            self._state.members.record_producer_heartbeat(client_id)
        return pb.HeartResponseM2P(
            success=True,
            errCode=ErrCode.SUCCESS,
            errMsg="OK!",
            brokerCheckSum=self._state.brokers.list_id,
            topicInfos=[route for topic in sorted(topics) if (route := self._route(topic)) is not None],
            brokerInfos=self._state.brokers_for(request.brokerCheckSum),
            authorizedInfo=self._state.authorized(proof),
            appdConfig=self._client_config(request.appdConfig),
        )

    def close(self, request: pb.CloseRequestP2M) -> pb.CloseResponseM2P:
        """Remove a producer."""
        self._state.authentication.at_master(request.authInfo, producer=True)
        client_id = required("clientId", request.clientId, MAX_NAME_CHARACTERS)
        self._state.check_leads(client_id)
        with self._state.lock:
            self._state.members.remove_producer(client_id)
        return pb.CloseResponseM2P(success=True, errCode=ErrCode.SUCCESS, errMsg="OK!")

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

    def _client_config(self, config_info: common_pb2.ApprovedClientConfig) -> common_pb2.ApprovedClientConfig:
        """Return the cluster's size limit, if the client does not know it yet."""
        cluster = self._state.controls.cluster
        config = common_pb2.ApprovedClientConfig(configId=cluster.stamp.serial_id)
        # A client that states no id at all, not even "none known", gets the limit too.
        if config_info.configId != cluster.stamp.serial_id:
            config.maxMsgSize = cluster.max_message_bytes
        return config


def _topics(names: Iterable[str]) -> set[str]:
    """Return the topics of a request (PBParameterUtils.checkProducerTopicList)."""
    topics = {trimmed("topicName", name) for name in names} - {""}
    if OFFSET_HISTORY_TOPIC in topics:
        text = f"System Topic {OFFSET_HISTORY_TOPIC} does not allow client produce data!"
        raise RefusedError(ErrCode.BAD_REQUEST, text)
    if len(topics) > MAX_TOPICS:
        text = f"Booked topic's count over max value, required max count is {MAX_TOPICS}"
        raise RefusedError(ErrCode.BAD_REQUEST, text)
    return topics


def _register_failure(code: int, text: str) -> pb.RegisterResponseM2P:
    return pb.RegisterResponseM2P(success=False, errCode=code, errMsg=text, brokerCheckSum=_NO_CHECKSUM)


def _heartbeat_failure(code: int, text: str) -> pb.HeartResponseM2P:
    return pb.HeartResponseM2P(success=False, errCode=code, errMsg=text, brokerCheckSum=_NO_CHECKSUM)


def _close_failure(code: int, text: str) -> pb.CloseResponseM2P:
    return pb.CloseResponseM2P(success=False, errCode=code, errMsg=text)
