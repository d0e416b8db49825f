"""The command ``tubemq-spark groups``: which consumer groups there are, and where they stand.

``reset`` sets where a group goes on. It only shows what would be, unless it is told to write. Positions are
written as a consumer does that takes a partition at an offset and gives it up again, so a broker refuses
while a consumer holds the partition. A group with members is refused as a whole: between two partitions a
member may be given one at any time, and would confirm from where it stood. Each position is read back from
its broker, by another way, and compared.
"""

import argparse
import dataclasses
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from tubemq_spark.cli.connection import ask_a_master, await_until, connected, connection, require_master
from tubemq_spark.cli.output import Output, complain, rows_lines, table_lines
from tubemq_spark.cli.parser import (
    JSON,
    TIME_ZONE_OF_MESSAGES,
    CommandGroup,
    argument,
    command,
    of_kind,
    one_of,
)
from tubemq_spark.cli.places import (
    OFFSETS_HELP,
    PARTITIONS,
    PLACE,
    chosen_partitions,
    fields_of,
    parse_place,
    positions_at,
    positions_given,
    read_offsets,
)
from tubemq_spark.errors import OptionError, TubeMQError
from tubemq_spark.model import INDEX_ENTRY_BYTES, TopicPartition, rows_between
from tubemq_spark.receipts import counted
from tubemq_spark.settings.kinds import GROUP

if TYPE_CHECKING:
    from tubemq_spark.cluster.base import Cluster
    from tubemq_spark.cluster.config import ClusterConfig
    from tubemq_spark.model import StoreBounds, StoreId, TopicsLayout

_READER: Final = "tubemq_spark_groups"
"""The group under which these commands ask."""
_NOT_ANSWERED: Final = "TUBEMQ_BROKERS_NOT_LISTED"
_STORED_WITHIN_S: Final = 30.0
"""Brokers write positions to their disks every five seconds."""
_NAME: Final = argument("name GROUP", "consumer group", of_kind(GROUP))


@dataclasses.dataclass(frozen=True, slots=True)
class GroupMembers:
    """The members of a group that are online, as a master says."""

    topics: frozenset[str]
    """What they subscribe to."""
    holding: Mapping[str, Collection[TopicPartition]]
    """The partitions of each, by the client's id."""


@dataclasses.dataclass(frozen=True, slots=True)
class GroupPositions:
    """Where a group stands, as brokers have it on their disks."""

    committed: Mapping[TopicPartition, int]
    failures: Mapping[int, str]
    """Why a broker did not tell, by its id."""


def _members_of(config: "ClusterConfig", group: str) -> GroupMembers:
    """Ask a master who is online; it says the same of a group without members and of one there is not."""
    answer: Any = ask_a_master(config, lambda admin: admin.consumer_group(group), _NOT_ANSWERED)
    return GroupMembers(
        frozenset(answer["topicSet"]),
        {item["consumerId"]: [_partition(place) for place in item["parInfo"]] for item in answer["data"]},
    )


def _partition(place: Mapping[str, Any]) -> TopicPartition:
    broker_id = str(place["brokerAddr"]).partition(":")[0]  # id:host:port
    return TopicPartition(str(place["topicName"]), int(broker_id), int(place["partId"]))


def _positions_of(cluster: "Cluster", group: str, topics: Collection[str] = ()) -> GroupPositions:
    """Ask all brokers where a group stands in some topics, or in all."""
    stored = cluster.stored_offsets(group, topics)
    return GroupPositions(
        {offset.partition: offset.committed for offset in stored.offsets},
        {broker_id: str(error) for broker_id, error in stored.failures.items()},
    )


@command(
    name="list",
    summary="list consumer groups with their topics and the number of their members",
    description="List the groups that have members, as a master says, and those that have read, as "
    "brokers say, which remember a group for 20 days.",
    example="--master 10.1.2.3",
    failure="a broker does not answer",
    arguments=(
        argument(
            "--all",
            "also the reader groups, such as etl_r00 and etl_probe, as which tasks of Spark and "
            "commands take partitions for a moment: up to 17 for each name of a group",
        ),
        JSON,
        connection(_READER, reads=False),
    ),
)
def _list(arguments: argparse.Namespace) -> Output:
    config, cluster = connected(arguments)
    require_master(config)
    from tubemq_spark.client.config import group_of_reader

    online: list[dict[str, Any]] = ask_a_master(config, lambda admin: admin.online_groups(), _NOT_ANSWERED)
    groups: dict[str, tuple[int, set[str]]] = {
        item["consumeGroup"]: (item["consumerNum"], set(item["topicSet"])) for item in online
    }
    stored = cluster.stored_offsets()
    for offset in stored.offsets:
        groups.setdefault(offset.group, (0, set()))[1].add(offset.partition.topic)
    shown: list[dict[str, Any]] = [
        {"group": name, "members": members, "topics": sorted(topics)}
        for name, (members, topics) in sorted(groups.items())
        if arguments.all or members or group_of_reader(name) is None
    ]
    lines = table_lines(
        ["group", "members", "topics"],
        [[group["group"], group["members"], ", ".join(group["topics"])] for group in shown],
    )
    remarks = [f"broker {broker_id}: {error}" for broker_id, error in sorted(stored.failures.items())]
    if hidden := len(groups) - len(shown):
        what = f"{counted(hidden, 'reader group')} of Spark's tasks and of commands left out (see --all)"
        remarks.insert(0, what)
    return Output({"groups": shown}, lines, remarks, failed=bool(stored.failures))


