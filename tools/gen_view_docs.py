"""Write docs/views.md from the columns of the views; a unit test compares the two."""

from pathlib import Path

from tubemq_spark.options import View
from tubemq_spark.source.views.table import VIEWS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "views.md"

HEAD = """\
# Views

<!-- Written by `make docs` from tubemq_spark/source/views. -->

With the option `view`, a batch read returns a table about topics instead of their messages:

```python
view = spark.read.format("tubemq").options(**connection).option("view", "partitions")
```

- `connection` is what a read of the messages needs, such as `tubemq.master.servers`. Other options that
  have no effect in a view are refused. A stream only has messages.
- A DataFrame is a snapshot: what it shows is looked up once, in the driver, at the first action. Load it
  again for later values.
- What cannot be known now, such as the end of a store whose broker is away, is null. Each broker is asked
  once, and waited for as long as `tubemq.connectTimeoutMs` and `tubemq.rpcTimeoutMs` say.
- `.schema(...)` may name some of the columns, in any order.
"""

PARTITIONS = """
## partitions

What is there? One row per partition of the topics that `subscribe`, `subscribePattern` or `assign` names.

```python
view.option("subscribe", "demo,orders").load().where("state <> 'answers'").show()
```
"""

LOSSES = """
## losses

What was passed over? One row per gap in the [ledger of losses](guarantees.md#the-ledger-of-losses) that
`lossLedger` names. TubeMQ is not asked, so `connection` is not needed.

```python
view = spark.read.format("tubemq").option("view", "losses")
view.option("lossLedger", "s3://bucket/losses").load().groupBy("topic", "reason").sum("rows").show()
```
"""

SECTIONS = {View.PARTITIONS: PARTITIONS, View.LOSSES: LOSSES}


def page() -> str:
    """Return the whole page."""
    return HEAD + "".join(text + _columns(view) for view, text in SECTIONS.items())


def _columns(view: View) -> str:
    rows = "".join(
        f"| `{column.name}` | `{column.type.simpleString()}` | {column.read} |\n"
        for column in VIEWS[view].columns
    )
    return f"\n| column | type | what it says |\n|---|---|---|\n{rows}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
