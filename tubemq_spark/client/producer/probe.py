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
        self._config = config
        self._endpoint = endpoint
        self._begun: tuple[Pipelines, Pipeline] | None = None
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
        if self._begun is not None:
            self._begun[0].close()

    def abandon(self) -> None:
        """Drop the connection in a forked child, and tell neither the broker nor the parent."""
        if self._begun is not None:
            self._begun[0].abandon()

    def _get_on(self) -> bool | None:
        pipelines, pipeline = self._begun = self._begun or self._connect()
        for _, arrival in pipelines.drive(0):
            if isinstance(arrival, TubeMQConnectionError):
                raise arrival
            if self._connection.receive_data(arrival):
                return True
        if pipeline.writable and (request := self._connection.data_to_send()):
            pipeline.write(request)
        return False if self._deadline.expired else None

    def _connect(self) -> tuple[Pipelines, Pipeline]:
        pipelines = Pipelines(self._config.connect_timeout_ms, make=pipeline_maker(self._config.tls))
        try:
            return pipelines, pipelines.connect(self._endpoint)
        except BaseException:
            pipelines.close()
            raise
