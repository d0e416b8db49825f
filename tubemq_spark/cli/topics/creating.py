"""``tubemq-spark topics create``: new topics, which clients can use when it ends."""

import argparse
from typing import TYPE_CHECKING

from tubemq_spark.cli.administration import ask_a_master, require_master
from tubemq_spark.cli.connection import (
    add_connection_arguments,
    add_token_argument,
    admin_token,
    cluster_config,
)
from tubemq_spark.cli.parser import Commands, new_command
from tubemq_spark.cli.tables import complain
from tubemq_spark.cli.topics.deployed import (
    NOT_ANSWERED,
    READER,
    TOPIC,
    add_brokers_argument,
    add_shape_arguments,
    add_wait_argument,
    deployed,
    show_published,
)
from tubemq_spark.errors import OptionError, TubeMQError

if TYPE_CHECKING:
    from collections.abc import Collection

    from tubemq_spark.client.metadata.admin import MasterAdmin


def add_action(actions: Commands) -> None:
    """Describe the action and its arguments."""
    parser = new_command(
        actions,
        "create",
        run,
        summary="create topics, and wait until clients can use them",
        description="Create topics of one shape on brokers, and wait until clients can produce to them and "
        "consume from them. A topic has the partitions of a store times its stores on each broker.",
        example="clicks --stores 3 --partitions 2 --token-file token --master 10.1.2.3",
        failure="a topic exists, the master refuses, or clients are not told of the topics in time",
    )
    parser.add_argument("topics", nargs="+", type=TOPIC, metavar="TOPIC", help="topics to create")
    add_shape_arguments(parser, default=1)
    add_brokers_argument(parser, "all that are online")
    parser.add_argument("--if-not-exists", action="store_true", help="leave topics as they are that exist")
    add_wait_argument(parser, "clients are told of the topics")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_token_argument(parser)
    add_connection_arguments(parser, READER, reads=False)


def run(arguments: argparse.Namespace) -> int:
    """Create the topics, and return 0 when clients can use them.

    Raises:
        OptionError: the connection, a broker or the token cannot be used.
        AdminError: the master refuses.
        TubeMQError: no master answers, or a topic exists.
    """
    config, token = cluster_config(arguments), admin_token(arguments)
    require_master(config)
    topics = list(dict.fromkeys(arguments.topics))

    def create(admin: "MasterAdmin") -> "Collection[int]":
        brokers = _brokers(admin, arguments.brokers)
        existing = {place.topic for place in deployed(admin, topics)}
        if existing and not arguments.if_not_exists:
            raise TubeMQError("TUBEMQ_COMMAND_TOPIC_EXISTS", topic=min(existing))
        for topic in sorted(existing):
            complain(f"topic {topic} exists, and is left as it is")
        if new := [topic for topic in topics if topic not in existing]:
            shape = {"stores": arguments.stores, "partitions": arguments.partitions}
            admin.add_topic(new, brokers, **shape, **dict(arguments.properties))
        return brokers

    brokers = ask_a_master(config, create, NOT_ANSWERED, token)
    if arguments.partitions > 1:
        complain(
            "several partitions share each store, so brokers do not tell each message's own offset (in Spark "
            f"the column offset is null); --stores {arguments.stores * arguments.partitions} without "
            "--partitions would give each partition a store of its own"
        )
    return show_published(config, topics, brokers, arguments)


def _brokers(admin: "MasterAdmin", named: tuple[int, ...] | None) -> "Collection[int]":
    """Return the brokers that were named, or all that are online.

    Raises:
        OptionError: one of them does not exist.
        TubeMQError: none is online.
    """
    statuses = admin.broker_run_status()
    if named is None:
        online = sorted(broker_id for broker_id, status in statuses.items() if status.is_online)
        if not online:
            raise TubeMQError("TUBEMQ_COMMAND_NO_BROKER")
        return online
    for broker_id in named:
        if broker_id not in statuses:
            raise OptionError(
                "TUBEMQ_OPTION_VALUE",
                option="--brokers",
                value=broker_id,
                expected=f"one of {', '.join(map(str, sorted(statuses)))}",
            )
    return named
