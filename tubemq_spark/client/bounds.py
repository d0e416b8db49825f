"""Where stores begin and end now."""

import concurrent.futures
from collections.abc import Mapping
from typing import Final

from tubemq_spark.client.broker import FLUSHED_ONLY
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.lease import Lease
from tubemq_spark.errors import RemoteProtocolError
from tubemq_spark.model import PARTITIONS_A_STORE, Endpoint, OffsetBounds, StoreId, TopicPartition
from tubemq_spark.net.pool import ChannelPool

_MOST_THREADS: Final = 16


def store_bounds(
    config: ClientConfig,
    pool: ChannelPool,
    stores: Mapping[StoreId, Endpoint],
    visit_token: int,
    *,
    flushed: bool = False,
) -> dict[StoreId, OffsetBounds]:
    """Ask the brokers, several at once.

    The protocol has no question for it, but a register with offset 0 is answered with the store's begin
    (the offset is moved there) and its end. A reader group does it, so nobody's position is touched.

    Args:
        config: whose reader groups to use.
        pool: the channels.
        stores: the stores, with their brokers.
        visit_token: the proof that a master knows us.
        flushed: end where the data is safe on disk, not where producers append. A broker that crashes
            loses what lies between, and uses the same offsets again.

    Raises:
        RpcError: a broker refuses, for example 403: it does not have the topic any more.
        TubeMQError: a broker cannot be reached, or all reader groups are taken.
    """
    by_broker: dict[Endpoint, list[StoreId]] = {}
    for store, endpoint in sorted(stores.items()):
        by_broker.setdefault(endpoint, []).append(store)

    def ask_broker(endpoint: Endpoint) -> dict[StoreId, OffsetBounds]:
        return {
            store: _ask_store(config, pool, store, endpoint, visit_token, flushed=flushed)
            for store in by_broker[endpoint]
        }

    if len(by_broker) <= 1:
        answers = list(map(ask_broker, by_broker))
    else:
        workers = min(_MOST_THREADS, len(by_broker))
        with concurrent.futures.ThreadPoolExecutor(workers, thread_name_prefix="tubemq-bounds") as executor:
            answers = list(executor.map(ask_broker, by_broker))
    return {store: bounds for answer in answers for store, bounds in answer.items()}


def _ask_store(
    config: ClientConfig,
    pool: ChannelPool,
    store: StoreId,
    endpoint: Endpoint,
    visit_token: int,
    *,
    flushed: bool,
) -> OffsetBounds:
    first = TopicPartition(store.topic, store.broker_id, store.store * PARTITIONS_A_STORE)
    priority = FLUSHED_ONLY if flushed else None
    with Lease(config, pool, first, endpoint, visit_token, query_priority=priority) as lease:
        position = lease.take(0)
    if position.latest is None:
        raise RemoteProtocolError(
            "TUBEMQ_PROTOCOL_VIOLATION", what=f"the broker did not say where {store} ends"
        )
    # What is flushed may end before the begin while nothing is: an empty range then.
    return OffsetBounds(position.current, max(position.current, position.latest))
