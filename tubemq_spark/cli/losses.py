"""The command ``tubemq-spark losses``: what queries have passed over, as their ledger says."""

import argparse
import datetime
import sys
from typing import Any, Final

from tubemq_spark.cli.arguments import FOLDER
from tubemq_spark.cli.parser import Commands, new_command
from tubemq_spark.cli.tables import print_json, print_table, without_nulls

_COLUMNS: Final = (
    *("time", "topic", "brokerId", "partition", "startOffset", "endOffset", "messages", "reason"),
    *("consumerGroup", "queryId", "batchId"),
)


def add_command(commands: Commands) -> None:
    """Describe the command and its arguments."""
    parser = new_command(
        commands,
        "losses",
        run,
        summary="list the messages that queries have passed over because they were gone",
        description="List each gap that queries with the option lossLedger have passed over, once, in the "
        "order of time. No server is asked.",
        example="/data/losses/clicks",
        failure="the ledger has a gap, or cannot be read",
    )
    parser.add_argument("ledger", type=FOLDER, metavar="LEDGER", help="the lossLedger of the queries")
    parser.add_argument("--topic", action="append", metavar="TOPIC", help="only this topic; can be repeated")
    parser.add_argument("--query-id", metavar="ID", help="only what the tasks of this query met")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print the gaps and return 0 if there is none, otherwise 1.

    Raises:
        FolderError: the ledger is not there, or cannot be read.
        OptionError: the folder holds other files only.
        LedgerFormatError: a file in it is something else, or of a later release.
    """
    from tubemq_spark.options import LossesOptions
    from tubemq_spark.source.views.files import loss_rows

    gaps = [
        _gap(row)
        for row in loss_rows(LossesOptions(arguments.ledger))
        if (not arguments.topic or row["topic"] in arguments.topic)
        and arguments.query_id in (None, row["queryId"])
    ]
    if arguments.json:
        print_json({"losses": [without_nulls(gap) for gap in gaps]})
    elif gaps:
        print_table(_COLUMNS, [list(gap.values()) for gap in gaps])
    else:
        sys.stdout.write("no losses\n")
    return int(bool(gaps))


def _gap(row: Any) -> dict[str, Any]:  # noqa: ANN401 (values of any type, by column)
    time: datetime.datetime = row["time"]
    named = {
        **row,
        "messages": row["rows"],
        "time": time.isoformat(timespec="seconds").replace("+00:00", "Z"),
    }
    return {name: named[name] for name in _COLUMNS}
