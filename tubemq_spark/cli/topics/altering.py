"""``tubemq-spark topics alter``: more stores and partitions, other properties, open or closed for clients."""

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tubemq_spark.cli.administration import ask_a_master, require_master
from tubemq_spark.cli.arguments import of_kind
from tubemq_spark.cli.connection import (
    add_connection_arguments,
    add_token_argument,
    admin_token,
    cluster_config,
)
from tubemq_spark.cli.parser import Commands, new_command
from tubemq_spark.cli.topics.deployed import (
    NOT_ANSWERED,
    READER,
    TOPIC,
    Deployed,
    add_brokers_argument,
    add_shape_arguments,
    add_wait_argument,
    deployed,
    show_published,
)
from tubemq_spark.errors import AdminError, OptionError, TubeMQError
from tubemq_spark.settings.kinds import BOOLEAN

if TYPE_CHECKING:
    from tubemq_spark.client.metadata.admin import MasterAdmin, Parameter


def add_action(actions: Commands) -> None:
    """Describe the action and its arguments."""
    parser = new_command(
        actions,
        "alter",
        run,
        summary="change topics: more stores or partitions, properties, open or closed",
        description="Change topics, and wait until clients are told. The numbers of stores and partitions "
        "can only grow. A topic that accepts no publishing refuses producers; one that accepts no "
        "subscribing refuses consumers.",
        example="clicks --partitions 4 --accept-publish true --token-file token --master 10.1.2.3",
        failure="a topic does not exist, the master refuses, or clients are not told in time",
    )
    parser.add_argument("topics", nargs="+", type=TOPIC, metavar="TOPIC", help="topics to change")
    add_shape_arguments(parser, default=None)
    for option, who in (
        ("--accept-publish", "producers may send"),
        ("--accept-subscribe", "consumers may read"),
    ):
        parser.add_argument(option, type=of_kind(BOOLEAN), metavar="true|false", help=f"whether {who}")
    add_brokers_argument(parser, "all that have the topic")
    add_wait_argument(parser, "clients are told of the change")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_token_argument(parser)
    add_connection_arguments(parser, READER, reads=False)


def run(arguments: argparse.Namespace) -> int:
    """Change the topics, and return 0 when clients are told.

    Raises:
        OptionError: the connection or the token cannot be used, nothing is to be changed, or a number is to
            become smaller.
        AdminError: the master refuses.
        TubeMQError: no master answers, or a topic does not exist.
    """
    config, token = cluster_config(arguments), admin_token(arguments)
    topics, changes = list(dict.fromkeys(arguments.topics)), _changes(arguments)
    if not changes:
        raise OptionError(
            "TUBEMQ_COMMAND_ARGUMENT",
            problem="nothing is to be changed",
            advice="name what, such as --partitions 4",
        )

    require_master(config)

    def alter(admin: "MasterAdmin") -> set[int]:
        places = [
            place
            for place in deployed(admin, topics)
            if place.status == 0 and (arguments.brokers is None or place.broker_id in arguments.brokers)
        ]
        for topic in topics:
            if topic not in {place.topic for place in places}:
                raise TubeMQError("TUBEMQ_TOPIC_UNKNOWN", topic=topic)
        for place in places:
            _refuse_shrinking(place, arguments)
        for place in places:
            _modify(admin, place, changes)
        return {place.broker_id for place in places}

    brokers = ask_a_master(config, alter, NOT_ANSWERED, token)
    return show_published(config, topics, brokers, arguments)


def _changes(arguments: argparse.Namespace) -> "dict[str, Parameter]":
    changes = {
        "numTopicStores": arguments.stores,
        "numPartitions": arguments.partitions,
        "acceptPublish": arguments.accept_publish,
        "acceptSubscribe": arguments.accept_subscribe,
        **dict(arguments.properties),
    }
    return {key: value for key, value in changes.items() if value is not None}


def _refuse_shrinking(place: Deployed, arguments: argparse.Namespace) -> None:
    for option, now, then in (
        ("--stores", place.stores, arguments.stores),
        ("--partitions", place.partitions, arguments.partitions),
    ):
        if then is not None and then < now:
            raise OptionError(
                "TUBEMQ_OPTION_VALUE",
                option=option,
                value=then,
                expected=f"{now} or more, which topic {place.topic} has on broker {place.broker_id}: it can "
                "only grow",
            )


def _modify(admin: "MasterAdmin", place: Deployed, changes: "Mapping[str, Parameter]") -> None:
    """Change a topic on one broker, which may be so already."""
    from tubemq_spark.client.metadata.admin import UNCHANGED

    try:
        admin.modify_topic(place.topic, [place.broker_id], **changes)
    except AdminError as error:
        if error.code != UNCHANGED:
            raise
