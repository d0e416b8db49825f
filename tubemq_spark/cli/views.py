"""The commands that show what views of Spark do: ``lag`` and ``losses``.

``lag`` tells how far a streaming query, or a consumer group, is behind. ``losses`` lists what queries have
passed over, as their ledger says.
"""

import argparse
import collections
import dataclasses
import datetime
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from tubemq_spark.cli.connection import cluster_config, connection
from tubemq_spark.cli.output import Output, complain, print_json, table_lines, utc_text, without_nulls
from tubemq_spark.cli.parser import (
    FOLDER,
    JSON,
    SECONDS,
    TIME_ZONE_OF_MESSAGES,
    argument,
    command,
    of_kind,
    one_of,
)
from tubemq_spark.errors import OptionError, TubeMQError
from tubemq_spark.settings.kinds import GROUP, MAX_LONG, integer

if TYPE_CHECKING:
    from tubemq_spark.options import ViewOptions


_USUAL_INTERVAL_S: Final = 5.0
_NAMES: Final = {
    "source": "source",
    "topic": "topic",
    "brokerId": "brokerId",
    "partition": "partition",
    "state": "state",
    "rows": "lag",
    "bytes": "bytes",
    "ageSeconds": "ageSeconds",
    "nextTime": "nextTime",
    "rowsUntilExpiry": "messagesUntilExpiry",
    "rowsExpired": "messagesExpired",
    "rowsUnderWay": "messagesUnderWay",
    "offset": "offset",
    "earliest": "earliest",
    "latest": "latest",
    "store": "store",
    "partitionsInStore": "partitionsInStore",
    "error": "error",
}
"""What the view ``lag`` tells, and what it is called outside of Spark."""
_BAR: Final = 20
"""The length of the longest bar, in characters."""
_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")


@command(
    name="lag",
    summary="show how far a streaming query or a consumer group is behind",
    description="Show for each partition how many messages have not been read: with --checkpoint behind "
    "the last finished micro-batch of a query, with --group behind what a group has committed. AGE says "
    "how long ago the next message was made, LEFT how many older messages are still there, which "
    "retention takes first: at 0 the next ones to go are not read. EXPIRED ones were taken before they "
    "were read. Partitions of a store share its numbers, which are at most so many; totals count each "
    "store once.",
    example="--checkpoint /data/checkpoints/clicks --max-rows 100000 --master 10.1.2.3",
    failure="more messages are unread than --max-rows, some expired unread, or something cannot be told",
    arguments=(
        argument("topics TOPIC", "topics to look at (default: all that are read)", nargs="*"),
        one_of(
            argument("--checkpoint DIR", "the checkpointLocation of a streaming query", FOLDER),
            argument("--group GROUP", "a consumer group", of_kind(GROUP), dest="of_group"),
            required=True,
        ),
        argument(
            "--watch SECONDS",
            "look again every so many seconds, until Ctrl-C: the table on a terminal, otherwise a line "
            f"each time (without a number: {_USUAL_INTERVAL_S:g})",
            SECONDS,
            nargs="?",
            const=_USUAL_INTERVAL_S,
        ),
        argument(
            "--max-rows N",
            "exit code 1 if more than N messages are unread in all",
            of_kind(integer(0, MAX_LONG)),
        ),
        TIME_ZONE_OF_MESSAGES,
        argument("--json", "print one JSON object, each time with --watch"),
        connection("tubemq_spark_lag", reads=False),
    ),
)
def lag(arguments: argparse.Namespace) -> int | Output:
    """Tell how far a query or a group is behind; with ``--watch`` again and again."""
    if arguments.watch is not None and arguments.max_rows is not None:
        raise OptionError("TUBEMQ_OPTIONS_EXCLUSIVE", option="--watch", other="--max-rows")
    options = _options(arguments)
    if arguments.watch is not None:
        return _watch(lambda: _lag_now(options), arguments.watch, as_json=arguments.json)
    now = _lag_now(options)
    remarks = list(now.problems)
    if arguments.max_rows is not None and now.total("lag") > arguments.max_rows:
        remarks.append(f"{now.total('lag'):,} messages are unread, more than {arguments.max_rows:,}")
    return Output(now.to_json(), now.table(), remarks, failed=bool(remarks))


