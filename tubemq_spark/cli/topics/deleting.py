"""``tubemq-spark topics delete``: topics and their data, for good."""

import argparse
import sys
from typing import TYPE_CHECKING

from tubemq_spark.cli.administration import ask_a_master, require_master
from tubemq_spark.cli.connection import (
    add_connection_arguments,
    add_token_argument,
    admin_token,
    cluster_config,
)
from tubemq_spark.cli.parser import FAILED, Commands, new_command
from tubemq_spark.cli.tables import complain, print_json
from tubemq_spark.cli.topics.deployed import (
    NOT_ANSWERED,
    READER,
    TOPIC,
    add_wait_argument,
    deployed,
    gone,
)
from tubemq_spark.errors import OptionError, TubeMQError
from tubemq_spark.receipts import counted

if TYPE_CHECKING:
    from tubemq_spark.client.metadata.admin import MasterAdmin


def add_action(actions: Commands) -> None:
    """Describe the action and its arguments."""
    parser = new_command(
        actions,
        "delete",
        run,
        summary="delete topics and their data",
        description="Close topics, delete them, and let the brokers remove their data, which cannot be "
        "undone. On a terminal it asks first; elsewhere it needs --yes.",
        example="clicks --yes --token-file token --master 10.1.2.3",
        failure="a topic does not exist, the master refuses, the answer is no, or data stays too long",
    )
    parser.add_argument("topics", nargs="+", type=TOPIC, metavar="TOPIC", help="topics to delete")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_wait_argument(parser, "the brokers have removed the data")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_token_argument(parser)
    add_connection_arguments(parser, READER, reads=False)


def run(arguments: argparse.Namespace) -> int:
    """Delete the topics, and return 0 when no broker has them any more.

    Raises:
        OptionError: the connection or the token cannot be used, or there is no terminal to ask at.
        AdminError: the master refuses.
        TubeMQError: no master answers, or a topic does not exist.
    """
    config, token = cluster_config(arguments), admin_token(arguments)
    require_master(config)
    topics = list(dict.fromkeys(arguments.topics))
    places = ask_a_master(config, lambda admin: deployed(admin, topics), NOT_ANSWERED)
    for topic in topics:
        if topic not in {place.topic for place in places}:
            raise TubeMQError("TUBEMQ_TOPIC_UNKNOWN", topic=topic)
    brokers = sorted({place.broker_id for place in places})
    if not arguments.yes and not _is_confirmed(topics, brokers):
        complain("nothing was deleted")
        return FAILED

    def delete(admin: "MasterAdmin") -> None:
        for place in places:
            if place.status == 0:
                admin.delete_topic(place.topic, [place.broker_id])
            admin.remove_topic(place.topic, [place.broker_id])

    ask_a_master(config, delete, NOT_ANSWERED, token)
    is_gone = gone(config, topics, arguments.wait)
    if not is_gone:
        complain(f"the brokers had not removed all data after {arguments.wait:g} s; they go on")
    if arguments.json:
        print_json({"topics": topics, "brokers": brokers, "removed": is_gone})
    else:
        state = "removed" if is_gone else "deleted, not removed"
        sys.stdout.write(f"{state}: {', '.join(topics)}\n")
    return int(not is_gone)


def _is_confirmed(topics: list[str], brokers: list[int]) -> bool:
    """Ask at the terminal.

    Raises:
        OptionError: there is none.
    """
    if not sys.stdin.isatty():
        raise OptionError(
            "TUBEMQ_COMMAND_ARGUMENT",
            problem="there is no terminal to ask at",
            advice="add --yes to delete topics and data",
        )
    what = f"{counted(len(topics), 'topic')} ({', '.join(topics)}) on brokers {', '.join(map(str, brokers))}"
    sys.stderr.write(f"Delete {what} with all data, which cannot be undone? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
