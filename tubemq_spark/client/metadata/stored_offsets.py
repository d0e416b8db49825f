"""The offsets of consumer groups as brokers keep them, by the brokers' administration API.

The protocol of the clients tells a group's offset only to one who takes its partition. The API disturbs no
consumer, and knows all groups. Offsets get there with a delay of some seconds (``offsetStgCacheFlushMs``).
"""

import itertools
from collections.abc import Collection, Sequence

from tubemq_spark.client.metadata.admin import BrokerAdmin, MasterAdmin
from tubemq_spark.client.metadata.any_master import ask_a_master
from tubemq_spark.model import Endpoint, StoredOffset, StoredOffsets, TopicPartition
from tubemq_spark.net.side_by_side import answers_and_errors


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

    def ask(broker_id: int) -> tuple[StoredOffset, ...]:
        admin = BrokerAdmin(str(brokers[broker_id]), timeout_s=timeout_s)
        return _offsets(admin, broker_id, group, topics)

    answers, errors = answers_and_errors(ask, sorted(brokers))
    return StoredOffsets(tuple(itertools.chain.from_iterable(answers.values())), errors)


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
