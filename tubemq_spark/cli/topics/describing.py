"""``tubemq-spark topics describe``: where the partitions of topics are, and what they hold."""

import argparse
import collections
from typing import Final

from tubemq_spark.cli.connection import add_connection_arguments, cluster_config
from tubemq_spark.cli.parser import Commands, new_command
from tubemq_spark.cli.tables import complain, print_json, print_table

_GROUP: Final = "tubemq_spark_topics"


def add_action(actions: Commands) -> None:
    """Describe the action and its arguments."""
    parser = new_command(
        actions,
        "describe",
        run,
        summary="show the brokers and partitions of topics, and what they hold",
        description="Show where the partitions of topics are, and how many messages their stores hold.",
        example="clicks orders --master 10.1.2.3",
        failure="a broker does not answer",
    )
    parser.add_argument("topics", nargs="+", metavar="TOPIC", help="topics to describe")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_connection_arguments(parser, _GROUP)


def run(arguments: argparse.Namespace) -> int:
    """Print the topics and return 0, or 1 if something could not be told.

    Raises:
        OptionError: the connection cannot be used.
        TubeMQError: no master answers, or a topic does not exist.
    """
    config = cluster_config(arguments)
    from tubemq_spark.cluster.open import open_cluster

    cluster = open_cluster(config)
    layout = cluster.layout(arguments.topics)
    bounds = cluster.bounds(layout)
    partitions = collections.Counter(partition.store_id for partition in layout.partitions)
    stores = []
    for store, endpoint in sorted(layout.stores.items()):
        span = bounds.by_store.get(store)
        stores.append(
            {
                "topic": store.topic,
                "brokerId": store.broker_id,
                "address": str(endpoint),
                "store": store.store,
                "partitions": partitions[store],
                "earliest": span and span.earliest,
                "latest": span and span.latest,
                "messages": span and (span.latest - span.earliest) // 28,
            }
        )
    if arguments.json:
        print_json({"stores": stores})
    else:
        print_table(list(stores[0]), [list(store.values()) for store in stores])
    for store, error in bounds.failures.items():
        complain(f"{store}: {error}")
    return int(bool(bounds.failures))
