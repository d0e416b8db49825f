"""A consumer's session with the masters that learns where partitions are (methods 20, 21, 22 and 6)."""

import dataclasses
import functools
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master import identity
from tubemq_spark.client.master.session import MasterSession, broker_endpoints
from tubemq_spark.errors import RemoteProtocolError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.offsets.notation import listed
from tubemq_spark.protocol import packed_strings
from tubemq_spark.protocol.constants import UNDEFINED, Method
from tubemq_spark.protocol.pb import master_pb2


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """Where the partitions of a session's topics are.

    ``not_subscribable`` are those of ``partitions`` that the master advises not to read now (the broker is
    offline, the topic closed for reading, or the group barred); they have not been removed.
    """

    partitions: Mapping[TopicPartition, Endpoint]
    not_subscribable: frozenset[TopicPartition]


class BalanceSession(MasterSession):
    """A registered consumer that learns where partitions are and chooses itself what to read.

    As long as a session is open, its group is bound to its topics: the master refuses other members with
    other topics (425), and continues to list removed topics as not subscribable.
    """

    def __init__(
        self,
        config: ClientConfig,
        connections: Connections,
        topics: Iterable[str],
        until: Deadline | None = None,
        client_id: str | None = None,
    ) -> None:
        super().__init__(config, connections, client_id or identity.consumer_id(config.group), until)
        self._topics = tuple(sorted(set(topics)))
        self._message_types: Mapping[str, Collection[str]] = dict.fromkeys(self._topics, config.message_types)
        self._broker_config_id = UNDEFINED
        self._topic_meta_id = UNDEFINED
        self._brokers: dict[int, Endpoint] = {}
        self._metas: tuple[packed_strings.TopicMeta, ...] = ()

    async def layout(self) -> Layout:
        """Ask the master where the partitions are."""
        async with self._exclusively():
            return await self._patiently(self._find_layout)

    async def _find_layout(self) -> Layout:
        await self._ask_registered(self._ask_layout)
        if self._unlisted_brokers():
            # The two lists change at different times: ask once more for both, in full.
            self._broker_config_id = self._topic_meta_id = UNDEFINED
            await self._ask_registered(self._ask_layout)
        return self._expand()

    async def _register(self) -> None:
        # A master that does not know us may be another one, with ids of its own.
        self._broker_config_id = self._topic_meta_id = UNDEFINED
        request = master_pb2.RegisterRequestC2MV2(
            clientId=self.client_id,
            groupName=self._config.group,
            hostName=self.host,
            sourceCount=UNDEFINED,
            nodeId=UNDEFINED,
            topicList=self._topics,
            topicCondition=packed_strings.topic_conditions(self._message_types),
            subRepInfo=self._report(),
            authInfo=self._caller.credentials(),
            jdkVersion=identity.RUNTIME,
        )
        self._complete(request)
        answer = await self._caller.call(
            Method.BALANCE_REGISTER,
            request,
            master_pb2.RegisterResponseM2CV2,
            f"registering group {self._config.group} for the topics {listed(self._topics)}",
        )
        self._keep(answer)

    async def _heartbeat(self) -> None:
        request = master_pb2.HeartRequestC2MV2(
            clientId=self.client_id,
            groupName=self._config.group,
            subRepInfo=self._report(),
            authInfo=self._caller.credentials(),
        )
        self._complete(request)
        during = f"renewing the registration of group {self._config.group}"
        answer = await self._caller.call(
            Method.BALANCE_HEARTBEAT, request, master_pb2.HeartResponseM2CV2, during
        )
        self._keep(answer)

    async def _ask_layout(self) -> None:
        request = master_pb2.GetPartMetaRequestC2M(
            clientId=self.client_id,
            groupName=self._config.group,
            brokerConfigId=self._broker_config_id,
            topicMetaInfoId=self._topic_meta_id,
            authInfo=self._caller.credentials(),
        )
        answer = await self._caller.call(
            Method.BALANCE_PARTITION_META,
            request,
            master_pb2.GetPartMetaResponseM2C,
            f"asking for the partitions of {listed(self._topics)}",
        )
        self._keep_brokers(answer)
        self._keep_metas(answer)

    def _report(self) -> master_pb2.ClientSubRepInfo:
        return master_pb2.ClientSubRepInfo(
            brokerConfigId=self._broker_config_id, topicMetaInfoId=self._topic_meta_id, reportSubInfo=False
        )

    def _complete(self, request: master_pb2.RegisterRequestC2MV2 | master_pb2.HeartRequestC2MV2) -> None:
        """Add what only some kinds of consumers tell; here nothing."""

    def _keep(self, answer: master_pb2.RegisterResponseM2CV2 | master_pb2.HeartResponseM2CV2) -> None:
        self._keep_brokers(answer)
        if answer.HasField("authorizedInfo"):
            self._keep_token(answer.authorizedInfo)

    def _keep_brokers(
        self,
        answer: master_pb2.RegisterResponseM2CV2
        | master_pb2.HeartResponseM2CV2
        | master_pb2.GetPartMetaResponseM2C,
    ) -> None:
        if answer.brokerConfigList:
            self._brokers = broker_endpoints(answer.brokerConfigList, tls=self._config.tls is not None)
            self._broker_config_id = answer.brokerConfigId

    def _keep_metas(self, answer: master_pb2.GetPartMetaResponseM2C | master_pb2.HeartResponseM2CV2) -> None:
        if answer.topicMetaInfoList:
            self._metas = tuple(map(packed_strings.parse_topic_meta, answer.topicMetaInfoList))
            self._topic_meta_id = answer.topicMetaInfoId

    def _unlisted_brokers(self) -> set[int]:
        return {item.broker_id for meta in self._metas for item in meta.items} - self._brokers.keys()

    def _expand(self) -> Layout:
        if unlisted := self._unlisted_brokers():
            raise RemoteProtocolError(
                "TUBEMQ_PROTOCOL_VIOLATION",
                what=f"the master lists partitions of the unknown brokers {sorted(unlisted)}",
            )
        return _expand(self._metas, tuple(sorted(self._brokers.items())))


@functools.lru_cache(maxsize=8)
def _expand(metas: tuple[packed_strings.TopicMeta, ...], brokers: tuple[tuple[int, Endpoint], ...]) -> Layout:
    """Return the layout that a master's lists describe; they are read often and rarely change."""
    endpoints = dict(brokers)
    partitions: dict[TopicPartition, Endpoint] = {}
    closed: set[TopicPartition] = set()
    for meta in metas:
        for item in meta.items:
            listed = [
                TopicPartition(meta.topic, item.broker_id, number)
                for number in packed_strings.partition_ids(item.stores, item.partitions)
            ]
            partitions.update(dict.fromkeys(listed, endpoints[item.broker_id]))
            if not item.subscribable:
                closed.update(listed)
    return Layout(MappingProxyType(dict(sorted(partitions.items()))), frozenset(closed))
