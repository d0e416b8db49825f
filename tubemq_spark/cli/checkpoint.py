"""The command ``tubemq-spark checkpoint``: where a query stands, and a new one elsewhere."""

import argparse
import datetime
import time
import zoneinfo
from typing import TYPE_CHECKING, Any, Final

from tubemq_spark.cli.connection import connected, connection
from tubemq_spark.cli.output import Output, rows_lines, table_lines, utc_text, without_nulls
from tubemq_spark.cli.parser import (
    FOLDER,
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
    PLACE,
    fields_of,
    parse_place,
    positions_at,
    positions_given,
    read_offsets,
)
from tubemq_spark.errors import OptionError
from tubemq_spark.model import INDEX_ENTRY_BYTES, TopicPartition, TopicsLayout, rows_between
from tubemq_spark.offsets.source_offset import SourceOffset, StreamOffset, start_of
from tubemq_spark.settings.kinds import MAX_LONG, integer

if TYPE_CHECKING:
    from tubemq_spark.cluster.base import Cluster
    from tubemq_spark.source.checkpoints import CheckpointFiles, Stand

_COLUMNS: Final = ("source", "topic", "brokerId", "partition", "begin", "end", "messages")
_BATCH: Final = of_kind(integer(0, MAX_LONG))
_DIRECTORY: Final = argument("directory DIR", "the query's checkpointLocation", FOLDER)


@command(
    name="show",
    summary="show which micro-batches a query has planned and finished, and at which offsets",
    description="Show the last micro-batch that the query of a checkpoint has planned, whether it has "
    "finished, and where it begins and ends in each partition of its sources. Below are the marks, the "
    "messages by which the query notices that a log was replaced. No server is asked; lag shows how far "
    "this is behind. The query may be running.",
    example="/data/checkpoints/clicks",
    failure="the folder cannot be reached",
    arguments=(
        _DIRECTORY,
        argument(
            "--batch N", "show this micro-batch (default: the last one; Spark keeps about a hundred)", _BATCH
        ),
        JSON,
    ),
)
def _show(arguments: argparse.Namespace) -> Output:
    from tubemq_spark.source.checkpoints import CheckpointFiles

    files = CheckpointFiles(arguments.directory)
    checkpoint = files.progress()
    number = files.last if arguments.batch is None else arguments.batch
    if number not in files.planned:
        raise OptionError(
            "TUBEMQ_OPTION_VALUE",
            option="--batch",
            value=number,
            expected=f"one that the checkpoint has: {files.planned[0]} to {files.last}",
        )
    planned_ms = files.log(number).planned_ms
    planned = None if planned_ms is None else datetime.datetime.fromtimestamp(planned_ms / 1000, datetime.UTC)
    facts: dict[str, Any] = {
        "checkpoint": str(files.location),
        "queryId": files.query_id(),
        "keepsState": files.keeps_state(),
        "lastPlanned": files.last,
        "lastFinished": checkpoint.finished,
        "batch": number,
        "planned": _moment(planned),
        "finished": files.is_finished(number),
        "finishedAt": _moment(files.finished_at(number)),
    }
    rows, marks = _ranges(files, number), _marks(files, number)
    data = {
        **without_nulls(facts),
        "partitions": [without_nulls(row) for row in rows],
        **({"marks": marks} if marks else {}),
    }
    lines = [f"{name + ':':14}{_in_words(value)}" for name, value in facts.items()]
    lines += ["", *table_lines(_COLUMNS, [list(row.values()) for row in rows])]
    return Output(data, [*lines, "", *rows_lines(marks)] if marks else lines)


def _ranges(files: "CheckpointFiles", number: int) -> list[dict[str, Any]]:
    """Return a row for each partition of a micro-batch."""
    before = files.log(number - 1).of_ours() if number - 1 in files.planned else {}
    rows = []
    for source, end in files.log(number).of_ours().items():
        for partition in sorted(end.next_offsets):
            begin = _begin(partition, before.get(source), end, is_first=number == 0)
            stop = end.next_offsets[partition]
            messages = None if begin is None else rows_between(begin, stop)
            span = {"begin": begin, "end": stop, "messages": messages}
            rows.append({"source": source, **fields_of(partition), **span})
    return rows


def _marks(files: "CheckpointFiles", number: int) -> list[dict[str, Any]]:
    return [
        {
            "source": source,
            **fields_of(mark.partition),
            "offset": mark.offset,
            "messageId": mark.message_id,
            "checksum": f"{mark.checksum:08x}",
            "length": mark.length,
        }
        for source, end in files.log(number).of_ours().items()
        if isinstance(end, SourceOffset)
        for mark in end.marks
    ]


