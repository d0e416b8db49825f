"""Write docs/spark/views.md from the columns of the views; a unit test compares the two."""

from pathlib import Path

from tubemq_spark.options import View
from tubemq_spark.source.views.reader import VIEWS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "spark" / "views.md"

HEAD = """\
# Views

<!-- Written by `make docs` from tubemq_spark/source/views. -->

With the option `view`, a batch read returns a table about topics instead of their messages:

```python
connection = {"tubemq.master.servers": "10.1.2.3:8715"}
view = spark.read.format("tubemq").options(**connection).options(view="partitions", subscribe="demo,orders")
view.load().show()
```

- The settings of the connection are those of every read. Other options that have no effect in a view
  are refused. A stream only has messages.
- A DataFrame is a snapshot: what it shows is looked up once, in the driver, at the first action. Load
  it again for later values.
- What cannot be known now, such as the end of a store whose broker is away, is null. Each broker is
  asked once, and waited for as long as `tubemq.connectTimeoutMs` and `tubemq.rpcTimeoutMs` say.
- `.schema(...)` may name some of the columns, in any order. What only other columns need is not asked for.
"""

PARTITIONS = """
## partitions

What is there, and which brokers are away? One row per partition of the topics that `subscribe`,
`subscribePattern` or `assign` names.

```python
view.load().where("state <> 'answers'").show()
```

The brokers tell what they hold, and TubeMQ does not record when a broker went away. A running stream
logs when it no longer reached one, and for how long.
"""

LAG = """
## lag

How far is it behind? One row per partition that a streaming query or a consumer group reads. The query
is named by its checkpoint, also while it is stopped:

```python
lag = spark.read.format("tubemq").options(**connection).option("view", "lag")
(
    lag.option("checkpointLocation", "hdfs://namenode:8020/checkpoints/clicks")
    .load()
    .selectExpr("sum(rows / partitionsInStore)", "max(ageSeconds)", "min(rowsUntilExpiry)")
    .show()
)
lag.option("tubemq.group", "billing").load().show()
```

- A query stands where its last *finished* micro-batch ended. One that fails again and again therefore
  shows that it falls behind.
- A checkpoint names its topics; all their partitions count, those that the query has not seen yet from
  their beginning. Give the query's own `subscribe`, `subscribePattern` or `assign` to count exactly
  what it reads.
- A query may read TubeMQ in several sources, and other systems too: `source` tells them apart.
- A group's offsets come from the brokers' administration API, which is found with that of the masters
  (`tubemq.master.web`) and is some seconds late. With `checkpointLocation`, `tubemq.group` is only the
  group of the connection.
- A master is asked for the partitions of a group's topics under the first of the `readerGroups`, so
  that the group's consumers are left alone; a cluster that checks rights must know it.
- For `bytes`, `nextTime` and `ageSeconds` the next messages are read, one fetch per partition that has
  some, under a reader group and without moving anything. A schema without these columns avoids that.
  `ageSeconds` is exact to a minute, and as good as the producers' clocks.
- A partition of the checkpoint that no longer exists has the `state` `removed`, and `error` tells of
  data loss that the query would meet.
"""

GROUPS = """
## groups

Who reads what? One row per consumer group and partition where the group has an offset, from the
brokers' administration API. With `tubemq.group` only of that group, with `subscribe`,
`subscribePattern` or `assign` only of these topics.

```python
spark.read.format("tubemq").options(**connection).option("view", "groups").load().where("rows > 0").show()
```

The reader groups (`..._r00` and so on), under which this source reads, are in it too; their offsets
mean nothing. A group that reads through a checkpoint has an offset only with `commitOffsetsToGroup`.
"""

LOSSES = """
## losses

What was passed over? One row per gap in the
[ledger of losses](../guarantees/guarantees.md#the-ledger-of-losses) that `lossLedger` names. TubeMQ is not
asked, so `connection` is not needed.

```python
view = spark.read.format("tubemq").option("view", "losses")
view.option("lossLedger", "s3://bucket/losses").load().groupBy("topic", "reason").sum("rows").show()
```
"""

RECEIPTS = """
## receipts

What was written, and where is it? One row per write and partition, from the [manifests](receipts.md) below
`receiptsPath`. A write that had no rows has no row here. TubeMQ is not asked, so `connection` is not needed.

```python
view = spark.read.format("tubemq").option("view", "receipts")
view.option("receiptsPath", "s3://bucket/receipts").load().groupBy("topic", "outcome").sum("count").show()
```
"""

SECTIONS = {
    View.PARTITIONS: PARTITIONS,
    View.LAG: LAG,
    View.GROUPS: GROUPS,
    View.LOSSES: LOSSES,
    View.RECEIPTS: RECEIPTS,
}


def page() -> str:
    """Return the whole page."""
    return HEAD + "".join(text + _columns(view) for view, text in SECTIONS.items())


def _columns(view: View) -> str:
    rows = "".join(
        f"| `{column.name}` | `{column.type_name}` | {column.read} |\n" for column in VIEWS[view].columns
    )
    return f"\n| column | type | what it says |\n|---|---|---|\n{rows}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
