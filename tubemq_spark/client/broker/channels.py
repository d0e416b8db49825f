"""Connections to many brokers at once."""

import concurrent.futures
from collections.abc import Iterable
from typing import Final

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.channel import RpcChannel
from tubemq_spark.net.pool import ChannelPool

_MOST_THREADS: Final = 16


def connect_to_all(
    config: ClientConfig, pool: ChannelPool, endpoints: Iterable[Endpoint]
) -> tuple[dict[Endpoint, RpcChannel], dict[Endpoint, TubeMQError]]:
    """Return a channel to each broker, or why there is none; one that is away delays nobody else."""
    known = {endpoint: pool.connected(endpoint, config.tls) for endpoint in endpoints}
    channels = {endpoint: channel for endpoint, channel in known.items() if channel is not None}
    missing = [endpoint for endpoint, channel in known.items() if channel is None]
    if not missing:
        return channels, {}
    workers = min(_MOST_THREADS, len(missing))
    timeout_ms = min(config.connect_timeout_ms, config.rpc_timeout_ms)
    with concurrent.futures.ThreadPoolExecutor(workers, thread_name_prefix="tubemq-connect") as executor:
        attempts = {
            endpoint: executor.submit(pool.get, endpoint, timeout_ms, config.tls) for endpoint in missing
        }
    failed = {}
    for endpoint, attempt in attempts.items():
        try:
            channels[endpoint] = attempt.result()
        except TubeMQError as error:
            failed[endpoint] = error
    return channels, failed
