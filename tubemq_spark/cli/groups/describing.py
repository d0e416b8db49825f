"""``tubemq-spark groups describe``: who the members of a group are, and where it stands."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from tubemq_spark.cli.arguments import of_kind
from tubemq_spark.cli.connection import add_connection_arguments, cluster_config
from tubemq_spark.cli.groups.standing import READER, members_of, positions_of
from tubemq_spark.cli.parser import Commands, new_command
from tubemq_spark.cli.tables import complain, print_json, print_table
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import rows_between
from tubemq_spark.receipts import counted
from tubemq_spark.settings.kinds import GROUP

if TYPE_CHECKING:
    from tubemq_spark.cli.groups.standing import Members, Positions
    from tubemq_spark.model import StoreBounds, StoreId, TopicsLayout


def add_action(actions: Commands) -> None:
    """Describe the action and its arguments."""
    parser = new_command(
        actions,
        "describe",
        run,
        summary="show where a group stands, its lag, and its members",
        description="Show the members of a group that are online, and for each partition of its topics who "
        "holds it, the committed offset, and the lag in messages. Partitions of a store share its lag; the "
        "total counts each store once. Brokers tell of a position some seconds after it was committed.",
        example="etl clicks --master 10.1.2.3",
        failure="the group is not known, or a broker does not answer",
    )
    parser.add_argument("name", type=of_kind(GROUP), metavar="GROUP", help="consumer group")
    parser.add_argument(
        "topics", nargs="*", metavar="TOPIC", help="topics to look at (default: all that the group reads)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_connection_arguments(parser, READER, reads=False)


def run(arguments: argparse.Namespace) -> int:
    """Print the group and return 0, or 1 if it is not known or a broker did not tell.

    Raises:
        OptionError: the connection cannot be used.
        TubeMQError: no master answers, or a topic that was named does not exist.
    """
    config = cluster_config(arguments)
    from tubemq_spark.cluster.open import open_cluster
    from tubemq_spark.cluster.peek import bounds_after

    cluster, group = open_cluster(config), arguments.name
    members = members_of(config, group)
    positions = positions_of(cluster, group, arguments.topics)
    known = {partition.topic for partition in positions.committed}
    if not known and not members.holding:
        for broker_id, cause in positions.failures.items():
            raise TubeMQError("TUBEMQ_COMMAND_BROKER", broker=broker_id, cause=cause)
        where = ", ".join(arguments.topics) or "any topic"
        raise TubeMQError("TUBEMQ_COMMAND_GROUP_UNKNOWN", group=group, where=where)
    topics = arguments.topics or sorted(known | members.topics)
    layout = cluster.layout(topics, missing_ok=not arguments.topics)
    bounds = bounds_after(cluster, layout, positions.failures.keys())
    rows, lag = _rows(layout, bounds, members, positions)
    if arguments.json:
        print_json(
            {
                "group": group,
                "members": [
                    {"client": client, "partitions": len(partitions)}
                    for client, partitions in sorted(members.holding.items())
                ],
                "partitions": rows,
                "lag": lag,
            }
        )
    else:
        _show(members, rows, lag)
    for store, error in bounds.failures.items():
        complain(f"{store}: {error}")
    for broker_id, text in sorted(positions.failures.items()):
        complain(f"broker {broker_id}: {text}")
    unread = [row for row in rows if row["committed"] is None and row["brokerId"] not in positions.failures]
    if unread:
        complain(
            f"the group has no position in {len(unread)} of {counted(len(rows), 'partition')}, so its lag is "
            "not known there; brokers tell of a position some seconds after a consumer has committed it"
        )
    return int(bool(bounds.failures or positions.failures))


def _rows(
    layout: "TopicsLayout", bounds: "StoreBounds", members: "Members", positions: "Positions"
) -> tuple[list[dict[str, Any]], int | None]:
    """Return a row for each partition, and the lag of all stores together, None if it is not known."""
    holders = members.holders
    rows: list[dict[str, Any]] = []
    lags: dict[StoreId, list[int | None]] = {}
    for partition in sorted(layout.partitions):
        span = bounds.by_store.get(partition.store_id)
        committed = positions.committed.get(partition)
        lag = None if committed is None or span is None else rows_between(committed, span.latest)
        lags.setdefault(partition.store_id, []).append(lag)
        rows.append(
            {
                "topic": partition.topic,
                "brokerId": partition.broker_id,
                "partition": partition.partition_id,
                "committed": committed,
                "latest": span and span.latest,
                "lag": lag,
                "consumer": holders.get(partition),
            }
        )
    lags_of_stores = [[lag for lag in of_store if lag is not None] for of_store in lags.values()]
    return rows, sum(map(max, lags_of_stores)) if all(lags_of_stores) else None


def _show(members: "Members", rows: list[dict[str, Any]], lag: int | None) -> None:
    header = ["topic", "brokerId", "partition", "committed", "latest", "lag", "consumer"]
    print_table(header, [*(list(row.values()) for row in rows), ["total", None, None, None, None, lag, None]])
    sys.stdout.write("\n")
    if members.holding:
        counts = [[client, len(held)] for client, held in sorted(members.holding.items())]
        print_table(["member", "partitions"], counts)
    else:
        sys.stdout.write("No member is online.\n")
