"""The command ``tubemq-spark topics``: topics as masters know them, and what brokers hold of them.

What changes topics waits until clients are told of it, or brokers have removed the data.
"""

import argparse
import dataclasses
import re
import sys
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from tubemq_spark.cli.connection import (
    TOKEN_FILE,
    admin_token,
    ask_a_master,
    await_until,
    cluster_config,
    connected,
    connection,
    require_master,
)
from tubemq_spark.cli.output import Output, complain, rows_lines, table_lines
from tubemq_spark.cli.parser import (
    JSON,
    PATTERN,
    SECONDS,
    Argument,
    CommandGroup,
    argument,
    command,
    of_kind,
    whole_number,
)
from tubemq_spark.errors import AdminError, OptionError, TubeMQConnectionError, TubeMQError
from tubemq_spark.model import rows_between
from tubemq_spark.protocol.constants import TOPIC_NAME, TOPIC_NAME_RULE
from tubemq_spark.receipts import counted
from tubemq_spark.settings.kinds import BOOLEAN, did_you_mean, name

if TYPE_CHECKING:
    from tubemq_spark.client.metadata.admin import MasterAdmin, Parameter
    from tubemq_spark.cluster.config import ClusterConfig
    from tubemq_spark.model import StoreId

_READER: Final = "tubemq_spark_topics"
"""The group under which these commands ask."""
_NOT_ANSWERED: Final = "TUBEMQ_TOPICS_NOT_LISTED"
_TOLD: Final = ("numTopicStores", "numPartitions", "acceptPublish", "acceptSubscribe")
_PROPERTIES: Final = (
    "deletePolicy",
    "unflushThreshold",
    "unflushInterval",
    "unflushDataHold",
    "memCacheMsgSizeInMB",
    "memCacheMsgCntInK",
    "memCacheFlushIntvl",
)
_USUAL_WAIT_S: Final = 180.0
"""TubeMQ's masters publish a change half a minute after brokers have taken it, and one after the other."""


@dataclasses.dataclass(frozen=True, slots=True)
class Deployed:
    """A topic on one broker."""

    topic: str
    broker_id: int
    status: int
    """0, unless it is deleted."""
    stores: int
    partitions: int
    publish: bool
    subscribe: bool
    is_published: bool
    """Whether clients are told of just that."""


def _deployed(admin: "MasterAdmin", topics: Collection[str]) -> list[Deployed]:
    """Return where topics are, in the order of their names and brokers."""
    items = [item for topic in topics for item in admin.topic_info(topic)]
    places = [_of(item, place) for item in items for place in item["topicInfo"]]
    return sorted(places, key=lambda place: (place.topic, place.broker_id))


def _of(item: Mapping[str, Any], place: Mapping[str, Any]) -> Deployed:
    stores, partitions = place["numTopicStores"], place["numPartitions"]
    publish, subscribe = bool(place["acceptPublish"]), bool(place["acceptSubscribe"])
    told = tuple(place["runInfo"].get(field) for field in _TOLD)
    # The values are the text "-" as long as the topic is not published.
    is_hidden = told[0] == "-"
    return Deployed(
        item["topicName"],
        place["brokerId"],
        place["topicStatusId"],
        stores,
        partitions,
        publish,
        subscribe,
        told == (stores, partitions, publish, subscribe) or (is_hidden and not publish and not subscribe),
    )


def _require_all(topics: Collection[str], places: Collection[Deployed]) -> None:
    for topic in topics:
        if topic not in {place.topic for place in places}:
            raise TubeMQError("TUBEMQ_TOPIC_UNKNOWN", topic=topic)


