"""``tubemq-spark checkpoint rewind``: a new checkpoint with which a query goes on elsewhere."""

import argparse
import datetime
import sys
import time
import zoneinfo
from typing import TYPE_CHECKING, Any, Final

from tubemq_spark.cli.arguments import FOLDER, add_time_zone_argument, of_kind
from tubemq_spark.cli.connection import add_connection_arguments, cluster_config
from tubemq_spark.cli.parser import Commands, new_command
from tubemq_spark.cli.places import PLACE, parse_place
from tubemq_spark.cli.positions import OFFSETS_HELP, positions_at, positions_given, read_offsets
from tubemq_spark.cli.tables import print_json, print_table
from tubemq_spark.model import INDEX_ENTRY_BYTES, TopicPartition, TopicsLayout
from tubemq_spark.offsets.source_offset import SourceOffset
from tubemq_spark.settings.kinds import MAX_LONG, integer

if TYPE_CHECKING:
    from tubemq_spark.cluster.base import Cluster
    from tubemq_spark.source.checkpoints import Stand

_GROUP: Final = "tubemq_spark_checkpoint"


def add_action(actions: Commands) -> None:
    """Describe the action and its arguments."""
    parser = new_command(
        actions,
        "rewind",
        run,
        summary="write a new checkpoint with which a query goes on at other offsets",
        description="Write a new checkpoint with which a query goes on elsewhere: at a time, an offset, the "
        "beginning or the end, or where one of its micro-batches ended. Show where it stands now, where it "
        "would go on then, the time of the message there, and how many messages it reads again (-) or passes "
        "over (+); those of all partitions of a store count. The old checkpoint is left as it is, and no "
        "message is removed: stop the query, and start it with the new checkpointLocation. What it reads "
        "again, it writes again.",
        example="/data/checkpoints/clicks /data/checkpoints/clicks-2 --to 2026-01-31T12:00 --master 10.1.2.3",
        failure="a broker does not answer, or the new checkpoint cannot be written",
    )
    parser.add_argument("directory", type=FOLDER, metavar="DIR", help="the query's checkpointLocation")
    parser.add_argument(
        "new", type=FOLDER, metavar="NEW_DIR", help="where the new one is written: a new or an empty folder"
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--to", type=parse_place, metavar="PLACE", help=f"where to go on: {PLACE}")
    where.add_argument(
        "--batch",
        type=of_kind(integer(0, MAX_LONG)),
        metavar="N",
        help="go on where this micro-batch ended, which must have finished; no server is asked",
    )
    where.add_argument(
        "--offsets", metavar="JSON|FILE", help=f"{OFFSETS_HELP}; the others stay where they are"
    )
    parser.add_argument(
        "--source",
        metavar="SOURCE",
        help="which source of a query that has several, as checkpoint show names it; the others stay, or "
        "with --batch go where that micro-batch ended too",
    )
    parser.add_argument(
        "--drop-state",
        action="store_true",
        help="leave out the state of aggregations, joins and dropDuplicates, which start over; micro-batches "
        "are counted from 0 again, so a sink that remembers their numbers needs another place",
    )
    parser.add_argument("--dry-run", action="store_true", help="only show what would be")
    add_time_zone_argument(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_connection_arguments(parser, _GROUP)


def run(arguments: argparse.Namespace) -> int:
    """Write the new checkpoint, print what it says, and return 0.

    Raises:
        OptionError: the old checkpoint, the new folder or the place cannot be used.
        OffsetFormatError: an offset is damaged, has a newer format version, or is not a multiple of 28.
        FolderError: the new checkpoint cannot be written.
        TubeMQError: a server does not answer, or refuses.
    """
    from tubemq_spark.source.checkpoints import CheckpointFiles, NewCheckpoint, stand_after, stand_of

    files = CheckpointFiles(arguments.directory)
    stand = stand_of(files, arguments.source)
    new = NewCheckpoint(files, arguments.new, drop_state=arguments.drop_state)
    if arguments.batch is None:
        then = stand
        after, times = _elsewhere(stand, arguments)
    else:
        then = stand_after(files, stand.source, arguments.batch)
        after, times = then.elsewhere(then.offsets, {}), None
    if not arguments.dry_run:
        new.write(then, after, int(time.time() * 1000))
    rows = _rows(stand, after, times)
    if arguments.json:
        print_json(
            {
                "checkpoint": str(arguments.new),
                "written": not arguments.dry_run,
                "queryId": new.query_id,
                "nextBatch": new.first,
                "source": stand.source,
                "partitions": rows,
            }
        )
        return 0
    print_table(list(rows[0]), [list(row.values()) for row in rows])
    if arguments.dry_run:
        sys.stdout.write("\nnothing was written\n")
    else:
        sys.stdout.write(
            f"\nstart the query with checkpointLocation {arguments.new}; its first micro-batch, number "
            f"{new.first}, is empty\n"
        )
    return 0


def _elsewhere(
    stand: "Stand", arguments: argparse.Namespace
) -> tuple[SourceOffset, dict[TopicPartition, datetime.datetime | None]]:
    """Return the offsets that are asked for, and of which times the messages there are.

    What is gone stays, so that the query reports it.
    """
    from tubemq_spark.cluster.open import open_cluster

    config = cluster_config(arguments)
    cluster = open_cluster(config)
    layout = cluster.layout(sorted({partition.topic for partition in stand.offsets}), missing_ok=True)
    if arguments.offsets is not None:
        offsets = positions_given(cluster, layout, read_offsets(arguments.offsets))
    else:
        # Of topics that are read as a whole, partitions that are new to the query go on there too.
        partitions = [one for one in layout.partitions if one in stand.offsets or not stand.partial]
        offsets = positions_at(cluster, layout, partitions, arguments.to, arguments.message_time_zone)
    new = {partition: at for partition, at in offsets.items() if partition not in stand.offsets}
    after = stand.elsewhere({**stand.offsets, **offsets}, new)
    zone = zoneinfo.ZoneInfo(arguments.message_time_zone)
    return after, _times(cluster, layout, after, zone, config.client.fetch_timeout_ms)


def _times(
    cluster: "Cluster", layout: TopicsLayout, after: SourceOffset, zone: zoneinfo.ZoneInfo, patience_ms: int
) -> dict[TopicPartition, datetime.datetime | None]:
    """Return the times of the first messages to be read, as far as they carry one."""
    from tubemq_spark.source.views.lag import next_messages

    spans = cluster.bounds(layout).by_store
    unread = {
        partition: (offset, spans[partition.store_id].latest)
        for partition, offset in after.next_offsets.items()
        if partition in layout.partitions
        and partition.store_id in spans
        and offset < spans[partition.store_id].latest
    }
    messages = next_messages(cluster, layout, unread, zone, patience_ms)
    return {partition: message.time for partition, message in messages.items()}


def _rows(
    stand: "Stand", after: SourceOffset, times: dict[TopicPartition, datetime.datetime | None] | None
) -> list[dict[str, Any]]:
    """Return a row for each partition; the times are left out where no server was asked."""
    return [
        {
            "topic": partition.topic,
            "brokerId": partition.broker_id,
            "partition": partition.partition_id,
            "now": (now := stand.offsets.get(partition)),
            "then": (then := after.next_offsets.get(partition)),
            **({} if times is None else {"time": _text(times.get(partition))}),
            "messages": None if now is None or then is None else (then - now) // INDEX_ENTRY_BYTES,
        }
        for partition in sorted(stand.offsets.keys() | after.next_offsets.keys())
    ]


def _text(time: datetime.datetime | None) -> str | None:
    return None if time is None else time.isoformat(timespec="minutes").replace("+00:00", "Z")