def _begin(
    partition: TopicPartition, before: StreamOffset | None, end: StreamOffset, *, is_first: bool
) -> int | None:
    """Return where a micro-batch begins in a partition; None if the checkpoint does not say that any more."""
    if not isinstance(end, SourceOffset):
        return None
    if before is None and not is_first:
        return end.replaced.get(partition, end.first_offsets.get(partition))
    return start_of(partition, before or SourceOffset({}), end)


def _moment(time: datetime.datetime | None) -> str | None:
    return None if time is None else time.astimezone(datetime.UTC).isoformat(timespec="milliseconds")


def _in_words(value: object) -> str:
    words = {None: "not known", True: "yes", False: "no"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


@command(
    name="rewind",
    summary="write a new checkpoint with which a query goes on at other offsets",
    description="Write a new checkpoint with which a query goes on elsewhere: at a time, an offset, the "
    "beginning or the end, or where one of its micro-batches ended. Show where it stands now, where it "
    "would go on then, the time of the message there, and how many messages it reads again (-) or passes "
    "over (+); those of all partitions of a store count. The old checkpoint is left as it is, and no "
    "message is removed: stop the query, and start it with the new checkpointLocation. What it reads "
    "again, it writes again.",
    example="/data/checkpoints/clicks /data/checkpoints/clicks-2 --to 2026-01-31T12:00 --master 10.1.2.3",
    failure="a broker does not answer, or the new checkpoint cannot be written",
    arguments=(
        _DIRECTORY,
        argument("new NEW_DIR", "where the new one is written: a new or an empty folder", FOLDER),
        one_of(
            argument("--to PLACE", f"where to go on: {PLACE}", parse_place),
            argument(
                "--batch N",
                "go on where this micro-batch ended, which must have finished; no server is asked",
                _BATCH,
            ),
            argument("--offsets JSON|FILE", f"{OFFSETS_HELP}; the others stay where they are"),
            required=True,
        ),
        argument(
            "--source SOURCE",
            "which source of a query that has several, as checkpoint show names it; the others stay, or "
            "with --batch go where that micro-batch ended too",
        ),
        argument(
            "--drop-state",
            "leave out the state of aggregations, joins and dropDuplicates, which start over; "
            "micro-batches are counted from 0 again, so a sink that remembers their numbers needs another "
            "place",
        ),
        argument("--dry-run", "only show what would be"),
        TIME_ZONE_OF_MESSAGES,
        JSON,
        connection("tubemq_spark_checkpoint"),
    ),
)
def _rewind(arguments: argparse.Namespace) -> Output:
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
    rows = _moves(stand, after, times)
    data = {
        "checkpoint": str(arguments.new),
        "written": not arguments.dry_run,
        "queryId": new.query_id,
        "nextBatch": new.first,
        "source": stand.source,
        "partitions": rows,
    }
    what = "nothing was written"
    if not arguments.dry_run:
        what = (
            f"start the query with checkpointLocation {arguments.new}; its first micro-batch, number "
            f"{new.first}, is empty"
        )
    return Output(data, [*rows_lines(rows), "", what])


def _elsewhere(
    stand: "Stand", arguments: argparse.Namespace
) -> tuple[SourceOffset, dict[TopicPartition, datetime.datetime | None]]:
    """Return the offsets that are asked for, and of which times the messages there are.

    What is gone stays, so that the query reports it.
    """
    config, cluster = connected(arguments)
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


def _moves(
    stand: "Stand", after: SourceOffset, times: dict[TopicPartition, datetime.datetime | None] | None
) -> list[dict[str, Any]]:
    """Return a row for each partition; the times are left out where no server was asked."""
    return [
        {
            **fields_of(partition),
            "now": (now := stand.offsets.get(partition)),
            "then": (then := after.next_offsets.get(partition)),
            **({} if times is None else {"time": utc_text(times.get(partition), "minutes")}),
            "messages": None if now is None or then is None else (then - now) // INDEX_ENTRY_BYTES,
        }
        for partition in sorted(stand.offsets.keys() | after.next_offsets.keys())
    ]


checkpoint: Final = CommandGroup(
    "checkpoint",
    "show where a streaming query stands, or let it go on elsewhere",
    "Work with the checkpoint of a streaming query that reads from TubeMQ: its "
    "checkpointLocation, a path or a URI. It is never changed.",
    (_show, _rewind),
)
