"""Connections to many brokers at once."""

from collections.abc import Iterable

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.channel import RpcChannel
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.net.side_by_side import answers_and_errors


def connect_to_all(
    config: ClientConfig, pool: ChannelPool, endpoints: Iterable[Endpoint]
) -> tuple[dict[Endpoint, RpcChannel], dict[Endpoint, TubeMQError]]:
    """Return a channel to each broker, or why there is none; one that is away delays no other."""
    ready = {endpoint: pool.connected(endpoint, config.tls) for endpoint in endpoints}
    channels = {endpoint: channel for endpoint, channel in ready.items() if channel is not None}
    timeout_ms = min(config.connect_timeout_ms, config.rpc_timeout_ms)
    new, errors = answers_and_errors(
        lambda endpoint: pool.get(endpoint, timeout_ms, config.tls), ready.keys() - channels
    )
    return channels | new, errors
