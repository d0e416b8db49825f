"""Connections to many brokers at once."""

from collections.abc import Iterable

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import Endpoint
from tubemq_spark.net import loop
from tubemq_spark.net.pool import ChannelPool, RpcChannel


def connect_to_all(
    config: ClientConfig, pool: ChannelPool, endpoints: Iterable[Endpoint]
) -> tuple[dict[Endpoint, RpcChannel], dict[Endpoint, TubeMQError]]:
    """Return a channel to each broker, or why there is none; one that is away delays no other."""
    timeout_ms = min(config.connect_timeout_ms, config.rpc_timeout_ms)
    connections, errors = loop.run(pool.connections.to_all(endpoints, timeout_ms, config.tls))
    return {endpoint: RpcChannel(connection) for endpoint, connection in connections.items()}, errors
