"""Write docs/reference/columns.md from the table of columns; a unit test compares the two."""

from pathlib import Path

from tubemq_spark.spark.columns import READ, UNPACKED, WRITTEN

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "columns.md"

READING = """\
# Columns

<!-- Written by `make docs` from tubemq_spark/spark/columns.py. -->

## Reading

| column | type | what it holds |
|---|---|---|
"""

PROJECTION = """
Spark does not prune the columns of a Python source, so every row carries all of them unless the schema names
fewer, which is faster:

```python
spark.read.format("tubemq").schema("value binary, offset long")
```

The schema may name any of these columns in any order, each with this type.

## Reading unpacked bodies

With `payload=inlong`, [each message in a body is a row](../spark/inlong.md). These columns differ or are
added; the others say the same in all rows of a body.

| column | type | what it holds |
|---|---|---|
"""

WRITING = """
## Writing

| column | type | what it does |
|---|---|---|
"""

ORIGIN = """
A frame that was read from TubeMQ can be written as it is: `offset`, `messageId` and the columns that only
unpacked bodies have are ignored, and so are `brokerId` and `partition`, which then say where a row came from
and not where it goes. Drop `offset`, `messageId` and those columns to write to the partitions that `brokerId`
and `partition` name. Other columns are refused.
"""


def page() -> str:
    """Return the whole page."""
    read = "".join(f"| `{spec.name}` | `{spec.type_name}` | {spec.read} |\n" for spec in READ.values())
    unpacked = "".join(
        f"| `{spec.name}` | `{spec.type_name}` | {spec.unpacked} |\n"
        for spec in UNPACKED.values()
        if spec.unpacked
    )
    written = "".join(f"| `{name}` | {spec.expected} | {spec.meaning} |\n" for name, spec in WRITTEN.items())
    return f"{READING}{read}{PROJECTION}{unpacked}{WRITING}{written}{ORIGIN}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
