"""The command ``tubemq-spark offsets``: where partitions begin and end, and where groups stand."""

import argparse
from typing import TYPE_CHECKING, Any

from tubemq_spark.cli.arguments import add_time_zone_argument
from tubemq_spark.cli.connection import add_connection_arguments, cluster_config
from tubemq_spark.cli.parser import Commands, new_command
from tubemq_spark.cli.places import PLACE, chosen_partitions, offsets_at, parse_partition, parse_place
from tubemq_spark.cli.tables import complain, print_json, print_table

if TYPE_CHECKING:
    from tubemq_spark.cluster.base import Cluster
    from tubemq_spark.model import TopicPartition, TopicsLayout

_GROUP = "tubemq_spark_offsets"


def add_command(commands: Commands) -> None:
    """Describe the command and its arguments."""
    parser = new_command(
        commands,
        "offsets",
        run,
        summary="show where partitions begin and end, what a time's offset is, or where a group stands",
        description="Show the earliest and the latest offset of each partition. Offsets count 28 per "
        "message; partitions of one store share them.",
        example="clicks --of-group etl --master 10.1.2.3 --web 10.1.2.3:8080",
        failure="a broker does not answer, or none has a position of the group",
    )
    parser.add_argument("topics", nargs="+", metavar="TOPIC", help="topics to look at")
    parser.add_argument(
        "--partition",
        action="append",
        type=parse_partition,
        metavar="BROKER_ID:PARTITION_ID",
        help="only this partition; may be given several times",
    )
    parser.add_argument(
        "--at", type=parse_place, metavar="PLACE", help=f"show the offset of a place too: {PLACE}"
    )
    add_time_zone_argument(parser)
    parser.add_argument(
        "--of-group", metavar="GROUP", help="show where this consumer group stands, and its lag in messages"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_connection_arguments(parser, _GROUP)


def run(arguments: argparse.Namespace) -> int:
    """Print the offsets and return 0, or 1 if something could not be told or the group is not known.

    Raises:
        OptionError: the connection or a partition cannot be used, or messages carry no time.
        TubeMQError: no master answers, or a topic does not exist.
    """
    config = cluster_config(arguments)
    from tubemq_spark.cluster.open import open_cluster

    cluster = open_cluster(config)
    layout = cluster.layout(arguments.topics)
    partitions = chosen_partitions(layout, arguments.partition)
    bounds = cluster.bounds(layout, {partition.store_id for partition in partitions})
    at = {}
    if arguments.at is not None:
        zone = arguments.message_time_zone
        at = offsets_at(cluster, layout, bounds.by_store, arguments.at, "--at", zone)
    standing, unanswered = _standing(cluster, layout, arguments.of_group)
    rows: list[dict[str, Any]] = []
    for partition in partitions:
        span = bounds.by_store.get(partition.store_id)
        row: dict[str, Any] = {
            "topic": partition.topic,
            "brokerId": partition.broker_id,
            "partition": partition.partition_id,
            "earliest": span and span.earliest,
            "latest": span and span.latest,
        }
        if arguments.at is not None:
            row["at"] = at.get(partition)
        if arguments.of_group is not None:
            committed = standing.get(partition)
            row["committed"] = committed
            row["lag"] = None if committed is None or span is None else max(0, span.latest - committed) // 28
        rows.append(row)
    if arguments.json:
        print_json({"partitions": rows})
    else:
        print_table(list(rows[0]), [list(row.values()) for row in rows])
    for store, error in bounds.failures.items():
        complain(f"{store}: {error}")
    for text in unanswered:
        complain(text)
    is_unknown = arguments.of_group is not None and not standing and not unanswered
    if is_unknown:
        complain(
            f"no broker has a position of the group {arguments.of_group!r} in {', '.join(arguments.topics)}"
        )
    return int(bool(bounds.failures or unanswered or is_unknown))


def _standing(
    cluster: "Cluster", layout: "TopicsLayout", group: str | None
) -> "tuple[dict[TopicPartition, int], list[str]]":
    """Return where a group stands in the partitions that it has read, and which brokers did not tell."""
    if group is None:
        return {}, []
    stored = cluster.stored_offsets(group, {partition.topic for partition in layout.partitions})
    brokers = {partition.broker_id for partition in layout.partitions}
    failures = [f"broker {broker}: {error}" for broker, error in stored.failures.items() if broker in brokers]
    return {offset.partition: offset.committed for offset in stored.offsets}, failures
