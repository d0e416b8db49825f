"""``tubemq-spark topics list``: which topics there are."""

import argparse
import re

from tubemq_spark.cli.administration import require_master
from tubemq_spark.cli.arguments import PATTERN
from tubemq_spark.cli.connection import add_connection_arguments, cluster_config
from tubemq_spark.cli.parser import Commands, new_command
from tubemq_spark.cli.tables import print_json, print_table
from tubemq_spark.cli.topics.deployed import READER


def add_action(actions: Commands) -> None:
    """Describe the action and its arguments."""
    parser = new_command(
        actions,
        "list",
        run,
        summary="list all topics, or those whose names match",
        description="List the topics of the cluster, one per line.",
        example="'click.*' --master 10.1.2.3",
        failure="no master answers",
    )
    parser.add_argument(
        "pattern",
        nargs="?",
        type=PATTERN,
        metavar="PATTERN",
        help="regular expression that the whole name must match (default: all topics)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_connection_arguments(parser, READER, reads=False)


def run(arguments: argparse.Namespace) -> int:
    """Print the topics and return 0.

    Raises:
        OptionError: the connection cannot be used.
        TubeMQError: no master answers.
    """
    config = cluster_config(arguments)
    require_master(config)
    from tubemq_spark.cluster.open import open_cluster

    pattern: re.Pattern[str] | None = arguments.pattern
    topics = sorted(open_cluster(config).topics())
    names = [name for name in topics if pattern is None or pattern.fullmatch(name)]
    if arguments.json:
        print_json({"topics": names})
    else:
        print_table(["topic"], [[name] for name in names])
    return 0
