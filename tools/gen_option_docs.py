"""Write docs/reference/options.md from the table of options; a unit test compares the two."""

import re
from collections.abc import Callable
from pathlib import Path

from tubemq_spark.options.names import ENGINE_KEYS, REFUSED
from tubemq_spark.options.option import Option
from tubemq_spark.options.table import NAMED
from tubemq_spark.options.values import CLUSTER_VIEWS, Mode

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "options.md"

MODES = {
    Mode.BATCH_READ: "batch",
    Mode.STREAM_READ: "stream",
    Mode.WRITE: "write",
    Mode.PARTITIONS_VIEW: "`partitions`",
    Mode.LAG_VIEW: "`lag`",
    Mode.GROUPS_VIEW: "`groups`",
    Mode.LOSSES_VIEW: "`losses`",
    Mode.RECEIPTS_VIEW: "`receipts`",
}
ALL_VIEWS = ", ".join(MODES[mode] for mode in MODES if mode in CLUSTER_VIEWS)

HEAD = """\
# Options

<!-- Written by `make docs` from tubemq_spark/options/table.py. -->

Options of `spark.read`, `spark.readStream`, `df.write` and `df.writeStream` with `format("tubemq")`. Names
are not case-sensitive; of one that is given in two spellings the last counts. Where the concept is the
same, so are the names, defaults and rules of Spark's Kafka source.

- An unknown option is an error that names the closest one.
- An option that has no effect causes a warning: one for reading in a write, or one for streams in a batch
  read. In a view it is an error.
- *In* says where an option has an effect: a batch read, a stream read, a write of either kind, or one of the
  [views](../spark/views.md) by its name.

## You need

| for | options | usually also |
|---|---|---|
| a cluster | {master_servers}, or {gateway_servers} instead | {group}: its consumer group |
| a read | one of {subscribe}, {pattern} and {assign} | {starting}: where a new query begins |
| a stream | `checkpointLocation`, of `writeStream` | {limit}: the size of its micro-batches |
| a write | {topic}, unless the rows have a column `topic` | |

## All options

By what they are about:

"""

NEEDED = {
    "master_servers": "tubemq.master.servers",
    "gateway_servers": "tubemq.gateway.servers",
    "group": "tubemq.group",
    "subscribe": "subscribe",
    "pattern": "subscribePattern",
    "assign": "assign",
    "starting": "startingOffsets",
    "limit": "maxOffsetsPerTrigger",
    "topic": "topic",
}
"""The options that the page begins with, by the words of its head."""

POSITION = re.compile(r"starting|ending|timestampSearch|availableNow")
LIMIT = re.compile(r"(?:min|max)(?:Offsets|Bytes|Partitions|Records|Ranges|Trigger)")
SECTIONS: dict[str, Callable[[Option], object]] = {
    "TLS": lambda option: option.name.startswith("tubemq.tls."),
    "Connection": lambda option: option.name.startswith("tubemq."),
    "Writing": lambda option: option.modes <= {Mode.WRITE, Mode.RECEIPTS_VIEW},
    "Sizes of micro-batches and tasks": lambda option: LIMIT.match(option.name),
    "Where a query begins and ends": lambda option: POSITION.match(option.name),
    "Topics and messages": lambda _: True,
}
"""Which options a section has that none before it has; the page has them from the last one to the first."""

OFFSETS = """
## Offsets

A TubeMQ offset is a position in the index of a *store*, a topic's log on one broker. It counts bytes, 28
per message, so offsets are multiples of 28. It names the next message to read: a read that ends at 280 and
one that starts there share no message and skip none. The partitions of a store share its offsets.
Partitions 0 to 9999 are in store 0, 10000 to 19999 in store 1, and so on.

`startingOffsets` and `endingOffsets` take, besides `earliest` and `latest`, JSON of this form:

```json
{"demo": {"1:0": 280, "1:10000": -2, "2:0": -1}, "orders": "earliest"}
```

- A partition is written `brokerId:partitionId`; -2 is earliest and -1 latest.
- `earliest` or `latest` may stand for all partitions of a topic.
- All partitions of all topics in `subscribe` must be named, and no others.
- An offset beyond the end of the log is an error. One before its beginning is data loss: see
  `failOnDataLoss`.
- What Spark keeps in a stream's checkpoint, `{"v":1,"topics":{"demo":{"1:0":280}}}`, is accepted as it is, so
  a new query can resume where another one stopped. Its
  [marks](../guarantees/guarantees.md#logs-that-are-replaced) are looked at.
"""


KAFKA = """
## Coming from Kafka

This release does not support these options of Spark's Kafka source, nor any other that begins with
`kafka.`. The error says what to do instead. [Coming from Kafka](../spark/coming-from-kafka.md)
compares them all.

| option | instead |
|---|---|
"""

SPARK = """
## Spark's own keys

A path given to `load` or `save` has no effect; `subscribe` and `topic` name the topics. Spark also adds
keys of its own, which are ignored: """


def page() -> str:
    """Return the whole page."""
    needed = HEAD.format_map({word: _link(NAMED[name]) for word, name in NEEDED.items()})
    return f"{needed}{_options()}{OFFSETS}{_refused()}{_engine_keys()}"


def _options() -> str:
    members: dict[str, list[Option]] = {title: [] for title in reversed(SECTIONS)}
    for option in NAMED.values():
        members[next(title for title, has in SECTIONS.items() if has(option))].append(option)
    for some in members.values():
        some.sort(key=lambda option: not option.example)  # what is required comes first
    overview = "".join(f"- **{title}**: {', '.join(map(_link, some))}\n" for title, some in members.items())
    sections = (f"\n## {title}\n{''.join(map(_block, some))}" for title, some in members.items())
    return f"{overview}{''.join(sections)}"


def _link(option: Option) -> str:
    return f"[`{option.name}`](#{anchor(option)})"


def anchor(option: Option) -> str:
    """Return the anchor of an option's heading, on the site and where the repository is looked at."""
    return option.name.replace(".", "").lower()


def _block(option: Option) -> str:
    where = ", ".join(word for mode, word in MODES.items() if mode in option.modes)
    where = where.replace(ALL_VIEWS, "views")
    meaning = f"{option.doc} For example `{option.example}`." if option.example else option.doc
    default = "**required**" if option.example else f"*default:* {_default(option)}"
    return (
        f"\n### `{option.name}`\n\n{meaning}\n\n*Value:* {option.kind.expected} · {default} · *in:* {where}\n"
    )


def _default(option: Option) -> str:
    if option.default_doc:
        return option.default_doc
    return "none" if option.default is None else f"`{option.show(option.default)}`"


def _refused() -> str:
    rows = "".join(f"| `{name}` | {advice} |\n" for name, advice in REFUSED.items())
    return f"{KAFKA}{rows}"


def _engine_keys() -> str:
    names = ", ".join(f"`{key}`" for key in sorted(ENGINE_KEYS))
    return f"{SPARK}{names}, and all that begin with `option.` or `__`.\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
