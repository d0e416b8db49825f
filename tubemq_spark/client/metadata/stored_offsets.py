"""The offsets of consumer groups as brokers keep them, by the brokers' administration API.

The protocol of the clients tells a group's offset only to one who takes its partition. The API disturbs no
consumer, and knows all groups. Offsets get there with a delay of some seconds (``offsetStgCacheFlushMs``).
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeAlias

from tubemq_spark.client.metadata.admin import BrokerAdmin, MasterAdmin
from tubemq_spark.client.metadata.any_master import ask_a_master
from tubemq_spark.errors import AdminError
from tubemq_spark.model import Endpoint, StoredOffset, StoredOffsets, TopicPartition
from tubemq_spark.net.side_by_side import answers_and_errors
from tubemq_spark.offsets.notation import listed

Place: TypeAlias = tuple[str, str, dict[str, int]]
"""A group, a topic and an item of the API about a partition; see ``BrokerAdmin.group_places``."""
_MOST_REFUSALS: Final = 100
"""After so many groups a broker refuses for another reason, and is asked no more."""


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

    def ask(broker_id: int) -> tuple[list[StoredOffset], dict[str, AdminError]]:
        admin = BrokerAdmin(str(brokers[broker_id]), timeout_s=timeout_s)
        refusals: dict[str, AdminError] = {}
        holders = admin.holders()
        places = _places(admin, [] if group is None else [group], topics, refusals)
        return [_offset(broker_id, place, holders) for place in places], refusals

    answers, errors = answers_and_errors(ask, sorted(brokers))
    offsets = itertools.chain.from_iterable(offsets for offsets, _ in answers.values())
    not_told = {
        broker_id: _not_told(broker_id, refusals) for broker_id, (_, refusals) in answers.items() if refusals
    }
    return StoredOffsets(tuple(offsets), errors | not_told)


def _not_told(broker_id: int, refusals: Mapping[str, AdminError]) -> AdminError:
    error = next(iter(refusals.values()))
    return AdminError(
        "TUBEMQ_GROUPS_NOT_TOLD",
        broker=broker_id,
        groups=listed(sorted(refusals)),
        code=error.code,
        reason=error.reason,
    )


def _places(
    admin: BrokerAdmin, groups: Sequence[str], topics: Collection[str], refusals: dict[str, AdminError]
) -> list[Place]:
    """Return where groups stand, or all groups, but for those that the broker refuses to tell of.

    A Java broker refuses the whole question for one group that it cannot tell of. So a question that is
    refused is asked again in halves.
    """
    try:
        return list(admin.group_places(groups, topics))
    except AdminError as error:
        if len(groups) == 1:
            refusals[groups[0]] = error
            return []
        names = groups or admin.booked_groups()
        if not names or len(refusals) >= _MOST_REFUSALS:
            raise
    middle = (len(names) + 1) // 2
    halves = [half for half in (names[:middle], names[middle:]) if half]
    return [place for half in halves for place in _places(admin, half, topics, refusals)]


def _offset(broker_id: int, place: Place, holders: Mapping[tuple[str, str, int], str]) -> StoredOffset:
    group, topic, item = place
    return StoredOffset(
        group,
        TopicPartition(topic, broker_id, item["partitionId"]),
        committed=item["curOffset"],
        in_flight=max(0, item["flightOffset"]),
        latest=item["offsetMax"] if item["offsetMax"] >= 0 else None,
        consumer=holders.get((group, topic, item["partitionId"])),
    )
