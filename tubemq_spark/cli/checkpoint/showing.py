"""``tubemq-spark checkpoint show``: where the sources of a query stand."""

import argparse
import datetime
import sys
from typing import TYPE_CHECKING, Any, Final

from tubemq_spark.cli.arguments import FOLDER, of_kind
from tubemq_spark.cli.parser import Commands, new_command
from tubemq_spark.cli.tables import print_json, print_table, without_nulls
from tubemq_spark.errors import OptionError
from tubemq_spark.model import rows_between
from tubemq_spark.offsets.source_offset import SourceOffset, StreamOffset, start_of
from tubemq_spark.settings.kinds import MAX_LONG, integer

if TYPE_CHECKING:
    from tubemq_spark.model import TopicPartition
    from tubemq_spark.source.checkpoints import CheckpointFiles

_COLUMNS: Final = ("source", "topic", "brokerId", "partition", "begin", "end", "messages")
_MARK_COLUMNS: Final = (
    "source",
    "topic",
    "brokerId",
    "partition",
    "offset",
    "messageId",
    "checksum",
    "length",
)


def add_action(actions: Commands) -> None:
    """Describe the action and its arguments."""
    parser = new_command(
        actions,
        "show",
        run,
        summary="show which micro-batches a query has planned and finished, and at which offsets",
        description="Show the last micro-batch that the query of a checkpoint has planned, whether it has "
        "finished, and where it begins and ends in each partition of its sources. Below are the marks, the "
        "messages by which the query notices that a log was replaced. No server is asked; lag shows how far "
        "this is behind. The query may be running.",
        example="/data/checkpoints/clicks",
        failure="the folder cannot be reached",
    )
    parser.add_argument("directory", type=FOLDER, metavar="DIR", help="the query's checkpointLocation")
    parser.add_argument(
        "--batch",
        type=of_kind(integer(0, MAX_LONG)),
        metavar="N",
        help="show this micro-batch (default: the last one; Spark keeps about a hundred)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print a micro-batch and return 0.

    Raises:
        OptionError: there is no such checkpoint or micro-batch, or its query does not read from TubeMQ.
        OffsetFormatError: an offset is damaged, or has a newer format version.
    """
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
    log = files.log(number)
    facts: dict[str, Any] = {
        "checkpoint": str(files.location),
        "queryId": files.query_id(),
        "keepsState": files.keeps_state(),
        "lastPlanned": files.last,
        "lastFinished": checkpoint.finished,
        "batch": number,
        "planned": _shown_ms(log.planned_ms),
        "finished": files.is_finished(number),
        "finishedAt": _shown(files.finished_at(number)),
    }
    rows, marks = _rows(files, number), _marks(files, number)
    if arguments.json:
        print_json(
            {
                **without_nulls(facts),
                "partitions": [without_nulls(row) for row in rows],
                **({"marks": marks} if marks else {}),
            }
        )
        return 0
    for name, value in facts.items():
        sys.stdout.write(f"{name + ':':14}{_worded(value)}\n")
    sys.stdout.write("\n")
    print_table(_COLUMNS, [list(row.values()) for row in rows])
    if marks:
        sys.stdout.write("\n")
        print_table(_MARK_COLUMNS, [list(row.values()) for row in marks])
    return 0


def _rows(files: "CheckpointFiles", number: int) -> list[dict[str, Any]]:
    before = files.log(number - 1).of_ours() if number - 1 in files.planned else {}
    rows = []
    for source, end in files.log(number).of_ours().items():
        for partition in sorted(end.next_offsets):
            begin = _begin(partition, before.get(source), end, is_first=number == 0)
            stop = end.next_offsets[partition]
            rows.append(
                {
                    "source": source,
                    "topic": partition.topic,
                    "brokerId": partition.broker_id,
                    "partition": partition.partition_id,
                    "begin": begin,
                    "end": stop,
                    "messages": None if begin is None else rows_between(begin, stop),
                }
            )
    return rows


def _marks(files: "CheckpointFiles", number: int) -> list[dict[str, Any]]:
    return [
        {
            "source": source,
            "topic": mark.partition.topic,
            "brokerId": mark.partition.broker_id,
            "partition": mark.partition.partition_id,
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
    partition: "TopicPartition", before: StreamOffset | None, end: StreamOffset, *, is_first: bool
) -> int | None:
    """Return where a micro-batch begins in a partition; None if the checkpoint does not say that any more."""
    if not isinstance(end, SourceOffset):
        return None
    if before is None and not is_first:
        return end.replaced.get(partition, end.first_offsets.get(partition))
    return start_of(partition, before or SourceOffset({}), end)


def _shown_ms(ms: int | None) -> str | None:
    return None if ms is None else _shown(datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC))


def _shown(time: datetime.datetime | None) -> str | None:
    return None if time is None else time.astimezone(datetime.UTC).isoformat(timespec="milliseconds")


def _worded(value: object) -> str:
    words = {None: "not known", True: "yes", False: "no"}
    return words[value] if value is None or isinstance(value, bool) else str(value)
