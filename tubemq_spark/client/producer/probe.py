"""A question to a broker that failed, for which no message waits: does it answer again?

A frozen broker takes connections, and stores what was sent to it when it is resumed. So the question stores
nothing: it is the heartbeat of a consumer that holds no partition. Every answer will do, a refusal too.
"""

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.errors import RemoteProtocolError, TubeMQConnectionError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.pipeline import Pipeline, Pipelines
from tubemq_spark.net.tls_pipeline import pipeline_maker
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.connection import Role, RpcConnection
from tubemq_spark.protocol.constants import Method, ReadStatus, ServiceType
from tubemq_spark.protocol.pb import broker_pb2


class Probe:
    """One question, on a connection of its own; it gets on only inside ``answered``, which never waits."""

    def __init__(self, config: ClientConfig, client_id: str, endpoint: Endpoint) -> None:
        """Connect to nothing: ``answered`` begins."""
        self._endpoint = endpoint
        self._pipelines = Pipelines(config.connect_timeout_ms, make=pipeline_maker(config.tls))
        self._pipeline: Pipeline | None = None
        self._deadline = Deadline.after_ms(config.rpc_timeout_ms)
        self._connection = RpcConnection(Role.CLIENT)
        request = broker_pb2.HeartBeatRequestC2B(
            clientId=client_id, groupName=config.group, readStatus=ReadStatus.STORED_OR_EARLIEST
        )
        self._connection.send_request(
            ServiceType.BROKER_READ,
            Method.PARTITION_HEARTBEAT,
            rpc.serialize_message(request),
            config.rpc_timeout_ms,
        )

    def answered(self) -> bool | None:
        """Return whether the broker answers; None as long as that is not known."""
        try:
            return self._get_on()
        except (TubeMQConnectionError, RemoteProtocolError):
            return False

    def close(self) -> None:
        """Close the connection."""
        self._pipelines.close()

    def abandon(self) -> None:
        """Drop the connection in a forked child, and tell neither the broker nor the parent."""
        self._pipelines.abandon()

    def _get_on(self) -> bool | None:
        if self._pipeline is None:
            self._pipeline = self._pipelines.connect(self._endpoint)
        for _, arrival in self._pipelines.drive(0):
            if isinstance(arrival, TubeMQConnectionError):
                raise arrival
            if self._connection.receive_data(arrival):
                return True
        if self._pipeline.writable and (request := self._connection.data_to_send()):
            self._pipeline.write(request)
        return False if self._deadline.expired else None