def _published(
    config: "ClusterConfig", topics: Collection[str], brokers: Collection[int], seconds: float
) -> Output:
    """Wait until clients are told of topics as they are configured on some brokers, and tell of them."""
    places: list[Deployed] = []

    def is_so() -> bool:
        nonlocal places
        everywhere = ask_a_master(config, lambda admin: _deployed(admin, topics), _NOT_ANSWERED)
        places = [place for place in everywhere if place.broker_id in brokers]
        return all(place.is_published for place in places)

    is_published = _waited(is_so, seconds, "clients are told of it")
    if not is_published:
        complain(f"clients were not told of all of it within {seconds:g} s; see topics describe later")
    rows = [
        {
            "topic": place.topic,
            "brokerId": place.broker_id,
            "stores": place.stores,
            "partitions": place.partitions,
            "publish": place.publish,
            "subscribe": place.subscribe,
            "ready": place.is_published,
        }
        for place in places
    ]
    return Output({"topics": rows}, rows_lines(rows), failed=not is_published)


def _waited(is_so: Callable[[], bool], seconds: float, what: str) -> bool:
    if is_so():
        return True
    complain(f"waiting for up to {seconds:g} s until {what} (TubeMQ takes about a minute)")
    return await_until(is_so, seconds)


def _topics(what: str) -> Argument:
    kind = of_kind(name(TOPIC_NAME, f"a topic name: {TOPIC_NAME_RULE}"))
    return argument("topics TOPIC", f"topics to {what}", kind, nargs="+")


def _shape(default: int | None) -> tuple[Argument, ...]:
    """Return the arguments for the stores and partitions of a topic, and its other properties."""
    shown = "" if default is None else f" (default: {default})"
    return (
        argument(
            "--stores N",
            f"stores on each broker: logs of their own, the unit of throughput{shown}",
            whole_number(1, 1_000, "a number of stores"),
            default=default,
        ),
        argument(
            "--partitions N",
            "partitions of each store: the unit of sharing among consumers; where there are several, "
            f"brokers do not tell each message's own offset{shown}",
            whole_number(1, 10_000, "a number of partitions"),
            default=default,
        ),
        argument(
            "--property NAME=VALUE",
            f"a property of TubeMQ's, such as deletePolicy=delete,24h; one of {', '.join(_PROPERTIES)}; "
            "may be given several times",
            _property,
            action="append",
            default=[],
            dest="properties",
        ),
    )


def _property(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    if key not in _PROPERTIES:
        advice = did_you_mean(key, _PROPERTIES) or f"use one of {', '.join(_PROPERTIES)}"
        raise argparse.ArgumentTypeError(f"{key!r} is not a property of topics; {advice}")
    return key, value


def _brokers(default: str) -> Argument:
    return argument("--brokers ID,ID", f"only on these brokers (default: {default})", _broker_ids)


def _broker_ids(text: str) -> tuple[int, ...]:
    ids = text.split(",")
    if not all(part.isascii() and part.isdigit() for part in ids):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of broker ids, such as 1,2")
    return tuple(sorted({int(part) for part in ids}))


def _wait_argument(until: str) -> Argument:
    """Return the argument --wait of a command that waits until something is so."""
    return argument(
        "--wait SECONDS",
        f"how long to wait until {until} (default: %(default)g)",
        SECONDS,
        default=_USUAL_WAIT_S,
    )


_CHANGING: Final = (JSON, TOKEN_FILE, connection(_READER, reads=False))
"""The last arguments of what changes topics."""


@command(
    name="list",
    summary="list all topics, or those whose names match",
    description="List the topics of the cluster, one per line.",
    example="'click.*' --master 10.1.2.3",
    failure="no master answers",
    arguments=(
        argument(
            "pattern PATTERN",
            "regular expression that the whole name must match (default: all topics)",
            PATTERN,
            nargs="?",
        ),
        JSON,
        connection(_READER, reads=False),
    ),
)
def _list(arguments: argparse.Namespace) -> Output:
    config, cluster = connected(arguments)
    require_master(config)
    pattern: re.Pattern[str] | None = arguments.pattern
    topics = sorted(cluster.topics())
    names = [name for name in topics if pattern is None or pattern.fullmatch(name)]
    return Output({"topics": names}, table_lines(["topic"], [[name] for name in names]))


@command(
    name="describe",
    summary="show the brokers and partitions of topics, and what they hold",
    description="Show where the stores of topics are, which partitions each has, by the names that other "
    "commands take, where it begins and ends, how many messages it holds, and whether clients may "
    "publish and subscribe. Partitions of a store share its offsets.",
    example="clicks orders --master 10.1.2.3",
    failure="a broker does not answer",
    arguments=(
        argument("topics TOPIC", "topics to describe (default: all, as masters list them)", nargs="*"),
        JSON,
        connection(_READER),
    ),
)
def _describe(arguments: argparse.Namespace) -> Output:
    config, cluster = connected(arguments)
    topics = arguments.topics or sorted(cluster.topics())
    if not topics:
        raise TubeMQError("TUBEMQ_COMMAND_NO_TOPIC")
    layout = cluster.layout(topics)
    bounds = cluster.bounds(layout)
    partitions: dict[StoreId, list[int]] = {}
    for partition in sorted(layout.partitions):
        partitions.setdefault(partition.store_id, []).append(partition.partition_id)
    try:
        places = ask_a_master(config, lambda admin: _deployed(admin, topics), _NOT_ANSWERED)
    except TubeMQConnectionError as error:
        complain(f"whether clients may publish and subscribe is not known: {error}")
        places = []
    accepted = {(place.topic, place.broker_id): (place.publish, place.subscribe) for place in places}
    stores: list[dict[str, Any]] = []
    for store, endpoint in sorted(layout.stores.items()):
        span = bounds.by_store.get(store)
        publish, subscribe = accepted.get((store.topic, store.broker_id), (None, None))
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
                "publish": publish,
                "subscribe": subscribe,
            }
        )
    problems = [f"{store}: {error}" for store, error in bounds.failures.items()]
    lines = rows_lines([_in_words(row) for row in stores])
    return Output({"stores": stores}, lines, problems, failed=bool(problems))