@command(
    name="describe",
    summary="show where a group stands, its lag, and its members",
    description="Show the members of a group that are online, and for each partition of its topics who "
    "holds it, the committed offset, and the lag in messages. Partitions of a store share its lag; the "
    "total counts each store once. Brokers tell of a position some seconds after it was committed.",
    example="etl clicks --master 10.1.2.3",
    failure="the group is not known, or a broker does not answer",
    arguments=(
        _NAME,
        argument("topics TOPIC", "topics to look at (default: all that the group reads)", nargs="*"),
        JSON,
        connection(_READER, reads=False),
    ),
)
def _describe(arguments: argparse.Namespace) -> Output:
    (config, cluster), group = connected(arguments), arguments.name
    from tubemq_spark.cluster.peek import bounds_after

    members = _members_of(config, group)
    positions = _positions_of(cluster, group, arguments.topics)
    known = {partition.topic for partition in positions.committed}
    if not known and not members.holding:
        for broker_id, cause in positions.failures.items():
            raise TubeMQError("TUBEMQ_COMMAND_BROKER", broker=broker_id, cause=cause)
        where = ", ".join(arguments.topics) or "any topic"
        raise TubeMQError("TUBEMQ_COMMAND_GROUP_UNKNOWN", group=group, where=where)
    topics = arguments.topics or sorted(known | members.topics)
    layout = cluster.layout(topics, missing_ok=not arguments.topics)
    bounds = bounds_after(cluster, layout, positions.failures.keys())
    rows, lag = _lag_of(layout, bounds, members, positions)
    counts = [[client, len(partitions)] for client, partitions in sorted(members.holding.items())]
    data = {
        "group": group,
        "members": [{"client": client, "partitions": count} for client, count in counts],
        "partitions": rows,
        "lag": lag,
    }
    header = ["topic", "brokerId", "partition", "committed", "latest", "lag", "consumer"]
    total = ["total", None, None, None, None, lag, None]
    lines = [*table_lines(header, [*(list(row.values()) for row in rows), total]), ""]
    lines += table_lines(["member", "partitions"], counts) if counts else ["No member is online."]
    remarks = [f"{store}: {error}" for store, error in bounds.failures.items()]
    remarks += [f"broker {broker_id}: {text}" for broker_id, text in sorted(positions.failures.items())]
    failed = bool(remarks)
    unread = [row for row in rows if row["committed"] is None and row["brokerId"] not in positions.failures]
    if unread:
        remarks.append(
            f"the group has no position in {len(unread)} of {counted(len(rows), 'partition')}, so its lag is "
            "not known there; brokers tell of a position some seconds after a consumer has committed it"
        )
    return Output(data, lines, remarks, failed)


def _lag_of(
    layout: "TopicsLayout", bounds: "StoreBounds", members: GroupMembers, positions: GroupPositions
) -> tuple[list[dict[str, Any]], int | None]:
    """Return a row for each partition, and the lag of all stores together, None if it is not known."""
    holders = {partition: client for client, held in members.holding.items() for partition in held}
    rows: list[dict[str, Any]] = []
    lags: dict[StoreId, list[int | None]] = {}
    for partition in sorted(layout.partitions):
        span = bounds.by_store.get(partition.store_id)
        committed = positions.committed.get(partition)
        lag = None if committed is None or span is None else rows_between(committed, span.latest)
        lags.setdefault(partition.store_id, []).append(lag)
        latest = span and span.latest
        row = {"committed": committed, "latest": latest, "lag": lag, "consumer": holders.get(partition)}
        rows.append(fields_of(partition) | row)
    lags_of_stores = [[lag for lag in of_store if lag is not None] for of_store in lags.values()]
    return rows, sum(map(max, lags_of_stores)) if all(lags_of_stores) else None


