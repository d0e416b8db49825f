"""The rules of a master: who is known, where partitions are, and which member of a group has which of them.

Groups are balanced by the rules of the embedded server, in rounds that are made with the first request after
their time has come.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Final

from google.protobuf.message import Message

from simulation.server import RaisedError
from testkit.broker_model import TOKEN
from tubemq_spark.embedded.master.balancing import GroupEvents, spread
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.protocol import packed_strings, rpc
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.packed_strings import (
    PartitionInfo,
    SubscribeInfo,
    format_subscribe_info,
    parse_subscribe_info,
)
from tubemq_spark.protocol.pb import common_pb2, master_pb2

FORGOTTEN_AFTER_S: Final = 30.0
"""A client that is silent for so long is unknown."""
ROUND_S: Final = 5.0
"""How often groups are balanced; TubeMQ's masters do it each minute."""
_PATIENCE_ROUNDS: Final = 10
"""After so many rounds events that have no answer are abandoned."""


@dataclasses.dataclass
class Directory:
    """What all masters of a cluster know."""

    brokers: dict[int, Endpoint] = dataclasses.field(default_factory=dict)
    topics: dict[str, dict[int, tuple[int, int]]] = dataclasses.field(default_factory=dict)
    """For each topic, how many stores a broker has of it, and how many partitions each store."""
    closed: set[int] = dataclasses.field(default_factory=set)
    """The brokers to which nothing can be published now: producers are not told of their partitions."""
    version: int = 1
    """Another one after each change."""
    token: int = TOKEN
    leader: str = ""
    """The host of the master that answers; the others are on standby."""
    resets: dict[str, int] = dataclasses.field(default_factory=dict)
    """For groups whose members choose partitions: the number of the last wish that they go behind the end."""

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return the partitions of a topic."""
        return [
            TopicPartition(topic, broker, number)
            for broker, (stores, partitions) in self.topics[topic].items()
            for number in packed_strings.partition_ids(stores, partitions)
        ]


@dataclasses.dataclass(frozen=True)
class Request:
    """A request of a client to a master."""

    at: float
    method: Method
    client_id: str


class _Group:
    """A group whose members the master balances."""

    def __init__(self, topics: frozenset[str]) -> None:
        self.topics = topics
        self.events = GroupEvents()
        self.members: set[str] = set()
        self.not_allocated = True


class MasterModel:
    """One master; its clients are only in its memory."""

    def __init__(self, name: str, directory: Directory) -> None:
        self.now = 0.0
        self.is_late = False
        self.heard: dict[str, float] = {}
        """The known clients, each with the time of its last request."""
        self.requests: list[Request] = []
        """Those that were answered, or refused because another master leads."""
        self._name = name
        self._directory = directory
        self._groups: dict[str, _Group] = {}
        self._last_round = 0.0
        self._last_id = 0

    def crash(self) -> None:
        """Forget all clients."""
        self.heard.clear()
        self._groups.clear()

    def answer(self, method: Method, body: bytes | memoryview) -> Message:
        """Do what a request asks and return the answer, or raise ``RaisedError``."""
        methods: dict[Method, tuple[type[Message], Callable[[Any], Message]]] = {
            Method.PRODUCER_REGISTER: (master_pb2.RegisterRequestP2M, self._register_producer),
            Method.PRODUCER_HEARTBEAT: (master_pb2.HeartRequestP2M, self._renew_producer),
            Method.PRODUCER_CLOSE: (master_pb2.CloseRequestP2M, self._close_producer),
            Method.BALANCE_REGISTER: (master_pb2.RegisterRequestC2MV2, self._register_consumer),
            Method.BALANCE_HEARTBEAT: (master_pb2.HeartRequestC2MV2, self._renew_consumer),
            Method.BALANCE_PARTITION_META: (master_pb2.GetPartMetaRequestC2M, self._describe),
            Method.CONSUMER_CLOSE: (master_pb2.CloseRequestC2M, self._close_consumer),
            Method.CONSUMER_REGISTER: (master_pb2.RegisterRequestC2M, self._register_member),
            Method.CONSUMER_HEARTBEAT: (master_pb2.HeartRequestC2M, self._renew_member),
        }
        request_type, carry_out = methods[method]
        request: Any = rpc.parse_message(request_type, body)
        self.requests.append(Request(self.now, method, request.clientId))
        if self._directory.leader != self._name:
            raise RaisedError("corerpc.exception.StandbyException", f"{self._name} is not master now.")
        self._balance_when_due()
        return carry_out(request)

    def knows(self, client_id: str) -> bool:
        """Return whether a client is registered and was heard lately."""
        return self.now - self.heard.get(client_id, -FORGOTTEN_AFTER_S) < FORGOTTEN_AFTER_S

    def _register_producer(self, request: master_pb2.RegisterRequestP2M) -> Message:
        self.heard[request.clientId] = self.now
        return master_pb2.RegisterResponseM2P(
            **_SUCCESS,
            brokerCheckSum=self._directory.version,
            brokerInfos=self._broker_list(),
            authorizedInfo=self._token(),
        )

    def _renew_producer(self, request: master_pb2.HeartRequestP2M) -> Message:
        if not self._renew(request.clientId):
            return master_pb2.HeartResponseM2P(**_UNKNOWN, brokerCheckSum=-1)
        changed = request.brokerCheckSum != self._directory.version
        routes = [
            packed_strings.TopicRoute(
                topic,
                tuple(
                    packed_strings.RouteItem(broker, partitions, stores)
                    for broker, (stores, partitions) in brokers.items()
                    if broker not in self._directory.closed
                ),
            )
            for topic, brokers in self._directory.topics.items()
            if topic in request.topicList and brokers.keys() - self._directory.closed
        ]
        return master_pb2.HeartResponseM2P(
            **_SUCCESS,
            brokerCheckSum=self._directory.version,
            topicInfos=map(packed_strings.format_topic_route, routes),
            brokerInfos=self._broker_list() if changed else (),
            authorizedInfo=self._token(),
        )

    def _close_producer(self, request: master_pb2.CloseRequestP2M) -> Message:
        self.heard.pop(request.clientId, None)
        return master_pb2.CloseResponseM2P(**_SUCCESS)

    def _register_consumer(self, request: master_pb2.RegisterRequestC2MV2) -> Message:
        unknown = set(request.topicList) - self._directory.topics.keys()
        if unknown:
            text = f"not deployed: {sorted(unknown)}"
            return master_pb2.RegisterResponseM2CV2(errCode=ErrCode.TOPIC_NOT_DEPLOYED, errMsg=text)
        self.heard[request.clientId] = self.now
        return master_pb2.RegisterResponseM2CV2(
            errCode=200,
            errMsg="OK!",
            brokerConfigId=self._directory.version,
            brokerConfigList=self._broker_list(),
            authorizedInfo=self._token(),
            opsTaskInfo=self._tasks(request.groupName),
        )

    def _renew_consumer(self, request: master_pb2.HeartRequestC2MV2) -> Message:
        if not self._renew(request.clientId):
            return master_pb2.HeartResponseM2CV2(errCode=ErrCode.HB_NO_NODE, errMsg="unknown")
        return master_pb2.HeartResponseM2CV2(
            errCode=200,
            errMsg="OK!",
            brokerConfigId=self._directory.version,
            authorizedInfo=self._token(),
            opsTaskInfo=self._tasks(request.groupName),
        )

    def _describe(self, request: master_pb2.GetPartMetaRequestC2M) -> Message:
        if not self._renew(request.clientId):
            return master_pb2.GetPartMetaResponseM2C(errCode=ErrCode.HB_NO_NODE, errMsg="unknown")
        version = self._directory.version
        metas = [
            packed_strings.TopicMeta(
                topic,
                tuple(
                    packed_strings.MetaItem(broker, stores, partitions, subscribable=True)
                    for broker, (stores, partitions) in brokers.items()
                ),
            )
            for topic, brokers in self._directory.topics.items()
        ]
        return master_pb2.GetPartMetaResponseM2C(
            errCode=200,
            errMsg="OK!",
            brokerConfigId=version,
            brokerConfigList=self._broker_list() if request.brokerConfigId != version else (),
            topicMetaInfoId=version,
            topicMetaInfoList=map(packed_strings.format_topic_meta, metas)
            if request.topicMetaInfoId != version
            else (),
        )

    def _close_consumer(self, request: master_pb2.CloseRequestC2M) -> Message:
        self.heard.pop(request.clientId, None)
        self._remove_member(request.groupName, request.clientId)
        return master_pb2.CloseResponseM2C(**_SUCCESS)

    def _register_member(self, request: master_pb2.RegisterRequestC2M) -> Message:
        unknown = set(request.topicList) - self._directory.topics.keys()
        if unknown:
            text = f"not deployed: {sorted(unknown)}"
            return master_pb2.RegisterResponseM2C(
                success=False, errCode=ErrCode.TOPIC_NOT_DEPLOYED, errMsg=text
            )
        group = self._groups.setdefault(request.groupName, _Group(frozenset(request.topicList)))
        self.heard[request.clientId] = self.now
        group.members.add(request.clientId)
        partitions = _held(request.subscribeInfo)
        group.events.join(request.clientId, partitions)
        if partitions or (request.HasField("notAllocated") and not request.notAllocated):
            group.not_allocated = False
        return master_pb2.RegisterResponseM2C(
            **_SUCCESS, notAllocated=group.not_allocated, authorizedInfo=self._token()
        )

    def _renew_member(self, request: master_pb2.HeartRequestC2M) -> Message:
        group = self._groups.get(request.groupName)
        if group is None or request.clientId not in group.members or not self._renew(request.clientId):
            self._remove_member(request.groupName, request.clientId)
            return master_pb2.HeartResponseM2C(**_UNKNOWN)
        answered = request.event.rebalanceId
        if answered > 0:
            group.not_allocated = False
        partitions = _held(request.subscribeInfo) if request.reportSubscribeInfo else None
        group.events.record_heartbeat(request.clientId, partitions, answered)
        answer = master_pb2.HeartResponseM2C(
            **_SUCCESS, notAllocated=group.not_allocated, authorizedInfo=self._token()
        )
        if (event := group.events.next_event(request.clientId)) is not None:
            brokers = self._directory.brokers
            answer.event.rebalanceId, answer.event.opType = event.rebalance_id, event.type
            answer.event.subscribeInfo.extend(
                format_subscribe_info(
                    SubscribeInfo(
                        request.clientId,
                        request.groupName,
                        PartitionInfo(name.broker_id, brokers[name.broker_id], name.topic, name.partition_id),
                    )
                )
                for name in sorted(event.partitions)
            )
        return answer

    def _balance_when_due(self) -> None:
        """Plan who is to take what and to give it up."""
        if self.now < self._last_round + ROUND_S:
            return
        self._last_round = self.now
        self._last_id = max(self._last_id + 1, int(self.now * 1000))
        for name, group in list(self._groups.items()):
            for member in sorted(group.members):
                if not self.knows(member):
                    self._remove_member(name, member)
            if group.events.begin_round(_PATIENCE_ROUNDS):
                partitions = {name for topic in group.topics for name in self._directory.partitions(topic)}
                group.events.plan(spread(group.events.holdings(), partitions), self._last_id)

    def _remove_member(self, group: str, member: str) -> None:
        if (state := self._groups.get(group)) is not None:
            state.members.discard(member)
            state.events.leave(member)
            if not state.members:
                del self._groups[group]

    def _tasks(self, group: str) -> master_pb2.OpsTaskInfo:
        reset = self._directory.resets.get(group)
        return (
            master_pb2.OpsTaskInfo() if reset is None else master_pb2.OpsTaskInfo(csmFrmMaxOffsetCtrlId=reset)
        )

    def _renew(self, client_id: str) -> bool:
        if not self.knows(client_id):
            self.heard.pop(client_id, None)
            return False
        self.heard[client_id] = self.now
        return True

    def _broker_list(self) -> list[str]:
        infos = (packed_strings.BrokerInfo(*item) for item in self._directory.brokers.items())
        return [packed_strings.format_broker_info(info) for info in infos]

    def _token(self) -> common_pb2.MasterAuthorizedInfo:
        return common_pb2.MasterAuthorizedInfo(visitAuthorizedToken=self._directory.token)


def _held(texts: Iterable[str]) -> frozenset[TopicPartition]:
    return frozenset(parse_subscribe_info(text).held.partition for text in texts)


_SUCCESS: Final[dict[str, Any]] = {"success": True, "errCode": 200, "errMsg": "OK!"}
_UNKNOWN: Final[dict[str, Any]] = {"success": False, "errCode": ErrCode.HB_NO_NODE, "errMsg": "unknown"}