def _in_words(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row whose partitions are named as arguments name them; their ids follow each other."""
    first, last = (f"{row['brokerId']}:{row['partitionIds'][place]}" for place in (0, -1))
    named = first if first == last else f"{first} to {last}"
    return {name: named if name == "partitions" else row[name] for name in row if name != "partitionIds"}


@command(
    name="create",
    summary="create topics, and wait until clients can use them",
    description="Create topics of one shape on brokers, and wait until clients can produce to them and "
    "consume from them. A topic has the partitions of a store times its stores on each broker.",
    example="clicks --stores 3 --partitions 2 --token-file token --master 10.1.2.3",
    failure="a topic exists, the master refuses, or clients are not told of the topics in time",
    arguments=(
        _topics("create"),
        *_shape(default=1),
        _brokers("all that are online"),
        argument("--if-not-exists", "leave topics as they are that exist"),
        _wait_argument("clients are told of the topics"),
        *_CHANGING,
    ),
)
def _create(arguments: argparse.Namespace) -> Output:
    config, token = cluster_config(arguments), admin_token(arguments)
    require_master(config)
    topics = list(dict.fromkeys(arguments.topics))

    def create(admin: "MasterAdmin") -> "Collection[int]":
        brokers = _existing_brokers(admin, arguments.brokers)
        existing = {place.topic for place in _deployed(admin, topics)}
        if existing and not arguments.if_not_exists:
            raise TubeMQError("TUBEMQ_COMMAND_TOPIC_EXISTS", topic=min(existing))
        for topic in sorted(existing):
            complain(f"topic {topic} exists, and is left as it is")
        if new := [topic for topic in topics if topic not in existing]:
            shape = {"stores": arguments.stores, "partitions": arguments.partitions}
            admin.add_topic(new, brokers, **shape, **dict(arguments.properties))
        return brokers

    brokers = ask_a_master(config, create, _NOT_ANSWERED, token)
    if arguments.partitions > 1:
        complain(
            "several partitions share each store, so brokers do not tell each message's own offset (in Spark "
            f"the column offset is null); --stores {arguments.stores * arguments.partitions} without "
            "--partitions would give each partition a store of its own"
        )
    return _published(config, topics, brokers, arguments.wait)


def _existing_brokers(admin: "MasterAdmin", named: tuple[int, ...] | None) -> "Collection[int]":
    """Return the brokers that were named, or all that are online."""
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


@command(
    name="alter",
    summary="change topics: more stores or partitions, properties, open or closed",
    description="Change topics, and wait until clients are told. The numbers of stores and partitions "
    "can only grow. A topic that accepts no publishing refuses producers; one that accepts no "
    "subscribing refuses consumers.",
    example="clicks --partitions 4 --accept-publish true --token-file token --master 10.1.2.3",
    failure="a topic does not exist, the master refuses, or clients are not told in time",
    arguments=(
        _topics("change"),
        *_shape(default=None),
        *(
            argument(f"{option} true|false", f"whether {who}", of_kind(BOOLEAN))
            for option, who in (
                ("--accept-publish", "producers may send"),
                ("--accept-subscribe", "consumers may read"),
            )
        ),
        _brokers("all that have the topic"),
        _wait_argument("clients are told of the change"),
        *_CHANGING,
    ),
)
def _alter(arguments: argparse.Namespace) -> Output:
    config, token = cluster_config(arguments), admin_token(arguments)
    topics = list(dict.fromkeys(arguments.topics))
    stated: dict[str, Parameter | None] = {
        "numTopicStores": arguments.stores,
        "numPartitions": arguments.partitions,
        "acceptPublish": arguments.accept_publish,
        "acceptSubscribe": arguments.accept_subscribe,
        **dict(arguments.properties),
    }
    changes = {key: value for key, value in stated.items() if value is not None}
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
            for place in _deployed(admin, topics)
            if place.status == 0 and (arguments.brokers is None or place.broker_id in arguments.brokers)
        ]
        _require_all(topics, places)
        for place in places:
            _refuse_shrinking(place, arguments)
        for place in places:
            _modify(admin, place, changes)
        return {place.broker_id for place in places}

    brokers = ask_a_master(config, alter, _NOT_ANSWERED, token)
    return _published(config, topics, brokers, arguments.wait)


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


@command(
    name="delete",
    summary="delete topics and their data",
    description="Close topics, delete them, and let the brokers remove their data, which cannot be "
    "undone. On a terminal it asks first; elsewhere it needs --yes.",
    example="clicks --yes --token-file token --master 10.1.2.3",
    failure="a topic does not exist, the master refuses, the answer is no, or data stays too long",
    arguments=(
        _topics("delete"),
        argument("--yes", "do not ask"),
        _wait_argument("the brokers have removed the data"),
        *_CHANGING,
    ),
)
def _delete(arguments: argparse.Namespace) -> int | Output:
    config, token = cluster_config(arguments), admin_token(arguments)
    require_master(config)
    topics = list(dict.fromkeys(arguments.topics))

    def look() -> list[Deployed]:
        return ask_a_master(config, lambda admin: _deployed(admin, topics), _NOT_ANSWERED)

    places = look()
    _require_all(topics, places)
    brokers = sorted({place.broker_id for place in places})
    if not arguments.yes and not _is_confirmed(topics, brokers):
        complain("nothing was deleted")
        return 1

    def delete(admin: "MasterAdmin") -> None:
        for place in places:
            if place.status == 0:
                admin.delete_topic(place.topic, [place.broker_id])
            admin.remove_topic(place.topic, [place.broker_id])

    ask_a_master(config, delete, _NOT_ANSWERED, token)
    is_gone = _waited(lambda: not look(), arguments.wait, "the brokers have removed the data")
    if not is_gone:
        complain(f"the brokers had not removed all data after {arguments.wait:g} s; they go on")
    state = "removed" if is_gone else "deleted, not removed"
    data = {"topics": topics, "brokers": brokers, "removed": is_gone}
    return Output(data, [f"{state}: {', '.join(topics)}"], failed=not is_gone)


def _is_confirmed(topics: list[str], brokers: list[int]) -> bool:
    """Ask at the terminal."""
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


topics: Final = CommandGroup(
    "topics",
    "list, describe, create, alter and delete topics",
    "List and describe topics, create and delete them, and change what they are made of.",
    (_list, _describe, _create, _alter, _delete),
)
