"""A question to a broker that failed, for which no message waits: does it answer again?

A frozen broker takes connections, and stores what was sent to it when it is resumed. So the question stores
nothing: it is the heartbeat of a consumer that holds no partition. Every answer will do, a refusal too.
"""

import asyncio

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.byte_connection import LookUp, look_up
from tubemq_spark.net.connection import connect
from tubemq_spark.protocol.constants import Method, ReadStatus, ServiceType
from tubemq_spark.protocol.pb import broker_pb2


async def answers(
    config: ClientConfig, client_id: str, endpoint: Endpoint, look_up: LookUp = look_up
) -> bool:
    """Return whether a broker answers within ``rpc_timeout_ms``, on a connection of its own."""
    request = broker_pb2.HeartBeatRequestC2B(
        clientId=client_id, groupName=config.group, readStatus=ReadStatus.STORED_OR_EARLIEST
    )
    timeout_ms = config.rpc_timeout_ms
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            connection = await connect(endpoint, config.connect_timeout_ms, config.tls, look_up=look_up)
            try:
                await connection.start(
                    ServiceType.BROKER_READ,
                    Method.PARTITION_HEARTBEAT,
                    request,
                    timeout_ms=timeout_ms,
                    during="looking whether it answers",
                )
                return connection.heard
            finally:
                connection.close()
    except (TubeMQError, TimeoutError):
        return False
