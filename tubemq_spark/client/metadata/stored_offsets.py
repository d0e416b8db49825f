"""The offsets of consumer groups as brokers keep them, by the brokers' administration API.

The protocol of the clients tells a group's offset only to one who takes its partition. The API disturbs
nobody, and knows all groups. Offsets get there with a delay of some seconds (``offsetStgCacheFlushMs``).
"""

import concurrent.futures
from collections.abc import Collection, Sequence
from typing import Final

from tubemq_spark.client.metadata.admin import BrokerAdmin, MasterAdmin
from tubemq_spark.client.metadata.any_master import ask_a_master
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import Endpoint, StoredOffset, StoredOffsets, TopicPartition

_MOST_THREADS: Final = 16


def stored_offsets(
    web_servers: Sequence[Endpoint], timeout_s: float, group: str | None, topics: Collection[str]
) -> StoredOffsets:
    """Ask all brokers that a master has in its configuration, at once.

    Args:
        web_servers: where the masters serve their administration API.
        timeout_s: how long an answer may take, in seconds.
        group: the only group to ask for; None for all of them.
        topics: the only topics to ask for; empty for all of them.

    Raises:
        TubeMQConnectionError: no master answered.
        AdminError: a master refused.
    """
    ask_for_brokers = MasterAdmin.broker_web_servers
    brokers = ask_a_master(web_servers, timeout_s, ask_for_brokers, "TUBEMQ_BROKERS_NOT_LISTED")

    def ask(broker_id: int) -> tuple[StoredOffset, ...] | TubeMQError:
        try:
            admin = BrokerAdmin(str(brokers[broker_id]), timeout_s=timeout_s)
            return _offsets(admin, broker_id, group, topics)
        except TubeMQError as error:
            return error

    workers = max(1, min(_MOST_THREADS, len(brokers)))
    with concurrent.futures.ThreadPoolExecutor(workers, thread_name_prefix="tubemq-groups") as executor:
        answers = dict(zip(sorted(brokers), executor.map(ask, sorted(brokers)), strict=True))
    return StoredOffsets(
        tuple(one for found in answers.values() if isinstance(found, tuple) for one in found),
        {broker_id: found for broker_id, found in answers.items() if isinstance(found, TubeMQError)},
    )


def _offsets(
    admin: BrokerAdmin, broker_id: int, group: str | None, topics: Collection[str]
) -> tuple[StoredOffset, ...]:
    holders = admin.holders()
    return tuple(
        StoredOffset(
            group_name,
            TopicPartition(topic, broker_id, place["partitionId"]),
            committed=place["curOffset"],
            in_flight=max(0, place["flightOffset"]),
            latest=place["offsetMax"] if place["offsetMax"] >= 0 else None,
            consumer=holders.get((group_name, topic, place["partitionId"])),
        )
        for group_name, topic, place in admin.group_places(group, topics)
    )