@command(
    name="reset",
    summary="set where a group goes on: at offsets, at a time, at the beginning or at the end",
    description="Show where a group stands in the partitions of topics, where it would go on, and how "
    "many messages it would read again (-) or pass over (+); those of all partitions of a store count. "
    "With --execute, write these positions, and read them back from the brokers. The group must have no "
    "members at that time.",
    example="etl clicks --to 2026-01-31T12:00 --execute --master 10.1.2.3",
    failure="the group has members, or a position could not be written or is not what was asked for",
    arguments=(
        _NAME,
        argument("topics TOPIC", "topics of which positions are set", nargs="*"),
        one_of(
            argument("--to PLACE", f"where to go on: {PLACE}", parse_place),
            argument("--offsets JSON|FILE", f"{OFFSETS_HELP}; topics need not be named then"),
            required=True,
        ),
        PARTITIONS,
        TIME_ZONE_OF_MESSAGES,
        argument("--execute", "write the positions"),
        JSON,
        connection(_READER, reads=False),
    ),
)
def _reset(arguments: argparse.Namespace) -> Output:
    (config, cluster), group = connected(arguments), arguments.name
    from tubemq_spark.client.config import group_of_reader

    if (reader := group_of_reader(group)) is not None:
        complain(
            f"'{group}' is named like a reader group of '{reader}', whose positions do not count: a stream "
            "goes on from its checkpoint, which checkpoint rewind changes"
        )
    layout, then = _asked_for(cluster, arguments)
    before = _positions_of(cluster, group, {place.topic for place in then})
    for broker_id in sorted({place.broker_id for place in then} & before.failures.keys()):
        raise TubeMQError("TUBEMQ_COMMAND_BROKER", broker=broker_id, cause=before.failures[broker_id])
    problems: Mapping[TopicPartition, str] = {}
    if arguments.execute:
        if members := _members_of(config, group).holding:
            raise TubeMQError(
                "TUBEMQ_COMMAND_GROUP_IN_USE",
                group=group,
                members=counted(len(members), "member"),
                example=min(members),
            )
        problems = _write(config, cluster, layout, group, then)
    rows = {
        partition: {
            **fields_of(partition),
            "now": (now := before.committed.get(partition)),
            "then": offset,
            "messages": None if now is None else (offset - now) // INDEX_ENTRY_BYTES,
        }
        for partition, offset in sorted(then.items())
    }
    partitions = [row | {"problem": problems.get(partition)} for partition, row in rows.items()]
    data = {"group": group, "executed": arguments.execute, "partitions": partitions}
    remarks = [f"{partition}: {problem}" for partition, problem in sorted(problems.items())]
    if not arguments.execute:
        remarks.append("nothing was written; --execute writes these positions")
    return Output(data, rows_lines(list(rows.values())), remarks, failed=bool(problems))


def _asked_for(
    cluster: "Cluster", arguments: argparse.Namespace
) -> "tuple[TopicsLayout, dict[TopicPartition, int]]":
    """Return where the partitions are, and the positions that are to be set."""
    if arguments.offsets is None:
        if not arguments.topics:
            raise _wrong("no topic is named", "name one after the group")
        layout = cluster.layout(list(dict.fromkeys(arguments.topics)))
        partitions = chosen_partitions(layout, arguments.partition)
        return layout, positions_at(cluster, layout, partitions, arguments.to, arguments.message_time_zone)
    if arguments.topics or arguments.partition:
        raise _wrong("--offsets names the topics and partitions itself", "leave them out elsewhere")
    spec = read_offsets(arguments.offsets)
    layout = cluster.layout(sorted(spec.topics))
    return layout, positions_given(cluster, layout, spec)


def _write(
    config: "ClusterConfig",
    cluster: "Cluster",
    layout: "TopicsLayout",
    group: str,
    then: Mapping[TopicPartition, int],
) -> dict[TopicPartition, str]:
    """Write positions and read them back; return what is wrong in some partitions."""
    from tubemq_spark.cluster.open import open_cluster

    as_group = dataclasses.replace(config, client=dataclasses.replace(config.client, group=group))
    refused = open_cluster(as_group).move_group(layout, then)
    problems = {partition: str(error) for partition, error in refused.items()}
    written = {partition: offset for partition, offset in then.items() if partition not in problems}
    topics = {partition.topic for partition in written}
    stored: Mapping[TopicPartition, int] = {}

    def is_stored() -> bool:
        nonlocal stored
        stored = _positions_of(cluster, group, topics).committed
        return all(stored.get(partition) == offset for partition, offset in written.items())

    if written and not await_until(is_stored, _STORED_WITHIN_S):
        problems |= {
            partition: f"the broker says {stored.get(partition, 'nothing')} instead of {offset}"
            for partition, offset in written.items()
            if stored.get(partition) != offset
        }
    return problems


def _wrong(problem: str, advice: str) -> OptionError:
    return OptionError("TUBEMQ_COMMAND_ARGUMENT", problem=problem, advice=advice)


groups: Final = CommandGroup(
    "groups",
    "list, describe and reset consumer groups",
    "List consumer groups, show where they stand and who their members are, and set where they go on.",
    (_list, _describe, _reset),
)
