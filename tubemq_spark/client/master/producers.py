"""A producer's session with the masters, which say where topics can be published (methods 1, 2 and 3)."""

import dataclasses
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master import identity
from tubemq_spark.client.master.identity import proof_for_broker
from tubemq_spark.client.master.session import MasterSession, broker_endpoints
from tubemq_spark.errors import RpcError, TubeMQError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.protocol import packed_strings
from tubemq_spark.protocol.constants import (
    DEFAULT_MAX_MESSAGE_BYTES,
    MAX_MESSAGE_BYTES_LIMIT,
    UNDEFINED,
    Method,
)
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.pb import common_pb2, master_pb2

LEAST_ANSWER_MS: Final = 1_000
"""A master has at least this time to answer, however short a producer's time is."""


@dataclasses.dataclass(frozen=True, slots=True)
class PublishRoutes:
    """Where a topic can be published now; without partitions it is unknown or closed for writing."""

    partitions: Mapping[TopicPartition, Endpoint]
    max_message_bytes: int
    """The limit of an encoded message, without the allowance for attributes."""


class ProducerSession(MasterSession):
    """A registered producer."""

    def __init__(self, config: ClientConfig, connections: Connections) -> None:
        """Ask no master; no request will take longer than a message may."""
        patience_ms = min(config.rpc_timeout_ms, max(LEAST_ANSWER_MS, config.delivery_timeout_ms))
        config = dataclasses.replace(config, rpc_timeout_ms=patience_ms)
        super().__init__(config, connections, identity.producer_id())
        self._own_proof = ""
        self._broker_checksum = -1
        self._config_id = UNDEFINED
        self._max_message_bytes = DEFAULT_MAX_MESSAGE_BYTES
        self._brokers: dict[int, Endpoint] = {}
        self._topics: set[str] = set()
        self._routes: Mapping[str, PublishRoutes] = {}
        self.heartbeats = 0
        """The number of the last heartbeat that was answered; each answer brings routes and tokens."""
        self.heartbeats_begun = 0
        """The number of the last heartbeat that was sent; they are sent one after the other."""

    async def publish(self, topics: Iterable[str], until: Deadline | None = None) -> None:
        """Add topics to those of this producer and ask for their routes at once."""
        async with self._exclusively(until):
            self._topics.update(topics)
            await self._ask(self._heartbeat)

    def withdraw(self, topic: str) -> None:
        """Leave a topic out of later heartbeats: it does not exist, or nothing was published to it.

        Any thread may call it; what it publishes after that counts.
        """
        self._soon(self._topics.discard, topic)

    async def refresh(self, until: Deadline | None = None) -> None:
        """Ask for the routes of all published topics now instead of with the next heartbeat."""
        async with self._exclusively(until):
            await self._ask(self._heartbeat)

    def routes(self, topic: str) -> PublishRoutes:
        """Return the routes of a published topic as of the last heartbeat."""
        return self._routes.get(topic) or PublishRoutes(MappingProxyType({}), self._max_message_bytes)

    @property
    def broker_tokens(self) -> tuple[int, str]:
        """What proves to a broker that a master knows us: the visit token, and the user's (may be blank).

        A master may hand out a token for the user. Java's masters do not, and brokers that ask for one take
        the user's own proof instead, as those of consumers.
        """
        return self.visit_token, self.authorized_token or self._own_proof

    async def _register(self) -> None:
        request = master_pb2.RegisterRequestP2M(
            clientId=self.client_id,
            topicList=sorted(self._topics),
            brokerCheckSum=self._broker_checksum,
            hostName=self.host,
            authInfo=self._caller.credentials(),
            jdkVersion=identity.RUNTIME,
            appdConfig=common_pb2.ApprovedClientConfig(configId=self._config_id),
        )
        answer = await self._caller.call(
            Method.PRODUCER_REGISTER, request, master_pb2.RegisterResponseM2P, "registering a producer"
        )
        self._keep(answer)

    async def _heartbeat(self) -> None:
        self.heartbeats_begun += 1
        request = master_pb2.HeartRequestP2M(
            clientId=self.client_id,
            brokerCheckSum=self._broker_checksum,
            hostName=self.host,
            topicList=sorted(self._topics),
            authInfo=self._caller.credentials(),
            appdConfig=common_pb2.ApprovedClientConfig(configId=self._config_id),
        )
        answer = await self._caller.call(
            Method.PRODUCER_HEARTBEAT, request, master_pb2.HeartResponseM2P, "asking for routes"
        )
        self._keep(answer)
        if answer.errCode != ErrCode.NOT_READY:
            # Every answer has the routes of all topics; a topic that is missing cannot be published now.
            routes = [packed_strings.parse_topic_route(text) for text in answer.topicInfos]
            self._routes = {route.topic: self._expand(route) for route in routes}
        self.heartbeats = self.heartbeats_begun

    async def _leave(self) -> None:
        request = master_pb2.CloseRequestP2M(clientId=self.client_id, authInfo=self._caller.credentials())
        await self._caller.call(
            Method.PRODUCER_CLOSE, request, master_pb2.CloseResponseM2P, "closing a producer"
        )

    def _keep(self, answer: master_pb2.RegisterResponseM2P | master_pb2.HeartResponseM2P) -> None:
        """Take over brokers, tokens, limits and routes in a master's answer."""
        if answer.brokerInfos:
            self._brokers = broker_endpoints(answer.brokerInfos, tls=self._config.tls is not None)
            self._broker_checksum = answer.brokerCheckSum
        if answer.HasField("authorizedInfo"):
            self._keep_token(answer.authorizedInfo)
        self._own_proof = proof_for_broker(self._config)
        if answer.HasField("appdConfig"):
            self._config_id = answer.appdConfig.configId
            if answer.appdConfig.HasField("maxMsgSize"):
                self._max_message_bytes = min(
                    max(answer.appdConfig.maxMsgSize, DEFAULT_MAX_MESSAGE_BYTES), MAX_MESSAGE_BYTES_LIMIT
                )

    def _expand(self, route: packed_strings.TopicRoute) -> PublishRoutes:
        partitions: dict[TopicPartition, Endpoint] = {}
        for item in route.routes:
            endpoint = self._brokers.get(item.broker_id)
            if endpoint is None:
                # Makes the next heartbeat ask for the whole list of brokers.
                self._broker_checksum = -1
                continue
            for partition_id in packed_strings.partition_ids(item.stores, item.partitions):
                partitions[TopicPartition(route.topic, item.broker_id, partition_id)] = endpoint
        return PublishRoutes(MappingProxyType(partitions), route.max_message_bytes or self._max_message_bytes)


async def fresh_visit_token(config: ClientConfig, connections: Connections) -> int:
    """Return a new visit token from the master; brokers refuse those older than about 16 minutes.

    A producer without topics gets one just as a consumer does, and it joins no group whose other members
    may read other topics.
    """
    async with ProducerSession(config, connections) as session:
        return session.visit_token


def is_token_refused(error: TubeMQError) -> bool:
    """Whether a broker did not accept the visit token: another try needs a fresh one."""
    return isinstance(error, RpcError) and error.code == ErrCode.CERTIFICATE_FAILURE
