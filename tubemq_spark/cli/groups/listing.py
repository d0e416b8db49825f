"""``tubemq-spark groups list``: which consumer groups there are."""

import argparse
from typing import TYPE_CHECKING, Any

from tubemq_spark.cli.administration import ask_a_master, require_master
from tubemq_spark.cli.connection import add_connection_arguments, cluster_config
from tubemq_spark.cli.groups.standing import NOT_ANSWERED, READER
from tubemq_spark.cli.parser import Commands, new_command
from tubemq_spark.cli.tables import complain, print_json, print_table
from tubemq_spark.receipts import counted

if TYPE_CHECKING:
    from tubemq_spark.client.metadata.admin import MasterAdmin


def add_action(actions: Commands) -> None:
    """Describe the action and its arguments."""
    parser = new_command(
        actions,
        "list",
        run,
        summary="list consumer groups with their topics and the number of their members",
        description="List the groups that have members, as a master says, and those that have read, as "
        "brokers say, which remember a group for 20 days.",
        example="--master 10.1.2.3",
        failure="a broker does not answer",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="also the reader groups, such as etl_r00 and etl_probe, as which tasks of Spark and commands "
        "take partitions for a moment: up to 17 for each name of a group",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_connection_arguments(parser, READER, reads=False)


def run(arguments: argparse.Namespace) -> int:
    """Print the groups and return 0, or 1 if a broker did not answer.

    Raises:
        OptionError: the connection cannot be used.
        TubeMQError: no master answers.
    """
    config = cluster_config(arguments)
    require_master(config)
    from tubemq_spark.client.config import group_of_reader
    from tubemq_spark.cluster.open import open_cluster

    def ask(admin: "MasterAdmin") -> list[dict[str, Any]]:
        return admin.online_groups()

    groups: dict[str, tuple[int, set[str]]] = {
        item["consumeGroup"]: (item["consumerNum"], set(item["topicSet"]))
        for item in ask_a_master(config, ask, NOT_ANSWERED)
    }
    stored = open_cluster(config).stored_offsets()
    for offset in stored.offsets:
        groups.setdefault(offset.group, (0, set()))[1].add(offset.partition.topic)
    shown: list[dict[str, Any]] = [
        {"group": name, "members": members, "topics": sorted(topics)}
        for name, (members, topics) in sorted(groups.items())
        if arguments.all or members or group_of_reader(name) is None
    ]
    if arguments.json:
        print_json({"groups": shown})
    else:
        print_table(
            ["group", "members", "topics"],
            [[group["group"], group["members"], ", ".join(group["topics"])] for group in shown],
        )
    if hidden := len(groups) - len(shown):
        complain(f"{counted(hidden, 'reader group')} of Spark's tasks and of commands left out (see --all)")
    for broker_id, error in sorted(stored.failures.items()):
        complain(f"broker {broker_id}: {error}")
    return int(bool(stored.failures))
