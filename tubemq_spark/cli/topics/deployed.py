"""Topics as masters know them: where they are configured, and what clients are told of them."""

import argparse
import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from tubemq_spark.cli.administration import ask_a_master, await_until
from tubemq_spark.cli.arguments import SECONDS, of_kind, whole_number
from tubemq_spark.cli.tables import complain, print_json, print_rows
from tubemq_spark.protocol.constants import TOPIC_NAME, TOPIC_NAME_RULE
from tubemq_spark.settings.kinds import name
from tubemq_spark.settings.suggest import did_you_mean

if TYPE_CHECKING:
    from tubemq_spark.client.metadata.admin import MasterAdmin
    from tubemq_spark.cluster.config import ClusterConfig

READER: Final = "tubemq_spark_topics"
"""The group under which these commands ask."""
TOPIC: Final = of_kind(name(TOPIC_NAME, f"a topic name: {TOPIC_NAME_RULE}"))
NOT_ANSWERED: Final = "TUBEMQ_TOPICS_NOT_LISTED"
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


def deployed(admin: "MasterAdmin", topics: Collection[str]) -> list[Deployed]:
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


def show_published(
    config: "ClusterConfig", topics: Collection[str], brokers: Collection[int], arguments: argparse.Namespace
) -> int:
    """Wait until clients are told of topics as they are configured; print them, and return 0 if they are.

    Args:
        config: the cluster.
        topics: their names.
        brokers: those that count.
        arguments: how long to wait, and whether to print JSON.

    Raises:
        TubeMQConnectionError: no master answers.
    """
    places: list[Deployed] = []

    def is_so() -> bool:
        nonlocal places
        everywhere = ask_a_master(config, lambda admin: deployed(admin, topics), NOT_ANSWERED)
        places = [place for place in everywhere if place.broker_id in brokers]
        return all(place.is_published for place in places)

    is_published = _waited(is_so, arguments.wait, "clients are told of it")
    if not is_published:
        complain(f"clients were not told of all of it within {arguments.wait:g} s; see topics describe later")
    if arguments.json:
        print_json({"topics": as_rows(places)})
    else:
        print_rows(as_rows(places))
    return int(not is_published)


def gone(config: "ClusterConfig", topics: Collection[str], seconds: float) -> bool:
    """Wait until no broker has topics any more; return whether that is so.

    Raises:
        TubeMQConnectionError: no master answers.
    """

    def is_so() -> bool:
        return not ask_a_master(config, lambda admin: deployed(admin, topics), NOT_ANSWERED)

    return _waited(is_so, seconds, "the brokers have removed the data")


def _waited(is_so: Callable[[], bool], seconds: float, what: str) -> bool:
    if is_so():
        return True
    complain(f"waiting for up to {seconds:g} s until {what} (TubeMQ takes about a minute)")
    return await_until(is_so, seconds)


def add_shape_arguments(parser: argparse.ArgumentParser, *, default: int | None) -> None:
    """Describe the stores and partitions of a topic, and its other properties."""
    shown = "" if default is None else f" (default: {default})"
    for option, most, what in (
        ("--stores", 1_000, "stores on each broker: logs of their own, the unit of throughput"),
        (
            "--partitions",
            10_000,
            (
                "partitions of each store: the unit of sharing among consumers; where there are several, "
                "brokers do not tell each message's own offset"
            ),
        ),
    ):
        parser.add_argument(
            option,
            type=whole_number(1, most, f"a number of {option[2:]}"),
            default=default,
            metavar="N",
            help=f"{what}{shown}",
        )
    parser.add_argument(
        "--property",
        action="append",
        type=_property,
        default=[],
        dest="properties",
        metavar="NAME=VALUE",
        help=f"a property of TubeMQ's, such as deletePolicy=delete,24h; one of {', '.join(_PROPERTIES)}; may "
        "be given several times",
    )


def add_brokers_argument(parser: argparse.ArgumentParser, default: str) -> None:
    """Describe on which brokers something is done."""
    parser.add_argument(
        "--brokers", type=_broker_ids, metavar="ID,ID", help=f"only on these brokers (default: {default})"
    )


def add_wait_argument(parser: argparse.ArgumentParser, what: str) -> None:
    """Describe how long to wait for what was asked for."""
    parser.add_argument(
        "--wait",
        type=SECONDS,
        default=_USUAL_WAIT_S,
        metavar="SECONDS",
        help=f"how long to wait until {what} (default: %(default)g)",
    )


def _property(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    if key not in _PROPERTIES:
        advice = did_you_mean(key, _PROPERTIES) or f"use one of {', '.join(_PROPERTIES)}"
        raise argparse.ArgumentTypeError(f"{key!r} is not a property of topics; {advice}")
    return key, value


def _broker_ids(text: str) -> tuple[int, ...]:
    ids = text.split(",")
    if not all(part.isascii() and part.isdigit() for part in ids):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of broker ids, such as 1,2")
    return tuple(sorted({int(part) for part in ids}))


def as_rows(places: Iterable[Deployed]) -> list[dict[str, Any]]:
    """Return what people and programs are told of topics."""
    return [
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
