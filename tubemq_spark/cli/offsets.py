"""The command ``tubemq-spark offsets``: where partitions begin and end."""

import argparse
from typing import Any

from tubemq_spark.cli.arguments import add_time_zone_argument
from tubemq_spark.cli.connection import add_connection_arguments, cluster_config
from tubemq_spark.cli.parser import Commands, new_command
from tubemq_spark.cli.places import PLACE, chosen_partitions, offsets_at, parse_partition, parse_place
from tubemq_spark.cli.tables import complain, print_json, print_table

_GROUP = "tubemq_spark_offsets"


def add_command(commands: Commands) -> None:
    """Describe the command and its arguments."""
    parser = new_command(
        commands,
        "offsets",
        run,
        summary="show where partitions begin and end, and what a time's offset is",
        description="Show the earliest and the latest offset of each partition. Offsets count 28 per "
        "message; partitions of one store share them.",
        example="clicks --at 2026-01-31T12:00 --master 10.1.2.3",
        failure="a broker does not answer",
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
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_connection_arguments(parser, _GROUP)


def run(arguments: argparse.Namespace) -> int:
    """Print the offsets and return 0, or 1 if something could not be told.

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
        rows.append(row)
    if arguments.json:
        print_json({"partitions": rows})
    else:
        print_table(list(rows[0]), [list(row.values()) for row in rows])
    for store, error in bounds.failures.items():
        complain(f"{store}: {error}")
    return int(bool(bounds.failures))