class Lag:
    """What one look has shown."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], time: datetime.datetime) -> None:
        """Take the rows of the view ``lag``, and when they were asked for."""
        self.rows = [{name: row.get(theirs) for theirs, name in _NAMES.items()} for row in rows]
        self._time = time

    @property
    def problems(self) -> list[str]:
        """What is lost or not known, by partition."""
        return [
            f"{row['topic']}/{row['brokerId']}:{row['partition']}: {row['error']}"
            for row in self.rows
            if row["error"] is not None
        ] or ([] if self.rows else ["none of these topics is read"])

    def total(self, number: str) -> int:
        """Return the sum over stores, of each the largest number: of what is furthest behind there."""
        stores: dict[tuple[Any, ...], int] = collections.defaultdict(int)
        for row in self.rows:
            place = tuple(row[name] for name in ("source", "topic", "brokerId", "store"))
            stores[place] = max(stores[place], row[number] or 0)
        return sum(stores.values())

    def to_json(self) -> dict[str, Any]:
        """Return all that is known."""
        partitions = [without_nulls(row) for row in self.rows]
        for row in partitions:
            if "nextTime" in row:
                row["nextTime"] = utc_text(row["nextTime"])
        totals = {name: self.total(name) for name in ("lag", "bytes", "messagesExpired")}
        return {"time": utc_text(self._time), **totals, "partitions": partitions}

    def table(self) -> list[str]:
        """Return the lines of a table, and the totals."""
        with_source = any(row["source"] not in (None, "0") for row in self.rows)
        header = ["topic", "brokerId", "partition", "lag", "", "bytes", "age", "left", "expired", "state"]
        most = max([row["lag"] or 0 for row in self.rows], default=0)
        lines = [
            [
                row["topic"],
                row["brokerId"],
                row["partition"],
                row["lag"],
                _bar(row["lag"], most),
                _size(row["bytes"]),
                _age(row["ageSeconds"]),
                row["messagesUntilExpiry"],
                row["messagesExpired"] or None,
                row["state"],
            ]
            for row in self.rows
        ]
        if with_source:
            header.insert(0, "source")
            lines = [[row["source"], *line] for row, line in zip(self.rows, lines, strict=True)]
        return [*table_lines(header, lines), "", self.line()]

    def line(self) -> str:
        """Return the totals as one line."""
        expired, unknown = self.total("messagesExpired"), sum(row["lag"] is None for row in self.rows)
        parts = [f"{self.total('lag'):,} messages unread ({_size(self.total('bytes'))})"]
        parts += [f"{expired:,} expired unread"] if expired else []
        parts += [f"unknown in {unknown} of {len(self.rows)} partitions"] if unknown else []
        return f"{utc_text(self._time)}  {'; '.join(parts)}"


def _options(arguments: argparse.Namespace) -> "ViewOptions":
    """Return what the view ``lag`` is to tell; it waits for no broker longer than for one answer."""
    from tubemq_spark.offsets.subscription import Topics
    from tubemq_spark.options import ViewOptions

    config = cluster_config(arguments)
    client = config.client
    patience_ms = min(client.rpc_timeout_ms, client.fetch_timeout_ms)
    client = dataclasses.replace(client, fetch_timeout_ms=patience_ms, lease_wait_ms=patience_ms)
    return ViewOptions(
        dataclasses.replace(config, client=client),
        Topics(tuple(dict.fromkeys(arguments.topics))) if arguments.topics else None,
        arguments.of_group,
        arguments.checkpoint,
        arguments.message_time_zone,
    )


def _lag_now(options: "ViewOptions") -> Lag:
    """Return the lag now; an unknown group is not an error of the arguments."""
    from tubemq_spark.source.views import lag as view

    now = datetime.datetime.now(datetime.UTC)
    try:
        return Lag(list(view.rows(options)), now)
    except OptionError as error:
        if error.condition != "TUBEMQ_GROUP_UNKNOWN":
            raise
        # The arguments may be right: the group may have members that have not committed a position.
        raise TubeMQError(error.condition, **error.parameters) from None


def _watch(look: "Callable[[], Lag]", seconds: float, *, as_json: bool) -> int:
    """Show what there is, again and again; an error is shown too, since brokers and masters come back."""
    if as_json or not sys.stdout.isatty():
        while True:
            lag = _look_again(look)
            if lag is not None and as_json:
                print_json(lag.to_json())
            elif lag is not None:
                sys.stdout.write(lag.line() + "\n")
            sys.stdout.flush()
            time.sleep(seconds)
    from rich.text import Text

    from tubemq_spark.cli.screen import live

    with live() as show:
        while True:
            lag = _look_again(look)
            if lag is not None:
                show(Text("\n".join([*lag.table(), *lag.problems]), no_wrap=True, overflow="crop"))
            time.sleep(seconds)


def _look_again(look: "Callable[[], Lag]") -> Lag | None:
    try:
        return look()
    except TubeMQError as error:
        if not error.retriable:
            raise
        complain(error)
        return None


def _bar(number: int | None, most: int) -> str:
    return "" if not number else "#" * max(1, round(_BAR * number / most))


def _size(size: int | None) -> str | None:
    """Return about how many bytes these are; None if that is not known."""
    if size is None:
        return None
    amount, unit = float(size), 0
    while amount >= 999.5 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{amount:.3g} {_UNITS[unit]}"


def _age(seconds: int | None) -> str | None:
    """Return a time in its two largest units; None if it is not known."""
    if seconds is None:
        return None
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86_400
    if days:
        return f"{days}d {hours % 24}h"
    return f"{hours}h {minutes % 60}m" if hours else f"{minutes}m"


_OF_LOSSES: Final = (
    *("time", "topic", "brokerId", "partition", "startOffset", "endOffset", "messages", "reason"),
    *("consumerGroup", "queryId", "batchId"),
)


@command(
    name="losses",
    summary="list the messages that queries have passed over because they were gone",
    description="List each gap that queries with the option lossLedger have passed over, once, in the "
    "order of time. No server is asked.",
    example="/data/losses/clicks",
    failure="the ledger has a gap, or cannot be read",
    arguments=(
        argument("ledger LEDGER", "the lossLedger of the queries", FOLDER),
        argument("--topic TOPIC", "only this topic; can be repeated", action="append"),
        argument("--query-id ID", "only what the tasks of this query met"),
        JSON,
    ),
)
def losses(arguments: argparse.Namespace) -> Output:
    """Tell of the gaps, and fail if there is one."""
    from tubemq_spark.options import LossesOptions
    from tubemq_spark.source.views.files import loss_rows

    gaps = [
        _gap(row)
        for row in loss_rows(LossesOptions(arguments.ledger))
        if (not arguments.topic or row["topic"] in arguments.topic)
        and arguments.query_id in (None, row["queryId"])
    ]
    lines = table_lines(_OF_LOSSES, [list(gap.values()) for gap in gaps]) if gaps else ["no losses"]
    return Output({"losses": [without_nulls(gap) for gap in gaps]}, lines, failed=bool(gaps))


def _gap(row: Any) -> dict[str, Any]:  # noqa: ANN401 (values of any type, by column)
    time: datetime.datetime = row["time"]
    named = {**row, "messages": row["rows"], "time": utc_text(time)}
    return {name: named[name] for name in _OF_LOSSES}
