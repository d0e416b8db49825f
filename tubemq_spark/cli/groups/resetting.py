"""``tubemq-spark groups reset``: set where a consumer group goes on.

It only shows what would be, unless it is told to write. Positions are written as a consumer does that takes
a partition at an offset and gives it up again, so a broker refuses while a consumer holds the partition. A
group with members is refused as a whole: between two partitions a member may be given one at any time, and
would confirm from where it stood. Each position is read back from its broker, by another way, and compared.
"""

import argparse
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tubemq_spark.cli.administration import await_until
from tubemq_spark.cli.arguments import add_time_zone_argument, of_kind
from tubemq_spark.cli.connection import add_connection_arguments, cluster_config
from tubemq_spark.cli.groups.standing import READER, members_of, positions_of
from tubemq_spark.cli.parser import Commands, new_command
from tubemq_spark.cli.places import PLACE, chosen_partitions, parse_partition, parse_place
from tubemq_spark.cli.positions import OFFSETS_HELP, positions_at, positions_given, read_offsets
from tubemq_spark.cli.tables import complain, print_json, print_table
from tubemq_spark.errors import OptionError, TubeMQError
from tubemq_spark.model import INDEX_ENTRY_BYTES
from tubemq_spark.receipts import counted
from tubemq_spark.settings.kinds import GROUP

if TYPE_CHECKING:
    from tubemq_spark.cluster.base import Cluster
    from tubemq_spark.cluster.config import ClusterConfig
    from tubemq_spark.model import TopicPartition, TopicsLayout
    from tubemq_spark.offsets.offset_spec import Specific

_STORED_WITHIN_S: Final = 30.0
"""Brokers write positions to their disks every five seconds."""


def add_action(actions: Commands) -> None:
    """Describe the action and its arguments."""
    parser = new_command(
        actions,
        "reset",
        run,
        summary="set where a group goes on: at offsets, at a time, at the beginning or at the end",
        description="Show where a group stands in the partitions of topics, where it would go on, and how "
        "many messages it would read again (-) or pass over (+); those of all partitions of a store count. "
        "With --execute, write these positions, and read them back from the brokers. The group must have no "
        "members at that time.",
        example="etl clicks --to 2026-01-31T12:00 --execute --master 10.1.2.3",
        failure="the group has members, or a position could not be written or is not what was asked for",
    )
    parser.add_argument("name", type=of_kind(GROUP), metavar="GROUP", help="consumer group")
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help="topics of which positions are set")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--to", type=parse_place, metavar="PLACE", help=f"where to go on: {PLACE}")
    where.add_argument(
        "--offsets",
        metavar="JSON|FILE",
        help=f"{OFFSETS_HELP}; topics need not be named then",
    )
    parser.add_argument(
        "--partition",
        action="append",
        type=parse_partition,
        metavar="BROKER_ID:PARTITION_ID",
        help="only this partition; may be given several times",
    )
    add_time_zone_argument(parser)
    parser.add_argument("--execute", action="store_true", help="write the positions")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_connection_arguments(parser, READER, reads=False)


def run(arguments: argparse.Namespace) -> int:
    """Show the positions, write them if that is asked for, and return 0 if all are as they should be.

    Raises:
        OptionError: the connection, a place or an offset cannot be used.
        OffsetFormatError: the offsets cannot be read.
        TubeMQError: a server does not answer, or a topic does not exist; or the group has members.
    """
    config = cluster_config(arguments)
    from tubemq_spark.client.config import group_of_reader
    from tubemq_spark.cluster.open import open_cluster

    cluster, group = open_cluster(config), arguments.name
    if (reader := group_of_reader(group)) is not None:
        complain(
            f"'{group}' is named like a reader group of '{reader}', whose positions do not count: a stream "
            "goes on from its checkpoint, which checkpoint rewind changes"
        )
    spec = None if arguments.offsets is None else _specific(arguments)
    layout = cluster.layout(sorted(spec.topics) if spec is not None else _topics(arguments))
    if spec is None:
        partitions = chosen_partitions(layout, arguments.partition)
        then = positions_at(cluster, layout, partitions, arguments.to, arguments.message_time_zone)
    else:
        then = positions_given(cluster, layout, spec)
    before = positions_of(cluster, group, {place.topic for place in then})
    for broker_id in sorted({place.broker_id for place in then} & before.failures.keys()):
        raise TubeMQError("TUBEMQ_COMMAND_BROKER", broker=broker_id, cause=before.failures[broker_id])
    problems: Mapping[TopicPartition, str] = {}
    if arguments.execute:
        _refuse_members(config, group)
        problems = _write(config, cluster, layout, group, then)
    _show(arguments, before.committed, then, problems)
    return int(bool(problems))


def _topics(arguments: argparse.Namespace) -> list[str]:
    if not arguments.topics:
        raise _wrong("no topic is named", "name one after the group")
    return list(dict.fromkeys(arguments.topics))


def _specific(arguments: argparse.Namespace) -> "Specific":
    """Return the offsets of single partitions that are given."""
    if arguments.topics or arguments.partition:
        raise _wrong("--offsets names the topics and partitions itself", "leave them out elsewhere")
    return read_offsets(arguments.offsets)


def _refuse_members(config: "ClusterConfig", group: str) -> None:
    members = members_of(config, group).holding
    if members:
        raise TubeMQError(
            "TUBEMQ_COMMAND_GROUP_IN_USE",
            group=group,
            members=counted(len(members), "member"),
            example=min(members),
        )


def _write(
    config: "ClusterConfig",
    cluster: "Cluster",
    layout: "TopicsLayout",
    group: str,
    then: "Mapping[TopicPartition, int]",
) -> "dict[TopicPartition, str]":
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
        stored = positions_of(cluster, group, topics).committed
        return all(stored.get(partition) == offset for partition, offset in written.items())

    if written and not await_until(is_stored, _STORED_WITHIN_S):
        problems |= {
            partition: f"the broker says {stored.get(partition, 'nothing')} instead of {offset}"
            for partition, offset in written.items()
            if stored.get(partition) != offset
        }
    return problems


def _show(
    arguments: argparse.Namespace,
    now: "Mapping[TopicPartition, int]",
    then: "Mapping[TopicPartition, int]",
    problems: "Mapping[TopicPartition, str]",
) -> None:
    rows: dict[TopicPartition, dict[str, Any]] = {
        partition: {
            "topic": partition.topic,
            "brokerId": partition.broker_id,
            "partition": partition.partition_id,
            "now": now.get(partition),
            "then": offset,
            "messages": None if partition not in now else (offset - now[partition]) // INDEX_ENTRY_BYTES,
        }
        for partition, offset in sorted(then.items())
    }
    if arguments.json:
        partitions = [{**row, "problem": problems.get(partition)} for partition, row in rows.items()]
        print_json({"group": arguments.name, "executed": arguments.execute, "partitions": partitions})
    else:
        print_table(list(next(iter(rows.values()))), [list(row.values()) for row in rows.values()])
    for partition, problem in sorted(problems.items()):
        complain(f"{partition}: {problem}")
    if not arguments.execute:
        complain("nothing was written; --execute writes these positions")


def _wrong(problem: str, advice: str) -> OptionError:
    return OptionError("TUBEMQ_COMMAND_ARGUMENT", problem=problem, advice=advice)
