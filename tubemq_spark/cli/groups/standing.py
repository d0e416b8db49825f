"""What masters and brokers know of a consumer group: its members, and where it stands."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from tubemq_spark.cli.administration import ask_a_master

if TYPE_CHECKING:
    from tubemq_spark.client.metadata.admin import MasterAdmin
    from tubemq_spark.cluster.base import Cluster
    from tubemq_spark.cluster.config import ClusterConfig
    from tubemq_spark.model import TopicPartition

READER: Final = "tubemq_spark_groups"
"""The group under which these commands ask."""
NOT_ANSWERED: Final = "TUBEMQ_BROKERS_NOT_LISTED"


@dataclasses.dataclass(frozen=True, slots=True)
class Members:
    """The members of a group that are online, as a master says."""

    topics: frozenset[str]
    """What they subscribe to."""
    holding: "Mapping[str, Collection[TopicPartition]]"
    """The partitions of each, by the client's id."""

    @property
    def holders(self) -> "dict[TopicPartition, str]":
        """Who holds each partition that a member holds."""
        return {partition: client for client, partitions in self.holding.items() for partition in partitions}


@dataclasses.dataclass(frozen=True, slots=True)
class Positions:
    """Where a group stands, as brokers have it on their disks."""

    committed: "Mapping[TopicPartition, int]"
    failures: Mapping[int, str]
    """Why a broker did not tell, by its id."""


def members_of(config: "ClusterConfig", group: str) -> Members:
    """Ask a master who is online; it says the same of a group without members and of one there is not.

    Raises:
        TubeMQConnectionError: no master answers.
    """

    def ask(admin: "MasterAdmin") -> dict[str, Any]:
        return admin.consumer_group(group)

    answer = ask_a_master(config, ask, NOT_ANSWERED)
    return Members(
        frozenset(answer["topicSet"]),
        {item["consumerId"]: [_partition(place) for place in item["parInfo"]] for item in answer["data"]},
    )


def _partition(place: Mapping[str, Any]) -> "TopicPartition":
    from tubemq_spark.model import TopicPartition

    broker_id = str(place["brokerAddr"]).partition(":")[0]  # id:host:port
    return TopicPartition(str(place["topicName"]), int(broker_id), int(place["partId"]))


def positions_of(cluster: "Cluster", group: str, topics: Collection[str] = ()) -> Positions:
    """Ask all brokers where a group stands in some topics, or in all.

    Raises:
        TubeMQConnectionError: no master says where the brokers are.
    """
    stored = cluster.stored_offsets(group, topics)
    return Positions(
        {offset.partition: offset.committed for offset in stored.offsets},
        {broker_id: str(error) for broker_id, error in stored.failures.items()},
    )
