"""``tubemq-spark topics describe``: where the partitions of topics are, and what they hold."""

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tubemq_spark.cli.administration import ask_a_master
from tubemq_spark.cli.connection import add_connection_arguments, cluster_config
from tubemq_spark.cli.parser import Commands, new_command
from tubemq_spark.cli.tables import complain, print_json, print_rows
from tubemq_spark.cli.topics.deployed import NOT_ANSWERED, READER, deployed
from tubemq_spark.errors import TubeMQConnectionError, TubeMQError
from tubemq_spark.model import rows_between

if TYPE_CHECKING:
    from tubemq_spark.cluster.config import ClusterConfig
    from tubemq_spark.model import StoreId


def add_action(actions: Commands) -> None:
    """Describe the action and its arguments."""
    parser = new_command(
        actions,
        "describe",
        run,
        summary="show the brokers and partitions of topics, and what they hold",
        description="Show where the stores of topics are, which partitions each has, by the names that other "
        "commands take, where it begins and ends, how many messages it holds, and whether clients may "
        "publish and subscribe. Partitions of a store share its offsets.",
        example="clicks orders --master 10.1.2.3",
        failure="a broker does not answer",
    )
    parser.add_argument(
        "topics", nargs="*", metavar="TOPIC", help="topics to describe (default: all, as masters list them)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_connection_arguments(parser, READER)


def run(arguments: argparse.Namespace) -> int:
    """Print the topics and return 0, or 1 if something could not be told.

    Raises:
        OptionError: the connection cannot be used.
        TubeMQError: no master answers, or a topic does not exist.
    """
    config = cluster_config(arguments)
    from tubemq_spark.cluster.open import open_cluster

    cluster = open_cluster(config)
    topics = arguments.topics or sorted(cluster.topics())
    if not topics:
        raise TubeMQError("TUBEMQ_COMMAND_NO_TOPIC")
    layout = cluster.layout(topics)
    bounds = cluster.bounds(layout)
    partitions: dict[StoreId, list[int]] = {}
    for partition in sorted(layout.partitions):
        partitions.setdefault(partition.store_id, []).append(partition.partition_id)
    accepted = _accepted(config, topics)
    stores: list[dict[str, Any]] = []
    for store, endpoint in sorted(layout.stores.items()):
        span = bounds.by_store.get(store)
        stores.append(
            {
                "topic": store.topic,
                "brokerId": store.broker_id,
                "address": str(endpoint),
                "store": store.store,
                "partitions": len(partitions[store]),
                "partitionIds": partitions[store],
                "earliest": span and span.earliest,
                "latest": span and span.latest,
                "messages": span and rows_between(*span),
                "publish": accepted.get((store.topic, store.broker_id), (None, None))[0],
                "subscribe": accepted.get((store.topic, store.broker_id), (None, None))[1],
            }
        )
    if arguments.json:
        print_json({"stores": stores})
    else:
        print_rows([_in_words(row) for row in stores])
    for store, error in bounds.failures.items():
        complain(f"{store}: {error}")
    return int(bool(bounds.failures))


def _in_words(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row whose partitions are named as arguments name them; their ids follow each other."""
    first, last = (f"{row['brokerId']}:{row['partitionIds'][place]}" for place in (0, -1))
    named = first if first == last else f"{first} to {last}"
    return {name: named if name == "partitions" else row[name] for name in row if name != "partitionIds"}


def _accepted(config: "ClusterConfig", topics: Sequence[str]) -> dict[tuple[str, int], tuple[bool, bool]]:
    """Return whether topics accept publishing and subscribing, by topic and broker id, if a master says."""
    try:
        places = ask_a_master(config, lambda admin: deployed(admin, topics), NOT_ANSWERED)
    except TubeMQConnectionError as error:
        complain(f"whether clients may publish and subscribe is not known: {error}")
        return {}
    return {(place.topic, place.broker_id): (place.publish, place.subscribe) for place in places}
